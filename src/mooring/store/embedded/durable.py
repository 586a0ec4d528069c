"""`sqlite:///path`: an engine whose writes are on disk before anybody sees them.

A thread of its own takes all writes that wait, applies them, puts them into the journal in one
SQLite transaction, confirms them, and answers: writers that come at the same time share one
synchronisation of the disk. Where the journal cannot be written (the disk is full, the file
read-only) everything of that round is taken back and its writers are told; reads go on, the clock
of the leases stands still, and the thread tries again. Where it is a single write that the journal
cannot take, which would be a mistake of ours, that one alone is refused.

If COMMIT itself fails, the outcome of that round is unknown. It is taken back here, and no write is
accepted until the journal was opened again: what the file turns out to hold is then taken up, and
watchers see it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mooring.errors import Closed, OutcomeUnknown, OutOfSpace, StoreError, Unavailable
from mooring.formatting import describe
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
from mooring.store.embedded.store import EngineRunner, call_in

log = logging.getLogger(__name__)

T = TypeVar("T")

_ROUND = 1000  # writes that share one transaction at the most
_RETRY = 0.5  # seconds until the runner tries again whether the journal can be written


@dataclass(slots=True)
class _PendingWrite:
    operation: Callable[[Engine, float], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    arrived: float
    changed: bool = False
    """Whether it changed something when it was applied last."""


class DurableRunner(EngineRunner):
    guarantees = Guarantees(durable=True, replicated=False, shared=False)
    kind = "embedded, in a file"

    def __init__(self, path: Path, engine: Engine) -> None:
        self._journal = Journal(path)
        try:
            with _without_collector():
                uptime, self._dropped = self._load(engine)
        except BaseException:
            self._journal.close()
            raise
        super().__init__(engine)
        # The engine's clock is the store's uptime: while it is down, no lease runs out.
        self._started = time.monotonic() - uptime
        self._stopped_at: float | None = None
        self._queue: queue.SimpleQueue[_PendingWrite | None] = queue.SimpleQueue()
        self._waiting: deque[_PendingWrite] = deque()  # out of the queue, and not yet applied
        self._ending = False
        self._users = 0
        self._written = uptime
        self._told = ""
        self._in_doubt: Exception | None = None  # why COMMIT, or the recovery after it, failed
        self._recover_at = 0.0
        if not self._journal.writable:
            self._failed(NotWritable("it is read-only"))
        self._thread = threading.Thread(target=self._run, name=f"journal of {path}", daemon=True)
        self._thread.start()

    def _load(self, engine: Engine) -> tuple[float, list[Entry]]:
        kept = self._journal.load()
        for lease, ttl, deadline in kept.leases:
            engine.leases.grant(lease, ttl, deadline)
        engine.leases.settle()
        try:
            forgotten = engine.load(
                kept.entries, revision=kept.revision, compacted=kept.compacted, now=kept.uptime
            )
        except StoreError as error:
            raise self._journal.damaged(error) from error
        return kept.uptime, forgotten

    @property
    def cluster_id(self) -> int:
        return self._journal.cluster_id

    def use(self) -> DurableRunner:
        self._users += 1
        return self

    def release(self) -> None:
        with _opening:
            self._users -= 1
            if self._users:
                return
            _open.pop(self._journal.path, None)
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
        """The time that the store has been up, and could write."""
        stopped = self._stopped_at
        return time.monotonic() - self._started if stopped is None else stopped

    def space(self) -> tuple[int, int]:
        return self._journal.space()

    def tick(self) -> float:
        return 60.0  # the thread lets time pass by itself

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
        """Seconds until something is due by itself."""
        if self._in_doubt is not None:
            return max(0.0, self._recover_at - time.monotonic())
        if self._stopped_at is not None:
            return _RETRY
        with self.lock:
            if self._dropped or self._engine.forgetting:
                return 0.0
            deadline = self._engine.next_deadline()
        return 1.0 if deadline is None else max(0.0, min(deadline - self.now(), 1.0))

    def _collect(self, pause: float) -> list[_PendingWrite]:
        """The writes that are next; after a pause without any, none."""
        try:
            if pause and not self._waiting:
                self._take(self._queue.get(timeout=pause))
            for _ in range(self._queue.qsize()):
                self._take(self._queue.get_nowait())
        except queue.Empty:
            pass
        if len(self._waiting) <= _ROUND:
            requests = list(self._waiting)
            self._waiting.clear()
            return requests
        return [self._waiting.popleft() for _ in range(_ROUND)]

    def _take(self, request: _PendingWrite | None) -> None:
        if request is None:
            self._ending = True
        else:
            self._waiting.append(request)

    def _round(self, requests: list[_PendingWrite]) -> None:
        """Answer requests, and let time pass."""
        # A renewal that came in time saves its lease, however long it has waited here.
        if self._in_doubt is not None and not self._recover():
            _deliver(requests, self._without_writing(requests, self._refused(self._in_doubt)))
            return
        oldest = self._waiting[0].arrived - self._started if self._waiting else self.now()
        until = min(oldest, self.now())
        try:
            answers = self._write(requests, until)
        except Exception as error:  # noqa: BLE001 - nothing may end the thread
            if _of_the_disk(error):
                answers = self._without_writing(requests, self._failed(error))
            else:
                self._mistaken(error)
                answers = self._one_by_one(requests, until)
        _deliver(requests, answers)

    def _recover(self) -> bool:
        """After COMMIT failed: see what the file holds, and take it up. False: not yet."""
        if time.monotonic() < self._recover_at:
            return False
        try:
            kept = self._journal.recover(after=self._engine.confirmed)
            with self.lock:
                self._engine.catch_up(
                    kept.entries,
                    kept.leases,
                    revision=kept.revision,
                    compacted=kept.compacted,
                    now=self.now(),
                )
        except Exception as error:  # noqa: BLE001 - nothing may end the thread
            self._doubt(error, pause=_RETRY)
            return False
        # The next round writes the clock, and goes on if that succeeds.
        self._in_doubt = None
        return True

    def _write(self, requests: list[_PendingWrite], until: float | None) -> list[object]:
        """Apply requests, let leases run out up to a time, and keep what has changed; the answers.
        Raises where it could not be kept, and leaves nothing."""
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
        """The answers while the journal cannot be written. What changes nothing is answered, unless
        it changed something in the round that failed: then it may be on disk."""
        answers: list[object] = []
        with self.lock:
            for request in requests:
                changed = request.changed
                answer = self._apply(request, self.now())
                answers.append(failure if changed or request.changed else answer)
                self._engine.undo()
        return answers

    def _one_by_one(self, requests: list[_PendingWrite], until: float) -> list[object]:
        """The answers where something could not be kept though the disk is well: all but that."""
        answers: list[object] = []
        for request in requests:
            try:
                answers += self._write([request], None)
            except Exception as error:  # noqa: BLE001 - nothing may end the thread
                if _of_the_disk(error):
                    answers += self._without_writing([request], self._failed(error))
                else:
                    answers.append(self._mistaken(error))
        try:
            self._write([], until)
        except Exception as error:  # noqa: BLE001 - nothing may end the thread
            if _of_the_disk(error):
                self._failed(error)
            else:
                self._mistaken(error)
        return answers

    def _apply(self, request: _PendingWrite, now: float) -> object:
        """An operation's answer, or its error."""
        mark = self._engine.mark()
        try:
            answer: object = request.operation(self._engine, now)
        except Exception as error:  # noqa: BLE001 - a caller's mistake must not end the thread
            self._engine.undo(mark)
            answer = error
        request.changed = self._engine.mark() > mark
        return answer

    def _changes(self, now: float) -> JournalWrite | None:
        """What the journal must hold; None where there is nothing to write."""
        engine = self._engine
        leases_live = next(iter(engine.leases), None) is not None
        clock_due = leases_live and now - self._written >= 1.0
        # While it fails, the clock is written to see whether it still does.
        if not (engine.mark() or clock_due or self._stopped_at is not None):
            return None
        held = [(lease, engine.leases.get(lease)) for lease in engine.leases.changed]
        return JournalWrite(
            revision=engine.revision,
            compacted=engine.compacted,
            uptime=now,
            batches=engine.unconfirmed(),
            leases=[(lease, h.ttl, h.deadline) for lease, h in held if h is not None],
            ended=[lease for lease, h in held if h is None],
        )

    def _forget(self, seconds: float) -> None:
        """Drop some of what is compacted from the disk, for at most about so long: clients that
        wait meanwhile wait no longer than for others' writes, and it keeps up with them."""
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
                if _of_the_disk(error):
                    self._failed(error)
                    return
                self._mistaken(error)
            del self._dropped[: len(piece)]
            if time.monotonic() >= until or not (more or self._dropped):
                return

    # How it goes

    def _wrote(self, now: float) -> None:
        self._written = now
        if self._stopped_at is not None:
            self._started, self._stopped_at = time.monotonic() - self._stopped_at, None
            self.problem = ""
            log.info("%s: writes are possible again", self._journal.path)

    def _failed(self, error: Exception) -> StoreError:
        """The journal cannot be written: the answer to those who would have. No lease can be
        renewed, so the clock stands still until it can be."""
        if self._stopped_at is None:
            self._stopped_at = self.now()
            self.problem = f"{self._cannot(error)}: writes are refused, reads go on"
            log.error(self.problem)
        if isinstance(error, CommitFailed):
            self._doubt(error, pause=0.0)
            return OutcomeUnknown(
                f"{self._cannot(error)} while it was committing: the write may be on disk or not. "
                "Read before you write again; writes resume when the file can be written"
            )
        return self._refused(error)

    def _doubt(self, error: Exception, *, pause: float) -> None:
        if self._in_doubt is None or str(error) != str(self._in_doubt):
            log.error(
                "%s: no write is accepted until it is known what it holds", self._cannot(error)
            )
        self._in_doubt, self._recover_at = error, time.monotonic() + pause

    def _refused(self, error: Exception) -> StoreError:
        text = f"{self._cannot(error)}: nothing was written, reads go on"
        if refuses_writes(error):
            return OutOfSpace(f"{text}; make room or the file writable, and writes resume")
        return Unavailable(f"{text}; writes resume when the file can be written")

    def _cannot(self, error: Exception) -> str:
        return f"{self._journal.path} cannot be written: {describe(error)}"

    def _mistaken(self, error: Exception) -> StoreError:
        """A write that the journal does not take: what its writer is told."""
        text = f"{self._journal.path} cannot keep a write: {describe(error)}"
        if text != self._told:
            self._told = text
            log.error("%s, and it is refused: a mistake in Mooring", text, exc_info=error)
        return StoreError(f"{text}: nothing was written. This is a mistake in Mooring, report it")

    def _refuse_the_rest(self) -> None:
        """Those who came too late are told."""
        while True:
            try:
                request = self._queue.get_nowait()
            except queue.Empty:
                return
            if request is not None:
                _deliver([request], [Closed(f"{self._journal.path} is closed")])


