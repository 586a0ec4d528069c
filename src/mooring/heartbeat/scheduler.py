"""Collecting metrics in the background: each source at its own pace, and none in another's way."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Self, TypeVar

import msgspec

from mooring.durations import show
from mooring.formatting import describe
from mooring.heartbeat.collectors import Collector, Cost
from mooring.settings.registry import MetricsSettings
from mooring.tasks import Tasks

T = TypeVar("T")


def in_thread(call: Callable[[], T], *, name: str) -> asyncio.Future[T | BaseException]:
    """Run the call in a daemon thread of its own; what it returned or raised, as a result.

    Unlike an executor's, such a thread is joined by nobody: one that hangs forever holds up
    neither the loop's end nor the interpreter's. An error is a result, so that one that comes
    when nobody looks any more is no error of the loop.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T | BaseException] = loop.create_future()

    def deliver(outcome: T | BaseException) -> None:
        if not future.done():
            future.set_result(outcome)

    def run() -> None:
        outcome: T | BaseException
        try:
            outcome = call()
        except BaseException as error:  # noqa: BLE001 - handed on whole
            outcome = error
        try:
            loop.call_soon_threadsafe(deliver, outcome)
        except RuntimeError:
            return  # the loop was closed meanwhile: nobody waits

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


log = logging.getLogger(__name__)

HIGH_AT_MOST_EVERY = 60.0
"""Seconds between two collections of high cost, whatever the settings say."""
KEPT_FOR = 3
"""Intervals for which the last value of a collector stands in for a new one."""
TOO_LONG_FOR_THE_LOOP = 0.25
"""Seconds after which a collector of low cost has shown that it is none. Not less: a busy machine
can hold up anything for a tenth."""

Reading = dict[str, object]


def pace(cost: Cost, interval: float) -> float:
    """Seconds between two collections."""
    return max(interval, HIGH_AT_MOST_EVERY) if cost is Cost.HIGH else interval


class Collecting:
    """Runs the enabled collectors while it is entered.

    A collector that fails, hangs or is late harms nobody else: its last values are kept for three
    of its intervals and then dropped. One that hangs is not called again until it returned. Of
    low cost means in the loop: the first time that one takes long there it is moved to a thread.

    Entering raises `InvalidRequest` for a name that no collector has, and waits for no value.
    Leaving waits for no collector: a thread that hangs is left behind, and does not hold up the
    end of the process.
    """

    def __init__(
        self, settings: MetricsSettings | None = None, collectors: Iterable[Collector] = ()
    ) -> None:
        self._settings = settings or MetricsSettings()
        self._own = tuple(collectors)
        self._started = False
        self._sources: list[_Source] = []
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Begin to collect, where that has not begun."""
        if self._started:
            return
        from mooring.heartbeat.collectors.selection import choose  # loads psutil

        chosen = choose(
            self._settings.enabled_metrics, self._settings.collection_intervals, self._own
        )
        dear = asyncio.Lock()
        timeout = self._settings.collection_timeout
        self._sources = [_Source(collector, every, timeout, dear) for collector, every in chosen]
        self._started = True
        for source in self._sources:
            self._tasks.start(self._run(source), name=f"collector {source.name}")

    @property
    def metrics(self) -> dict[str, object]:
        """The values of now by collector: `{"memory": {"usagePercent": 42.0}}`. Never changes."""
        return {s.name: s.reading for s in self._sources if s.reading is not None}

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when values came or were dropped. It must not block. What is returned ends
        it."""
        self._callbacks[ended := object()] = callback
        return lambda: self._callbacks.pop(ended, None) and None

    async def _run(self, source: _Source) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            if await source.refresh():
                for callback in tuple(self._callbacks.values()):
                    callback()
            await asyncio.sleep(max(started + source.every - loop.time(), 0.0))

    async def aclose(self) -> None:
        await self._tasks.aclose()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Source:
    """One collector, what it last gave, and how it is doing."""

    def __init__(
        self, collector: Collector, interval: float, timeout: float, dear: asyncio.Lock
    ) -> None:
        self.name = collector.type
        self.every = pace(collector.cost, interval)
        self.reading: Reading | None = None
        self._collector = collector
        self._timeout = timeout
        self._dear = dear
        self._in_loop = collector.cost is Cost.LOW
        self._under_way: asyncio.Future[Reading | BaseException | None] | None = None
        self._missed = 0

    async def refresh(self) -> bool:
        """Collect once, within the time allowed. Whether `reading` changed. Raises nothing."""
        if self._in_loop:
            outcome = self._inline()
        elif self._collector.cost is Cost.HIGH:
            async with self._dear:
                outcome = await self._threaded()
        else:
            outcome = await self._threaded()
        if isinstance(outcome, dict):
            return self._arrived(outcome)
        return self._absent(outcome)

    def _collect(self) -> Reading | None:
        if not self._collector.available():
            return None
        reading = _copied(self._collector.collect())
        msgspec.json.encode(reading)  # half a character cannot be written
        return reading

    def _inline(self) -> Reading | BaseException | None:
        started = time.perf_counter()
        outcome: Reading | BaseException | None
        try:
            outcome = self._collect()
        except Exception as error:  # noqa: BLE001 - a user's collector may raise anything
            outcome = error
        if (took := time.perf_counter() - started) > TOO_LONG_FOR_THE_LOOP:
            self._in_loop = False
            log.warning(
                "collector %s says it costs little, but held up the event loop for %s: it runs in "
                "a thread from now on",
                self.name,
                show(took),
            )
        return outcome

    async def _threaded(self) -> Reading | BaseException | None:
        if self._under_way is not None and not self._under_way.done():
            return TimeoutError("it still hangs")
        try:
            self._under_way = in_thread(self._collect, name=f"mooring collector {self.name}")
        except RuntimeError as error:  # no more threads to be had, for now
            return error
        # Waited for by `wait`, which leaves the call alone when time is up.
        await asyncio.wait([self._under_way], timeout=self._timeout)
        if not self._under_way.done():
            return TimeoutError(f"it took longer than {show(self._timeout)}")
        return self._under_way.result()

    def _arrived(self, reading: Reading) -> bool:
        if self._missed:
            log.info("collector %s works again", self.name)
        self._missed = 0
        self.reading = reading
        return True

    def _absent(self, reason: BaseException | None) -> bool:
        """Another interval without a value. Said once, and once more when the last is dropped."""
        self._missed += 1
        if self._missed == 1:
            if reason is None:
                log.warning("collector %s is not available here", self.name)
            else:
                log.warning("collector %s gives no value: %s", self.name, describe(reason))
        if self._missed < KEPT_FOR or self.reading is None:
            return False
        self.reading = None
        kept = show(KEPT_FOR * self.every)
        log.warning("collector %s has given nothing for %s: no values of it", self.name, kept)
        return True


def _copied(values: object) -> Reading:
    """A copy that the collector cannot change, of what can be written as JSON."""
    if not isinstance(values, Mapping):
        raise TypeError(f"it gave a {type(values).__name__} and not a mapping")
    return {str(name): _copied_value(value) for name, value in values.items()}


def _copied_value(value: object) -> object:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return _copied(value)
    if isinstance(value, list | tuple):
        return [_copied_value(item) for item in value]
    raise TypeError(f"it gave a {type(value).__name__}, which no JSON can hold")
