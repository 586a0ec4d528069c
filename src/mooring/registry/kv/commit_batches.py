"""Commits that come together go together: a process that registers a thousand instances, or whose
thousand instances tell of one change, sends a few dozen transactions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mooring.errors import Closed, OutcomeUnknown, OutOfSpace, Unavailable
from mooring.store.contract import MAX_OPERATIONS, MAX_REQUEST_BYTES, Check, Put, Store, Write
from mooring.tasks import Tasks

_UNDER_WAY = 2  # transactions at once: one is answered while others are made
_BYTES = MAX_REQUEST_BYTES // 2
_EVERYBODYS = (Unavailable, OutcomeUnknown, OutOfSpace, Closed)
"""What no single commit is the cause of. Any other error (a check that fails, a lease that is
gone, a key that may not be written, a value that is too large) may be that of one alone."""


class _Commit(NamedTuple):
    writes: Sequence[Write]
    checks: Sequence[Check]
    done: asyncio.Future[int]

    @property
    def size(self) -> int:
        return sum(len(w.key) + len(w.value) for w in self.writes if isinstance(w, Put))


class CommitBatches:
    """Commits of different owners, who touch keys of their own. What one asks for happens whole or
    not at all, and where it cannot be written nobody else is held up by it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[_Commit] = deque()
        self._under_way = 0
        self._due = False
        self._tasks = Tasks()

    async def commit(self, *writes: Write, require: Sequence[Check] = ()) -> int:
        """The revision after it. Raises as `Store.commit` does; a `Conflict` carries no reads."""
        if not self._under_way and not self._waiting:
            return await self._alone(writes, require)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        self._waiting.append(_Commit(writes, require, done))
        if not self._due and self._under_way < _UNDER_WAY:
            self._due = True
            loop.call_soon(self._send)
        return await done

    async def _alone(self, writes: Sequence[Write], require: Sequence[Check]) -> int:
        """The first that comes does not wait for company; those who come meanwhile go together."""
        self._under_way += 1
        try:
            return (await self._store.commit(*writes, require=require)).revision
        finally:
            self._under_way -= 1
            self._send()

    def _send(self) -> None:
        self._due = False
        while self._waiting and self._under_way < _UNDER_WAY:
            self._under_way += 1
            self._tasks.start(self._run(self._take()), name="a batch of commits")

    def _take(self) -> list[_Commit]:
        """The next that fit into one transaction; at least one."""
        batch: list[_Commit] = []
        operations = checks = size = 0
        while self._waiting:
            one = self._waiting[0]
            operations += len(one.writes)
            checks += len(one.checks)
            size += one.size
            if (batch and max(operations, checks) > MAX_OPERATIONS) or (size > _BYTES and batch):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _run(self, batch: list[_Commit]) -> None:
        try:
            await self._together(batch)
        finally:
            self._under_way -= 1
            self._send()

    async def _together(self, batch: list[_Commit]) -> None:
        try:
            done = await self._store.commit(
                *(write for one in batch for write in one.writes),
                require=[check for one in batch for check in one.checks],
            )
        except _EVERYBODYS as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - it is told to whose commit it was
            if len(batch) == 1:
                _fail(batch, error)
            else:  # one of them may be the cause: each by itself
                await asyncio.gather(*(self._together([one]) for one in batch))
        except BaseException:
            _fail(batch, Closed("the registry was closed before this was written"))
            raise
        else:
            for one in batch:
                if not one.done.done():
                    one.done.set_result(done.revision)

    async def aclose(self) -> None:
        await self._tasks.aclose()


def _fail(batch: list[_Commit], error: Exception) -> None:
    for one in batch:
        if not one.done.done():
            one.done.set_exception(error)
            one.done.exception()  # seen, though who asked may be gone
