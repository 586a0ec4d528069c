"""The feed of all services of the registry on Redis.

Each service is watched as in its own feed, at an interval that grows with the number of services.
The list of services is read every second. A service that cannot be read does not affect the others:
its instances stay as last read.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager

from mooring.errors import Closed, StoreError, Unavailable
from mooring.messages import message, verbatim
from mooring.mirror import Step, Steps
from mooring.model import Instance
from mooring.registry.contract import InstanceKey, Problem
from mooring.registry.redis.service_feed import (
    POLL,
    LastAnswer,
    ServiceFeed,
    ServiceWatch,
)
from mooring.tasks import Tasks, slices

log = logging.getLogger(__name__)

_DISCOVERY = 1.0
"""Seconds between two reads of the list of services."""
_READS_PER_SECOND = 40
"""Services that are read within a second without a message about them. One read costs three or four
calls."""
_FIRST_READS = 50
"""Concurrent reads of a snapshot."""
_READS = 250
"""Concurrent reads of services: those on an unavailable node must leave room for others."""


class AllServicesFeed:
    """Instances by service and id. The mark is the server's time in ms.

    `names` reads the services that have instances, and `feed` creates the feed of one.
    """

    def __init__(
        self,
        names: Callable[[], Awaitable[list[str]]],
        feed: Callable[[str, LastAnswer], ServiceFeed],
        *,
        where: str,
    ) -> None:
        self.name = message("services_of", registry=verbatim(where))
        self.last_answer = LastAnswer()
        self.unreadable: dict[str, str] = {}
        """Services that cannot be read, and why."""
        self._unavailable_since: dict[str, float] = {}
        """Services whose Redis does not answer."""
        self._names, self._create = names, feed
        self._feeds: dict[str, ServiceFeed] = {}
        self._mark = 0

    @property
    def problems(self) -> tuple[Problem, ...]:
        problems = [problem for feed in self._feeds.values() for problem in feed.problems]
        unreadable = [Problem(name.encode(), why) for name, why in self.unreadable.items()]
        return (*problems, *unreadable)

    async def snapshot(self) -> tuple[dict[InstanceKey, Instance], int]:
        names = await self.list_services()
        for name in [name for name in self._feeds if name not in names]:
            if not self._feeds[name].visible:
                self.drop(name)
        feeds = [self.feed(name) for name in sorted({*names, *self._feeds})]
        failed: list[StoreError] = []
        for batch in slices(feeds, _FIRST_READS):
            errors = await asyncio.gather(*map(self._read, batch))
            failed += [error for error in errors if error is not None]
        if feeds and len(failed) == len(feeds):
            raise failed[0]
        instances = {
            (name, id): instance
            for name, feed in self._feeds.items()
            for id, instance in feed.visible.items()
        }
        return instances, self.mark

    async def _read(self, feed: ServiceFeed) -> StoreError | None:
        try:
            await feed.snapshot()
        except Closed:
            raise
        except StoreError as error:
            self.failed(feed, error)
            return error
        self.answered(feed)
        return None

    async def list_services(self) -> set[str]:
        """The services that have instances."""
        asked = time.monotonic()
        names = set(await self._names())
        if self.last_answer.ends_break(asked):
            for feed in self._feeds.values():
                feed.broke()
        return names

    def feed(self, name: str) -> ServiceFeed:
        if name not in self._feeds:
            self._feeds[name] = self._create(name, self.last_answer)
        return self._feeds[name]

    def drop(self, name: str) -> None:
        """Drop a service without instances."""
        self._feeds.pop(name, None)
        self.unreadable.pop(name, None)
        self._unavailable_since.pop(name, None)

    def failed(self, feed: ServiceFeed, error: StoreError) -> None:
        name = feed.service
        if name not in self.unreadable:
            log.warning("%s cannot be read, its instances stay as last read: %s", name, error)
        self.unreadable[name] = str(error)
        if isinstance(error, Unavailable):
            self._unavailable_since.setdefault(name, time.monotonic())

    def answered(self, feed: ServiceFeed) -> None:
        name = feed.service
        if self.unreadable.pop(name, None) is not None:
            log.warning("%s can be read again", name)
        self._unavailable_since.pop(name, None)
        self._mark = max(self._mark, feed.mark)

    @property
    def mark(self) -> int:
        return max(self._mark, 1)

    @property
    def heard(self) -> float:
        """When Redis last answered; if a node is unavailable, when that began; if no service can be
        read, when one was last read."""
        times = [self.last_answer.time, *self._unavailable_since.values()]
        if self._feeds and self.unreadable.keys() >= self._feeds.keys():
            times.append(max(feed.refreshed_at for feed in self._feeds.values()))
        return min(times)

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[InstanceKey, Instance], *, known: float
    ) -> AsyncIterator[Steps[InstanceKey, Instance]]:
        async with aclosing(_AllServicesSteps(self, held)) as steps:
            await steps.discover()  # fails if Redis does not answer
            yield steps


class _AllServicesSteps:
    def __init__(self, feed: AllServicesFeed, held: Mapping[InstanceKey, Instance]) -> None:
        self._feed = feed
        self._services: dict[str, tuple[ServiceWatch, asyncio.Task[object]]] = {}
        self._changes: list[tuple[InstanceKey, Instance | None]] = []
        """Changes that were not reported yet."""
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(_READS)
        self._reading: set[str] = set()
        self._error: BaseException | None = None
        self._tasks = Tasks()
        by_service: dict[str, dict[str, Instance]] = {}
        for (name, id), instance in held.items():
            by_service.setdefault(name, {})[id] = instance
        for name, instances in by_service.items():
            self._watch(name, instances)

    @property
    def heard(self) -> float:
        return self._feed.heard

    def _watch(self, name: str, held: dict[str, Instance]) -> ServiceWatch:
        watch = ServiceWatch(self._feed.feed(name), held, self._pace)
        task = self._tasks.start(self._follow(name, watch, held), name=f"watch of {name}")
        self._services[name] = watch, task
        return watch

    def _pace(self, pause: float) -> float:
        """Spread the reads of many services."""
        return max(pause, len(self._services) / _READS_PER_SECOND) * random.uniform(0.8, 1.0)

    async def discover(self) -> None:
        """Watch new services and drop those without instances. Raises `StoreError`."""
        names = await self._feed.list_services()
        for name in names - self._services.keys():
            self._watch(name, {}).read_soon()
        for name in self._services.keys() - names:
            watch, task = self._services[name]
            if not watch.held and not watch.feed.visible and name not in self._reading:
                task.cancel()
                watch.close()
                del self._services[name]
                self._feed.drop(name)

    async def __aiter__(self) -> AsyncIterator[Step[InstanceKey, Instance]]:
        self._tasks.start(self._keep_discovering(), name=f"list of {self._feed.name}")
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._error is not None:
                raise self._error
            changes, self._changes = self._changes, []
            if changes:
                yield Step(self._feed.mark, changes)

    async def _keep_discovering(self) -> None:
        try:
            while True:
                await asyncio.sleep(_DISCOVERY)
                await self.discover()
        except StoreError as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._wake.set()

    async def _follow(self, name: str, watch: ServiceWatch, held: dict[str, Instance]) -> None:
        while True:
            await watch.wait(watch.due)
            self._reading.add(name)
            try:
                async with self._slots:
                    changes = await watch.read()
            except Exception as error:  # noqa: BLE001 - the mirror reports it, or the feed
                if isinstance(error, Closed) or not isinstance(error, StoreError):
                    return self._fail(error)
                self._feed.failed(watch.feed, error)
                watch.schedule(POLL)
                continue
            finally:
                self._reading.discard(name)
            self._feed.answered(watch.feed)
            for id, instance in changes:
                if instance is None:
                    held.pop(id, None)
                else:
                    held[id] = instance
                self._changes.append(((name, id), instance))
            self._wake.set()

    async def aclose(self) -> None:
        await self._tasks.aclose()
        for watch, _ in self._services.values():
            watch.close()
