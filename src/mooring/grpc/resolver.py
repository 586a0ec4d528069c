"""The addresses of a service, followed on the hub's loop, as one target of gRPC's."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from mooring.addresses import is_ip, join
from mooring.discovery.rotation import Member, Rotation
from mooring.discovery.view import View
from mooring.errors import NoInstance, Unavailable
from mooring.grpc.target import reason
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

_TOGETHER = 0.02  # seconds in which changes count as one, since each costs new connections
_NAMES_AGAIN = 30.0  # seconds after which names are looked up again
_NAMES_WITHIN = 5.0  # seconds that a look-up may take

Address = tuple[str, int]


def target_of(addresses: Iterable[Address]) -> str:
    """The target of many addresses, in a fixed order; empty for none. They must be of one family,
    so among IPv6 ones those of IPv4 are written as such."""
    found = sorted({(ipaddress.ip_address(host), port) for host, port in addresses}, key=str)
    if not found:
        return ""
    if all(address.version == 4 for address, _ in found):
        return "ipv4:" + ",".join(join(str(address), port) for address, port in found)
    sixes = (f"::ffff:{a}" if a.version == 4 else str(a) for a, _ in found)
    return "ipv6:" + ",".join(
        join(host, port) for host, (_, port) in zip(sixes, found, strict=True)
    )


def in_turn(rotation: Rotation, salt: bytes) -> list[Member]:
    """Those to call one after another. gRPC calls all alike, so that of other zones there are only
    as many as bring them the share of calls that spills over. `salt` makes each caller choose
    others."""
    members = [member for member in rotation if member.in_rotation]
    local = [member for member in members if member.local]
    if rotation.mode != "spill-over" or not local:
        return members
    remote = [member for member in members if not member.local]
    remote.sort(key=lambda member: blake2b(member.node.id.encode(), key=salt).digest())
    leave = round(len(local) * (1 - rotation.local_share) / rotation.local_share)
    return local + remote[: max(leave, 1)]


class Addresses:
    """Tells of the target at the beginning and at each change; with it, why it is empty. Its
    methods run on the hub's loop."""

    def __init__(
        self,
        service: str,
        discover: Callable[[], View],
        told: Callable[[str, str], None],
        doubt: Callable[[str], None],
    ) -> None:
        self._service = service
        self._discover, self._told, self._doubt = discover, told, doubt
        self._view: View | None = None
        self._changed = asyncio.Event()
        self._named: dict[Address, Sequence[Address]] = {}
        """What names stood for when that could last be told."""
        self._salt = os.urandom(16)
        self._tasks = Tasks()

    def start(self) -> None:
        self._tasks.start(self._follow(), name=f"instances of {self._service} for gRPC")

    async def _follow(self) -> None:
        try:
            view = await self._opened()
        except Exception as error:  # noqa: BLE001 - every call reports it
            log.error("%s: no call can be made: %s", self._service, reason(error))
            self._told("", f"{self._service}: {reason(error)}")
            return
        view.subscribe(lambda _: self._changed.set())
        before: tuple[str, str] | None = None
        while True:
            self._changed.clear()
            now = await self._look(view)
            if now != before:
                self._told(*now)
                before = now
            await self._change(view)

    async def _opened(self) -> View:
        """Wait for the first list as long as it takes."""
        backoff, before = Backoff(), ""
        while True:
            view = self._discover()
            try:
                self._view = await view.__aenter__()
            except Unavailable as error:
                if before != (before := str(error)):
                    log.warning("%s: no call can be made yet: %s", self._service, error)
                    self._doubt(before)
                await asyncio.sleep(backoff.next())
            else:
                return view

    async def _look(self, view: View) -> tuple[str, str]:
        where = [
            (member.instance.host, member.instance.port_for("grpc"))
            for member in in_turn(view.rotation, self._salt)
        ]
        if not where:
            try:
                view.rotation.pick()
            except NoInstance as error:
                return "", str(error)
        found = await asyncio.gather(*(self._resolved(host, port) for host, port in where))
        self._named = {
            name: addresses
            for name, addresses in zip(where, found, strict=True)
            if not is_ip(name[0])
        }
        target = target_of(address for addresses in found for address in addresses)
        return target, "" if target else f"{self._service}: no name of an instance can be resolved"

    async def _resolved(self, host: str, port: int) -> Sequence[Address]:
        """Its addresses; those of before where they cannot be told at present."""
        if is_ip(host):
            return [(host, port)]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_NAMES_WITHIN):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            before = self._named.get((host, port), ())
            told = "still called where it was" if before else "cannot be called"
            log.warning("%s:%d %s: %s", host, port, told, str(error) or "no answer of the resolver")
            return before
        return [(str(address[0]), port) for *_, address in found]

    async def _change(self, view: View) -> None:
        named = any(not is_ip(member.instance.host) for member in view.rotation)
        try:
            async with asyncio.timeout(_NAMES_AGAIN if named else None):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_TOGETHER)

    async def aclose(self) -> None:
        await self._tasks.aclose()
        if self._view is not None:
            await self._view.aclose()
