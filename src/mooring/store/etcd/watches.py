"""Watches: all watches of a store share one stream and one liveness check.

etcd does not report that a connection is alive, and a broken one may look alive for minutes. So
while there are watches, the stream requests progress every second. After three unanswered requests,
all its watches leave that endpoint.

A member that lost its quorum still answers these requests, and etcd takes up to 6 s to end its
streams. Only the answer to a linearizable read proves that a member still follows the cluster. So
one such read per second serves all watches of the stream, and `heard` is the time of the last one
that succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from mooring.errors import AccessDenied, Closed, Compacted, StoreError, Unavailable
from mooring.messages import Message, message, named
from mooring.store.contract import Batch, Entry, Event, Range, Watch
from mooring.store.etcd import proto
from mooring.store.etcd.connection import EtcdConnection, Retries
from mooring.store.etcd.errors import cancellation
from mooring.store.etcd.shared_stream import SharedStream
from mooring.tasks import Tasks

PENDING_BYTES = 16 * 1024 * 1024
"""The limit of the events that wait for the reader of one watch: keys, values, and `_EVENT_BYTES`
per event. At the limit the watch stops: pending events can still be read, then iteration raises
`Unavailable`, and the reader resumes after `seen` from etcd's history."""

_EVENT_BYTES = 300

_PROGRESS_EVERY = 1.0
_UNANSWERED = 3

_MOVE_AGAIN = 1.0  # seconds between attempts to move the remaining watches

_PROBE_EVERY = 1.0
_PROBE_WITHIN = 5.0
_PROBES_UNANSWERED = 4
"""In a row. A few may be caused by a pause of this process, or by an election."""


class Watches:
    def __init__(self, cluster: EtcdConnection, tasks: Tasks) -> None:
        self.cluster, self._tasks = cluster, tasks
        self._shared: WatchStream | None = None
        self._streams: list[WatchStream] = []
        """The live streams, including retired ones that still serve watches."""
        cluster.moved.append(self._move)

    def _move(self) -> None:
        """Move the watches to the endpoint in use, without interrupting them."""
        for old in self._streams:
            if old.stream.alive and old.stream.endpoint is not self.cluster.endpoint:
                old.stream.retire()
                self._tasks.start(self._move_from(old), name="moving watches to another member")

    async def _move_from(self, old: WatchStream) -> None:
        while old.stream.alive:
            with contextlib.suppress(StoreError):  # the old stream continues; it is retried
                shared = await self.stream()
                for watch in old.watches:
                    watch.move(shared)
            await asyncio.sleep(_MOVE_AGAIN)

    async def stream(self) -> WatchStream:
        await self.cluster.ready()
        shared = self._shared
        if shared is not None and shared.metadata is not self.cluster.metadata:
            shared.stream.retire()  # its token has been replaced
        if shared is None or shared.stream.retired or not shared.stream.alive:
            shared = self._shared = WatchStream(self.cluster, self._tasks)
            self._streams = [old for old in self._streams if old.stream.alive] + [shared]
        return shared


