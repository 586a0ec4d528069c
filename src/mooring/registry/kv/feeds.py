"""The instances of one service or of all services on a store, as feeds for a mirror."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from operator import itemgetter
from typing import Generic, TypeVar

from mooring.errors import StoreError
from mooring.formatting import describe
from mooring.messages import Message, verbatim
from mooring.mirror import RangeFeed, Step, Steps
from mooring.model import NO_CONFIG, Config, Instance, applied
from mooring.registry.contract import InstanceKey, Problem
from mooring.registry.json_values import Malformed
from mooring.registry.kv.layouts.layout import Assembly, File, Layout
from mooring.store.contract import Entry, Range, Store
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

K = TypeVar("K")


class InstanceIndex:
    """The instances that the keys of one service make, or of all services. A change of one key
    decodes one instance.

    Problems are kept, by key, until their value changes.
    """

    def __init__(self, layout: Layout, service: str = "") -> None:
        self.problems: dict[bytes, Problem] = {}
        self.instances: dict[InstanceKey, Instance] = {}
        self._layout = layout
        self._service = layout.canonical(service) if service else ""
        self._entries: dict[bytes, Entry] = {}
        self._files: dict[str, dict[str, dict[bytes, tuple[File, Entry]]]] = {}
        """By service, id and key."""
        self._configs: dict[str, Config] = {}

    def put(self, key: bytes, entry: Entry | None) -> set[InstanceKey]:
        """Set or delete a key. Returns the instances to rebuild."""
        old = self._entries.pop(key, None)
        if entry is not None:
            self._entries[key] = entry
        self.problems.pop(key, None)
        location = self._layout.locate(key)
        if location is None:
            if entry is not None:
                self._report(Problem(key, "is not a key of this layout"), entry, old)
            return set()
        _, service, id, file = location
        if not service or self._service not in ("", service) or file == "info":
            return set()
        if not id:
            return self._configure(service, entry)
        instances = self._files.setdefault(service, {})
        files = instances.setdefault(id, {})
        if entry is None:
            files.pop(key, None)
        else:
            files[key] = file, entry
        if not files:
            del instances[id]
        if not instances:
            del self._files[service]
        return {(service, id)}

    def _configure(self, service: str, entry: Entry | None) -> set[InstanceKey]:
        config = NO_CONFIG
        if entry is not None:
            try:
                config = self._layout.decode_config(entry.value)
            except Exception as error:  # noqa: BLE001 - one value must not stop the others
                self._report(Problem(entry.key, _reason(error)), entry, None)
        if config == self._configs.get(service, NO_CONFIG):
            return set()
        self._configs[service] = config
        return {(service, id) for id in self._files.get(service, ())}

    def entries_in(self, range: Range) -> dict[bytes, Entry]:
        return {key: entry for key, entry in self._entries.items() if key in range}

    def files_of(self, service: str, id: str) -> list[tuple[File, Entry]]:
        """The files on the lease of an instance."""
        files = self._files.get(service, {}).get(id, {}).values()
        return [(file, entry) for file, entry in files if file != "config"]

    def build(self, touched: Iterable[InstanceKey]) -> list[tuple[InstanceKey, Instance | None]]:
        """Decode these instances again. Returns those that changed; None for a deleted one."""
        changes: list[tuple[InstanceKey, Instance | None]] = []
        for name in touched:
            before = self.instances.get(name)
            after = self._assemble(*name)
            if after is None:
                self.instances.pop(name, None)
            else:
                self.instances[name] = after
            if before != after:
                changes.append((name, after))
        return changes

    def _assemble(self, service: str, id: str) -> Instance | None:
        files = self._files.get(service, {}).get(id, {}).values()
        remaining = sorted(files, key=lambda item: item[1].modified)
        for _, entry in remaining:
            self.problems.pop(entry.key, None)
        while remaining:
            newest = dict(remaining)  # if two keys hold the same file, the one written last counts
            assembly = self._decode(service, id, newest)
            for problem in assembly.problems:
                self._report(problem, self._entries[problem.key], None)
            if assembly.instance is not None:
                return assembly.instance
            remaining = [(file, entry) for file, entry in remaining if entry is not newest[file]]
        return None

    def _decode(self, service: str, id: str, files: Mapping[File, Entry]) -> Assembly:
        try:
            assembly = self._layout.assemble(service, id, files)
            if assembly.instance is None:
                return assembly
            config = self._configs.get(service, NO_CONFIG)
            return Assembly(applied(assembly.instance, config), assembly.problems)
        except Exception as error:  # noqa: BLE001 - one instance must not stop the others
            for file in files:  # find a file without which the rest can be decoded
                rest = {name: entry for name, entry in files.items() if name != file}
                assembly = self._decode(service, id, rest) if rest else Assembly(None)
                if assembly.instance is not None:
                    problem = Problem(files[file].key, _reason(error))
                    return Assembly(assembly.instance, (*assembly.problems, problem))
            blamed = files.get("data") or next(iter(files.values()))
            return Assembly(None, (Problem(blamed.key, _reason(error)),))

    def _report(self, problem: Problem, entry: Entry, old: Entry | None) -> None:
        self.problems[problem.key] = problem
        if old is None or old.value != entry.value:
            log.warning("left out: %s", problem)

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries."""
        new = {entry.key: entry for entry in entries}
        touched: set[InstanceKey] = set()
        for key in self._entries.keys() - new.keys():
            touched |= self.put(key, None)
        for key, entry in new.items():
            if self._entries.get(key) != entry:
                touched |= self.put(key, entry)
        self.build(touched)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Malformed) else f"is not valid: {describe(error)}"


