"""The Watch service: many watches share one stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc.aio

from mooring.errors import Compacted
from mooring.etcd_server.auth import AuthService
from mooring.etcd_server.errors import (
    COMPACTED,
    DUPLICATE_WATCH_ID,
    EMPTY_WATCH_RANGE,
    RpcAborted,
    RpcStatus,
)
from mooring.etcd_server.messages import header, key_value, range_of
from mooring.store.contract import MAX_REQUEST_BYTES, Batch, Event, Range
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.store import EngineRunner, call_in
from mooring.store.embedded.watchers import Watcher
from mooring.store.etcd import proto
from mooring.tasks import Tasks

T = TypeVar("T")

_NUMBERS = 64  # the maximum bytes of an event in addition to its keys and values


@dataclass(slots=True, eq=False)
class _StreamWatch:
    id: int
    puts: bool
    deletes: bool
    prev_kv: bool
    fragment: bool
    progress: bool
    watcher: Watcher | None = None
    backlog: deque[Batch] = field(default_factory=deque)
    """Batches that were taken from the engine and not sent yet."""
    signalled: bool = False
    """Whether the stream knows that there are batches to take."""


@dataclass(frozen=True, slots=True)
class RevisionEvents:
    """The events of one revision for a watch."""

    revision: int
    events: Sequence[Any]

    @property
    def size(self) -> int:
        return sum(map(_size, self.events))


def revision_events(engine: Engine, batch: Batch, watch: _StreamWatch) -> RevisionEvents:
    """Convert a batch, without events that the watch filters out. Previous values are added."""
    events = [
        _message(engine, batch.revision, event, watch.prev_kv)
        for event in batch.events
        if (watch.puts if event.entry is not None else watch.deletes)
    ]
    return RevisionEvents(batch.revision, events)


def _message(engine: Engine, revision: int, event: Event, prev_kv: bool) -> Any:
    entry = event.entry
    if entry is None:
        # A deletion has only its key and its revision.
        kv = proto.KeyValue(key=event.key, mod_revision=revision)
        message = proto.Event(type=proto.DELETE, kv=kv)
    else:
        message = proto.Event(kv=key_value(entry))
    if prev_kv and (entry is None or entry.created != revision):
        _add_previous(engine, revision, message)
    return message


def _add_previous(engine: Engine, revision: int, message: Any) -> None:
    """Add the previous entry of the key. As in etcd, it is omitted if it is compacted."""
    name = message.kv.key
    try:
        before = next(iter(engine.past(Range(name, name + b"\0"), revision - 1)), None)
    except Compacted:
        return
    if before is not None:
        message.prev_kv.CopyFrom(key_value(before))


def responses(
    watch_id: int, revisions: Iterable[RevisionEvents], *, fragment: bool
) -> Iterator[Any]:
    """Combine revisions into as few messages as the request size allows. A larger revision is split
    if the client supports fragments. The header has the last revision of the message: a client that
    resumes after it misses nothing, even if more messages follow."""
    for group in _pack((item for item in revisions if item.events), lambda item: item.size):
        events = [event for item in group for event in item.events]
        pieces = list(_pack(events, _size)) if fragment else [events]
        for number, piece in enumerate(pieces, 1):
            yield proto.WatchResponse(
                header=header(group[-1].revision),
                watch_id=watch_id,
                events=piece,
                fragment=number < len(pieces),
            )


def _pack(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Groups of items up to the size of a request. A larger item is a group of its own."""
    group: list[T] = []
    total = 0
    for item in items:
        more = size(item)
        if group and total + more > MAX_REQUEST_BYTES:
            yield group
            group, total = [], 0
        group.append(item)
        total += more
    if group:
        yield group


def _size(event: Any) -> int:
    kv, before = event.kv, event.prev_kv
    return len(kv.key) + len(kv.value) + len(before.key) + len(before.value) + _NUMBERS


PROGRESS_INTERVAL = 600.0
"""Seconds between progress notifications for watches that request them (etcd's default)."""

_ANY = -1  # the id of a refused watch, and of progress for all watches
_UNSENT = 128  # responses that wait for the client, before reading requests is paused