class WatchStream:
    """A stream and its watches by id. The client chooses the ids, to match responses to watches."""

    def __init__(self, cluster: EtcdConnection, tasks: Tasks) -> None:
        self.stream = SharedStream(
            cluster, tasks, "watch", self._received, self._ended, lambda: not self._watches
        )
        self.metadata = cluster.metadata
        self._cluster = cluster
        self._watches: dict[int, EtcdWatch] = {}
        self._unconfirmed: deque[int] = deque()
        self._ids = itertools.count(1)
        self._unanswered = self._unconfirmed_probes = 0
        self._tasks = tasks
        self.confirmed = self.stream.heard
        """The last time at which the member had contact with its quorum, on the monotonic clock."""
        tasks.start(self._ask_for_progress(), name="etcd watch liveness")
        tasks.start(self._probe_quorum(), name="etcd quorum probe")

    @property
    def watches(self) -> tuple[EtcdWatch, ...]:
        return tuple(self._watches.values())

    def create(self, watch: EtcdWatch, request: Any) -> int:
        watch_id = next(self._ids)
        request.watch_id = watch_id
        self._watches[watch_id] = watch
        self._unconfirmed.append(watch_id)
        self.stream.send(proto.WatchRequest(create_request=request))
        return watch_id

    def cancel(self, watch_id: int) -> None:
        if self._watches.pop(watch_id, None) is not None and self.stream.alive:
            self.stream.send(proto.WatchRequest(cancel_request={"watch_id": watch_id}))
        self.stream.end_if_unused()

    async def _ask_for_progress(self) -> None:
        while self.stream.alive:
            # Counts requests, not seconds: a pause of this process is not silence of etcd.
            await asyncio.sleep(_PROGRESS_EVERY)
            if not self._watches or time.monotonic() - self.stream.heard < _PROGRESS_EVERY:
                self._unanswered = 0
            elif self._unanswered >= _UNANSWERED:
                self.stream.abandon(since=self.stream.heard)
                return
            if self._watches:
                self._unanswered += 1
                self.stream.send(proto.WatchRequest(progress_request={}))

    async def _probe_quorum(self) -> None:
        """Send reads at a constant rate, whether the last one was answered or not: a slow member
        confirms its quorum as often as a fast one, only later."""
        while self.stream.alive:
            await asyncio.sleep(_PROBE_EVERY)
            if not self._watches:
                self._unconfirmed_probes = 0
            elif self._unconfirmed_probes >= _PROBES_UNANSWERED:
                address = self.stream.endpoint.address
                self.stream.leave(message("stream_without_quorum", address=address))
                return
            else:
                # Counts probes, not seconds: a pause of this process is not silence of etcd.
                self._unconfirmed_probes += 1
                name = next(iter(self._watches.values())).range.start  # a key the user may read
                self._tasks.start(self._probe(name), name="etcd quorum probe")

    async def _probe(self, name: bytes) -> None:
        sent = time.monotonic()
        if await self._cluster.has_quorum(self.stream.endpoint, name, within=_PROBE_WITHIN):
            self.confirmed = max(self.confirmed, sent)
            self._unconfirmed_probes = 0

    def _received(self, message: Any) -> bool:
        self._unanswered = 0
        if message.events:
            self.confirmed, self._unconfirmed_probes = self.stream.heard, 0
        watch_id = message.watch_id
        if message.created:
            # etcd 3.4 refuses a watch without its id, but it answers requests in order.
            first = self._unconfirmed.popleft()
            watch_id = first if watch_id < 0 else watch_id
        watch = self._watches.get(watch_id)
        if watch is None:
            return False
        watch.receive(message, self)
        if message.canceled:
            self._watches.pop(watch_id, None)
            self.stream.end_if_unused()
        return bool(message.events)

    def _ended(self, reason: Message) -> None:
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.ended(self, self._cluster.broken(watch.operation, reason))


