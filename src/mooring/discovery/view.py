"""A live view of a service: its instances, those that may be called, and the next one to call.

```python
async with hub.discover("Common/AuthenticationService") as auth:
    async with auth.pick() as instance:
        ...  # the picker learns from the result and the duration
```
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self, TypedDict, TypeVar

from mooring import telemetry
from mooring.discovery.exclusion import Explanation, Selector
from mooring.discovery.last_known_good import HOLD, Empty, InstanceCache, RetainedFeed
from mooring.discovery.resilience import Resilience, RetryBudget, blames
from mooring.discovery.rotation import Rotation
from mooring.errors import Closed, NoInstance, Unavailable
from mooring.messages import message
from mooring.mirror import Change, Mirror, Update
from mooring.model import Instance
from mooring.registry.contract import InstanceFeed
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

T = TypeVar("T")

_TICK = 1.0  # seconds at most between two ticks of the rotation: a call may eject an instance
_SAVE_DELAY = 1.0  # seconds within which changes are saved together


class DiscoveryOptions(TypedDict, total=False):
    """Options of `hub.discover` that the channels and transports pass on."""

    version: str
    tags: Mapping[str, str]
    zone: str
    zone_only: bool
    where: Callable[[Instance], bool]
    resilience: Resilience
    empty: Empty
    hold: float


class ViewState(NamedTuple):
    """The instances of a service as this process knows them."""

    instances: tuple[Instance, ...]
    mark: int
    """The revision of the registry; 0 for a copy from disk."""
    age: float
    """Seconds since the last contact with the registry."""
    stale: bool
    """Whether the list may be stale: the registry is silent, this is a copy from disk, or all
    instances vanished without deregistering."""
    kept: bool
    """Whether some of the instances are kept for a while although the registry lacks them."""
    reason: str
    """Why instances are kept or the list is in doubt; empty if it equals the registry's."""