class WatchService:
    def __init__(self, runner: EngineRunner, auth: AuthService) -> None:
        self._runner, self._auth = runner, auth

    async def watch(self, context: grpc.aio.ServicerContext) -> None:
        await _Stream(self._runner, self._auth, context).run()


class _Stream:
    def __init__(
        self, runner: EngineRunner, auth: AuthService, context: grpc.aio.ServicerContext
    ) -> None:
        self._runner, self._auth, self._context = runner, auth, context
        self._loop = asyncio.get_running_loop()
        self._watches: dict[int, _StreamWatch] = {}
        self._next_id = 0
        self._answers: deque[Any] = deque()
        self._room = asyncio.Event()
        self._ready: dict[_StreamWatch, None] = {}
        self._progress: set[int] = set()  # the ids of the watches to send progress for
        self._woken = asyncio.Event()
        self._failure: RpcStatus | None = None
        self._timer = self._loop.call_later(PROGRESS_INTERVAL, self._notify)

    async def run(self) -> None:
        tasks = Tasks()
        tasks.start(self._receive(), name="requests of a watch stream")
        try:
            await self._send()
        finally:
            self._timer.cancel()
            for watch in self._watches.values():
                self._unwatch(watch)
            await tasks.aclose()

    async def _receive(self) -> None:
        """Read requests until the client closes its side. Its watches continue."""
        while (request := await self._context.read()) is not grpc.aio.EOF:
            if isinstance(request, RpcStatus):
                self._failure = request
                self._woken.set()
                return
            match request.WhichOneof("choice0"):
                case "create_request":
                    self._create(request.create_request)
                case "cancel_request":
                    self._cancel(request.cancel_request.watch_id)
                case "progress_request":
                    self._progress.add(_ANY)
            self._woken.set()
            while len(self._answers) >= _UNSENT:
                self._room.clear()
                await self._room.wait()

    def _create(self, request: Any) -> None:
        keys = range_of(request.key or b"\0", request.range_end)
        reason = self._objection(request, keys)
        if reason:
            self._answer(_ANY, created=True, canceled=True, cancel_reason=reason)
            return
        watch = _StreamWatch(
            self._choose_id(request.watch_id),
            puts=proto.NOPUT not in request.filters,
            deletes=proto.NODELETE not in request.filters,
            prev_kv=request.prev_kv,
            fragment=request.fragment,
            progress=request.progress_notify,
        )
        self._watches[watch.id] = watch
        self._answer(watch.id, created=True)
        try:
            self._runner.read(lambda engine: self._attach(engine, watch, keys, request))
        except Compacted as error:
            self._compacted(watch, error)

    def _objection(self, request: Any, keys: Range) -> str:
        """Why a watch is refused, in etcd's words; empty if it is not."""
        if request.start_revision < 0:
            return COMPACTED.text
        if (status := self._auth.objection(self._context)) is not None:
            return str(status)
        if keys.end == keys.start:
            return EMPTY_WATCH_RANGE
        taken = request.watch_id and request.watch_id in self._watches
        return DUPLICATE_WATCH_ID if taken else ""

    def _choose_id(self, requested: int) -> int:
        if requested:
            return requested
        while self._next_id in self._watches:
            self._next_id += 1
        self._next_id += 1
        return self._next_id - 1

    def _attach(self, engine: Engine, watch: _StreamWatch, keys: Range, request: Any) -> None:
        start = request.start_revision
        after = start - 1 if start else None
        if start == engine.compacted:
            # As in etcd, the remaining events of the compacted revision are sent: its puts.
            after = start
            watch.backlog.extend(_puts_of(engine, keys, start))
        watch.watcher = engine.watch(keys, after, lambda: self._wake(watch))
        if watch.backlog or watch.watcher.lagging:
            self._mark(watch)

    def _cancel(self, watch_id: int) -> None:
        watch = self._watches.pop(watch_id, None)
        if watch is not None:
            self._unwatch(watch)
            self._answer(watch_id, canceled=True)

    def _answer(self, watch_id: int, **fields: Any) -> None:
        head = header(self._runner.revision)
        self._answers.append(proto.WatchResponse(header=head, watch_id=watch_id, **fields))
        self._woken.set()

    def _notify(self) -> None:
        """Send progress to the watches that requested notifications."""
        self._progress.update(watch.id for watch in self._watches.values() if watch.progress)
        self._woken.set()
        self._timer = self._loop.call_later(PROGRESS_INTERVAL, self._notify)

    async def _send(self) -> None:
        while True:
            self._woken.clear()
            watch_ids, self._progress = self._progress, set()
            revision = self._catch_up() if watch_ids else 0
            while self._answers or self._ready:
                # The response to a create request precedes the first event of the watch.
                if self._answers:
                    await self._context.write(self._answers.popleft())
                    self._room.set()
                else:
                    await self._deliver(next(iter(self._ready)))
            for watch_id in watch_ids:
                if watch_id == _ANY or watch_id in self._watches:
                    await self._context.write(
                        proto.WatchResponse(header=header(revision), watch_id=watch_id)
                    )
            if self._failure is not None:
                raise RpcAborted(self._failure)
            await self._woken.wait()

    def _catch_up(self) -> int:
        """Schedule all events up to the confirmed revision, which it returns."""

        def look(engine: Engine) -> int:
            for watch in self._watches.values():
                if (watcher := watch.watcher) and (
                    watch.backlog or watcher.pending or watcher.lagging
                ):
                    self._mark(watch)
            return engine.confirmed

        return self._runner.read(look)

    async def _deliver(self, watch: _StreamWatch) -> None:
        """Send the next events of a watch. Further ones follow after the other watches."""
        del self._ready[watch]
        watch.signalled = False
        try:
            revisions = self._runner.read(lambda engine: _take(engine, watch))
        except Compacted as error:
            self._compacted(watch, error)
            return
        if watch.watcher is not None and (watch.backlog or watch.watcher.lagging):
            self._mark(watch)
        for response in responses(watch.id, revisions, fragment=watch.fragment):
            await self._context.write(response)
            if self._watches.get(watch.id) is not watch:
                return  # cancelled meanwhile

    def _compacted(self, watch: _StreamWatch, error: Compacted) -> None:
        """End a watch whose history is gone. As in etcd, its id stays in use."""
        self._unwatch(watch)
        watch.backlog.clear()
        watch.progress = False
        self._answers.append(
            proto.WatchResponse(
                header=header(0),
                watch_id=watch.id,
                canceled=True,
                compact_revision=error.revision or 0,
            )
        )
        self._woken.set()

    def _wake(self, watch: _StreamWatch) -> None:
        """Called by the engine, from any thread."""
        if watch.signalled:
            return
        watch.signalled = True
        call_in(self._loop, self._mark, watch)

    def _mark(self, watch: _StreamWatch) -> None:
        watch.signalled = True
        if watch.watcher is not None:
            self._ready[watch] = None
            self._woken.set()

    def _unwatch(self, watch: _StreamWatch) -> None:
        self._ready.pop(watch, None)
        watcher, watch.watcher = watch.watcher, None
        if watcher is not None:
            self._runner.unwatch(watcher)


def _take(engine: Engine, watch: _StreamWatch) -> list[RevisionEvents]:
    """The next revisions of a watch, for about one message. Later ones stay in the history."""
    assert watch.watcher is not None
    if not watch.backlog:
        watch.backlog.extend(engine.take(watch.watcher))
    revisions: list[RevisionEvents] = []
    size = 0
    while watch.backlog and size < MAX_REQUEST_BYTES:
        revisions.append(revision_events(engine, watch.backlog.popleft(), watch))
        size += revisions[-1].size
    return revisions


def _puts_of(engine: Engine, keys: Range, revision: int) -> list[Batch]:
    """The puts of a revision that still exist. An empty store is at revision 1."""
    if revision <= 1:
        return []
    events = [
        Event(entry.key, entry)
        for entry in engine.past(keys, revision)
        if entry.modified == revision
    ]
    return [Batch(revision, tuple(events))] if events else []
