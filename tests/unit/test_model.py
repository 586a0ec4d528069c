"""Instances: validated when they are created, and changed by operator overrides."""

from __future__ import annotations

import msgspec
import pytest

from mooring.errors import InvalidRequest
from mooring.model import MAX_METADATA, Config, Instance, RecordedMetadata, applied

UNSPECIFIED = (
    *("0.0.0.0", "::", "0:0:0:0:0:0:0:0", "::0.0.0.0", "::ffff:0.0.0.0", "::ffff:0:0", "[::]"),
    *("0", "00", "0x0", "0X00", "0.0", "000.0.0.0", "0x0.0.0x0.0", "0.0.0.0."),
)
"""Ways to write the address that means every address of a machine."""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"port": 0}, "between 1 and 65535"),
        ({"port": 70000}, "between 1 and 65535"),
        ({"port": "80"}, "between 1 and 65535"),
        ({"port": True}, "between 1 and 65535"),
        *(({"host": host}, "every address") for host in UNSPECIFIED),
        ({"host": "fe80::1%eth0"}, "zone .%eth0., which names a network interface"),
        ({"host": "2001:db8::1%1"}, "cannot call it"),
        ({"host": "0x7f000001"}, "looks like an IP address"),
        ({"host": "127.1"}, "looks like an IP address"),
        ({"host": "[::1]"}, "has brackets"),
        ({"host": "a b"}, "neither"),
        ({"service": "a//b"}, "two slashes"),
        ({"weight": -1}, "at least 0"),
        ({"weight": float("nan")}, "at least 0"),
        ({"weight": float("inf")}, "at least 0"),
        ({"metadata": {"a": 1}}, "write both as text"),
        ({"metadata": {1: "a"}}, "write both as text"),
        ({"ports": {"http": 0}}, "between 1 and 65535"),
        ({"ports": {"": 80}}, "needs a name"),
        ({"id": "a b"}, "space or a control"),
    ],
)
def test_invalid_fields_are_refused(fields: dict[str, object], message: str):
    with pytest.raises(InvalidRequest, match=message):
        Instance(**{"service": "a", "host": "10.0.0.1", "port": 80, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "host", ["web", "web.1", "0x0.example", "10.0.0.1", "::1", "fe80::1", "::ffff:10.0.0.1"]
)
def test_a_reachable_host_is_accepted(host: str):
    assert Instance("a", host, 80).host == host


def test_the_id_defaults_to_the_address():
    assert Instance("a", "10.0.0.1", 80).id == "10.0.0.1:80"
    assert Instance("a", "::1", 80).id == "[::1]:80"
    assert Instance("a", "10.0.0.1", 80, id="x").id == "x"


def test_callers_of_a_protocol_use_its_port_if_there_is_one():
    instance = Instance("a", "10.0.0.1", 80, ports={"http": 8080})
    assert instance.address_for("http") == "10.0.0.1:8080"
    assert instance.address_for("grpc") == "10.0.0.1:80"


def test_operator_overrides_win_and_those_of_the_instance_over_those_of_the_service():
    own = Config(weight=3, metadata={"a": "own"}, values={"x": 1})
    service = Config(
        weight=5, enabled=False, zone="z", metadata={"a": "s", "b": "s"}, values={"x": 0, "y": [2]}
    )
    instance = Instance(
        "a", "10.0.0.1", 80, zone="q", metadata={"a": "said", "c": "said"}, config=own
    )
    seen = applied(instance, service)
    assert (seen.weight, seen.enabled, seen.zone) == (3, False, "z")
    assert seen.metadata == {"a": "own", "b": "s", "c": "said"}
    assert seen.config.values == {"x": 1, "y": [2]}


def test_without_overrides_an_instance_is_unchanged():
    instance = Instance("a", "10.0.0.1", 80, zone="q", weight=2)
    assert applied(instance) is instance


def test_metadata_has_at_most_64_kib():
    most = {"a": "x" * (MAX_METADATA - 1)}
    instance = Instance("echo", "10.0.0.1", 80, metadata=most)
    for more in ({"b": "x" * MAX_METADATA}, {"ä": "ä" * (MAX_METADATA // 2)}):
        with pytest.raises(InvalidRequest, match=r"metadata of echo has \d+ bytes.*65536"):
            Instance("echo", "10.0.0.1", 80, metadata=more)
        with pytest.raises(InvalidRequest, match="metadata of echo"):
            msgspec.structs.replace(instance, metadata=more)


def test_larger_metadata_that_was_already_registered_is_still_read():
    config = Config(metadata={"b": "x" * MAX_METADATA})
    large = RecordedMetadata({"a": "x" * (MAX_METADATA + 1)})
    instance = Instance("echo", "10.0.0.1", 80, metadata=large, config=config)
    assert set(applied(instance).metadata) == {"a", "b"}