class View:
    """Created by `hub.discover`; use it as an async context manager.

    Entering waits at most `wait` seconds for the first list. If the registry is unavailable, it
    uses a copy from disk, and without one it raises `Unavailable`. If the hub is closed meanwhile,
    it raises `Closed` at once. Afterwards, no failure removes instances: the view keeps the last
    list, and is `stale`. It also keeps the list for a while if all instances vanish at once without
    deregistering. The last instances to leave are called for another `hold` seconds: see
    `mooring.discovery.last_known_good`.
    """

    def __init__(
        self,
        feed: InstanceFeed,
        service: str,
        *,
        policy: str = "p2c",
        selector: Selector | None = None,
        resilience: Resilience | None = None,
        empty: Empty = "accept",
        hold: float = HOLD,
        cache: InstanceCache | None = None,
        blame: Callable[[BaseException], bool] = blames,
        wait: float = 5.0,
    ) -> None:
        self.service: str = service
        """The name of the service, with its group."""
        self.rotation = Rotation(service, policy=policy, selector=selector, resilience=resilience)
        self.retries = RetryBudget(self.rotation.resilience)
        self.blame = blame
        self._cache, self._wait = cache, wait
        self._retained = RetainedFeed(feed, self.rotation.selector, empty=empty, hold=hold)
        self._mirror: Mirror[str, Instance] = Mirror(self._retained, wait=False)
        self._mirror.subscribe(self._apply)  # first, so that others see what was applied
        self._from_disk = self._entered = False
        self._changed, self._unsaved = asyncio.Event(), asyncio.Event()
        self._tasks = Tasks()

    @property
    def seen(self) -> ViewState:
        """The current list of instances, its age, and whether it may be stale."""
        return ViewState(
            tuple(member.instance for member in self.rotation),
            self._mirror.mark,
            self._mirror.age,
            self.stale,
            self._retained.kept,
            str(self._retained.reason or ""),
        )

    @property
    def instances(self) -> tuple[Instance, ...]:
        """All registered instances, whether or not they may be called."""
        return self.seen.instances

    @property
    def stale(self) -> bool:
        """Whether the list may be stale."""
        return self._from_disk or self._mirror.stale or bool(self._retained.doubt)

    @property
    def age(self) -> float:
        """Seconds since the last contact with the registry."""
        return self._mirror.age

    def pick(self, key: str | bytes | None = None, *, exclude: Collection[str] = ()) -> Pick:
        """A context manager around one call: it returns the instance to call, and learns from the
        result. Entering raises `NoInstance` if no instance can be called. `key` is for consistent
        hashing; `exclude` lists the ids that were tried already."""
        return Pick(self, key, exclude)

    async def call(
        self,
        work: Callable[[Instance], Awaitable[T]],
        *,
        key: str | bytes | None = None,
        tries: int = 3,
    ) -> T:
        """Call `work` with an instance, and retry with another one after an error that is the
        instance's fault, for at most `tries` attempts and within the retry budget. Only for
        idempotent work."""
        tried: list[str] = []
        self.retries.request(time.monotonic())
        while True:
            try:
                async with self.pick(key, exclude=tried) as instance:
                    tried.append(instance.id)
                    return await work(instance)
            except Exception as error:
                if (
                    not self.blame(error)
                    or len(tried) >= tries
                    or not self.retries.try_retry(time.monotonic())
                ):
                    raise

    def explain(self) -> list[Explanation]:
        """Why each instance is or is not called."""
        retained = message("retained", detail=self._retained.reason)
        return [
            replace(explanation, messages=(*explanation.messages, retained))
            if self._retained.holds(explanation.instance.id)
            else explanation
            for explanation in self.rotation.explain()
        ]

    def subscribe(self, callback: Callable[[Update[str, Instance]], None]) -> Callable[[], None]:
        """Call `callback` after each change. The returned function unsubscribes it."""
        return self._mirror.subscribe(callback)

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Update[str, Instance]]]:
        """Changes from now on: `async with view.changes() as changes: async for …`. After a start
        from disk, the first one is the difference to the copy."""
        return self._mirror.changes()

    async def wait(self, count: int = 1, *, timeout: float | None = None) -> None:
        """Wait until at least `count` instances of all zones may be called. Raises `NoInstance`
        after `timeout` seconds, and `Closed` if the view is closed."""
        try:
            async with asyncio.timeout(timeout):
                while self.rotation.available < count:
                    if self._mirror.closed:
                        raise Closed(message("view_closed", service=self.service))
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise NoInstance(
                message(
                    "too_few_instances",
                    service=self.service,
                    available=self.rotation.available,
                    count=count,
                    seconds=timeout,
                )
            ) from None

    async def __aenter__(self) -> Self:
        self._mirror.start()
        try:
            await self._first_list()
        except BaseException:
            await self.aclose()
            raise
        self._entered = True
        telemetry.VIEWS.show(self)
        self._tasks.start(self._tick(), name=f"view of {self.service}")
        if self._cache is not None:
            self._tasks.start(self._save(self._cache), name=f"copy of {self.service}")
        return self

    async def _first_list(self) -> None:
        copy = None if self._cache is None else self._cache.load()
        try:
            async with asyncio.timeout(self._wait):
                await self._mirror.ready(or_failing=copy is not None)
        except TimeoutError:
            pass
        if self._mirror.loaded:
            return
        error = self._mirror.error
        reason = message("no_reply_in_time") if error is None else error.message
        if copy is None:
            raise Unavailable(message("instances_unreadable", service=self.service, reason=reason))
        log.warning("%s: uses the copy from %s: %s", self.service, copy.saved_at, reason)
        self._from_disk = True
        instances = {instance.id: instance for instance in copy.instances}
        self._retained.stand_in(instances)
        self._mirror.stand_in(instances)
        for instance in copy.instances:
            self.rotation.put(instance, time.monotonic(), first=True)

    def _apply(self, update: Update[str, Instance]) -> None:
        moment = time.monotonic()
        self._from_disk = False
        changes: Sequence[Change[str, Instance]] = update.changes
        if not self._entered:  # callers that start together must not use the same order
            changes = random.sample(changes, len(changes))
        for change in changes:
            if change.after is None:
                self.rotation.remove(change.key, moment)
            else:
                self.rotation.put(change.after, moment, first=not self._entered)
        self._changed.set()
        self._unsaved.set()

    async def _tick(self) -> None:
        while True:
            pause = self.rotation.tick(time.monotonic())
            self._changed.set()
            await asyncio.sleep(_TICK if pause is None else min(pause, _TICK))

    async def _save(self, cache: InstanceCache) -> None:
        while True:
            if not self._from_disk and not self._retained.kept and len(self.rotation):
                self._unsaved.clear()  # before saving: later changes cause the next save
                await asyncio.to_thread(cache.save, self.instances)
            await self._unsaved.wait()
            await asyncio.sleep(_SAVE_DELAY)

    async def aclose(self) -> None:
        telemetry.VIEWS.hide(self)
        await self._tasks.aclose()
        await self._mirror.aclose()
        self._changed.set()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def open_view(discover: Callable[[], View], unavailable: Callable[[str], None]) -> View:
    """Enter a view, and retry until the registry answers. Calls `unavailable` with each reason."""
    backoff, last_reason = Backoff(), ""
    while True:
        view = discover()
        try:
            return await view.__aenter__()
        except Unavailable as error:
            if last_reason != (last_reason := str(error)):
                log.warning("%s: no call can be made yet: %s", view.service, error)
                unavailable(last_reason)
        await asyncio.sleep(backoff.next())


class Pick:
    """One call to one instance. Works with `async with` and with `with`."""

    __slots__ = ("_began", "_exclude", "_key", "_node", "_view")

    def __init__(self, view: View, key: str | bytes | None, exclude: Collection[str]) -> None:
        self._view, self._key, self._exclude = view, key, exclude

    def __enter__(self) -> Instance:
        rotation = self._view.rotation
        node = self._node = rotation.pick(self._key, self._exclude)
        rotation.picker.started(node)
        self._began = time.monotonic()
        instance: Instance = node.item.instance
        return instance

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        view, node, now = self._view, self._node, time.monotonic()
        ok: bool | None = True
        if error is not None:
            ok = None if isinstance(error, asyncio.CancelledError) else not view.blame(error)
        if view.rotation.finished(node, now - self._began, ok, now):
            log.warning("%s: %s is ejected: its calls fail", view.service, node.id)

    async def __aenter__(self) -> Instance:
        try:
            return self.__enter__()
        except NoInstance:
            # A caller that retries at once must not starve the loop that would add an instance.
            await asyncio.sleep(0)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, None)
