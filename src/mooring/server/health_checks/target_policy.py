"""What may be probed: instances are registered by others, and some of them lie.

A probe goes to the host and port of an instance and nowhere else, to an address that was looked up
once and found harmless, with a path that the server chose. So nobody who may register makes the
server reach what only the server can: the metadata of a cloud's machine, what listens on its
loopback, the server itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

import psutil

from mooring import addresses
from mooring.formatting import quoted
from mooring.model import Instance
from mooring.server.health_checks.checkers import Target
from mooring.server.settings import CheckSettings, is_path
from mooring.tasks import in_thread

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

HEALTH_PORT = "health"
"""A port of this name among an instance's `ports` is probed in place of its main one."""
HEALTH_PATH = "healthPath"
"""In an instance's metadata: its path, where the settings let it choose."""

_NEVER: Sequence[tuple[str, Sequence[Network]]] = (
    ("unspecified", (IPv4Network("0.0.0.0/8"), IPv6Network("::/128"))),
    ("multicast", (IPv4Network("224.0.0.0/4"), IPv6Network("ff00::/8"))),
    ("broadcast or reserved", (IPv4Network("240.0.0.0/4"),)),
    ("link-local", (IPv4Network("169.254.0.0/16"), IPv6Network("fe80::/10"))),
    (
        "the metadata service of a cloud",
        (
            IPv6Network("fd00:ec2::/32"),  # Amazon
            IPv6Network("fd20:ce::/32"),  # Google
            IPv4Network("168.63.129.16/32"),  # Azure
            IPv4Network("100.100.100.200/32"),  # Alibaba
            IPv4Network("192.0.0.0/24"),  # Oracle
        ),
    ),
    # Which of its bits are an IPv4 address is each network's own affair (RFC 8215).
    ("a local translation to IPv4", (IPv6Network("64:ff9b:1::/48"),)),
)
"""Refused whatever the settings say, and why."""

_LOOPBACK: Sequence[Network] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))

_SIXTOFOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_IPV4_AT_THE_END = (
    IPv6Network("::/96"),  # compatible
    IPv6Network("::ffff:0:0:0/96"),  # translated
    IPv6Network("64:ff9b::/96"),  # NAT64
)
_ISATAP = (0x00005EFE, 0x02005EFE)

MOST_ADDRESSES = 4
"""Of one name that are tried."""

Resolver = Callable[[str], Awaitable[Sequence[str]]]
"""Looks a host name up: its IP addresses, best first. Raises `OSError` where there are none."""


class CheckSkipped(Exception):
    """This target is not probed; the message says why, and holds nothing that a lookup revealed."""


