"""Batching of commits: a process that registers a thousand instances, or whose thousand instances
report one change, sends a few dozen transactions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mooring.errors import Closed, OutcomeUnknown, OutOfSpace, Unavailable
from mooring.messages import message
from mooring.store.contract import MAX_OPERATIONS, MAX_REQUEST_BYTES, Check, Put, Store, Write
from mooring.tasks import Tasks, settle

_CONCURRENT = 2
"""Transactions in flight: while the store answers one, the next is prepared."""
_BYTES = MAX_REQUEST_BYTES // 2
_COMMON_ERRORS = (Unavailable, OutcomeUnknown, OutOfSpace, Closed)
"""Errors that no single commit causes. Any other error (a failed check, a lost lease, a forbidden
key, a value that is too large) may concern only one commit of the batch."""


class _Commit(NamedTuple):
    writes: Sequence[Write]
    checks: Sequence[Check]
    done: asyncio.Future[int]

    @property
    def size(self) -> int:
        return sum(len(w.key) + len(w.value) for w in self.writes if isinstance(w, Put))


class CommitBatches:
    """Commits of independent callers, which write different keys. Each commit is atomic, and one
    that fails does not affect the others."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[_Commit] = deque()
        self._in_flight = 0
        self._scheduled = False
        self._tasks = Tasks()

    async def commit(self, *writes: Write, require: Sequence[Check] = ()) -> int:
        """Returns the revision. Raises as `Store.commit` does; a `Conflict` carries no reads."""
        if not self._in_flight and not self._waiting:
            return await self._commit_alone(writes, require)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        self._waiting.append(_Commit(writes, require, done))
        if not self._scheduled and self._in_flight < _CONCURRENT:
            self._scheduled = True
            loop.call_soon(self._send)
        return await done

    async def _commit_alone(self, writes: Sequence[Write], require: Sequence[Check]) -> int:
        """The first commit is sent at once; those that arrive in the meantime form a batch."""
        self._in_flight += 1
        try:
            return (await self._store.commit(*writes, require=require)).revision
        finally:
            self._in_flight -= 1
            self._send()

    def _send(self) -> None:
        self._scheduled = False
        while self._waiting and self._in_flight < _CONCURRENT:
            self._in_flight += 1
            self._tasks.start(self._run(self._next_batch()), name="a batch of commits")

    def _next_batch(self) -> list[_Commit]:
        """The next commits that fit into one transaction; at least one."""
        batch: list[_Commit] = []
        operations = checks = size = 0
        while self._waiting:
            commit = self._waiting[0]
            operations += len(commit.writes)
            checks += len(commit.checks)
            size += commit.size
            if batch and (max(operations, checks) > MAX_OPERATIONS or size > _BYTES):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _run(self, batch: list[_Commit]) -> None:
        try:
            await self._commit_together(batch)
        finally:
            self._in_flight -= 1
            self._send()

    async def _commit_together(self, batch: list[_Commit]) -> None:
        try:
            result = await self._store.commit(
                *(write for commit in batch for write in commit.writes),
                require=[check for commit in batch for check in commit.checks],
            )
        except _COMMON_ERRORS as error:
            _settle(batch, error)
        except Exception as error:  # noqa: BLE001 - the caller of the commit gets it
            if len(batch) == 1:
                _settle(batch, error)
            else:  # one of them may be the cause: send each separately
                await asyncio.gather(*(self._commit_together([commit]) for commit in batch))
        except BaseException:
            _settle(batch, Closed(message("registry_closed_before_write")))
            raise
        else:
            _settle(batch, result.revision)

    async def aclose(self) -> None:
        await self._tasks.aclose()


def _settle(batch: list[_Commit], result: int | Exception) -> None:
    for commit in batch:
        settle(commit.done, result)
