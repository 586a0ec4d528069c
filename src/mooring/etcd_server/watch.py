"""The Watch service: many watches on one stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
from mooring.store.embedded.store import EngineRunner, call_in, running_loop
from mooring.store.embedded.watchers import Watcher
from mooring.store.etcd import proto
from mooring.tasks import Tasks

_NUMBERS = 64  # bytes of an event beside its keys and values, at the most


@dataclass(frozen=True, slots=True)
class Options:
    """How a watch wants to be told."""

    puts: bool = True
    deletes: bool = True
    prev_kv: bool = False
    fragment: bool = False


@dataclass(frozen=True, slots=True)
class RevisionEvents:
    """The events of one revision that a watch is told."""

    revision: int
    events: Sequence[Any]

    @property
    def size(self) -> int:
        return sum(map(_size, self.events))


def tell(engine: Engine, batch: Batch, options: Options) -> RevisionEvents:
    """A batch, without what the watch does not want. The engine has the values from before."""
    events = [
        _message(engine, batch.revision, event, options.prev_kv)
        for event in batch.events
        if (options.puts if event.entry is not None else options.deletes)
    ]
    return RevisionEvents(batch.revision, events)


def _message(engine: Engine, revision: int, event: Event, prev_kv: bool) -> Any:
    entry = event.entry
    if entry is None:
        # A deletion has nothing but its key and its revision.
        kv = proto.KeyValue(key=event.key, mod_revision=revision)
        message = proto.Event(type=proto.DELETE, kv=kv)
    else:
        message = proto.Event(kv=key_value(entry))
    if prev_kv and (entry is None or entry.created != revision):
        _add_previous(engine, revision, message)
    return message


def _add_previous(engine: Engine, revision: int, message: Any) -> None:
    """What the key was before; left out where that is compacted, as etcd leaves it out."""
    name = message.kv.key
    try:
        before = next(iter(engine.past(Range(name, name + b"\0"), revision - 1)), None)
    except Compacted:
        return
    if before is not None:
        message.prev_kv.CopyFrom(key_value(before))


def responses(watch_id: int, told: Sequence[RevisionEvents], *, fragment: bool) -> Iterator[Any]:
    """Revisions in as few messages as fit the size of a request.

    A revision is never torn, but where it is larger than that by itself and the client puts
    fragments together. The header has the last revision that is told: whoever resumes after it
    misses nothing, though there may be more to come.
    """
    group: list[RevisionEvents] = []
    size = 0
    for one in told:
        if not one.events:
            continue
        more = one.size
        if group and size + more > MAX_REQUEST_BYTES:
            yield from _response(watch_id, group, fragment and size > MAX_REQUEST_BYTES)
            group, size = [], 0
        group.append(one)
        size += more
    if group:
        yield from _response(watch_id, group, fragment and size > MAX_REQUEST_BYTES)


def _response(watch_id: int, group: Sequence[RevisionEvents], torn: bool) -> Iterator[Any]:
    revision = group[-1].revision
    if not torn:
        events = [event for one in group for event in one.events]
        yield proto.WatchResponse(header=header(revision), watch_id=watch_id, events=events)
        return
    (one,) = group
    pieces = list(_pieces(one.events))
    for number, piece in enumerate(pieces, 1):
        yield proto.WatchResponse(
            header=header(revision),
            watch_id=watch_id,
            events=piece,
            fragment=number < len(pieces),
        )


def _pieces(events: Sequence[Any]) -> Iterator[list[Any]]:
    """Events cut so that each piece fits; one that does not fit by itself is a piece."""
    piece: list[Any] = []
    size = 0
    for event in events:
        more = _size(event)
        if piece and size + more > MAX_REQUEST_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(event)
        size += more
    yield piece


def _size(event: Any) -> int:
    kv, before = event.kv, event.prev_kv
    return len(kv.key) + len(kv.value) + len(before.key) + len(before.value) + _NUMBERS


PROGRESS_INTERVAL = 600.0
"""Seconds between the progress notifications of a watch that asks for them (etcd's default)."""

_ANY = -1  # the id of a watch that was refused, and of progress that is told for all
_UNSENT = 128  # answers to requests that wait for the client; then no more requests are read


class WatchService:
    def __init__(self, runner: EngineRunner, auth: AuthService, progress_interval: float) -> None:
        self._runner, self._auth = runner, auth
        self._progress_interval = progress_interval

    async def watch(self, context: grpc.aio.ServicerContext) -> None:
        stream = _Stream(self._runner, self._auth, context, self._progress_interval)
        await stream.run()


class _Watch:
    """One watch of a stream."""

    __slots__ = ("backlog", "id", "options", "progress", "signalled", "watcher")

    def __init__(self, watch_id: int, options: Options, progress: bool) -> None:
        self.id, self.options = watch_id, options
        self.progress = progress
        self.watcher: Watcher | None = None
        self.backlog: deque[Batch] = deque()
        """What was taken out of the engine and not sent yet."""
        self.signalled = False
        """Whether the stream knows that there is something to take."""


class _Stream:
    def __init__(
        self,
        runner: EngineRunner,
        auth: AuthService,
        context: grpc.aio.ServicerContext,
        progress_interval: float,
    ) -> None:
        self._runner, self._auth, self._context = runner, auth, context
        self._progress_interval = progress_interval
        self._loop = asyncio.get_running_loop()
        self._watches: dict[int, _Watch] = {}
        self._next_id = 0
        self._answers: deque[Any] = deque()
        self._room = asyncio.Event()
        self._ready: dict[_Watch, None] = {}
        self._progress: set[int] = set()  # whose progress is to be told
        self._woken = asyncio.Event()
        self._failure: RpcStatus | None = None
        self._timer = self._loop.call_later(progress_interval, self._notify)

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

    # What the client asks for

    async def _receive(self) -> None:
        """Take requests until the client ends its side; the watches that stand go on."""
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
        stretch = range_of(request.key or b"\0", request.range_end)
        reason = self._objection(request, stretch)
        if reason:
            self._answer(_ANY, created=True, canceled=True, cancel_reason=reason)
            return
        watch = _Watch(
            self._choose_id(request.watch_id), _options(request), request.progress_notify
        )
        self._watches[watch.id] = watch
        self._answer(watch.id, created=True)
        try:
            self._runner.read(lambda engine: self._attach(engine, watch, stretch, request))
        except Compacted as error:
            self._compacted(watch, error)

    def _objection(self, request: Any, stretch: Range) -> str:
        """Why a watch cannot be, in etcd's words."""
        if request.start_revision < 0:
            return COMPACTED.text
        if (status := self._auth.objection(self._context)) is not None:
            return str(status)
        if stretch.end == stretch.start:
            return EMPTY_WATCH_RANGE
        taken = request.watch_id and request.watch_id in self._watches
        return DUPLICATE_WATCH_ID if taken else ""

    def _choose_id(self, asked: int) -> int:
        if asked:
            return asked
        while self._next_id in self._watches:
            self._next_id += 1
        self._next_id += 1
        return self._next_id - 1

    def _attach(self, engine: Engine, watch: _Watch, stretch: Range, request: Any) -> None:
        start = request.start_revision
        after = start - 1 if start else None
        if start == engine.compacted:
            # What is left of the revision that was compacted is told, as etcd does: its puts.
            after = start
            watch.backlog.extend(_puts_of(engine, stretch, start))
        watch.watcher = engine.watch(stretch, after, lambda: self._wake(watch))
        if watch.backlog or watch.watcher.lagging:
            self._mark(watch)

    def _cancel(self, watch_id: int) -> None:
        watch = self._watches.pop(watch_id, None)
        if watch is not None:
            self._unwatch(watch)
            self._answer(watch_id, canceled=True)

    def _answer(self, watch_id: int, **fields: Any) -> None:
        revision = self._runner.read(lambda engine: engine.confirmed)
        self._answers.append(
            proto.WatchResponse(header=header(revision), watch_id=watch_id, **fields)
        )
        self._woken.set()

    def _notify(self) -> None:
        """Tell progress to those watches that ask for it now and then."""
        self._progress.update(watch.id for watch in self._watches.values() if watch.progress)
        self._woken.set()
        self._timer = self._loop.call_later(self._progress_interval, self._notify)

    # What it is sent

    async def _send(self) -> None:
        while True:
            self._woken.clear()
            asked, self._progress = self._progress, set()
            revision = self._catch_up() if asked else 0
            while self._answers or self._ready:
                # A watch's answer comes before its first event: answers go first.
                if self._answers:
                    await self._context.write(self._answers.popleft())
                    self._room.set()
                else:
                    await self._deliver(next(iter(self._ready)))
            for watch_id in asked:
                if watch_id == _ANY or watch_id in self._watches:
                    await self._context.write(
                        proto.WatchResponse(header=header(revision), watch_id=watch_id)
                    )
            if self._failure is not None:
                raise RpcAborted(self._failure)
            await self._woken.wait()

    def _catch_up(self) -> int:
        """Have everything sent that has happened, up to the revision that is returned."""

        def look(engine: Engine) -> int:
            for watch in self._watches.values():
                if (watcher := watch.watcher) and (
                    watch.backlog or watcher.pending or watcher.lagging
                ):
                    self._mark(watch)
            return engine.confirmed

        return self._runner.read(look)

    async def _deliver(self, watch: _Watch) -> None:
        """Send the next of a watch; what it has beyond that comes after the others' turns."""
        del self._ready[watch]
        watch.signalled = False
        try:
            told = self._runner.read(lambda engine: _take(engine, watch))
        except Compacted as error:
            self._compacted(watch, error)
            return
        if watch.watcher is not None and (watch.backlog or watch.watcher.lagging):
            self._mark(watch)
        for response in responses(watch.id, told, fragment=watch.options.fragment):
            await self._context.write(response)
            if self._watches.get(watch.id) is not watch:
                return  # cancelled meanwhile

    def _compacted(self, watch: _Watch, error: Compacted) -> None:
        """End a watch whose history is gone. As in etcd its id is taken until it is cancelled."""
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

    # Who has something

    def _wake(self, watch: _Watch) -> None:
        """Called by the engine, from whichever thread."""
        if watch.signalled:
            return
        watch.signalled = True
        if running_loop() is self._loop:
            self._mark(watch)
        else:
            call_in(self._loop, self._mark, watch)

    def _mark(self, watch: _Watch) -> None:
        watch.signalled = True
        if watch.watcher is not None:
            self._ready[watch] = None
            self._woken.set()

    def _unwatch(self, watch: _Watch) -> None:
        self._ready.pop(watch, None)
        watcher, watch.watcher = watch.watcher, None
        if watcher is not None:
            self._runner.unwatch(watcher)


def _options(request: Any) -> Options:
    return Options(
        puts=proto.NOPUT not in request.filters,
        deletes=proto.NODELETE not in request.filters,
        prev_kv=request.prev_kv,
        fragment=request.fragment,
    )


def _take(engine: Engine, watch: _Watch) -> list[RevisionEvents]:
    """What a watch is to be told next: revisions for about one message. What lies beyond stays as
    it is in the history, which costs no memory of its own."""
    assert watch.watcher is not None
    if not watch.backlog:
        watch.backlog.extend(engine.take(watch.watcher))
    told: list[RevisionEvents] = []
    size = 0
    while watch.backlog and size < MAX_REQUEST_BYTES:
        told.append(tell(engine, watch.backlog.popleft(), watch.options))
        size += told[-1].size
    return told


def _puts_of(engine: Engine, stretch: Range, revision: int) -> list[Batch]:
    """The puts of a revision that are still there. An empty store is at revision 1."""
    if revision <= 1:
        return []
    events = [
        Event(entry.key, entry)
        for entry in engine.past(stretch, revision)
        if entry.modified == revision
    ]
    return [Batch(revision, tuple(events))] if events else []
