"""Polls the registry at a limited rate: for silent instances, brakes and empty services.

If the store does not answer, the last results stay. The mirror does not depend on them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from mooring.errors import Closed, StoreError
from mooring.messages import Message
from mooring.registry.contract import Discovery
from mooring.registry.evictions import Evictions
from mooring.server.live.services import KnownService
from mooring.tasks import Schedule, Tasks

log = logging.getLogger(__name__)

READ_RATE = 200
"""Reads per second for silence: one for each lease, and a few for each service."""
EVERY = 3.0
"""Seconds between two polls of the silence of a service, if the rate allows it."""
SOON = 0.3
"""Seconds until a service with a new instance is polled."""
_MIN_INTERVAL = 1.0
_READS_PER_SERVICE = 5
BRAKES = 5.0
BRAKE_RATE = 50
"""Services per second whose brakes are polled."""
NAMES = 60.0
STALE = 0.5


class _PolledFleet(Protocol):
    """A `Fleet`, which receives the results."""

    def names(self) -> list[str]: ...
    def service(self, name: str) -> KnownService | None: ...
    def update_silence(self, service: str, silent: Mapping[str, float]) -> None: ...
    def update_brakes(self, brakes: Mapping[str, Message]) -> None: ...
    def update_names(self, names: Collection[str], *, kept: Collection[str] = ()) -> None: ...
    def check_staleness(self) -> None: ...


class Poller:
    def __init__(
        self, fleet: _PolledFleet, discovery: Discovery, evictions: Evictions | None
    ) -> None:
        self._fleet, self._discovery, self._evictions = fleet, discovery, evictions
        self._tasks = Tasks()
        self._schedule: Schedule[str] = Schedule()
        """The services by the time of their next poll for silence."""
        self._polled: dict[str, float] = {}

    def start(self) -> None:
        for poll, name in (
            (self._poll_next_silence, "silence"),
            (self._poll_brakes, "brakes"),
            (self._poll_names, "names of services"),
            (self._check_staleness, "staleness"),
        ):
            self._tasks.start(self._repeat(poll), name=f"polling of {name}")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    async def _repeat(self, poll: Callable[[], Awaitable[float]]) -> None:
        """Call `poll` again after the seconds that it returns."""
        while True:
            try:
                pause = await poll()
            except Closed:
                return
            except StoreError as error:
                log.debug("polling the registry failed: %s", error)  # the mirror reports it
                pause = 1.0
            except Exception:
                log.exception("polling the registry failed; retrying")
                pause = 5.0
            await asyncio.sleep(pause)

    def soon(self, service: str) -> None:
        """Poll a service soon, because it has a new instance."""
        due = max(time.monotonic() + SOON, self._polled.get(service, 0.0) + _MIN_INTERVAL)
        self._schedule.plan(service, due)

    async def _poll_next_silence(self) -> float:
        service = await self._schedule.next()
        known = self._fleet.service(service)
        if known is None or not known.instances:
            self._polled.pop(service, None)
            return 0.0
        self._polled[service] = time.monotonic()
        try:
            silent = await self._discovery.silence(service)
        finally:
            # Jitter: in step with the renewals, every poll would see the same short silence.
            self._schedule.plan(service, time.monotonic() + EVERY * random.uniform(0.8, 1.2))
        self._fleet.update_silence(service, silent)
        leases = len(silent) if self._discovery.guarantees.renews else 0
        return (_READS_PER_SERVICE + leases) / READ_RATE

    async def _poll_brakes(self) -> float:
        brakes = {} if self._evictions is None else await self._evictions.brakes()
        self._fleet.update_brakes({service: brake.message for service, brake in brakes.items()})
        return max(BRAKES, len(self._fleet.names()) / BRAKE_RATE)

    async def _poll_names(self) -> float:
        if self._discovery.guarantees.keeps_names:
            services = await self._discovery.services()
            kept = [service.name for service in services if not service.instances]
            self._fleet.update_names([service.name for service in services], kept=kept)
        else:
            self._fleet.update_names(await self._discovery.names())
        return NAMES

    async def _check_staleness(self) -> float:
        self._fleet.check_staleness()
        return STALE
