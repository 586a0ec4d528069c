"""Resolves a service to one gRPC target of many addresses, and follows its changes."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from mooring.addresses import is_ip, join
from mooring.discovery.rotation import Rotation, RotationMember
from mooring.discovery.view import View, open_view
from mooring.formatting import describe
from mooring.tasks import Tasks, wait_for

log = logging.getLogger(__name__)

_MERGE_WINDOW = 0.02  # seconds within which changes are merged, since each costs new connections
_LOOKUP_INTERVAL = 30.0  # seconds between two lookups of host names
_LOOKUP_TIMEOUT = 5.0  # seconds

Address = tuple[str, int]


def target_of(addresses: Iterable[Address]) -> str:
    """The target of many addresses, in a fixed order; empty for none. A target has one address
    family: if there are IPv6 addresses, IPv4 ones are mapped to IPv6."""
    sorted_addresses = sorted(
        {(ipaddress.ip_address(host), port) for host, port in addresses}, key=str
    )
    if not sorted_addresses:
        return ""
    if all(ip.version == 4 for ip, _ in sorted_addresses):
        return "ipv4:" + ",".join(join(str(ip), port) for ip, port in sorted_addresses)
    return "ipv6:" + ",".join(
        join(f"::ffff:{ip}" if ip.version == 4 else str(ip), port) for ip, port in sorted_addresses
    )


def in_turn(rotation: Rotation, salt: bytes) -> list[RotationMember]:
    """The instances to call in turn. gRPC calls all equally often, so during a spill-over only as
    many remote ones are included as correspond to its share, chosen by the caller's `salt`."""
    members = [member for member in rotation if member.in_rotation]
    local = [member for member in members if member.local]
    if rotation.mode != "spill-over" or not local:
        return members
    remote = [member for member in members if not member.local]
    remote.sort(key=lambda member: blake2b(member.node.id.encode(), key=salt).digest())
    count = round(len(local) * (1 - rotation.local_share) / rotation.local_share)
    return local + remote[: max(count, 1)]


class TargetResolver:
    """Calls `on_target` on the hub's loop with each target, and with the reason if it is empty;
    until there is a first list, `on_unavailable` with the reason."""

    def __init__(
        self,
        service: str,
        discover: Callable[[], View],
        on_target: Callable[[str, str], None],
        on_unavailable: Callable[[str], None],
    ) -> None:
        self._service = service
        self._discover = discover
        self._on_target, self._on_unavailable = on_target, on_unavailable
        self._view: View | None = None
        self._changed = asyncio.Event()
        self._last_lookups: dict[Address, Sequence[Address]] = {}
        """The result of the last successful lookup of each host name."""
        self._salt = os.urandom(16)
        self._tasks = Tasks()
        self._tasks.start(self._follow(), name=f"instances of {self._service} for gRPC")

    async def _follow(self) -> None:
        try:
            self._view = view = await open_view(self._discover, self._on_unavailable)
        except Exception as error:  # noqa: BLE001 - every call reports it
            log.error("%s: no call can be made: %s", self._service, describe(error))
            self._on_target("", f"{self._service}: {describe(error)}")
            return
        view.subscribe(lambda _: self._changed.set())
        before: tuple[str, str] | None = None
        while True:
            self._changed.clear()
            now = await self._resolve(view)
            if now != before:
                self._on_target(*now)
                before = now
            has_names = any(not is_ip(member.instance.host) for member in view.rotation)
            if await wait_for(self._changed, within=_LOOKUP_INTERVAL if has_names else None):
                await asyncio.sleep(_MERGE_WINDOW)

    async def _resolve(self, view: View) -> tuple[str, str]:
        """The target, and why it is empty."""
        hosts = [
            (member.instance.host, member.instance.port_for("grpc"))
            for member in in_turn(view.rotation, self._salt)
        ]
        if not hosts:
            return "", str(view.rotation.unavailable_reason())
        lookups = await asyncio.gather(*(self._lookup(host, port) for host, port in hosts))
        self._last_lookups = {
            host: addresses
            for host, addresses in zip(hosts, lookups, strict=True)
            if not is_ip(host[0])
        }
        target = target_of(address for addresses in lookups for address in addresses)
        return target, "" if target else f"{self._service}: no host of an instance can be resolved"

    async def _lookup(self, host: str, port: int) -> Sequence[Address]:
        """The addresses of a host; those of the last successful lookup if this one fails."""
        if is_ip(host):
            return [(host, port)]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT):
                results = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            before = self._last_lookups.get((host, port), ())
            effect = "keeps its last addresses" if before else "cannot be called"
            log.warning("%s:%d %s: %s", host, port, effect, str(error) or "the lookup timed out")
            return before
        return [(str(address[0]), port) for *_, address in results]

    async def aclose(self) -> None:
        await self._tasks.aclose()
        if self._view is not None:
            await self._view.aclose()
