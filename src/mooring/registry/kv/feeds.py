"""The instances of one service or of all services on a store, as feeds for a mirror."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Generic, Protocol, TypeAlias, TypeVar

from mooring.errors import StoreError
from mooring.formatting import describe
from mooring.mirror import RangeFeed, Step, Steps
from mooring.model import NO_CONFIG, Config, Instance, applied
from mooring.registry.contract import Problem
from mooring.registry.json_values import Malformed
from mooring.registry.kv.layouts.layout import Assembly, File, Layout, Location
from mooring.store.contract import Entry, Range, Store
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

K = TypeVar("K")

FOREIGN = "is not a key of this layout"


class ServiceInstances:
    """The instances that the keys of one service make. A change of one key decodes one instance.

    Problems are kept, by key, until their value changes.
    """

    def __init__(self, layout: Layout, service: str) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.problems: dict[bytes, Problem] = {}
        self.instances: dict[str, Instance] = {}
        self._layout, self._service = layout, layout.canonical(service)
        self._files: dict[str, dict[bytes, tuple[File, Entry]]] = {}
        self._config: Config = NO_CONFIG

    def put(self, key: bytes, entry: Entry | None) -> set[str]:
        """Set or delete a key. Returns the ids of the instances to rebuild."""
        old = self._hold(key, entry)
        location = self._layout.locate(key)
        if location is None:
            if entry is not None:
                self._report(Problem(key, FOREIGN), entry, old)
            return set()
        if location.service != self._service or location.file == "info":
            return set()
        return self._file(location, key, entry)

    def take(self, location: Location, key: bytes, entry: Entry | None) -> set[str]:
        """As `put`, for a key that belongs to this service and is not an `info`."""
        self._hold(key, entry)
        return self._file(location, key, entry)

    def _hold(self, key: bytes, entry: Entry | None) -> Entry | None:
        """Returns the previous entry."""
        old = self.entries.pop(key, None)
        if entry is not None:
            self.entries[key] = entry
        self.problems.pop(key, None)
        return old

    def _file(self, location: Location, key: bytes, entry: Entry | None) -> set[str]:
        if not location.id:
            return self._configure(entry)
        files = self._files.setdefault(location.id, {})
        if entry is None:
            files.pop(key, None)
            if not files:
                del self._files[location.id]
        else:
            files[key] = location.file, entry
        return {location.id}

    def _configure(self, entry: Entry | None) -> set[str]:
        config = NO_CONFIG
        if entry is not None:
            try:
                config = self._layout.decode_config(entry.value)
            except Exception as error:  # noqa: BLE001 - one value must not stop the others
                self._report(Problem(entry.key, _reason(error)), entry, None)
        if config == self._config:
            return set()
        self._config = config
        return set(self._files)

    def files_of(self, id: str) -> list[tuple[File, Entry]]:
        """The files on the lease of an instance."""
        files = self._files.get(id, {}).values()
        return [(file, entry) for file, entry in files if file != "config"]

    def build(self, ids: Iterable[str]) -> list[tuple[str, Instance | None]]:
        """Decode these instances again. Returns those that changed; None for a deleted one."""
        changes: list[tuple[str, Instance | None]] = []
        for id in ids:
            before = self.instances.get(id)
            after = self._assemble(id)
            if after is None:
                self.instances.pop(id, None)
            else:
                self.instances[id] = after
            if before != after:
                changes.append((id, after))
        return changes

    def _assemble(self, id: str) -> Instance | None:
        held = sorted(self._files.get(id, {}).values(), key=lambda item: item[1].modified)
        for _, entry in held:
            self.problems.pop(entry.key, None)
        while held:
            files = dict(held)  # if two keys hold the same file, the one written last counts
            made = self._decode(id, files)
            for problem in made.problems:
                self._report(problem, self.entries[problem.key], None)
            if made.instance is not None:
                return made.instance
            if len(files) == len(held):
                return None
            held = [(file, entry) for file, entry in held if entry is not files[file]]
        return None

    def _decode(self, id: str, files: Mapping[File, Entry]) -> Assembly:
        try:
            made = self._layout.assemble(self._service, id, files)
            if made.instance is None:
                return made
            return Assembly(applied(made.instance, self._config), made.problems)
        except Exception as error:  # noqa: BLE001 - one instance must not stop the others
            for file in files:  # find a file without which the rest can be decoded
                rest = {name: entry for name, entry in files.items() if name != file}
                made = self._decode(id, rest) if rest else Assembly(None)
                if made.instance is not None:
                    problem = Problem(files[file].key, _reason(error))
                    return Assembly(made.instance, (*made.problems, problem))
            blamed = files.get("data") or next(iter(files.values()))
            return Assembly(None, (Problem(blamed.key, _reason(error)),))

    def _report(self, problem: Problem, entry: Entry, old: Entry | None) -> None:
        self.problems[problem.key] = problem
        if old is None or old.value != entry.value:
            log.warning("left out: %s", problem)

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries."""
        fresh = {entry.key: entry for entry in entries}
        for key in [key for key in self.entries if key not in fresh]:
            self.put(key, None)
        for key, entry in fresh.items():
            if self.entries.get(key) != entry:
                self.put(key, entry)
        self.build(set(self._files) | set(self.instances))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Malformed) else f"is not valid: {describe(error)}"


