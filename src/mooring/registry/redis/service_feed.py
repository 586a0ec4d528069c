"""A service of the registry on Redis, followed: the change channel says when to look, and it is
looked at an interval too."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Set
from contextlib import asynccontextmanager

from mooring.mirror import Step, Steps
from mooring.model import Config, Instance
from mooring.registry.contract import Problem
from mooring.registry.redis.layout import ServiceKeys
from mooring.registry.redis.liveness import ServerClock, overdue, standing
from mooring.registry.redis.pubsub import STALL, ChangeChannels, ChangeMessage
from mooring.registry.redis.reader import Reader, ServiceState, with_config

log = logging.getLogger(__name__)

LOOK = 4.0
"""Seconds between looks at who is there; every sixth reads all details again. A service that cannot
be read must be stale within five seconds, and its channel does not say so."""
LOOK_DEAF = 1.5
"""The same while the change channel is not heard."""
SILENCE = 6.0
"""Seconds without an answer of Redis after which what is missing may be missing because of it."""
_WHOLE = 6
_FRESH = 1.0
"""Seconds for which a snapshot counts as read just now."""


InstanceChanges = list[tuple[str, Instance | None]]


def differing(before: Mapping[str, Instance], after: Mapping[str, Instance]) -> InstanceChanges:
    """What changed from one to the other, removals first."""
    changes: InstanceChanges = [(id, None) for id in before if id not in after]
    return changes + [(id, each) for id, each in after.items() if before.get(id) != each]


class LastAnswer:
    """When Redis last answered to anything that was asked of it for the same purpose."""

    __slots__ = ("answered",)

    def __init__(self) -> None:
        self.answered = 0.0


class ServiceFeed:
    """Instances by id. The mark is the server's time in ms.

    `timeout` is the consumer's own: who gave no sign of life for so long is left out. For `grace`
    seconds after a break nobody is, and for so long stays who is missing without a word.
    """

    def __init__(
        self,
        reader: Reader,
        changes: ChangeChannels,
        service: ServiceKeys,
        *,
        where: str,
        timeout: float,
        grace: float,
        last_answer: LastAnswer | None = None,
    ) -> None:
        self.name = f"{where} {service.name}"
        self._reader, self._changes, self._service = reader, changes, service
        self._timeout, self._grace = timeout, grace
        self._raw: dict[str, Instance] = {}
        """What instances say of themselves, without the operator's word."""
        self._shown: dict[str, Instance] = {}
        self._config: Mapping[str, Config] = {}
        self._problems: dict[str, Problem] = {}
        self._notes: tuple[Problem, ...] = ()
        self._last_answer = last_answer or LastAnswer()
        self._breaks = changes.breaks
        self.gone: set[str] = set()
        """Those of whom it was heard that they left, and after which nobody looked yet."""
        self._grace_until = 0.0
        self._since: dict[str, float] = {}
        """When those who are missing were first missed."""
        self._unproven: set[str] = set()
        """Those who are shown though they were silent at the first look, and still are."""
        self._looks = 0
        self.read = 0.0
        """When all of it was last read, on the monotonic clock."""
        self._braked = self._unheard = False
        self._late: set[str] = set()
        self._mark = 0

    @property
    def service(self) -> str:
        return self._service.name

    @property
    def problems(self) -> tuple[Problem, ...]:
        return (*self._problems.values(), *self._notes)

    @property
    def doubt(self) -> str:
        kept = f"they are kept for at most {self._grace:g} s, until their next heartbeats"
        if self._since:
            return f"{len(self._since)} instances are missing without a goodbye: {kept}"
        if self._unproven:
            return (
                f"all {len(self._unproven)} instances were silent at the first look, for Redis' "
                f"clock may have stepped before: {kept}"
            )
        return ""

    @property
    def kept(self) -> Collection[str]:
        return self._since.keys() or self._unproven

    @property
    def due(self) -> float:
        """When the first of those that are kept are dropped, on the monotonic clock."""
        missed = next(iter(self._since.values()), math.inf)  # they are in the order of time
        return min(missed + self._grace, self._grace_until if self._unproven else math.inf)

    async def explained(self, gone: Mapping[str, Instance]) -> set[str]:
        """All of them: of those that vanished it lets go after a grace period of its own."""
        return set(gone)

    async def snapshot(self) -> tuple[dict[str, Instance], int]:
        self._looks = 0
        await self.look(set())
        return dict(self._shown), self._mark

    def read_all(self) -> None:
        """Read all details with the next look."""
        self._looks = 0

    def broke(self) -> None:
        """There was a break: who is overdue now may be so because of it."""
        self._looks = 0
        if self._shown:
            self._grace_until = time.monotonic() + self._grace

    async def look(self, gone: Set[str]) -> None:
        """Who is there. Every so often, and after a break, with all details."""
        asked = time.monotonic()
        state, scores = await asyncio.gather(
            self._reader.state(self._service), self._reader.scores(self._service)
        )
        self._hear_of_a_break(asked)
        whole = self._looks % _WHOLE == 0
        self._looks += 1
        known = {} if whole else self._raw
        unknown = [id for id in scores if id not in known]
        details = await self._reader.details(self._service, unknown)
        raw = {id: known[id] for id in scores if id in known} | details.instances
        gone = gone | await self._departed(self._shown, raw, gone)
        self._raw = raw
        if whole:
            self._problems = {}
        self._report(details.problems)
        self._config, self._mark = state.config, max(state.now, 1)
        self._late = overdue(scores, state.now, self._timeout, state.clock)
        self._hear_of_the_brake(state)
        if not self.read:
            self._give_time(state.clock)
        if time.monotonic() >= self._grace_until:
            self._unproven = set()
        self._shown = self._standing(self._raw, self._shown, gone)
        self._unproven &= self._late & self._shown.keys()
        self.read = time.monotonic()

    def _give_time(self, clock: ServerClock) -> None:
        """At the first look: instances that are all overdue have time to beat, if this process has
        not read the clock for as long yet."""
        until = clock.since + self._grace
        if self._raw and self._raw.keys() <= self._late and time.monotonic() < until:
            self._grace_until, self._shown, self._unproven = until, self._raw, set(self._raw)
            log.warning("%s: %s", self.name, self.doubt)

    async def look_at(self, ids: Set[str], gone: Set[str]) -> InstanceChanges:
        """The details of some instances, of which something was heard."""
        asked = time.monotonic()
        state, details = await asyncio.gather(
            self._reader.state(self._service), self._reader.details(self._service, ids)
        )
        held = {id: self._shown[id] for id in ids if id in self._shown}
        gone = gone | await self._departed(held, details.instances, gone)
        self._hear_of_a_break(asked)
        self._config = state.config
        self._hear_of_the_brake(state)
        for id in ids:
            self._problems.pop(id, None)
            self._raw.pop(id, None)
        self._report(details.problems)
        self._raw |= details.instances
        self._late -= details.instances.keys()
        self._unproven &= self._late
        before = {id: self._shown.pop(id) for id in ids if id in self._shown}
        after = self._standing(details.instances, before, gone)
        self._shown |= after
        return differing(before, after)

    async def _departed(
        self, held: Mapping[str, Instance], listed: Mapping[str, Instance], gone: Set[str]
    ) -> set[str]:
        """Those who left without being heard: before the channel was, or since it is not."""
        missing = {
            id: instance
            for id, instance in held.items()
            if id not in listed and id not in gone and id not in self._since
        }
        return await self._reader.departed(self._service, missing)

    def _standing(
        self, listed: Mapping[str, Instance], held: Mapping[str, Instance], gone: Set[str]
    ) -> dict[str, Instance]:
        return standing(
            {id: with_config(instance, self._config) for id, instance in listed.items()},
            self._late,
            held=held,
            braked=self._braked,
            grace=time.monotonic() < self._grace_until,
            missed=self._missed(listed, held, gone),
        )

    def _missed(
        self, listed: Mapping[str, Instance], held: Mapping[str, Instance], gone: Set[str]
    ) -> list[str]:
        """Those who were there and are not, without a word, and not for too long."""
        moment, missed, dropped, doubted = time.monotonic(), [], 0, bool(self._since)
        for id in held:
            if id in listed or id in gone:
                self._since.pop(id, None)
            elif moment < self._since.setdefault(id, moment) + self._grace:
                missed.append(id)
            else:
                del self._since[id]
                dropped += 1
        if dropped:
            log.warning(
                "%s: %d instances are dropped: they were missing for %g s",
                *(self.name, dropped, self._grace),
            )
        elif bool(self._since) is not doubted:
            log.warning("%s: %s", self.name, self.doubt or "no instance is missing any more")
        return missed

    def _hear_of_a_break(self, asked: float) -> None:
        """An answer has come to what was asked: was there a break before it?"""
        moment, breaks = time.monotonic(), self._changes.breaks
        answered = self._last_answer.answered
        silent = answered and moment - answered > SILENCE
        if silent or moment - asked > STALL or breaks != self._breaks:
            self.broke()
        self._last_answer.answered, self._breaks = moment, breaks

    def _hear_of_the_brake(self, state: ServiceState) -> None:
        self._notes, brake = state.problems, state.brake
        rejects_writes = brake is not None and brake.rejects_writes
        if self._unheard and not rejects_writes:
            self.broke()  # those who could not tell that they live shall have time to
        self._unheard = rejects_writes
        if brake is not None:
            self._notes += (Problem(self._service.brake.encode(), str(brake)),)
        if (brake is not None) is not self._braked:
            self._braked = brake is not None
            log.warning("%s: the brake %s", self.name, f"holds: {brake}" if brake else "is off")

    def _report(self, problems: Mapping[str, Problem]) -> None:
        for id, problem in problems.items():
            if self._problems.get(id) != problem:
                log.warning("left out: %s", problem)
            self._problems[id] = problem

    @property
    def shown(self) -> Mapping[str, Instance]:
        return self._shown

    @property
    def mark(self) -> int:
        return self._mark

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[str, Instance], *, known: float
    ) -> AsyncIterator[Steps[str, Instance]]:
        following = _Following(self, held)
        end = self.listen(following.pending)
        try:
            if time.monotonic() - known > _FRESH:
                await following.begin()  # a service that cannot be read is not followed
            yield following
        finally:
            end()

    def listen(self, pending: PendingChanges) -> Callable[[], None]:
        """Let it hear of the changes; what is returned ends it."""
        return self._changes.listen(self._service.name, pending.hear)

    def heard(self) -> float:
        hears = self._changes.hears(self._service.name)
        return max(self._last_answer.answered, self._changes.heard if hears else 0.0)

    @property
    def deaf(self) -> bool:
        return not self._changes.hears(self._service.name)


