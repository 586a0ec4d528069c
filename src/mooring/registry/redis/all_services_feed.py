"""All services of the registry on Redis, followed as one.

Each is followed as it is alone: its channel says when to look, and it is looked at an interval too,
which grows with their number. Which services there are is asked every second. One that cannot be
read costs none of the others: it stays as it was last seen.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

from mooring.errors import Closed, StoreError, Unavailable
from mooring.mirror import Step, Steps
from mooring.model import Instance
from mooring.registry.contract import Problem
from mooring.registry.redis.pubsub import STALL
from mooring.registry.redis.service_feed import (
    LOOK,
    LOOK_DEAF,
    SILENCE,
    InstanceChanges,
    LastAnswer,
    PendingChanges,
    ServiceFeed,
)
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

NAMES = 1.0
"""Seconds between looks at which services there are."""
LOOKS = 40
"""Services that are looked at within a second at the most, if nothing is heard of them: each look
is three or four calls."""
_AT_ONCE = 50
"""Services that are read at once to begin with."""
_LOOKING = 250
"""Services that are looked at at once: those whose node is away must leave room for others."""

Where: TypeAlias = tuple[str, str]


class AllServicesFeed:
    """Instances by service and id. The mark is the server's time in ms.

    `names` tells which services have instances, `feed` makes what follows one.
    """

    def __init__(
        self,
        names: Callable[[], Awaitable[list[str]]],
        feed: Callable[[str, LastAnswer], ServiceFeed],
        *,
        where: str,
    ) -> None:
        self.name = f"{where} every service"
        self.last_answer = LastAnswer()
        self.unread: dict[str, str] = {}
        """Services that cannot be read at present, and why."""
        self._away: dict[str, float] = {}
        """Those of them whose Redis does not answer, and since when."""
        self._names, self._make = names, feed
        self._feeds: dict[str, ServiceFeed] = {}
        self._mark = 0

    @property
    def problems(self) -> tuple[Problem, ...]:
        told = [problem for feed in self._feeds.values() for problem in feed.problems]
        return (*told, *(Problem(name.encode(), why) for name, why in self.unread.items()))

    async def snapshot(self) -> tuple[dict[Where, Instance], int]:
        names = await self.listed()
        for name in [name for name in self._feeds if name not in names]:
            if not self._feeds[name].shown:
                self.drop(name)
        wanted = [self.feed(name) for name in sorted({*names, *self._feeds})]
        failed: list[StoreError] = []
        for first in range(0, len(wanted), _AT_ONCE):
            some = wanted[first : first + _AT_ONCE]
            told = await asyncio.gather(*map(self._read, some))
            failed += [error for error in told if error is not None]
        if wanted and len(failed) == len(wanted):
            raise failed[0]
        found = {
            (name, id): each
            for name, feed in self._feeds.items()
            for id, each in feed.shown.items()
        }
        return found, self.mark

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

    async def listed(self) -> set[str]:
        """The services that have instances."""
        asked = time.monotonic()
        names = set(await self._names())
        moment, answered = time.monotonic(), self.last_answer.answered
        if moment - asked > STALL or (answered and moment - answered > SILENCE):
            for feed in self._feeds.values():
                feed.broke()
        self.last_answer.answered = moment
        return names

    def feed(self, name: str) -> ServiceFeed:
        if name not in self._feeds:
            self._feeds[name] = self._make(name, self.last_answer)
        return self._feeds[name]

    def drop(self, name: str) -> None:
        """It has no instances any more."""
        self._feeds.pop(name, None)
        self.unread.pop(name, None)
        self._away.pop(name, None)

    def failed(self, feed: ServiceFeed, error: StoreError) -> None:
        name = feed.service
        if name not in self.unread:
            log.warning("%s cannot be read and stays as it was last seen: %s", name, error)
        self.unread[name] = str(error)
        if isinstance(error, Unavailable):
            self._away.setdefault(name, time.monotonic())

    def answered(self, feed: ServiceFeed) -> None:
        name = feed.service
        if self.unread.pop(name, None) is not None:
            log.warning("%s can be read again", name)
        self._away.pop(name, None)
        self._mark = max(self._mark, feed.mark)

    @property
    def mark(self) -> int:
        return max(self._mark, 1)

    @property
    def heard(self) -> float:
        """Where the node of some service does not answer, when that began; where no service can be
        read, when one last could."""
        times = [self.last_answer.answered, *self._away.values()]
        if self._feeds and self.unread.keys() >= self._feeds.keys():
            times.append(max(feed.read for feed in self._feeds.values()))
        return min(times)

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[Where, Instance], *, known: float
    ) -> AsyncIterator[Steps[Where, Instance]]:
        following = _Following(self, held)
        try:
            await following.find()  # who does not answer is not followed
            yield following
        finally:
            await following.aclose()


class _Followed:
    """One service among all."""

    __slots__ = ("busy", "due", "end", "feed", "held", "pending")

    def __init__(self, feed: ServiceFeed, wake: Callable[[], None]) -> None:
        self.feed = feed
        self.held: dict[str, Instance] = {}
        """What was told of it."""
        self.pending = PendingChanges(feed, wake)
        self.busy = False
        self.due = 0.0
        self.end = feed.listen(self.pending)


class _Following:
    def __init__(self, every: AllServicesFeed, held: Mapping[Where, Instance]) -> None:
        self._every = every
        self._services: dict[str, _Followed] = {}
        self._pending: dict[str, None] = {}
        """Services of which something was heard, or which are due."""
        self._dues: list[tuple[float, str]] = []
        self._changes: list[tuple[Where, Instance | None]] = []
        """What was found and not told yet."""
        self._wake = asyncio.Event()
        self._looking = 0
        self._listed: set[str] = set()
        self._broken: BaseException | None = None
        self._tasks = Tasks()
        for (name, id), instance in held.items():
            self._join(name).held[id] = instance

    @property
    def heard(self) -> float:
        return self._every.heard

    def _join(self, name: str) -> _Followed:
        followed = self._services.get(name)
        if followed is None:

            def wake() -> None:
                self._pending[name] = None
                self._wake.set()

            followed = self._services[name] = _Followed(self._every.feed(name), wake)
            self._plan(name, followed, LOOK_DEAF)
        return followed

    def _plan(self, name: str, followed: _Followed, pause: float) -> None:
        pause = max(pause, len(self._services) / LOOKS) * random.uniform(
            0.8, 1.0
        )  # not all at once
        followed.due = time.monotonic() + pause
        heapq.heappush(self._dues, (followed.due, name))

    async def find(self) -> None:
        """Which services there are now. Raises what a store raises."""
        self._listed = await self._every.listed()
        for name in self._listed:
            if name not in self._services:
                followed = self._join(name)
                followed.pending.whole = True
                self._pending[name] = None
        for name in [name for name in self._services if name not in self._listed]:
            followed = self._services[name]
            if not followed.held and not followed.feed.shown and not followed.busy:
                followed.end()
                del self._services[name]
                self._pending.pop(name, None)
                self._every.drop(name)

    async def __aiter__(self) -> AsyncIterator[Step[Where, Instance]]:
        self._tasks.start(self._keep_finding(), name=f"services of {self._every.name}")
        while True:
            await self._wait()
            if self._broken is not None:
                raise self._broken
            self._begin()
            changes, self._changes = self._changes, []
            if changes:
                yield Step(self._every.mark, changes)

    async def _keep_finding(self) -> None:
        try:
            while True:
                await asyncio.sleep(NAMES)
                await self.find()
                self._wake.set()
        except StoreError as error:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self._wake.set()

    async def _wait(self) -> None:
        """Until something was heard or found, or somebody is due."""
        pause = max(self._dues[0][0] - time.monotonic(), 0) if self._dues else NAMES
        if not self._changes:
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass
        self._wake.clear()

    def _begin(self) -> None:
        """Look after those of whom something was heard, and those who are due."""
        moment = time.monotonic()
        while self._dues and self._dues[0][0] <= moment:
            due, name = heapq.heappop(self._dues)
            followed = self._services.get(name)
            if followed is not None and followed.due == due:
                followed.pending.whole = True
                self._pending[name] = None
        while self._pending and self._looking < _LOOKING:
            name = next(iter(self._pending))
            del self._pending[name]
            followed = self._services.get(name)
            if followed is not None and not followed.busy:
                followed.busy = True
                self._looking += 1
                self._tasks.start(self._look(name, followed), name=f"look at {name}")

    async def _look(self, name: str, followed: _Followed) -> None:
        whole = followed.pending.whole
        try:
            found = await followed.pending.look(followed.held)
        except Closed as error:
            self._break(error)
        except StoreError as error:
            self._every.failed(followed.feed, error)
            self._plan(name, followed, LOOK)
        except Exception as error:  # noqa: BLE001 - the mirror tells of it, and reads again
            self._break(error)
        else:
            self._every.answered(followed.feed)
            self._take(name, followed, found)
            if whole:
                self._plan(name, followed, LOOK_DEAF if followed.feed.deaf else LOOK)
        finally:
            followed.busy = False
            self._looking -= 1
            if followed.pending.waiting:
                self._pending[name] = None
            self._wake.set()

    def _take(self, name: str, followed: _Followed, found: InstanceChanges) -> None:
        for id, after in found:
            if after is None:
                followed.held.pop(id, None)
            else:
                followed.held[id] = after
            self._changes.append(((name, id), after))

    async def aclose(self) -> None:
        await self._tasks.aclose()
        for followed in self._services.values():
            followed.end()
