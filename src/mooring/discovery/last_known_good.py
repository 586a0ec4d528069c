"""The list of a service after its last callable instance left.

**Deregistered.** An instance that drains, deregisters or is deregistered still serves for a
moment. If it was the last one, it stays on the list for `hold` seconds, or until another
instance can be called. With `empty="keep"` the last list stays until the registry has instances.

**Vanished.** If all instances vanish at once, or within a short time, the registry has
lost its data (`etcdctl del --prefix`, `FLUSHALL`, an empty backup) and the instances live: they
repair their records within a few seconds. Each stays on the list until it is back, for at most
`GRACE` seconds, and the list is in `doubt`. An expired lease looks the same, so a service's only
instance stays on the list equally long after it was killed. On Redis, the feed itself keeps missing
instances.

A copy of the list on disk (`InstanceCache`) serves callers that start without the registry.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import urllib.parse
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from mooring.atomic_file import DiskCopy
from mooring.discovery.exclusion import Selector, exclusion
from mooring.messages import Message, message
from mooring.mirror import Step, Steps, difference
from mooring.model import Instance, Time, now
from mooring.registry.contract import InstanceFeed
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

Empty = Literal["accept", "keep"]
"""What to do if a service has no instances left: accept it, or keep the last list."""

HOLD = 2.5
"""Seconds for which the last instances to leave are kept. Longer than consumers take to receive a
change (`LINGER`), so that an instance that serves for that long after deregistering is called until
it stops."""

GRACE = 10.0
"""Seconds for which instances that vanished without deregistering are kept. Live instances repair a
deleted record within 2 s, and a lost lease of 15 s at the next renewal, within 5 s."""

Changes = list[tuple[str, Instance | None]]


class Retention:
    """Decides which instances stay on the list. Pure: the time is passed in."""

    def __init__(self, selector: Selector, *, empty: Empty = "accept", hold: float = HOLD) -> None:
        self.items: dict[str, Instance] = {}
        """The instances in the registry."""
        self.held: dict[str, Instance] = {}
        """The instances that are listed although the registry lacks them."""
        self.due: float | None = None
        """When the held instances are released; None: at no fixed time."""
        self.reason: Message | None = None
        """Why instances are held; None if none are."""
        self.doubtful = False
        """Whether the held instances vanished without deregistering."""
        self._selector, self._empty, self._hold = selector, empty, hold
        self._recently_left: dict[str, tuple[Instance, float]] = {}

    def update(self, changes: Iterable[tuple[str, Instance | None]]) -> dict[str, Instance]:
        """Apply a change of the registry. Returns the instances that left."""
        left: dict[str, Instance] = {}
        for id, after in changes:
            before = self.items.pop(id, None)
            if after is not None:
                self.items[id] = after
            elif before is not None:
                left[id] = before
        return left

    def suspects(self, left: Mapping[str, Instance], now: float) -> dict[str, Instance]:
        """The instances that may have vanished without deregistering: those that left now or within
        the grace period, if no instance can be called any more. Empty otherwise."""
        while self._recently_left:
            id, (_, when) = next(iter(self._recently_left.items()))
            if when > now - GRACE:
                break
            del self._recently_left[id]
        for id, instance in left.items():
            self._recently_left.pop(id, None)  # to move it to the end
            self._recently_left[id] = instance, now
        if any(not exclusion(item, self._selector) for item in self.items.values()):
            return {}
        recently_left = {id: instance for id, (instance, _) in self._recently_left.items()}
        return {
            id: instance
            for id, instance in self._usable(recently_left).items()
            if id not in self.items
        }

    def _usable(self, instances: Mapping[str, Instance]) -> dict[str, Instance]:
        """Those that may be called, at least as a last resort."""
        return {
            id: instance
            for id, instance in instances.items()
            if not exclusion(instance, self._selector, last_resort=True)
        }

    def keep(
        self,
        left: Mapping[str, Instance],
        vanished: Mapping[str, Instance],
        now: float,
        *,
        kept: Collection[str] = (),
    ) -> None:
        """No instance can be called: hold those that vanished; or, if all that left now
        deregistered, hold those. The feed has `kept` some of them long enough already."""
        if not vanished.keys().isdisjoint(left):
            self.held.update(vanished)
            self.due, self.doubtful = now + GRACE, True
            self.reason = message("kept_vanished", count=len(self.held), seconds=GRACE)
            return
        last = self._usable(left)
        if not last or self.doubtful:
            return
        if self._empty == "keep" and not self.items:
            self.held.update(last)
            self._hold_last_list()
        elif self._hold > 0 and (briefly := {id: i for id, i in last.items() if id not in kept}):
            self.held.update(briefly)
            self.due = now + self._hold
            self.reason = message("kept_last_to_leave")

    def _hold_last_list(self) -> None:
        self.due, self.doubtful = None, False
        self.reason = message("kept_last_list")

    def release(self, changes: Iterable[tuple[str, Instance | None]]) -> list[str]:
        """After a change: the instances that are no longer held, because they or others
        registered."""
        others_registered = False
        for id, after in changes:
            if after is None:
                continue
            before = self.held.pop(id, None)
            same = before is not None and before.incarnation == after.incarnation
            # A returning instance shows that the rest live too.
            if not (same and self.doubtful) and not exclusion(after, self._selector):
                others_registered = True
        released = list(self.held) if others_registered else []
        if others_registered or not self.held:
            self._end()
        return released

    def expire(self, now: float) -> list[str]:
        """The instances that are no longer held because their time is over."""
        if self.due is None or now < self.due:
            return []
        if self._empty == "keep" and not self.items:
            self._hold_last_list()
            return []
        released = list(self.held)
        self._end()
        return released

    def _end(self) -> None:
        self.held.clear()
        self.due, self.doubtful, self.reason = None, False, None


class RetainedFeed:
    """The feed of a service, as a `Feed` of the list that its `Retention` decides on."""

    def __init__(
        self,
        feed: InstanceFeed,
        selector: Selector | None = None,
        *,
        empty: Empty = "accept",
        hold: float = HOLD,
    ) -> None:
        self.name = feed.name
        self._feed = feed
        self._retention = Retention(selector or Selector(), empty=empty, hold=hold)
        self._loaded = False
        self._feed_kept: Collection[str] = ()
        """The instances that the feed kept at its last step."""

    @property
    def doubt(self) -> Message | None:
        """Why instances that are shown may be left; None if there is no doubt."""
        if self._retention.doubtful:
            return self._retention.reason
        return self._feed.doubt

    @property
    def kept(self) -> bool:
        """Whether instances are shown for a while though they may be left."""
        return bool(self._retention.held or self._feed.kept)

    @property
    def reason(self) -> Message | None:
        """Why the list is in doubt or kept."""
        return self._retention.reason or self._feed.doubt

    def holds(self, id: str) -> bool:
        return id in self._retention.held or id in self._feed.kept

    def stand_in(self, items: Mapping[str, Instance]) -> None:
        """Use a list from disk until there is a snapshot."""
        self._retention.items.update(items)
        self._loaded = True

    async def snapshot(self) -> tuple[dict[str, Instance], int]:
        items, mark = await self._feed.snapshot()
        before = self._retention.items
        if self._loaded:
            await self._apply(difference(before, items))
        else:
            before.update(items)
            self._loaded = True
        return {**self._retention.held, **self._retention.items}, mark

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[str, Instance], *, known: float
    ) -> AsyncIterator[Steps[str, Instance]]:
        async with (
            self._feed.follow(mark, self._retention.items, known=known) as steps,
            aclosing(_RetainedSteps(self, steps, mark)) as retained,
        ):
            yield retained

    async def _apply(self, changes: Changes) -> Changes:
        """Apply a change of the registry. Returns how the list changes."""
        retention, before = self._retention, self._retention.reason
        left = retention.update(changes)
        released = retention.release(changes) if retention.held else []
        if left and (suspects := retention.suspects(left, time.monotonic())):
            known = await self._feed.explained(suspects)
            vanished = {id: item for id, item in suspects.items() if id not in known}
            retention.keep(left, vanished, time.monotonic(), kept=self._feed_kept)
        self._feed_kept = frozenset(self._feed.kept)
        self._report(before)
        if not left and not released:
            return changes
        held = retention.held
        shown: Changes = [update for update in changes if update[1] is not None]
        shown += [(id, item) for id, item in held.items() if id not in left]
        removed = {*left, *released} - held.keys() - retention.items.keys()
        return [(id, None) for id in removed] + shown

    def expire(self) -> Changes:
        """Release instances whose time is over. Returns how the list changes."""
        before = self._retention.reason
        released = self._retention.expire(time.monotonic())
        self._report(before)
        return [(id, None) for id in released if id not in self._retention.items]

    @property
    def due(self) -> float | None:
        return self._retention.due

    def _report(self, before: Message | None) -> None:
        reason = self._retention.reason
        if reason and reason != before:
            level = logging.WARNING if self._retention.doubtful else logging.INFO
            log.log(level, "%s: %s", self.name, reason)
        elif before and not reason:
            log.info("%s: the list follows the registry again", self.name)


class _RetainedSteps:
    """The steps of a feed, and those caused by the passage of time."""

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
            if following is None and self._feed.due is None:  # the usual case, without a task
                step = await _next(source)
            else:
                if following is None:
                    following = self._tasks.start(_next(source), name="next step of a feed")
                due = self._feed.due
                timeout = None if due is None else max(due - time.monotonic(), 0.0)
                await asyncio.wait([following], timeout=timeout)
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
    """The next step; None after the last one; the error if there is one."""
    try:
        return await anext(source)
    except StopAsyncIteration:
        return None
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return error


class CachedInstances(msgspec.Struct, frozen=True):
    """The last known instances of a service on disk."""

    service: str
    registry: str
    saved_at: Time
    instances: tuple[Instance, ...]


class InstanceCache:
    """The copy of one service in a folder, for a start without the registry.

    `registry` distinguishes registries with different instances: other stores, and other layouts of
    the same store.
    """

    def __init__(self, folder: Path, registry: str, service: str) -> None:
        self._registry, self._service = registry, service
        digest = hashlib.sha256(registry.encode()).hexdigest()[:12]
        file = folder / f"{urllib.parse.quote(service, safe='')}.{digest}.json"
        self._copy = DiskCopy(file, service)

    def load(self) -> CachedInstances | None:
        """The saved instances; None if there is no usable copy."""
        return self._copy.read(self._parse)

    def _parse(self, file: BinaryIO) -> CachedInstances:
        cached = msgspec.json.decode(file.read(), type=CachedInstances)
        if (cached.registry, cached.service) != (self._registry, self._service):
            raise ValueError(f"it is of another registry ({cached.registry})")
        return cached

    def save(self, instances: Iterable[Instance]) -> None:
        cached = CachedInstances(self._service, self._registry, now(), tuple(instances))
        self._copy.save(lambda file: file.write(msgspec.json.encode(cached)))
