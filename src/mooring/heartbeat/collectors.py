"""Metric collectors: their protocol, the choice of those that the settings enable, and running them
in the background."""

from __future__ import annotations

import asyncio
import enum
import importlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from mooring.durations import format_duration
from mooring.errors import InvalidRequest
from mooring.formatting import describe, quoted
from mooring.names import nearest
from mooring.settings import MetricsSettings
from mooring.tasks import Tasks, in_thread

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)


class Cost(enum.Enum):
    """The cost of a collection, which decides where it runs."""

    LOW = "low"
    """In the event loop: `collect` returns at once and never waits for a disk or a network."""
    MEDIUM = "medium"
    """In a thread of its own."""
    HIGH = "high"
    """In a thread, one such collector at a time, and at most once a minute."""


class Collector(Protocol):
    """One source of metrics.

    Pass it to `connect` as an object, or install its class under the entry point group
    `mooring.collectors`: the name of the entry point is the collector's type, and the class is
    called without arguments.
    """

    @property
    def type(self) -> str:
        """Its name: `enabled-metrics` lists it, and its values appear below it."""

    @property
    def cost(self) -> Cost:
        """The cost of a collection, which decides where and how often it runs."""

    def available(self) -> bool:
        """Whether it can measure here and now. Called before each collection, in the same place."""

    def collect(self) -> Mapping[str, object]:
        """The current values: texts, numbers, booleans, and mappings and lists of those.

        Percentages are 0 to 100, sizes bytes, durations seconds. An exception means that there
        is no value; it is logged once, until the collector works again.
        """


GROUP = "mooring.collectors"

BUILT_IN: Mapping[str, tuple[str, float]] = {
    "application": ("ApplicationCollector", 120.0),
    "cpu": ("CpuCollector", 60.0),
    "database": ("DatabaseCollector", 60.0),
    "disk": ("DiskCollector", 300.0),
    "memory": ("MemoryCollector", 30.0),
    "network": ("NetworkCollector", 60.0),
}
"""The class of each built-in collector, and its interval in seconds unless the settings set one."""

INTERVAL = 60.0
"""The interval of a custom collector unless the settings set one."""


def choose(
    enabled: Iterable[str], intervals: Mapping[str, float], own: Iterable[Collector] = ()
) -> list[tuple[Collector, float]]:
    """The enabled collectors with their intervals, in the order of their first mention, then those
    of `own` that the settings do not name: passing a collector in code enables it.

    If several have the same type, one of `own` wins over an entry point, and an entry point over a
    built-in collector. Only enabled collectors are loaded. Raises `InvalidRequest` for an unknown
    name.
    """
    from importlib.metadata import entry_points  # slow to load

    objects = {collector.type: collector for collector in own}
    installed = {point.name: point for point in entry_points(group=GROUP)}
    known = objects.keys() | installed.keys() | BUILT_IN.keys()
    names = list(dict.fromkeys([*enabled, *objects]))
    _check("enabled-metrics", names, known)
    _check("collection-intervals", intervals, known)

    def chosen(name: str) -> tuple[Collector, float]:
        class_name, interval = BUILT_IN.get(name, ("", INTERVAL))
        interval = intervals.get(name, interval)
        if name in objects:
            return objects[name], interval
        if name in installed:
            return _load(installed[name]), interval
        # Loaded on first use, because psutil is slow to load.
        built_in = importlib.import_module("mooring.heartbeat.builtin_collectors")
        return getattr(built_in, class_name)(), interval

    return [chosen(name) for name in names]


def _check(setting: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"registry.metrics.{setting}: unknown collector {quoted(name)}"
                f"{nearest(name, known)}"
            )


def _load(point: EntryPoint) -> Collector:
    try:
        collector: Collector = point.load()()
    except Exception as error:
        raise InvalidRequest(
            f"collector {quoted(point.name)} of the entry point {point.value} cannot be loaded: "
            f"{describe(error)}"
        ) from error
    if collector.type != point.name:
        raise InvalidRequest(
            f"the entry point {quoted(point.name)} provides a collector of type "
            f"{quoted(collector.type)}: both must have the same name"
        )
    return collector


HIGH_COST_INTERVAL = 60.0
"""The minimum in seconds between two collections of high cost, whatever the settings say."""
KEPT_FOR = 3
"""Intervals for which the last value of a failing collector is kept."""
LOOP_LIMIT = 0.25
"""Seconds after which a collector of low cost is moved to a thread. Not less: on a busy machine
anything can take 0.1 s."""

Reading = dict[str, object]


def pace(cost: Cost, interval: float) -> float:
    """Seconds between two collections."""
    return max(interval, HIGH_COST_INTERVAL) if cost is Cost.HIGH else interval