class PendingChanges:
    """What was heard of a service, and not yet looked after. `wake` is called when there is
    something."""

    def __init__(self, feed: ServiceFeed, wake: Callable[[], None]) -> None:
        self._feed, self._wake = feed, wake
        self._ids: set[str] = set()
        self.whole = False
        """Whether everything must be looked at."""
        self._begun = False

    def hear(self, message: ChangeMessage | None) -> None:
        if message is None:
            self._feed.read_all()  # what changed before the channel was heard
            if self._begun:
                self._feed.broke()
            self._begun = self.whole = True
        elif not message.instance_id:
            self.whole = True
        else:
            self._ids.add(message.instance_id)
            if message.action == "removed":
                self._feed.gone.add(message.instance_id)
            elif message.action == "added":
                self._feed.gone.discard(message.instance_id)
        self._wake()

    @property
    def waiting(self) -> bool:
        return self.whole or bool(self._ids)

    async def look(self, held: Mapping[str, Instance]) -> InstanceChanges:
        """Look after it; how what is there differs from what is held."""
        whole, ids, gone = self.whole, self._ids, self._feed.gone
        self._ids, self._feed.gone, self.whole = set(), set(), False
        try:
            if whole:
                await self._feed.look(gone)
                return differing(held, self._feed.shown)
            return await self._feed.look_at(ids, gone)
        except BaseException:
            self._feed.gone |= gone
            self._feed.broke()
            raise


