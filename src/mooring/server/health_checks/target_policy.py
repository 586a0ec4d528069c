"""Which addresses may be probed, since a client that registers instances may be malicious.

A probe connects only to the host and port of the instance, at an address that was resolved once and
allowed, with a path that the server chose. So a client cannot make the server connect to what only
the server can reach: cloud metadata services, its loopback interface, the server itself.
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
from mooring.messages import Message, message
from mooring.model import Instance
from mooring.server.health_checks.checkers import Target
from mooring.server.settings import CheckSettings, is_path
from mooring.tasks import in_thread

IPAddress: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

HEALTH_PORT = "health"
"""An instance with a port of this name is probed there, instead of at its main port."""
HEALTH_PATH = "healthPath"
"""The metadata field with the path, if the settings let instances choose it."""

_NEVER: Sequence[tuple[str, Sequence[Network]]] = (
    ("target_unspecified", (IPv4Network("0.0.0.0/8"), IPv6Network("::/128"))),
    ("target_multicast", (IPv4Network("224.0.0.0/4"), IPv6Network("ff00::/8"))),
    ("target_reserved", (IPv4Network("240.0.0.0/4"),)),
    ("target_link_local", (IPv4Network("169.254.0.0/16"), IPv6Network("fe80::/10"))),
    (
        "target_cloud_metadata",
        (
            IPv6Network("fd00:ec2::/32"),  # Amazon
            IPv6Network("fd20:ce::/32"),  # Google
            IPv4Network("168.63.129.16/32"),  # Azure
            IPv4Network("100.100.100.200/32"),  # Alibaba
            IPv4Network("192.0.0.0/24"),  # Oracle
        ),
    ),
    # Each network decides itself which bits embed an IPv4 address (RFC 8215).
    ("target_translated", (IPv6Network("64:ff9b:1::/48"),)),
)
"""Refused regardless of the settings, by the kind of the objection."""

_LOOPBACK: Sequence[Network] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))

_SIXTOFOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_IPV4_AT_THE_END = (
    IPv6Network("::/96"),  # compatible
    IPv6Network("::ffff:0:0:0/96"),  # translated
    IPv6Network("64:ff9b::/96"),  # NAT64
)
_ISATAP = (0x00005EFE, 0x02005EFE)

MAX_ADDRESSES = 4
"""Addresses of one host name that are tried."""

ResolveHost = Callable[[str], Awaitable[Sequence[str]]]
"""Resolves a host name to IP addresses, best first. Raises `OSError` if there are none."""


class CheckSkipped(Exception):
    """The instance is not probed. The message says why, without the addresses of its host name."""

    def __init__(self, reason: Message) -> None:
        super().__init__(reason.text)
        self.message = reason


def effective_addresses(address: IPAddress) -> Iterator[IPAddress]:
    """The address itself, and the IPv4 addresses in it to which a translator or tunnel would
    forward. A mapped address is only IPv4."""
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


def own_addresses() -> frozenset[IPAddress]:
    """The addresses of this machine's interfaces."""
    return frozenset(
        ipaddress.ip_address(assigned.address.partition("%")[0])
        for interface in psutil.net_if_addrs().values()
        for assigned in interface
        if assigned.family in (socket.AF_INET, socket.AF_INET6)
    )


@dataclass(frozen=True, slots=True)
class TargetPolicy:
    """Which addresses and ports may be probed."""

    networks: tuple[Network, ...] = ()
    """If not empty, an address must be in one of them. A loopback address must be in a loopback
    network: a wide network is not meant to include this machine."""
    loopback: bool = False
    """Whether loopback may be probed if there are no `networks`, as on a laptop."""
    ports: frozenset[int] = frozenset()
    """The ports of this server, which are not probed at its own addresses."""
    own: Callable[[], Collection[IPAddress]] = own_addresses

    def objection(self, address: str, port: int) -> Message | None:
        """Why an address must not be probed, to follow a subject; None if it may be."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return message("target_not_an_ip")
        if isinstance(parsed, IPv6Address) and parsed.scope_id is not None:
            return message("target_has_scope")
        objections = (self._objection(meant, port) for meant in effective_addresses(parsed))
        return next(filter(None, objections), None)

    def _objection(self, address: IPAddress, port: int) -> Message | None:
        for kind, networks in _NEVER:
            if _within(address, networks):
                return message(kind)
        local = _within(address, _LOOPBACK)
        if port in self.ports and (local or address in self.own()):
            return message("target_is_this_server")
        if not self.networks:
            refused = local and not self.loopback
            return message("target_loopback") if refused else None
        allowed = filter(_is_loopback_network, self.networks) if local else self.networks
        return None if _within(address, allowed) else message("target_not_in_networks")


def policy(networks: Iterable[str], listening: Iterable[tuple[str, int]]) -> TargetPolicy:
    """The policy of a server that listens at these hosts and ports."""
    listening = list(listening)
    return TargetPolicy(
        networks=tuple(ipaddress.ip_network(network) for network in networks),
        loopback=all(addresses.is_loopback(host) for host, _ in listening),
        ports=frozenset(port for _, port in listening),
    )


def _path_of(instance: Instance, settings: CheckSettings) -> str:
    """Raises `CheckSkipped` if the instance chose an invalid path."""
    if not settings.metadata_path or HEALTH_PATH not in instance.metadata:
        return settings.path_for(instance.service)
    path = instance.metadata[HEALTH_PATH]
    if not is_path(path):
        raise CheckSkipped(message("health_path_invalid", name=HEALTH_PATH))
    return path


async def targets(
    instance: Instance, settings: CheckSettings, policy: TargetPolicy, resolve: ResolveHost
) -> list[Target]:
    """The targets for an instance, best first. Resolves the host name and checks every address.

    Raises `CheckSkipped` if any address is not allowed: a name with both allowed and forbidden
    addresses is a trap or a mistake. Raises `OSError` if the name cannot be resolved.
    """
    host, port = instance.host, instance.ports.get(HEALTH_PORT, instance.port)
    path = _path_of(instance, settings)
    resolved = [host] if addresses.is_ip(host) else await resolve(host)
    for address in resolved:
        if objection := policy.objection(address, port):
            kind = "address_refused" if addresses.is_ip(host) else "host_address_refused"
            raise CheckSkipped(message(kind, problem=objection))
    return [
        Target(instance.service, instance.id, instance.protocol, host, address, port, path)
        for address in resolved[:MAX_ADDRESSES]
    ]


class HostLookups:
    """Resolves names with the system's resolver, at most `most` at once: a name server that never
    answers blocks a thread until the system gives up, which cannot be shortened."""

    def __init__(self, most: int = 16) -> None:
        self._free = asyncio.Semaphore(most)

    async def __call__(self, host: str) -> Sequence[str]:
        await self._free.acquire()
        lookup = in_thread(lambda: _look_up(host), name=f"lookup {host}")
        lookup.add_done_callback(lambda _: self._free.release())
        # Shielded: the caller may be cancelled, but the thread is busy until the lookup ends.
        result = await asyncio.shield(lookup)
        if isinstance(result, BaseException):
            raise result
        return result


def _look_up(host: str) -> list[str]:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{quoted(host)} is not a host name") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in entries))


def _within(address: IPAddress, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _is_loopback_network(network: Network) -> bool:
    return _within(network[0], _LOOPBACK) and _within(network[-1], _LOOPBACK)