class Collecting:
    """Runs the enabled collectors while it is entered.

    A collector that fails, hangs or is late does not affect others: its last values are kept for
    three of its intervals and then dropped. A collector that hangs is not called again until it
    returns. A collector of low cost runs in the event loop, and is moved to a thread the first time
    it takes too long.

    Entering raises `InvalidRequest` for an unknown collector, and does not wait for values. Leaving
    does not wait for collectors: a thread that hangs does not delay the end of the process.
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
        """Start collecting. Does nothing if it was started already."""
        if self._started:
            return
        chosen = choose(
            self._settings.enabled_metrics, self._settings.collection_intervals, self._own
        )
        high_cost = asyncio.Lock()
        timeout = self._settings.collection_timeout
        self._sources = [
            _Source(collector, interval, timeout, high_cost) for collector, interval in chosen
        ]
        self._started = True
        for source in self._sources:
            self._tasks.start(self._run(source), name=f"collector {source.name}")

    @property
    def metrics(self) -> dict[str, object]:
        """The current values by collector: `{"memory": {"usagePercent": 42.0}}`. Each call returns
        a new mapping, which does not change."""
        return {s.name: s.reading for s in self._sources if s.reading is not None}

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when values arrive or are dropped. It must not block. Call the returned
        function to unsubscribe."""
        self._callbacks[subscription := object()] = callback
        return lambda: self._callbacks.pop(subscription, None) and None

    async def _run(self, source: _Source) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            if await source.refresh():
                for callback in tuple(self._callbacks.values()):
                    callback()
            await asyncio.sleep(max(started + source.interval - loop.time(), 0.0))

    async def aclose(self) -> None:
        await self._tasks.aclose()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Source:
    """One collector, its last values, and its failures."""

    def __init__(
        self, collector: Collector, interval: float, timeout: float, high_cost: asyncio.Lock
    ) -> None:
        self.name = collector.type
        self.interval = pace(collector.cost, interval)
        self.reading: Reading | None = None
        self._collector = collector
        self._timeout = timeout
        self._high_cost = high_cost
        """Held during collections of high cost, so that they run one at a time."""
        self._in_loop = collector.cost is Cost.LOW
        self._collection: asyncio.Future[Reading | BaseException | None] | None = None
        """The collection that runs in a thread, or ran last."""
        self._missed = 0

    async def refresh(self) -> bool:
        """Collect once, within the time limit; whether `reading` changed. Never raises."""
        if self._in_loop:
            outcome = self._inline()
        elif self._collector.cost is Cost.HIGH:
            async with self._high_cost:
                outcome = await self._threaded()
        else:
            outcome = await self._threaded()
        if not isinstance(outcome, dict):
            return self._absent(outcome)
        if self._missed:
            log.info("collector %s works again", self.name)
        self._missed, self.reading = 0, outcome
        return True

    def _collect(self) -> Reading | None:
        if not self._collector.available():
            return None
        reading = _copied(self._collector.collect())
        msgspec.json.encode(reading)  # raises for a lone surrogate
        return reading

    def _inline(self) -> Reading | BaseException | None:
        started = time.perf_counter()
        outcome: Reading | BaseException | None
        try:
            outcome = self._collect()
        except Exception as error:  # noqa: BLE001 - a user's collector may raise anything
            outcome = error
        if (took := time.perf_counter() - started) > LOOP_LIMIT:
            self._in_loop = False
            log.warning(
                "collector %s declares a low cost, but blocked the event loop for %s: it runs in "
                "a thread from now on",
                self.name,
                format_duration(took),
            )
        return outcome

    async def _threaded(self) -> Reading | BaseException | None:
        if self._collection is not None and not self._collection.done():
            return TimeoutError("it still hangs")
        try:
            self._collection = in_thread(self._collect, name=f"mooring collector {self.name}")
        except RuntimeError as error:  # the system has no more threads
            return error
        # Unlike `wait_for`, `wait` does not cancel the collection after the timeout.
        await asyncio.wait([self._collection], timeout=self._timeout)
        if not self._collection.done():
            return TimeoutError(f"it took longer than {format_duration(self._timeout)}")
        return self._collection.result()

    def _absent(self, reason: BaseException | None) -> bool:
        """Another interval without values. Logged once, and again when the last are dropped."""
        self._missed += 1
        if self._missed == 1:
            if reason is None:
                log.warning("collector %s is not available here", self.name)
            else:
                log.warning("collector %s failed: %s", self.name, describe(reason))
        if self._missed < KEPT_FOR or self.reading is None:
            return False
        self.reading = None
        kept = format_duration(KEPT_FOR * self.interval)
        log.warning("collector %s has failed for %s: its last values are dropped", self.name, kept)
        return True


def _copied(values: object) -> Reading:
    """A copy that the collector cannot mutate. Raises `TypeError` for values that JSON does not
    have."""
    if not isinstance(values, Mapping):
        raise TypeError(f"it returned a {type(values).__name__} instead of a mapping")
    return {str(name): _copied_value(value) for name, value in values.items()}


def _copied_value(value: object) -> object:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return _copied(value)
    if isinstance(value, list | tuple):
        return [_copied_value(item) for item in value]
    raise TypeError(f"it returned a {type(value).__name__}, which JSON cannot represent")