def effective_addresses(address: Address) -> Iterator[Address]:
    """What an address stands for: itself, and the IPv4 addresses in it to which a translator or a
    tunnel would lead. One that is mapped is IPv4 and nothing else."""
    if isinstance(address, IPv4Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return
    yield address
    number = int(address)
    if number > 1 and _within(address, _IPV4_AT_THE_END):
        yield IPv4Address(number & 0xFFFFFFFF)
    if address in _SIXTOFOUR:
        yield IPv4Address(number >> 80 & 0xFFFFFFFF)
    if address in _TEREDO:
        yield IPv4Address(number >> 64 & 0xFFFFFFFF)
        yield IPv4Address(~number & 0xFFFFFFFF)
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        yield IPv4Address(number & 0xFFFFFFFF)


def own_addresses() -> frozenset[Address]:
    """Those of this machine's interfaces."""
    return frozenset(
        ipaddress.ip_address(each.address.partition("%")[0])
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family in (socket.AF_INET, socket.AF_INET6)
    )


@dataclass(frozen=True, slots=True)
class TargetPolicy:
    """Which addresses may be probed."""

    networks: tuple[Network, ...] = ()
    """Where there are any, an address must be in one of them; and one of loopback in one that is
    itself of loopback, for a network that is merely wide does not mean this machine."""
    loopback: bool = False
    """Whether loopback may be probed where there are no `networks`: on a laptop."""
    ports: frozenset[int] = frozenset()
    """Where the server itself listens: not probed at its own addresses."""
    own: Callable[[], Collection[Address]] = own_addresses

    def objection(self, address: str, port: int) -> str:
        """Why an address is not to be probed, as the end of a sentence; "" where it may be."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return "is no IP address"
        if isinstance(parsed, IPv6Address) and parsed.scope_id is not None:
            return "is bound to an interface"
        objections = (self._objection(meant, port) for meant in effective_addresses(parsed))
        return next(filter(None, objections), "")

    def _objection(self, address: Address, port: int) -> str:
        for kind, networks in _NEVER:
            if _within(address, networks):
                return f"is {kind}"
        local = _within(address, _LOOPBACK)
        if port in self.ports and (local or address in self.own()):
            return "is this server itself"
        if not self.networks:
            refused = local and not self.loopback
            return "is loopback, which checks.networks must name" if refused else ""
        named = filter(_of_loopback, self.networks) if local else self.networks
        return "" if _within(address, named) else "is in none of checks.networks"


def policy(networks: Iterable[str], listening: Iterable[tuple[str, int]]) -> TargetPolicy:
    """Of a server that listens at these hosts and ports."""
    places = list(listening)
    return TargetPolicy(
        networks=tuple(ipaddress.ip_network(network) for network in networks),
        loopback=all(_is_loopback(host) for host, _ in places),
        ports=frozenset(port for _, port in places),
    )


def path_of(instance: Instance, settings: CheckSettings) -> str:
    """The path to ask for. Raises `CheckSkipped` where the instance names one that is none."""
    if not settings.metadata_path or HEALTH_PATH not in instance.metadata:
        return settings.path_for(instance.service)
    path = instance.metadata[HEALTH_PATH]
    if not is_path(path):
        raise CheckSkipped(f"{HEALTH_PATH} in its metadata is not a path")
    return path


async def targets(
    instance: Instance, settings: CheckSettings, policy: TargetPolicy, resolve: Resolver
) -> list[Target]:
    """Where to probe an instance, best first: looked up now, and every address allowed.

    Raises `CheckSkipped` where a single one is not: a name that leads to harmless and to forbidden
    places alike is a trap, or a mistake. Raises `OSError` where there is no such name.
    """
    host, port = instance.host, instance.ports.get(HEALTH_PORT, instance.port)
    path = path_of(instance, settings)
    named = not addresses.is_ip(host)
    found = await resolve(host) if named else [host]
    for address in found:
        if why := policy.objection(address, port):
            whose = "what its name leads to" if named else "its address"
            raise CheckSkipped(f"{whose} {why}")
    return [
        Target(instance.service, instance.id, instance.protocol, host, address, port, path)
        for address in found[:MOST_ADDRESSES]
    ]


class HostLookups:
    """HostLookups of names by the system, at most `most` at once: a name whose owner never answers
    keeps a thread for as long as the system waits, and no setting of ours ends it sooner."""

    def __init__(self, most: int = 16) -> None:
        self._free = asyncio.Semaphore(most)

    async def __call__(self, host: str) -> Sequence[str]:
        await self._free.acquire()
        asked = in_thread(lambda: _look_up(host), name=f"lookup {host}")
        asked.add_done_callback(lambda _: self._free.release())
        # Shielded: who waits may give up, and the thread is only free once it has ended.
        answer = await asyncio.shield(asked)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _look_up(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{quoted(host)} is no host name") from error
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _of_loopback(network: Network) -> bool:
    return _within(network[0], _LOOPBACK) and _within(network[-1], _LOOPBACK)


def _is_loopback(host: str) -> bool:
    return (
        _within(ipaddress.ip_address(host), _LOOPBACK)
        if addresses.is_ip(host)
        else (host == "localhost")
    )
