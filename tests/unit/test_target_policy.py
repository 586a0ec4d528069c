"""Which targets may be probed: forbidden addresses are refused in every form and by every name."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.messages import message
from mooring.model import Instance
from mooring.server.health_checks.target_policy import (
    CheckSkipped,
    HostLookups,
    TargetPolicy,
    effective_addresses,
    own_addresses,
    policy,
    targets,
)
from mooring.server.settings import CheckSettings

NEVER = [
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "224.0.0.1",
    "239.255.255.250",
    "ff02::1",
    "255.255.255.255",
    "240.0.0.1",
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "64:ff9b:1::1",
    "fe80::1%lo",
    "fd12::1%lo",
]
WIDE = TargetPolicy(
    networks=tuple(map(ipaddress.ip_network, ("0.0.0.0/0", "::/0", "127.0.0.0/8", "::1/128")))
)
"""Allows what can be allowed."""

FORBIDDEN_V4 = st.sampled_from(
    ["0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "192.0.0.0/24"]
).flatmap(lambda network: st.ip_addresses(v=4, network=network))


def disguises(address: IPv4Address) -> list[IPv6Address]:
    """The ways to write an IPv4 address, or to reach it, with IPv6."""
    number = int(address)
    prefix = int(IPv6Address("2001:db8::")) | 0x5EFE << 32
    return [
        IPv6Address(number | 0xFFFF << 32),
        IPv6Address(number | 0xFFFF << 48),
        IPv6Address(number | int(IPv6Address("64:ff9b::"))),
        IPv6Address(0x2002 << 112 | number << 80 | 1),
        IPv6Address(0x20010000 << 96 | number << 64 | 0xFFFF),
        IPv6Address(0x20010000 << 96 | 0x08080808 << 64 | number ^ 0xFFFFFFFF),
        IPv6Address(prefix | number),
        IPv6Address(prefix | 0x0200 << 48 | number),
    ]


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_probed(address: str):
    for one in (TargetPolicy(), TargetPolicy(loopback=True), WIDE):
        assert one.objection(address, 80)


@given(FORBIDDEN_V4)
def test_a_forbidden_address_is_refused_in_every_form(address: IPv4Address):
    assert WIDE.objection(str(address), 80)
    for disguised in disguises(address):
        assert WIDE.objection(str(disguised), 80), disguised
        assert WIDE.objection(disguised.exploded, 80), disguised


@given(st.ip_addresses(v=4, network="127.0.0.0/8"))
def test_loopback_is_recognized_in_every_form(address: IPv4Address):
    on_a_laptop = TargetPolicy(loopback=True)
    assert on_a_laptop.objection(str(address), 80) is None
    for form in (address, *disguises(address)):
        assert "loopback" in str(TargetPolicy().objection(str(form), 80))


@given(st.ip_addresses(v=4), st.integers(1, 65535))
def test_no_form_of_a_refused_address_is_allowed(address: IPv4Address, port: int):
    for one in (TargetPolicy(), TargetPolicy(loopback=True), policy(["10.0.0.0/8", "::/0"], [])):
        if one.objection(str(address), port):
            for disguised in disguises(address):
                assert one.objection(str(disguised), port), disguised


@given(st.ip_addresses())
def test_an_allowed_address_is_an_ordinary_one(address: IPv4Address | IPv6Address):
    if WIDE.objection(str(address), 80) is None:
        for effective in effective_addresses(address):
            kinds = [effective.is_unspecified, effective.is_multicast, effective.is_link_local]
            assert not any(kinds)
            assert not isinstance(effective, IPv4Address) or not effective.is_reserved


@given(st.ip_addresses(v=4), st.ip_addresses(v=4), st.integers(0, 32))
def test_configured_networks_restrict_the_targets(
    address: IPv4Address, other: IPv4Address, bits: int
):
    network = IPv4Network((other, bits), strict=False)
    narrow = TargetPolicy(networks=(network,))
    if narrow.objection(str(address), 80) is None:
        assert address in network
    if address not in network:
        assert narrow.objection(str(address), 80)


@pytest.mark.parametrize(
    ("networks", "address", "allowed"),
    [
        ([], "10.0.0.1", True),
        ([], "93.184.216.34", True),
        ([], "fd12::1", True),
        ([], "127.0.0.1", False),
        ([], "::1", False),
        (["10.0.0.0/8"], "10.0.0.1", True),
        (["10.0.0.0/8"], "::ffff:10.0.0.1", True),
        (["10.0.0.0/8"], "64:ff9b::a00:1", False),
        (["10.0.0.0/8"], "11.0.0.1", False),
        (["10.0.0.0/8"], "127.0.0.1", False),
        (["0.0.0.0/0", "::/0"], "127.0.0.1", False),
        (["0.0.0.0/0", "::/0"], "::1", False),
        (["127.0.0.0/8"], "127.0.0.1", True),
        (["127.0.0.1/32"], "127.0.0.2", False),
        (["::1/128"], "::1", True),
        (["::1/128"], "127.0.0.1", False),
        (["169.254.0.0/16"], "169.254.169.254", False),
    ],
)
def test_networks_beyond_loopback(networks: list[str], address: str, allowed: bool):
    one = policy(networks, [("10.1.1.1", 7480)])
    assert (one.objection(address, 80) is None) is allowed


@pytest.mark.parametrize(
    ("hosts", "allowed"),
    [
        (["127.0.0.1"], True),
        (["localhost", "::1"], True),
        (["127.0.0.1", "0.0.0.0"], False),
        (["::"], False),
        (["mooring.internal"], False),
    ],
)
def test_a_server_that_listens_only_on_loopback_probes_loopback(hosts: list[str], allowed: bool):
    one = policy([], [(host, 7480) for host in hosts])
    assert (one.objection("127.0.0.1", 80) is None) is allowed


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.9.9.9", "::1", "10.1.1.1", "::ffff:10.1.1.1", "64:ff9b::a01:101"]
)
def test_the_server_itself_is_not_probed(address: str):
    own = frozenset({ipaddress.ip_address("10.1.1.1")})
    one = TargetPolicy(loopback=True, ports=frozenset({7480}), own=lambda: own)
    assert one.objection(address, 7480) == message("target_is_this_server")
    assert one.objection(address, 7481) is None
    assert one.objection("10.1.1.2", 7480) is None


def test_the_addresses_of_this_machine_are_known():
    assert IPv4Address("127.0.0.1") in own_addresses()


def resolver(*addresses: str):
    asked: list[str] = []

    async def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        return addresses

    return resolve, asked


SETTINGS = CheckSettings(enabled=True)


async def test_a_name_is_resolved_once_and_its_addresses_are_the_targets():
    resolve, asked = resolver("10.0.0.1", "fd12::1")
    instance = Instance("orders", "orders.internal", 80, "http")
    probes = await targets(instance, SETTINGS, TargetPolicy(), resolve)
    assert [(probe.host, probe.address, probe.port) for probe in probes] == [
        ("orders.internal", "10.0.0.1", 80),
        ("orders.internal", "fd12::1", 80),
    ]
    assert probes[0].authority == "orders.internal:80"
    assert asked == ["orders.internal"]


async def test_an_address_is_not_resolved():
    resolve, asked = resolver("10.0.0.1")
    instance = Instance("orders", "10.9.9.9", 80)
    (target,) = await targets(instance, SETTINGS, TargetPolicy(), resolve)
    assert (target.address, asked) == ("10.9.9.9", [])


@pytest.mark.parametrize(
    "addresses", [["169.254.169.254"], ["10.0.0.1", "127.0.0.1"], ["10.0.0.1", "::ffff:127.0.0.1"]]
)
async def test_a_name_with_one_forbidden_address_is_not_probed(addresses: list[str]):
    resolve, _ = resolver(*addresses)
    instance = Instance("orders", "orders.internal", 80)
    with pytest.raises(CheckSkipped) as refused:
        await targets(instance, SETTINGS, TargetPolicy(), resolve)
    assert not any(address in str(refused.value) for address in addresses), (
        "a lookup is not revealed"
    )


async def test_a_name_that_resolves_to_loopback_is_refused():
    with pytest.raises(CheckSkipped, match="loopback"):
        await targets(Instance("orders", "localhost", 80), SETTINGS, TargetPolicy(), HostLookups())


async def test_an_invalid_name_is_a_lookup_error():
    with pytest.raises(OSError, match=r"."):
        await HostLookups()("nobody.invalid")


async def test_a_port_named_health_is_probed_instead_of_the_main_port():
    instance = Instance("orders", "10.0.0.1", 80, ports={"health": 81, "admin": 82})
    (target,) = await targets(instance, SETTINGS, TargetPolicy(), HostLookups())
    assert target.port == 81


async def test_an_instance_chooses_its_path_only_if_the_server_allows_it():
    instance = Instance("orders", "10.0.0.1", 80, metadata={"healthPath": "/up?deep=1"})
    for settings, path in (
        (CheckSettings(path="/a"), "/a"),
        (CheckSettings(paths={"orders": "/b"}), "/b"),
        (CheckSettings(paths={"shop/*": "/c", "*": "/d"}), "/d"),
        (CheckSettings(metadata_path=True), "/up?deep=1"),
    ):
        (target,) = await targets(instance, settings, TargetPolicy(), HostLookups())
        assert target.path == path


@pytest.mark.parametrize(
    "path",
    ["", "up", "//elsewhere/", "/a b", "/a\r\nHost: b", "/a\n", "/ü", "/" + "a" * 200, "http://a/"],
)
async def test_an_invalid_path_is_not_requested(path: str):
    instance = Instance("orders", "10.0.0.1", 80, metadata={"healthPath": path})
    with pytest.raises(CheckSkipped, match="healthPath"):
        await targets(instance, CheckSettings(metadata_path=True), TargetPolicy(), HostLookups())


def test_the_networks_that_are_never_probed_leave_room():
    """Private and public addresses, with and without a translator, can be probed."""
    for address in ("10.0.0.1", "192.168.1.1", "100.64.0.1", "8.8.8.8", "2001:db8::1", "fd00::1"):
        assert TargetPolicy().objection(address, 443) is None
    assert IPv6Address("64:ff9b::808:808") in IPv6Network("64:ff9b::/96")
    assert TargetPolicy().objection("64:ff9b::808:808", 443) is None