class _Following:
    def __init__(self, feed: ServiceFeed, held: Mapping[str, Instance]) -> None:
        self._feed, self._held = feed, held
        self._wake = asyncio.Event()
        self.pending = PendingChanges(feed, self._wake.set)
        self._missed: InstanceChanges = []
        """What changed before it was followed."""

    @property
    def heard(self) -> float:
        return self._feed.heard()

    async def begin(self) -> None:
        """Read everything."""
        self.pending.whole = True
        self._missed = await self.pending.look(self._held)

    async def __aiter__(self) -> AsyncIterator[Step[str, Instance]]:
        if self._missed:
            yield Step(self._feed.mark, self._missed)
        due = time.monotonic() + LOOK_DEAF  # the channel being heard comes first, as a rule
        while True:
            due = min(due, self._feed.due)
            await self._wait(due)
            self._wake.clear()
            if time.monotonic() >= due:
                self.pending.whole = True
            whole = self.pending.whole
            changes = await self.pending.look(self._held)
            if whole:
                due = time.monotonic() + (LOOK_DEAF if self._feed.deaf else LOOK)
            yield Step(self._feed.mark, changes)

    async def _wait(self, due: float) -> None:
        try:
            async with asyncio.timeout(max(due - time.monotonic(), 0)):
                await self._wake.wait()
        except TimeoutError:
            pass
