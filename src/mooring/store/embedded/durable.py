"""`sqlite:///path`: an engine whose writes are on disk before anybody sees them.

A thread of its own takes all writes that wait, applies them, puts them into the journal in one
SQLite transaction, confirms them, and answers: writers that come at the same time share one
synchronisation of the disk. Where the journal cannot be written (the disk is full, the file
read-only) everything of that round is taken back and its writers are told; reads go on, and the
next round tries again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mooring.errors import Closed, MooringError, OutOfSpace, StoreError
from mooring.store.contract import Guarantees
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.host import Host, call_in
from mooring.store.embedded.journal import Changes, Journal

log = logging.getLogger(__name__)

T = TypeVar("T")

_ROUND = 1000  # writes that share one transaction at the most
_FORGET = 5000  # compacted versions that are dropped from the disk in one round
_RETRY = 0.5  # seconds until the host tries again what nobody asked for (expiry, compaction)


@dataclass(slots=True)
class _Request:
    operation: Callable[[Engine, float], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class DurableHost(Host):
    guarantees = Guarantees(durable=True, replicated=False, shared=False)
    kind = "embedded, in a file"

    def __init__(self, path: Path, *, history: int, history_age: float) -> None:
        self._journal = Journal(path)
        engine = Engine(history=history, history_age=history_age)
        with _without_collector():
            uptime = self._load(engine)
        # The engine's clock is the store's uptime: while it is down, no lease runs out.
        self._started = time.monotonic() - uptime
        super().__init__(engine)
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._users = 0
        self._failing = False
        self._written = uptime
        if not self._journal.writable:
            self._failed(sqlite3.OperationalError("it is read-only"))
        self._thread = threading.Thread(target=self._run, name=f"journal of {path}", daemon=True)
        self._thread.start()

    def _load(self, engine: Engine) -> float:
        kept = self._journal.load()
        for lease, ttl, deadline in kept.leases:
            engine.leases.grant(lease, ttl, deadline)
        engine.leases.changed.clear()
        try:
            engine.load(
                kept.entries, revision=kept.revision, compacted=kept.compacted, now=kept.uptime
            )
        except StoreError as error:
            path = self._journal.path
            self._journal.close()
            raise StoreError(f"{path} is damaged ({error}): mooring store check {path}") from error
        return kept.uptime

    def use(self) -> DurableHost:
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
        self._queue.put(_Request(operation, loop, answer))
        return await answer

    def tick(self) -> float:
        return 60.0  # the thread lets time pass by itself

    # Everything below runs in the thread.

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _run(self) -> None:
        pause = 0.0
        while True:
            requests, last = self._collect(pause)
            self._round(requests)
            if last:
                return self._refuse_the_rest()
            pause = _RETRY if self._failing else self._rest()

    def _rest(self) -> float:
        """Seconds until something is due by itself."""
        with self.lock:
            if self._engine.forgotten:
                return 0.0
            deadline = self._engine.next_deadline()
        return 1.0 if deadline is None else max(0.0, min(deadline - self._now(), 1.0))

    def _collect(self, pause: float) -> tuple[list[_Request], bool]:
        """The writes that wait; after a pause without any, none. And whether it is time to end."""
        requests: list[_Request] = []
        try:
            request = self._queue.get(timeout=pause) if pause else self._queue.get_nowait()
            while request is not None:
                requests.append(request)
                if len(requests) == _ROUND:
                    return requests, False
                request = self._queue.get_nowait()
        except queue.Empty:
            return requests, False
        return requests, True

    def _round(self, requests: list[_Request]) -> None:
        with self.lock:
            now = self._now()
            self._engine.advance(now)
            answers = [self._apply(request, now) for request in requests]
            changes = self._changes(now)
        try:
            if changes is not None:
                self._journal.write(changes)
        except sqlite3.Error as error:
            with self.lock:
                self._engine.undo()
            answers = [self._failed(error)] * len(requests)
        else:
            with self.lock:
                self._engine.confirm()
                if changes is not None:
                    del self._engine.forgotten[: len(list(changes.forgotten))]
                    self._written = now
            if self._failing and changes is not None:
                self._failing, self.problem = False, ""
                log.info("%s: writes are possible again", self._journal.path)
        _deliver(requests, answers)

    def _apply(self, request: _Request, now: float) -> object:
        """An operation's answer, or its error."""
        try:
            return request.operation(self._engine, now)
        except MooringError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a caller's mistake must not end the thread
            return error

    def _changes(self, now: float) -> Changes | None:
        """What the journal must hold; None where there is nothing to write."""
        engine = self._engine
        batches = engine.unconfirmed()
        changed = list(engine.leases.changed)
        forgotten = engine.forgotten[:_FORGET]
        leases_live = next(iter(engine.leases), None) is not None
        clock_due = leases_live and now - self._written >= 1.0
        if not (batches or changed or forgotten or clock_due):
            return None
        held = [(lease, engine.leases.get(lease)) for lease in changed]
        return Changes(
            revision=engine.revision,
            compacted=engine.compacted,
            uptime=now,
            batches=batches,
            leases=[(lease, h.ttl, h.deadline) for lease, h in held if h is not None],
            ended=[lease for lease, h in held if h is None],
            forgotten=forgotten,
        )

    def _failed(self, error: sqlite3.Error) -> StoreError:
        text = f"{self._journal.path} cannot be written ({error}): "
        if not self._failing:
            self._failing = True
            self.problem = f"{text}writes are refused, reads go on"
            log.error(self.problem)
        return OutOfSpace(
            f"{text}nothing was written, reads go on; make room or the file writable, and writes "
            "resume by themselves"
        )

    def _refuse_the_rest(self) -> None:
        """Those who came too late are told."""
        while True:
            try:
                request = self._queue.get_nowait()
            except queue.Empty:
                return
            if request is not None:
                _deliver([request], [Closed(f"{self._journal.path} is closed")])


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


def _deliver(requests: list[_Request], answers: list[object]) -> None:
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


_open: dict[Path, DurableHost] = {}
_opening = threading.Lock()


def durable_host(path: Path, *, history: int, history_age: float) -> DurableHost:
    """The host of a file, opened where it is not open in this process yet. Release it after use."""
    path = path.resolve()
    with _opening:
        host = _open.get(path)
        if host is None:
            host = _open[path] = DurableHost(path, history=history, history_age=history_age)
        return host.use()
