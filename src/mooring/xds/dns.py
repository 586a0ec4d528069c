"""Host names resolved to IP addresses, since xDS clients do not resolve names."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterable

import msgspec

from mooring.addresses import is_ip
from mooring.model import Instance

log = logging.getLogger(__name__)

RESOLVE_AGAIN = 30.0
"""Seconds after which a name is resolved again."""

_PATIENCE = 2.0
_REMEMBERED = 10_000


class HostResolver:
    """Resolves names, and keeps the last result while the name server is unavailable."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, float]] = {}

    async def resolved(self, instances: Iterable[Instance]) -> tuple[Instance, ...]:
        """The instances with IP addresses as hosts, without those whose host was never resolved."""
        there = tuple(instances)
        names = {each.host for each in there if not is_ip(each.host)}
        if not names:
            return there
        await asyncio.gather(*(self._resolve(name) for name in names))
        return tuple(
            each if each.host not in names else msgspec.structs.replace(each, host=address)
            for each in there
            if each.host not in names or (address := self._found[each.host][0])
        )

    async def _resolve(self, name: str) -> None:
        address, when = self._found.get(name, ("", float("-inf")))
        if time.monotonic() - when < RESOLVE_AGAIN / 2:
            return
        if len(self._found) > _REMEMBERED:
            self._found.clear()
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await asyncio.get_running_loop().getaddrinfo(
                    name, None, type=socket.SOCK_STREAM
                )
            address = str(found[0][4][0])
        except (OSError, UnicodeError) as error:
            if when == float("-inf"):
                log.warning(
                    "the host %s cannot be resolved; its instances are left out: %s", name, error
                )
        self._found[name] = (address, time.monotonic())