class InstancesFeed(Generic[K]):
    """Instances by service and id, or by what `name_of` makes of these. The mark is the revision of
    the store.

    The keys may be in several ranges. Each range is followed from its own mark: otherwise the mark
    of a quiet range would fall behind until the store compacts its history.
    """

    def __init__(
        self,
        store: Store,
        ranges: Sequence[Range],
        index: InstanceIndex,
        name_of: Callable[[InstanceKey], K],
        *,
        name: Message,
    ) -> None:
        self.name = name
        self._index, self._name_of = index, name_of
        self._ranges = ranges
        self._feeds = [RangeFeed(store, range) for range in ranges]
        self._marks: list[int] = []

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._index.problems.values())

    async def snapshot(self) -> tuple[dict[K, Instance], int]:
        snapshots = [await feed.snapshot() for feed in self._feeds]
        self._marks = [mark for _, mark in snapshots]
        self._index.replace(entry for entries, _ in snapshots for entry in entries.values())
        instances = {self._name_of(name): one for name, one in self._index.instances.items()}
        return instances, max(self._marks)

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[K, Instance], *, known: float
    ) -> AsyncIterator[Steps[K, Instance]]:
        async with AsyncExitStack() as stack:
            sources = [
                await stack.enter_async_context(
                    feed.follow(seen, self._index.entries_in(range), known=known)
                )
                for feed, range, seen in zip(self._feeds, self._ranges, self._marks, strict=True)
            ]
            merged = _MergedSteps(sources, self._apply)
            stack.push_async_callback(merged.aclose)
            yield merged

    def _apply(self, source: int, step: Step[bytes, Entry]) -> Step[K, Instance]:
        self._marks[source] = step.mark
        touched: set[InstanceKey] = set()
        for key, entry in step.changes:
            touched |= self._index.put(key, entry)
        changes = [(self._name_of(name), after) for name, after in self._index.build(touched)]
        return Step(max(self._marks), changes)


class ServiceFeed(InstancesFeed[str]):
    """The instances of a service, by id."""

    doubt = None
    kept = ()

    def __init__(self, store: Store, layout: Layout, service: str) -> None:
        index = InstanceIndex(layout, service)
        name = verbatim(f"{store.url} {service}")
        super().__init__(store, layout.ranges(service), index, itemgetter(1), name=name)
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
