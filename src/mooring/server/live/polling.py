"""What is found out by asking, at a bounded pace: silence, brakes, and services without instances.

Nothing of it is needed for the fleet to be right: where the store does not answer, what was found
before stands.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from mooring.errors import Closed, StoreError
from mooring.model import Instance
from mooring.registry.contract import Registry
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

QUESTIONS = 200
"""That are asked about silence within a second at the most: one for each lease, and a few for each
service."""
EVERY = 3.0
"""Seconds between looks at the silence of one service, where the pace allows it."""
SOON = 0.3
"""The same where somebody has just come."""
_APART = 1.0
_EACH = 5
BRAKES = 5.0
BRAKES_A_SECOND = 50
"""Services whose brakes are looked at within a second."""
NAMES = 60.0
STALE = 0.5


class _Service(Protocol):
    @property
    def instances(self) -> Mapping[str, Instance]: ...


class _Fleet(Protocol):
    """A `Fleet`, which hears of what is found."""

    def names(self) -> list[str]: ...
    def service(self, name: str) -> _Service | None: ...
    def update_silence(self, service: str, silent: Mapping[str, float]) -> None: ...
    def update_brakes(self, brakes: Mapping[str, str]) -> None: ...
    def update_names(self, names: Collection[str], *, kept: Collection[str] = ()) -> None: ...
    def check_staleness(self) -> None: ...


class Poller:
    def __init__(self, fleet: _Fleet, registry: Registry) -> None:
        self._fleet, self._registry = fleet, registry
        self._tasks = Tasks()
        self._dues: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        """By service, when it is looked at next."""
        self._last: dict[str, float] = {}
        """By service, when it was looked at."""
        self._wake = asyncio.Event()

    def start(self) -> None:
        for work, name in (
            (self._silences, "silence"),
            (self._brakes, "brakes"),
            (self._names, "names of services"),
            (self._staleness, "staleness"),
        ):
            self._tasks.start(self._run(work), name=f"sampling of {name}")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    async def _run(self, work: Callable[[], Awaitable[float]]) -> None:
        """Do it again and again; it says after how many seconds."""
        while True:
            try:
                pause = await work()
            except Closed:
                return
            except StoreError as error:
                log.debug("not found out at present: %s", error)  # the mirror tells of it
                pause = 1.0
            except Exception:
                log.exception("sampling failed, and is tried again")
                pause = 5.0
            await asyncio.sleep(pause)

    def soon(self, service: str) -> None:
        """Somebody has come, of whom nothing is known yet."""
        moment = time.monotonic()
        self._plan(service, max(moment + SOON, self._last.get(service, 0.0) + _APART))

    def _plan(self, service: str, due: float) -> None:
        if self._due.get(service, due + 1) > due:
            self._due[service] = due
            heapq.heappush(self._dues, (due, service))
            self._wake.set()

    async def _silences(self) -> float:
        """Ask about whoever is due first; how long to wait before the next."""
        while self._dues and self._due.get(self._dues[0][1]) != self._dues[0][0]:
            heapq.heappop(self._dues)  # it was planned anew
        moment = time.monotonic()
        if not self._dues or self._dues[0][0] > moment:
            self._wake.clear()
            try:
                async with asyncio.timeout(self._dues[0][0] - moment if self._dues else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            return 0.0
        _, service = heapq.heappop(self._dues)
        del self._due[service]
        return await self._silence(service)

    async def _silence(self, service: str) -> float:
        known = self._fleet.service(service)
        if known is None or not known.instances:
            self._last.pop(service, None)
            return 0.0
        self._last[service] = time.monotonic()
        try:
            silent = await self._registry.silence(service)
        finally:
            # Not in step with its renewals: always just after one, it seems never to pause.
            self._plan(service, time.monotonic() + EVERY * random.uniform(0.8, 1.2))
        self._fleet.update_silence(service, silent)
        leases = len(silent) if self._registry.guarantees.renews else 0
        return (_EACH + leases) / QUESTIONS

    async def _brakes(self) -> float:
        evictions = self._registry.evictions
        brakes = {} if evictions is None else await evictions.brakes()
        self._fleet.update_brakes({service: str(brake) for service, brake in brakes.items()})
        return max(BRAKES, len(self._fleet.names()) / BRAKES_A_SECOND)

    async def _names(self) -> float:
        if not self._registry.guarantees.keeps_names:
            self._fleet.update_names(await self._registry.names())
            return NAMES
        told = await self._registry.services()
        kept = [each.name for each in told if not each.instances]
        self._fleet.update_names([each.name for each in told], kept=kept)
        return NAMES

    async def _staleness(self) -> float:
        self._fleet.check_staleness()
        return STALE