class KeyIndex(Protocol[K]):
    """Builds instances from keys: a `ServiceInstances` or an `AllInstances`."""

    instances: dict[K, Instance]

    @property
    def problems(self) -> dict[bytes, Problem]: ...

    def put(self, key: bytes, entry: Entry | None) -> set[K]: ...

    def build(self, touched: Iterable[K], /) -> list[tuple[K, Instance | None]]: ...

    def replace(self, entries: Iterable[Entry]) -> None: ...


class InstancesFeed(Generic[K]):
    """Instances of one service by id, or of all services by service and id. The mark is the
    revision of the store.

    The keys may be in several ranges. Each range is followed from its own mark: otherwise the mark
    of a quiet range would fall behind until the store compacts its history.
    """

    def __init__(
        self, store: Store, ranges: Sequence[Range], index: KeyIndex[K], *, name: str
    ) -> None:
        self.name = f"{store.url} {name}"
        self._index = index
        self._feeds = [RangeFeed(store, range) for range in ranges]
        self._held: list[dict[bytes, Entry]] = [{} for _ in self._feeds]
        self._marks = [0] * len(self._feeds)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._index.problems.values())

    async def snapshot(self) -> tuple[dict[K, Instance], int]:
        for number, feed in enumerate(self._feeds):
            self._held[number], self._marks[number] = await feed.snapshot()
        self._index.replace(entry for held in self._held for entry in held.values())
        return dict(self._index.instances), max(self._marks)

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[K, Instance], *, known: float
    ) -> AsyncIterator[Steps[K, Instance]]:
        async with AsyncExitStack() as stack:
            sources = [
                await stack.enter_async_context(feed.follow(seen, entries, known=known))
                for feed, seen, entries in zip(self._feeds, self._marks, self._held, strict=True)
            ]
            merged = _MergedSteps(sources, self._apply)
            stack.push_async_callback(merged.aclose)
            yield merged

    def _apply(self, source: int, step: Step[bytes, Entry]) -> Step[K, Instance]:
        self._marks[source] = step.mark
        touched: set[K] = set()
        held = self._held[source]
        for key, entry in step.changes:
            if entry is None:
                held.pop(key, None)
            else:
                held[key] = entry
            touched |= self._index.put(key, entry)
        return Step(max(self._marks), self._index.build(touched))


class ServiceFeed(InstancesFeed[str]):
    """The instances of a service, by id."""

    doubt = ""
    kept = ()

    def __init__(self, store: Store, layout: Layout, service: str) -> None:
        super().__init__(
            store, layout.ranges(service), ServiceInstances(layout, service), name=service
        )
        self._store, self._layout = store, layout
        self._tombstones = layout.tombstones(service)

    async def explained(self, gone: Mapping[str, Instance]) -> set[str]:
        """An instance marks itself as draining before it leaves; an operator leaves a tombstone."""
        known = {id for id, instance in gone.items() if instance.status.state != "up"}
        unknown = {self._layout.tombstone(gone[id]): id for id in gone.keys() - known}
        if unknown:
            try:
                deregistered = await self._store.read(self._tombstones, keys_only=True)
            except StoreError as error:
                log.info("%s: tombstones cannot be read: %s", self.name, error)
            else:
                known |= {unknown[e.key] for e in deregistered.entries if e.key in unknown}
        return known


