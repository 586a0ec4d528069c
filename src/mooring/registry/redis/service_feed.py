"""The feed of one service of the registry on Redis: read when its change channel reports a change,
and at an interval."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Set
from contextlib import asynccontextmanager, closing
from typing import TypeAlias

from mooring.messages import Message, message, verbatim
from mooring.mirror import Step, Steps, difference
from mooring.model import Config, Instance
from mooring.registry.contract import Problem
from mooring.registry.redis.consumer_liveness import ServerClock, overdue, visible
from mooring.registry.redis.layout import ServiceKeys
from mooring.registry.redis.pubsub import STALL, ChangeChannels, ChangeMessage
from mooring.registry.redis.reader import Reader, ServiceState, with_config
from mooring.tasks import wait_for

log = logging.getLogger(__name__)

POLL = 4.0
"""Seconds between two reads; every sixth reads all details again. A service that cannot be read
must be stale within five seconds, and its channel does not report that."""
POLL_UNSUBSCRIBED = 1.5
"""Seconds between two reads without a subscription to the change channel."""
SILENCE = 6.0
"""Seconds without an answer of Redis after which instances may be missing because of that."""
_WHOLE = 6
_FRESH = 1.0
"""Seconds for which a snapshot is fresh enough to follow from."""

InstanceChanges: TypeAlias = list[tuple[str, Instance | None]]


class LastAnswer:
    """When Redis last answered one of the feeds that share this."""

    def __init__(self) -> None:
        self.time = 0.0

    def ends_break(self, asked: float) -> bool:
        """Redis answered a request: whether there was a break before the answer."""
        moment, last = time.monotonic(), self.time
        self.time = moment
        return moment - asked > STALL or bool(last and moment - last > SILENCE)


class ServiceFeed:
    """Instances by id. The mark is the server's time in ms.

    `timeout` is the consumer's own: instances without a heartbeat for that long are left out. For
    `grace` seconds after a break none is, and an instance that is missing without deregistering is
    kept for as long.
    """

    def __init__(
        self,
        reader: Reader,
        channels: ChangeChannels,
        service: ServiceKeys,
        *,
        where: str,
        timeout: float,
        grace: float,
        last_answer: LastAnswer,
    ) -> None:
        self.name = verbatim(f"{where} {service.name}")
        self.service = service.name
        self.mark = 0
        self.visible: dict[str, Instance] = {}
        self.departed: set[str] = set()
        """Instances whose deregistration was announced since the last read."""
        self.refreshed_at = 0.0
        """When the service was last read as a whole, on the monotonic clock."""
        self.channels, self._reader, self._keys = channels, reader, service
        self._timeout, self._grace = timeout, grace
        self._listed: dict[str, Instance] = {}
        """The instances in Redis, without operator overrides."""
        self._config: Mapping[str, Config] = {}
        self._problems: dict[str, Problem] = {}
        self._service_problems: tuple[Problem, ...] = ()
        self._last_answer = last_answer
        self._breaks = channels.breaks
        self._grace_until = 0.0
        self._missing_since: dict[str, float] = {}
        self._unproven: set[str] = set()
        """Instances that were silent at the first read, are silent still, and are kept."""
        self._reads = 0
        self._braked = self._rejects_writes = False
        self._late: set[str] = set()

    @property
    def problems(self) -> tuple[Problem, ...]:
        return (*self._problems.values(), *self._service_problems)

    @property
    def doubt(self) -> Message | None:
        if missing := len(self._missing_since):
            return message("kept_missing", count=missing, seconds=self._grace)
        if unproven := len(self._unproven):
            return message("kept_unproven", count=unproven, seconds=self._grace)
        return None

    @property
    def kept(self) -> Collection[str]:
        return self._missing_since.keys() or self._unproven

    @property
    def due(self) -> float:
        """When the first kept instances are dropped, on the monotonic clock."""
        missing = next(iter(self._missing_since.values()), math.inf)  # the oldest comes first
        return min(missing + self._grace, self._grace_until if self._unproven else math.inf)

    @property
    def subscribed(self) -> bool:
        return self.channels.hears(self.service)

    @property
    def heard(self) -> float:
        return max(self._last_answer.time, self.channels.heard if self.subscribed else 0.0)

    async def explained(self, gone: Mapping[str, Instance]) -> set[str]:
        """All of them: this feed keeps instances that vanished for a grace period of its own."""
        return set(gone)

    async def snapshot(self) -> tuple[dict[str, Instance], int]:
        self.read_details()
        await self.refresh(set())
        return dict(self.visible), self.mark

    def read_details(self) -> None:
        """Read all details again at the next read."""
        self._reads = 0

    def broke(self) -> None:
        """There was a break: instances that are overdue now may be so because of it."""
        self.read_details()
        if self.visible:
            self._grace_until = time.monotonic() + self._grace

    async def refresh(self, departed: Set[str]) -> None:
        """Read the service. At intervals, and after a break, with all details."""
        asked = time.monotonic()
        state, scores = await asyncio.gather(
            self._reader.state(self._keys), self._reader.scores(self._keys)
        )
        self._check_for_break(asked)
        whole = self._reads % _WHOLE == 0
        self._reads += 1
        known = {} if whole else self._listed
        unknown = [id for id in scores if id not in known]
        details = await self._reader.details(self._keys, unknown)
        listed = {id: known[id] for id in scores if id in known} | details.instances
        departed = departed | await self._unannounced(self.visible, listed, departed)
        self._listed = listed
        if whole:
            self._problems = {}
        self._report(details.problems)
        self._config, self.mark = state.config, max(state.now, 1)
        self._late = overdue(scores, state.now, self._timeout, state.clock)
        self._check_brake(state)
        if not self.refreshed_at:
            self._give_time(state.clock)
        if time.monotonic() >= self._grace_until:
            self._unproven = set()
        self.visible = self._visible(self._listed, self.visible, departed)
        self._unproven &= self._late & self.visible.keys()
        self.refreshed_at = time.monotonic()

    def _give_time(self, clock: ServerClock) -> None:
        """At the first read, keep instances that are all overdue until each had time for a
        heartbeat, unless this process has read the clock for that long already."""
        until = clock.since + self._grace
        if self._listed and self._listed.keys() <= self._late and time.monotonic() < until:
            self._grace_until, self.visible = until, self._listed
            self._unproven = set(self._listed)
            log.warning("%s: %s", self.name, self.doubt)

    async def refresh_some(self, ids: Set[str], departed: Set[str]) -> InstanceChanges:
        """Read the details of some instances."""
        asked = time.monotonic()
        state, details = await asyncio.gather(
            self._reader.state(self._keys), self._reader.details(self._keys, ids)
        )
        before = {id: self.visible[id] for id in ids if id in self.visible}
        departed = departed | await self._unannounced(before, details.instances, departed)
        self._check_for_break(asked)
        self._config = state.config
        self._check_brake(state)
        for id in ids:
            self._problems.pop(id, None)
            self._listed.pop(id, None)
        self._report(details.problems)
        self._listed |= details.instances
        self._late -= details.instances.keys()
        self._unproven &= self._late
        before = {id: self.visible.pop(id) for id in ids if id in self.visible}
        after = self._visible(details.instances, before, departed)
        self.visible |= after
        return difference(before, after)

    async def _unannounced(
        self, before: Mapping[str, Instance], listed: Mapping[str, Instance], departed: Set[str]
    ) -> set[str]:
        """Instances whose deregistration was not received, because the feed was not subscribed."""
        missing = {
            id: instance
            for id, instance in before.items()
            if id not in listed and id not in departed and id not in self._missing_since
        }
        return await self._reader.departed(self._keys, missing)

    def _visible(
        self, listed: Mapping[str, Instance], before: Mapping[str, Instance], departed: Set[str]
    ) -> dict[str, Instance]:
        return visible(
            {id: with_config(instance, self._config) for id, instance in listed.items()},
            self._late,
            before=before,
            braked=self._braked,
            grace=time.monotonic() < self._grace_until,
            kept=self._missing(listed, before, departed),
        )

    def _missing(
        self, listed: Mapping[str, Instance], before: Mapping[str, Instance], departed: Set[str]
    ) -> list[str]:
        """Instances that are missing without deregistering, for less than the grace period."""
        moment, missing, dropped = time.monotonic(), [], 0
        were_missing = bool(self._missing_since)
        for id in before:
            if id in listed or id in departed:
                self._missing_since.pop(id, None)
            elif moment < self._missing_since.setdefault(id, moment) + self._grace:
                missing.append(id)
            else:
                del self._missing_since[id]
                dropped += 1
        if dropped:
            log.warning(
                "%s: %d instances are dropped: they were missing for %g s",
                self.name,
                dropped,
                self._grace,
            )
        elif bool(self._missing_since) is not were_missing:
            log.warning("%s: %s", self.name, self.doubt or "no instance is missing any more")
        return missing

    def _check_for_break(self, asked: float) -> None:
        before, self._breaks = self._breaks, self.channels.breaks
        if self._last_answer.ends_break(asked) or self._breaks != before:
            self.broke()

    def _check_brake(self, state: ServiceState) -> None:
        self._service_problems, brake = state.problems, state.brake
        rejects_writes = brake is not None and brake.rejects_writes
        if self._rejects_writes and not rejects_writes:
            self.broke()  # instances need time: their heartbeats were rejected
        self._rejects_writes = rejects_writes
        if brake is not None:
            self._service_problems += (Problem(self._keys.brake.encode(), str(brake)),)
        if (brake is not None) is not self._braked:
            self._braked = brake is not None
            change = f"engaged: {brake}" if brake else "released"
            log.warning("%s: the brake is %s", self.name, change)

    def _report(self, problems: Mapping[str, Problem]) -> None:
        for id, problem in problems.items():
            if self._problems.get(id) != problem:
                log.warning("left out: %s", problem)
            self._problems[id] = problem

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[str, Instance], *, known: float
    ) -> AsyncIterator[Steps[str, Instance]]:
        with closing(ServiceWatch(self, held)) as watch:
            if time.monotonic() - known > _FRESH:
                await watch.begin()  # fails if the service cannot be read
            yield watch


class ServiceWatch:
    """Reads a service after messages on its change channel, and at an interval. `held` is what the
    owner knows of the service, and `pace` may stretch the interval."""

    def __init__(
        self,
        feed: ServiceFeed,
        held: Mapping[str, Instance],
        pace: Callable[[float], float] = lambda pause: pause,
    ) -> None:
        self.feed, self.held = feed, held
        self.whole = False
        """Whether the next read covers the whole service."""
        self._ids: set[str] = set()
        self._pace, self._wake = pace, asyncio.Event()
        self._pending: InstanceChanges = []
        self._subscribed = False
        self.schedule(POLL_UNSUBSCRIBED)  # usually the subscription is confirmed before that
        self.close = feed.channels.subscribe(feed.service, self._on_message)

    def schedule(self, pause: float) -> None:
        """Read the whole service after `pause` seconds."""
        self.due = time.monotonic() + self._pace(pause)

    def read_soon(self) -> None:
        self.whole = True
        self._wake.set()

    def _on_message(self, message: ChangeMessage | None) -> None:
        if message is None:
            self.feed.read_details()  # of changes from before the subscription
            if self._subscribed:
                self.feed.broke()
            self._subscribed = self.whole = True
        elif not message.instance_id:
            self.whole = True
        else:
            self._ids.add(message.instance_id)
            if message.action == "removed":
                self.feed.departed.add(message.instance_id)
            elif message.action == "added":
                self.feed.departed.discard(message.instance_id)
        self._wake.set()

    async def wait(self, until: float) -> None:
        """Wait for a message, or until the next read of the whole service is due."""
        await wait_for(self._wake, within=max(until - time.monotonic(), 0))
        self._wake.clear()
        if time.monotonic() >= until:
            self.whole = True

    async def read(self) -> InstanceChanges:
        """Read what changed. Returns the differences to `held`."""
        feed, ids, departed = self.feed, self._ids, self.feed.departed
        whole, self.whole = self.whole, False
        self._ids, feed.departed = set(), set()
        try:
            if not whole:
                return await feed.refresh_some(ids, departed)
            await feed.refresh(departed)
        except BaseException:
            feed.departed |= departed
            feed.broke()
            raise
        self.schedule(POLL if feed.subscribed else POLL_UNSUBSCRIBED)
        return difference(self.held, feed.visible)

    async def begin(self) -> None:
        """Read the whole service before it is followed."""
        self.whole = True
        self._pending = await self.read()

    @property
    def heard(self) -> float:
        return self.feed.heard

    async def __aiter__(self) -> AsyncIterator[Step[str, Instance]]:
        if self._pending:
            yield Step(self.feed.mark, self._pending)
        while True:
            await self.wait(min(self.due, self.feed.due))
            yield Step(self.feed.mark, await self.read())
