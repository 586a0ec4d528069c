"""What consumers are shown when the last instance that they can call is gone.

**A goodbye.** An instance that drains, deregisters or is deregistered says so, and goes on serving
for a moment. If it was the last, it stays on the list for `hold` seconds, or until another one can
be called. With `empty="keep"` the last list stays for as long as the registry has none.

**No goodbye.** If all vanish at once, or shortly after one another, without any of them saying so,
then the registry has lost its data (`etcdctl del --prefix`, `FLUSHALL`, an empty backup) and they
live on: they repair their records within a few seconds. Each stays on the list until it is back,
for at most `GRACE` seconds, and the list is in `doubt`. A lease that expires looks the same, so the
only instance of a service that was killed stays as long, and no longer. On Redis the feed itself
keeps those that are missing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Literal

from mooring.discovery.eligibility import Selector, exclusion
from mooring.mirror import Step, Steps
from mooring.model import Instance
from mooring.registry.contract import InstanceFeed
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

Empty = Literal["accept", "keep"]
"""What to do if a service has no instances left: believe it, or keep the last list."""

HOLD = 2.5
"""Seconds that the last instances to leave are kept. Longer than it takes consumers to hear of a
change (`LINGER`), so that one that serves for as long without a record is called until it stops."""

GRACE = 10.0
"""Seconds that those that vanished without a goodbye are kept. Live instances repair a deleted
record within 2 s, and a lost lease of 15 s when they next renew it, within 5 s."""

Changes = list[tuple[str, Instance | None]]


class Retention:
    """Decides who stays on the list. Pure: time is passed in."""

    def __init__(
        self,
        selector: Selector,
        *,
        empty: Empty = "accept",
        hold: float = HOLD,
        grace: float = GRACE,
    ) -> None:
        self.items: dict[str, Instance] = {}
        """What the registry has."""
        self.held: dict[str, Instance] = {}
        """What is shown beside it, though it is gone."""
        self.due: float | None = None
        """When those that are held are let go; None: not by time."""
        self.reason = ""
        """Why instances are held."""
        self.doubtful = False
        """Whether they vanished without a goodbye."""
        self._selector, self._empty, self._hold, self._grace = selector, empty, hold, grace
        self._lately: dict[str, tuple[Instance, float]] = {}

    def change(self, changes: Iterable[tuple[str, Instance | None]]) -> dict[str, Instance]:
        """The registry has changed; those that it no longer has."""
        gone: dict[str, Instance] = {}
        for id, after in changes:
            before = self.items.pop(id, None)
            if after is not None:
                self.items[id] = after
            elif before is not None:
                gone[id] = before
        return gone

    def suspects(self, gone: Mapping[str, Instance], now: float) -> dict[str, Instance]:
        """Those that may have vanished, if no instance can be called any more: those that went now,
        and shortly before. Otherwise none, and they are remembered for a while."""
        while self._lately:
            id, (_, when) = next(iter(self._lately.items()))
            if when > now - self._grace:
                break
            del self._lately[id]
        for id, instance in gone.items():
            self._lately.pop(id, None)  # so that it is the last again
            self._lately[id] = instance, now
        if self._can_call():
            return {}
        lately = {id: instance for id, (instance, _) in self._lately.items()}
        return {
            id: instance
            for id, instance in lately.items()
            if id not in self.items and not exclusion(instance, self._selector, last_resort=True)
        }

    def _can_call(self) -> bool:
        return any(not exclusion(each, self._selector) for each in self.items.values())

    def hold(
        self,
        gone: Mapping[str, Instance],
        vanished: Mapping[str, Instance],
        now: float,
        *,
        kept: Collection[str] = (),
    ) -> None:
        """No instance can be called: keep those that vanished, or, if all that went now said
        goodbye, those. The feed has `kept` some of them for long enough."""
        if not vanished.keys().isdisjoint(gone):
            self.held.update(vanished)
            self.due, self.doubtful = now + self._grace, True
            self.reason = (
                f"{len(self.held)} instances vanished without a goodbye: they are kept for at most "
                f"{self._grace:g} s, until they repair their records"
            )
            return
        last = {
            id: i for id, i in gone.items() if not exclusion(i, self._selector, last_resort=True)
        }
        if not last or self.doubtful:
            return
        if self._empty == "keep" and not self.items:
            self.held.update(last)
            self._keep()
        elif self._hold > 0 and (left := {id: i for id, i in last.items() if id not in kept}):
            self.held.update(left)
            self.due = now + self._hold
            self.reason = "no other instance can be called: the last ones that left are kept"

    def _keep(self) -> None:
        self.due, self.doubtful = None, False
        self.reason = "the service has no instances left: the last list is kept"

    def let_go(self, changes: Iterable[tuple[str, Instance | None]]) -> list[str]:
        """After a change: those that are held no longer, since they or others came."""
        strangers = False
        for id, after in changes:
            if after is None:
                continue
            before = self.held.pop(id, None)
            same = before is not None and before.incarnation == after.incarnation
            if not (same and self.doubtful) and not exclusion(after, self._selector):
                strangers = True  # one that came back shows that the others live, too
        released = list(self.held) if strangers else []
        if strangers or not self.held:
            self._end()
        return released

    def expire(self, now: float) -> list[str]:
        """Time has passed: those that are held no longer."""
        if self.due is None or now < self.due:
            return []
        if self._empty == "keep" and not self.items:
            self._keep()
            return []
        released = list(self.held)
        self._end()
        return released

    def _end(self) -> None:
        self.held.clear()
        self.due, self.doubtful, self.reason = None, False, ""


class RetainedFeed:
    """The feed of a service, as a `Feed` that shows what its `Retention` decides."""

    def __init__(
        self,
        feed: InstanceFeed,
        selector: Selector | None = None,
        *,
        empty: Empty = "accept",
        hold: float = HOLD,
        grace: float = GRACE,
    ) -> None:
        self.name = feed.name
        self._feed = feed
        self._retention = Retention(selector or Selector(), empty=empty, hold=hold, grace=grace)
        self._loaded = False
        self._kept: Collection[str] = ()
        """Those that the feed kept at its last step."""

    @property
    def doubt(self) -> str:
        """Why instances that are shown may be gone; empty if there is no doubt."""
        if self._retention.doubtful:
            return self._retention.reason
        return self._feed.doubt

    @property
    def kept(self) -> bool:
        """Whether instances are shown for a while though they may be gone."""
        return bool(self._retention.held or self._feed.kept)

    @property
    def reason(self) -> str:
        """Why the list is in doubt or kept, in words."""
        return self._retention.reason or self._feed.doubt

    def holds(self, id: str) -> bool:
        return id in self._retention.held or id in self._feed.kept

    def stand_in(self, items: Mapping[str, Instance]) -> None:
        """What was there, as far as is known without the registry."""
        self._retention.items.update(items)
        self._loaded = True

    async def snapshot(self) -> tuple[dict[str, Instance], int]:
        items, mark = await self._feed.snapshot()
        before = self._retention.items
        if self._loaded:
            gone: Changes = [(id, None) for id in before if id not in items]
            news = [(id, each) for id, each in items.items() if before.get(id) != each]
            await self._apply([*gone, *news])
        else:
            before.update(items)
            self._loaded = True
        return {**self._retention.held, **self._retention.items}, mark

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[str, Instance], *, known: float
    ) -> AsyncIterator[Steps[str, Instance]]:
        async with self._feed.follow(mark, self._retention.items, known=known) as steps:
            retained = _RetainedSteps(self, steps, mark)
            try:
                yield retained
            finally:
                await retained.aclose()

    async def _apply(self, changes: Changes) -> Changes:
        """The registry has changed: how what is shown changes."""
        retention, before = self._retention, self._retention.reason
        gone = retention.change(changes)
        released = retention.let_go(changes) if retention.held else []
        if gone:
            suspects = retention.suspects(gone, time.monotonic())
            if suspects:
                known = await self._feed.explained(suspects)
                vanished = {id: each for id, each in suspects.items() if id not in known}
                retention.hold(gone, vanished, time.monotonic(), kept=self._kept)
        self._kept = frozenset(self._feed.kept)
        self._report(before)
        if not gone and not released:
            return changes
        held = retention.held
        shown: Changes = [change for change in changes if change[1] is not None]
        shown += [(id, each) for id, each in held.items() if id not in gone]
        left = {*gone, *released} - held.keys() - retention.items.keys()
        return [(id, None) for id in left] + shown

    def expire(self) -> Changes:
        """Time has passed: how what is shown changes."""
        before = self._retention.reason
        released = self._retention.expire(time.monotonic())
        self._report(before)
        return [(id, None) for id in released if id not in self._retention.items]

    @property
    def due(self) -> float | None:
        return self._retention.due

    def _report(self, before: str) -> None:
        reason = self._retention.reason
        if reason and reason != before:
            level = logging.WARNING if self._retention.doubtful else logging.INFO
            log.log(level, "%s: %s", self.name, reason)
        elif before and not reason:
            log.info("%s: the list is that of the registry again", self.name)


class _RetainedSteps:
    """The steps of a feed, and those that time makes."""

    def __init__(self, feed: RetainedFeed, steps: Steps[str, Instance], mark: int) -> None:
        self._feed, self._steps, self._mark = feed, steps, mark
        self._tasks = Tasks()

    @property
    def heard(self) -> float:
        return self._steps.heard

    async def __aiter__(self) -> AsyncIterator[Step[str, Instance]]:
        source = aiter(self._steps)
        following: asyncio.Task[object] | None = None
        while True:
            if following is None and self._feed.due is None:  # the usual way, without a task
                try:
                    step: object = await anext(source)
                except StopAsyncIteration:
                    return
            else:
                if following is None:
                    following = self._tasks.start(_next(source), name="next step of a feed")
                due = self._feed.due
                left = None if due is None else max(due - time.monotonic(), 0.0)
                await asyncio.wait([following], timeout=left)
                if not following.done():
                    yield Step(self._mark, self._feed.expire(), heard=False)
                    continue
                step, following = following.result(), None
            if isinstance(step, Exception):
                raise step
            if not isinstance(step, Step):
                return
            self._mark = step.mark
            yield Step(step.mark, await self._feed._apply(list(step.changes)))

    async def aclose(self) -> None:
        await self._tasks.aclose()


async def _next(source: AsyncIterator[Step[str, Instance]]) -> object:
    """The next step; None after the last, or the error that there is in its place."""
    try:
        return await anext(source)
    except StopAsyncIteration:
        return None
    except Exception as error:  # noqa: BLE001 - the one that waits for it raises it
        return error
