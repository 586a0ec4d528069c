"""The runner of `sqlite:///path`: writes are visible once they are on disk.

One thread takes all pending writes, applies them to the engine, writes them to the journal in one
SQLite transaction, confirms them and answers. So concurrent writers share one fsync. If the journal
cannot be written (the disk is full, the file is read-only), the round is rolled back and its
writers get an error. Reads continue, the clock of the leases stops, and the thread retries. If only
a single write cannot be stored, which would be a bug in Mooring, only that write is rejected.

If COMMIT itself fails, the outcome of the round is unknown. The engine rolls it back, and rejects
writes until the journal was reopened. Then it applies what the file turned out to contain, and
watchers see that.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mooring.errors import Closed, OutcomeUnknown, OutOfSpace, StoreError, Unavailable
from mooring.messages import Message, message
from mooring.store.contract import Entry, Guarantees
from mooring.store.embedded.engine import FORGET, FORGET_BYTES, Engine
from mooring.store.embedded.keyspace import size
from mooring.store.embedded.sqlite_file import (
    CommitFailed,
    Journal,
    JournalWrite,
    NotWritable,
    refuses_writes,
)
from mooring.store.embedded.store import EngineRunner, call_in, shared_runner
from mooring.tasks import settle

log = logging.getLogger(__name__)

T = TypeVar("T")

_ROUND = 1000  # the maximum number of writes in one transaction
_RETRY = 0.5  # seconds between attempts while the journal cannot be written


@dataclass(slots=True)
class _PendingWrite:
    operation: Callable[[Engine, float], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    arrived: float
    changed: bool = False
    """Whether the operation changed something when it was last applied."""


class DurableRunner(EngineRunner):
    guarantees = Guarantees(durable=True, replicated=False, shared=False)
    kind = "embedded, in a file"
    survives_fork = False  # a forked child does not have its thread

    def __init__(self, path: Path, engine: Engine) -> None:
        self._journal = Journal(path)
        try:
            with _without_collector():
                uptime, self._dropped = self._load(engine)
        except BaseException:
            self._journal.close()
            raise
        super().__init__(engine)
        # The engine's clock is the uptime of the store: no lease expires while the store is down.
        self._started = time.monotonic() - uptime
        self._stopped_at: float | None = None
        self._queue: queue.SimpleQueue[_PendingWrite | None] = queue.SimpleQueue()
        self._waiting: deque[_PendingWrite] = deque()  # taken from the queue, not yet applied
        self._ending = False
        self._written = uptime
        self._last_rejection: Message | None = None
        self._in_doubt: Exception | None = None  # why COMMIT, or the recovery after it, failed
        self._recover_at = 0.0
        if not self._journal.writable:
            self._failure(NotWritable(message("file_read_only")))
        self._thread = threading.Thread(target=self._run, name=f"journal of {path}", daemon=True)
        self._thread.start()

    def _load(self, engine: Engine) -> tuple[float, list[Entry]]:
        state = self._journal.load()
        for lease, ttl, deadline in state.leases:
            engine.leases.grant(lease, ttl, deadline)
        engine.leases.settle()
        try:
            forgotten = engine.load(
                state.entries, revision=state.revision, compacted=state.compacted, now=state.uptime
            )
        except StoreError as error:
            raise self._journal.damaged(error) from error
        return state.uptime, forgotten

    @property
    def cluster_id(self) -> int:
        return self._journal.cluster_id

    def _close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._journal.close()

    def read(self, operation: Callable[[Engine], T]) -> T:
        with self.lock:
            return operation(self._engine)

    async def write(self, operation: Callable[[Engine, float], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._queue.put(_PendingWrite(operation, loop, answer, time.monotonic()))
        return await answer

    def now(self) -> float:
        """The time during which the store was running and could write."""
        stopped = self._stopped_at
        return time.monotonic() - self._started if stopped is None else stopped

    def space(self) -> tuple[int, int]:
        return self._journal.space()

    def tick(self) -> float:
        return 60.0  # the thread expires leases

    # Everything below runs in the thread.

    def _run(self) -> None:
        pause = 0.0
        while True:
            requests = self._collect(pause)
            started = time.monotonic()
            self._round(requests)
            self._forget(time.monotonic() - started)
            if self._ending and not self._waiting:
                return self._refuse_the_rest()
            pause = self._rest()

    def _rest(self) -> float:
        """Seconds until something is due."""
        if self._in_doubt is not None:
            return max(0.0, self._recover_at - time.monotonic())
        if self._stopped_at is not None:
            return _RETRY
        with self.lock:
            if self._dropped or self._engine.forgetting:
                return 0.0
            deadline = self._engine.leases.next_deadline()
        return 1.0 if deadline is None else max(0.0, min(deadline - self.now(), 1.0))

    def _collect(self, pause: float) -> list[_PendingWrite]:
        """The next writes; none if none arrive during the pause."""
        with suppress(queue.Empty):
            if pause and not self._waiting:
                self._take(self._queue.get(timeout=pause))
            for _ in range(self._queue.qsize()):
                self._take(self._queue.get_nowait())
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), _ROUND))]

    def _take(self, request: _PendingWrite | None) -> None:
        if request is None:
            self._ending = True
        else:
            self._waiting.append(request)

    def _round(self, requests: list[_PendingWrite]) -> None:
        # A renewal that arrived in time saves its lease, however long it waited in the queue.
        if self._in_doubt is not None and not self._recover():
            _deliver(requests, self._without_writing(requests, self._refused(self._in_doubt)))
            return
        oldest = self._waiting[0].arrived - self._started if self._waiting else self.now()
        until = min(oldest, self.now())
        try:
            answers = self._write(requests, until)
        except Exception as error:  # noqa: BLE001 - nothing may end the thread
            failure = self._failure(error)
            if _is_disk_error(error):
                answers = self._without_writing(requests, failure)
            else:
                answers = self._one_by_one(requests, until)
        _deliver(requests, answers)

    def _recover(self) -> bool:
        """After COMMIT failed: apply what the file contains. False: not yet possible."""
        if time.monotonic() < self._recover_at:
            return False
        try:
            state = self._journal.recover(after=self._engine.confirmed)
            with self.lock:
                self._engine.catch_up(
                    state.entries,
                    state.leases,
                    revision=state.revision,
                    compacted=state.compacted,
                    now=self.now(),
                )
        except Exception as error:  # noqa: BLE001 - nothing may end the thread
            self._doubt(error, pause=_RETRY)
            return False
        # The next round writes the clock, and continues if that succeeds.
        self._in_doubt = None
        return True

    def _write(self, requests: list[_PendingWrite], until: float | None) -> list[object]:
        """Apply and write requests, and expire leases. If that fails, it rolls back and raises."""
        try:
            with self.lock:
                now = self.now()
                answers = [self._apply(request, now) for request in requests]
                if until is not None:
                    self._engine.advance(until)
                changes = self._changes(now)
            if changes is not None:
                self._journal.write(changes)
        except BaseException:
            with self.lock:
                self._engine.undo()
            raise
        with self.lock:
            self._engine.confirm()
        if changes is not None:
            self._wrote(now)
        return answers

    def _without_writing(self, requests: list[_PendingWrite], failure: StoreError) -> list[object]:
        """The answers while the journal cannot be written. Requests that change nothing are
        answered, unless they changed something in the round that failed: that may be on disk."""
        answers: list[object] = []
        with self.lock:
            for request in requests:
                changed = request.changed
                answer = self._apply(request, self.now())
                answers.append(failure if changed or request.changed else answer)
                self._engine.undo()
        return answers

    def _one_by_one(self, requests: list[_PendingWrite], until: float) -> list[object]:
        """The answers if a write cannot be stored although the disk works: only that one fails."""
        answers: list[object] = []
        for group, end in [*(([request], None) for request in requests), ([], until)]:
            try:
                answers += self._write(group, end)
            except Exception as error:  # noqa: BLE001 - nothing may end the thread
                answers += self._without_writing(group, self._failure(error))
        return answers

    def _apply(self, request: _PendingWrite, now: float) -> object:
        """The result of an operation, or its error."""
        mark = self._engine.mark()
        try:
            answer: object = request.operation(self._engine, now)
        except Exception as error:  # noqa: BLE001 - an operation that fails must not end the thread
            self._engine.undo(mark)
            answer = error
        request.changed = self._engine.mark() > mark
        return answer

    def _changes(self, now: float) -> JournalWrite | None:
        """The next write to the journal; None if there is nothing to write."""
        engine = self._engine
        has_leases = next(iter(engine.leases), None) is not None
        clock_due = has_leases and now - self._written >= 1.0
        # While writing fails, the clock is written to find out when it works again.
        if not (engine.mark() or clock_due or self._stopped_at is not None):
            return None
        changed = [(lease, engine.leases.get(lease)) for lease in engine.leases.changed]
        return JournalWrite(
            revision=engine.revision,
            compacted=engine.compacted,
            uptime=now,
            batches=engine.unconfirmed(),
            leases=[(lease, active.ttl, active.deadline) for lease, active in changed if active],
            ended=[lease for lease, active in changed if active is None],
        )

    def _forget(self, seconds: float) -> None:
        """Delete compacted versions from the disk, for about `seconds`: as long as the round took.
        So clients wait no longer than for other writes, and deletion keeps up with writes."""
        until = time.monotonic() + seconds
        while self._stopped_at is None:
            with self.lock:
                if not self._dropped:
                    self._dropped = self._engine.forget()
                compacted, more = self._engine.compacted, self._engine.forgetting
            piece = _piece(self._dropped)
            try:
                if piece:
                    self._journal.forget(piece, compacted=compacted)
            except Exception as error:  # noqa: BLE001 - nothing may end the thread
                self._failure(error)
                if self._stopped_at is not None:
                    return
            del self._dropped[: len(piece)]
            if time.monotonic() >= until or not (more or self._dropped):
                return

    def _wrote(self, now: float) -> None:
        self._written = now
        if self._stopped_at is not None:
            self._started, self._stopped_at = time.monotonic() - self._stopped_at, None
            self.problem = None
            log.info("%s: writes work again", self._journal.path)

    def _failure(self, error: Exception) -> StoreError:
        """The error for the writers of a round that failed. While the journal cannot be written, no
        lease can be renewed, so the clock stops."""
        if not _is_disk_error(error):
            return self._rejected(error)
        if self._stopped_at is None:
            self._stopped_at = self.now()
            self.problem = message("file_refuses_writes", problem=self._cannot(error))
            log.error("%s", self.problem)
        if isinstance(error, CommitFailed):
            self._doubt(error, pause=0.0)
            return OutcomeUnknown(message("file_commit_unknown", problem=self._cannot(error)))
        return self._refused(error)

    def _doubt(self, error: Exception, *, pause: float) -> None:
        if self._in_doubt is None or str(error) != str(self._in_doubt):
            log.error(
                "%s: writes are refused until the contents of the file are known",
                self._cannot(error),
            )
        self._in_doubt, self._recover_at = error, time.monotonic() + pause

    def _refused(self, error: Exception) -> StoreError:
        problem = self._cannot(error)
        if refuses_writes(error):
            return OutOfSpace(message("file_out_of_space", problem=problem))
        return Unavailable(message("file_unavailable", problem=problem))

    def _cannot(self, error: Exception) -> Message:
        return message("file_not_written", path=str(self._journal.path), problem=error)

    def _rejected(self, error: Exception) -> StoreError:
        """The error for the writer of something that the journal cannot store."""
        rejection = message("file_rejects_write", path=str(self._journal.path), problem=error)
        if rejection != self._last_rejection:
            self._last_rejection = rejection
            log.error("%s", rejection, exc_info=error)
        return StoreError(rejection)

    def _refuse_the_rest(self) -> None:
        closed = message("store_closed", store=str(self._journal.path))
        with suppress(queue.Empty):
            while True:
                if (request := self._queue.get_nowait()) is not None:
                    _deliver([request], [Closed(closed)])


def _is_disk_error(error: Exception) -> bool:
    """Whether the journal cannot be written at all: the disk is full, the file is read-only, locked
    or damaged. Other errors are caused by the data to be written."""
    return isinstance(error, sqlite3.OperationalError | OSError) or (
        type(error) is sqlite3.DatabaseError
    )


def _piece(entries: list[Entry]) -> list[Entry]:
    """The first entries: as many as are deleted from the disk in one transaction."""
    total = 0
    for number, entry in enumerate(entries[:FORGET], 1):
        total += size(entry)
        if total >= FORGET_BYTES:
            return entries[:number]
    return entries[:FORGET]


@contextmanager
def _without_collector() -> Iterator[None]:
    """The collector would scan a million new objects repeatedly, and none is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _deliver(requests: list[_PendingWrite], answers: list[object]) -> None:
    """Resolve the futures of the writers, with one callback per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], object]]] = {}
    for request, answer in zip(requests, answers, strict=True):
        by_loop.setdefault(request.loop, []).append((request.answer, answer))
    for loop, pairs in by_loop.items():
        call_in(loop, _resolve, pairs)


def _resolve(pairs: list[tuple[asyncio.Future[Any], object]]) -> None:
    for future, answer in pairs:
        settle(future, answer)


def durable_runner(path: Path, make: Callable[[], Engine] = Engine) -> DurableRunner:
    """The runner of a file, opened unless this process has it open. Release it after use."""
    try:
        path = path.resolve()
    except (OSError, RuntimeError) as error:
        raise StoreError(message("file_not_opened", path=str(path), problem=error)) from error
    return shared_runner(path, lambda: DurableRunner(path, make()))