def _of_the_disk(error: Exception) -> bool:
    """Whether the journal cannot be written at all: the disk is full, the file read-only, locked
    or damaged. Any other error is of what was to be written."""
    return isinstance(error, sqlite3.OperationalError | OSError) or (
        type(error) is sqlite3.DatabaseError
    )


def _piece(entries: list[Entry]) -> list[Entry]:
    """The first of entries: as many as are dropped from the disk in one go."""
    total = 0
    for number, entry in enumerate(entries[:FORGET], 1):
        total += size(entry)
        if total >= FORGET_BYTES:
            return entries[:number]
    return entries[:FORGET]


@contextmanager
def _without_collector() -> Iterator[None]:
    """A million new objects would be looked through again and again, and none is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _deliver(requests: list[_PendingWrite], answers: list[object]) -> None:
    """Wake those who wait, each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], object]]] = {}
    for request, answer in zip(requests, answers, strict=True):
        by_loop.setdefault(request.loop, []).append((request.answer, answer))
    for loop, pairs in by_loop.items():
        call_in(loop, _resolve, pairs)


def _resolve(pairs: list[tuple[asyncio.Future[Any], object]]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


_open: dict[Path, DurableRunner] = {}
_opening = threading.Lock()
_inherited: list[DurableRunner] = []


def _forget_runners() -> None:
    """In a forked child: a runner without its thread would answer no write, ever. It is kept, for
    SQLite must not close what the parent has open."""
    global _opening
    _opening = threading.Lock()
    _inherited.extend(_open.values())
    _open.clear()


os.register_at_fork(after_in_child=_forget_runners)


def durable_runner(path: Path, make: Callable[[], Engine] = Engine) -> DurableRunner:
    """The runner of a file, opened unless it is open in this process. Release it after use."""
    try:
        path = path.resolve()
    except (OSError, RuntimeError) as error:
        raise StoreError(f"{path} cannot be opened: {describe(error)}") from error
    with _opening:
        runner = _open.get(path)
        if runner is None:
            runner = _open[path] = DurableRunner(path, make())
        return runner.use()