class EtcdWatch(Watch):
    def __init__(self, watches: Watches, range: Range, after: int | None) -> None:
        self.range = range
        self._watches = watches
        self._seen = after or 0
        self._from_now = after is None
        self._shared: WatchStream | None = None
        self._id = 0
        self._next: tuple[WatchStream, int] | None = None
        """The stream to which the watch moves, and its id there."""
        self._pending: deque[tuple[Batch, int]] = deque()
        self._pending_bytes = 0
        self._fragments: list[Any] = []
        self._error: StoreError | None = None
        self._created = False
        self._changed = asyncio.Event()

    @property
    def operation(self) -> Message:
        return message("op_watch", key=named(self.range.start))

    @property
    def heard(self) -> float:
        return self._shared.confirmed if self._shared else 0.0

    @property
    def seen(self) -> int:
        return self._seen

    async def __aenter__(self) -> EtcdWatch:
        deadline = time.monotonic() + self._watches.cluster.settings.timeout
        retries = Retries(self._watches.cluster, self.operation, deadline)
        denied = False
        while True:
            shared = await self._watches.stream()
            try:
                await self._create(shared, deadline)
                return self
            except AccessDenied:
                # etcd reports an expired token like a missing permission: retry with a new token.
                if denied:
                    raise
                denied = True
                self._watches.cluster.forget_token(shared.metadata)
                shared.stream.retire()
            except Unavailable as error:
                await retries.wait(error, shared.stream.endpoint)

    async def _create(self, shared: WatchStream, deadline: float) -> None:
        self._shared, self._error = shared, None
        self._created, self._fragments = False, []
        self._id = shared.create(self, self._request())
        try:
            await self._confirmed(shared, deadline)
        except BaseException:
            shared.cancel(self._id)
            raise
        if self._error is not None:
            raise self._error

    def _request(self) -> Any:
        # One revision earlier than necessary; it is dropped on receipt. After a compaction at
        # exactly the start revision of a watch, etcd before 3.5.17 silently loses the deletions of
        # that revision; one revision earlier, it reports the compaction.
        return proto.WatchCreateRequest(
            key=self.range.start,
            range_end=range_end(self.range),
            start_revision=0 if self._from_now else max(self._seen, 1),
            fragment=True,
        )

    def move(self, shared: WatchStream) -> None:
        """Continue on another stream. The current one serves until the other one is established."""
        if self._created and self._error is None and self._next is None:
            self._next = (shared, shared.create(self, self._request()))

    def _completes_move(self, message: Any, source: WatchStream) -> bool:
        """Whether a message of another stream completes the move to that stream."""
        if self._next is None or source is not self._next[0]:
            return False
        if message.compact_revision:  # the last event is too old: reload, as after a break
            return True
        if message.canceled or not message.created:
            self._next = None
            return False
        left, left_id = self._shared, self._id
        (self._shared, self._id), self._next, self._fragments = self._next, None, []
        if left is not None:
            left.cancel(left_id)
        return True

    def ended(self, source: WatchStream, error: StoreError) -> None:
        if source is self._shared:
            self.fail(error)
        elif self._next is not None and source is self._next[0]:
            self._next = None

    async def _confirmed(self, shared: WatchStream, deadline: float) -> None:
        """Wait until the watch is established or failed. The server may be busy with other watches,
        so only silence is a failure."""
        sent, attempt = time.monotonic(), self._watches.cluster.attempt
        while not self._created and self._error is None:
            patience = min(max(sent, shared.stream.heard) + attempt, deadline)
            try:
                async with asyncio.timeout(max(patience - time.monotonic(), 0)):
                    await self._change()
            except TimeoutError:
                if time.monotonic() < min(shared.stream.heard + attempt, deadline):
                    continue
                if shared.stream.heard < sent:
                    shared.stream.abandon(since=sent)
                endpoint = shared.stream.endpoint.address
                raise Unavailable(
                    message("no_answer_in_time", operation=self.operation, endpoint=endpoint)
                ) from None

    async def __anext__(self) -> Batch:
        if self._shared is None:
            raise RuntimeError("enter a watch before iterating it: `async with store.watch(…)`")
        while not self._pending:
            if self._error is not None:
                raise self._error
            await self._change()
        batch, size = self._pending.popleft()
        self._pending_bytes -= size
        return batch

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def receive(self, message: Any, source: WatchStream) -> None:
        if source is not self._shared and not self._completes_move(message, source):
            return
        if message.canceled:
            if message.compact_revision:
                error: StoreError = Compacted(self._seen, revision=message.compact_revision)
            else:
                error = cancellation(message.cancel_reason, self.range.start)
            self.fail(error)
            return
        if message.created:
            self._created = True
            if self._from_now:
                self._seen, self._from_now = message.header.revision, False
        events = [*self._fragments, *message.events]
        # Fragments may span revisions; only the last revision can be incomplete.
        complete = _complete(events) if message.fragment else len(events)
        self._fragments = events[complete:]
        for batch in batches(events[:complete]):
            if batch.revision > self._seen:
                self._put(batch)
                if self._pending_bytes > PENDING_BYTES:
                    self._stop()
                    break
        self._changed.set()

    def _put(self, batch: Batch) -> None:
        size = sum(map(_size, batch.events))
        self._seen = batch.revision
        self._pending.append((batch, size))
        self._pending_bytes += size

    def _stop(self) -> None:
        if self._shared is not None:
            self._shared.cancel(self._id)
        self._fragments = []
        self.fail(
            Unavailable(
                message("watch_reader_slow", operation=self.operation, bytes=self._pending_bytes)
            )
        )

    def fail(self, error: StoreError) -> None:
        if self._error is None:
            self._error = error
        if self._next is not None:
            shared, watch_id = self._next
            self._next = None
            shared.cancel(watch_id)
        self._changed.set()

    async def __aexit__(self, *_: object) -> None:
        if self._shared is not None:
            self._shared.cancel(self._id)
        self.fail(Closed(message("watch_closed", key=named(self.range.start))))


def batches(events: Iterable[Any]) -> Iterable[Batch]:
    """Group the events of complete revisions into batches."""
    for revision, changes in groupby(events, key=lambda event: event.kv.mod_revision):
        yield Batch(revision, tuple(map(_event, changes)))


def _complete(events: list[Any]) -> int:
    """The number of events in revisions that are certainly complete."""
    count = len(events)
    while count and events[count - 1].kv.mod_revision == events[-1].kv.mod_revision:
        count -= 1
    return count


def _size(event: Event) -> int:
    value = 0 if event.entry is None else len(event.entry.value)
    return _EVENT_BYTES + len(event.key) + value


def _event(event: Any) -> Event:
    kv = event.kv
    return Event(kv.key, None if event.type == proto.DELETE else entry(kv))


def entry(kv: Any) -> Entry:
    return Entry(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def range_end(range: Range) -> bytes:
    """etcd's encoding: empty for a single key, a zero byte for all keys from the start on."""
    if not range.end:
        return b"\0"
    return b"" if range.end == range.start + b"\0" else range.end