class _MergedSteps(Generic[K]):
    """The steps of several ranges, one at a time."""

    def __init__(
        self,
        sources: Sequence[Steps[bytes, Entry]],
        apply: Callable[[int, Step[bytes, Entry]], Step[K, Instance]],
    ) -> None:
        self._sources, self._apply = sources, apply
        self._arrived: asyncio.Queue[tuple[int, Step[bytes, Entry] | Exception]] = asyncio.Queue(1)
        self._tasks = Tasks()

    @property
    def heard(self) -> float:
        return min(source.heard for source in self._sources)

    async def __aiter__(self) -> AsyncIterator[Step[K, Instance]]:
        if len(self._sources) == 1:
            async for step in self._sources[0]:
                yield self._apply(0, step)
            return
        for number in range(len(self._sources)):
            self._tasks.start(self._pump(number), name="one of several ranges")
        while True:
            number, step_or_error = await self._arrived.get()
            if isinstance(step_or_error, Exception):
                raise step_or_error
            yield self._apply(number, step_or_error)

    async def _pump(self, number: int) -> None:
        try:
            async for step in self._sources[number]:
                await self._arrived.put((number, step))
        except Exception as error:  # noqa: BLE001 - `__aiter__` raises it
            await self._arrived.put((number, error))

    async def aclose(self) -> None:
        await self._tasks.aclose()


Where: TypeAlias = tuple[str, str]
"""A service and the id of an instance."""


class AllInstances:
    """The instances that the keys of all services make. A change of one key decodes one instance,
    however many services there are."""

    def __init__(self, layout: Layout) -> None:
        self.instances: dict[Where, Instance] = {}
        self._layout = layout
        self._services: dict[str, ServiceInstances] = {}
        self._emptied: set[str] = set()
        """Services without keys. They are dropped at the end of a step: an earlier change of the
        same step may have touched their instances."""
        self._foreign: dict[bytes, Entry] = {}

    @property
    def problems(self) -> dict[bytes, Problem]:
        problems = {key: Problem(key, FOREIGN) for key in self._foreign}
        for service in self._services.values():
            problems.update(service.problems)
        return problems

    def put(self, key: bytes, entry: Entry | None) -> set[Where]:
        """Set or delete a key. Returns the instances to rebuild."""
        location = self._layout.locate(key)
        if location is None:
            self._report(key, entry)
            return set()
        if not location.service or location.file == "info":
            return set()
        name = location.service
        service = self._services.get(name)
        if service is None:
            if entry is None:
                return set()
            service = self._services[name] = ServiceInstances(self._layout, name)
        touched = service.take(location, key, entry)
        if not service.entries:
            self._emptied.add(name)
        return {(name, id) for id in touched}

    def _report(self, key: bytes, entry: Entry | None) -> None:
        if entry is None:
            self._foreign.pop(key, None)
            return
        old = self._foreign.get(key)
        self._foreign[key] = entry
        if old is None or old.value != entry.value:
            log.warning("left out: %s", Problem(key, FOREIGN))

    def build(self, touched: Iterable[Where]) -> list[tuple[Where, Instance | None]]:
        """Decode these instances again. Returns those that changed; None for a deleted one."""
        by_service: dict[str, list[str]] = {}
        for service, id in touched:
            by_service.setdefault(service, []).append(id)
        changes: list[tuple[Where, Instance | None]] = []
        for service, ids in by_service.items():
            built = self._services[service].build(ids)
            changes += (((service, id), after) for id, after in built)
        for service in self._emptied:
            if not self._services[service].entries:
                del self._services[service]
        self._emptied.clear()
        for where, after in changes:
            if after is None:
                self.instances.pop(where, None)
            else:
                self.instances[where] = after
        return changes

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries."""
        fresh = {entry.key: entry for entry in entries}
        held = dict(self._foreign)
        for service in self._services.values():
            held |= service.entries
        touched: set[Where] = set()
        for key in held.keys() - fresh.keys():
            touched |= self.put(key, None)
        for key, entry in fresh.items():
            if held.get(key) != entry:
                touched |= self.put(key, entry)
        self.build(touched)
