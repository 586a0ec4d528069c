"""Wait for what gRPC still does in an event loop after calls have ended.

gRPC completes the operations of a call in threads of its own and hands each completion over to the
call's event loop. Cancelling a call does not wait for that, nor does closing its channel. A
completion that comes after the loop was closed is an error in the log of another loop of the
process. So everything that closes a channel waits for `settled` afterwards. A server's calls are
completed when it has stopped, but their tasks still run: see `stop`.

gRPC's interface does not tell which completions are due. Its Cython module starts all operations of
calls with one function, `execute_batch`. This module replaces it with one that keeps account.
"""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from typing import Any, Self

import grpc.aio
from grpc._cython import cygrpc

_WITHIN = 5.0
"""The maximum wait in seconds. gRPC takes less than a millisecond unless the machine is busy."""


class _OperationBatch:
    """Operations of one call that were started together, and the wait for their completion.

    `throw` is gRPC's own: a frame of ours in the traceback of a cancellation would keep the call
    alive until the next garbage collection.
    """

    __slots__ = ("__weakref__", "_send", "call", "close", "throw")

    def __init__(self, call: Any, *rest: Any) -> None:
        work = _execute_batch(call, *rest)
        self.call, self._send, self.throw, self.close = call, work.send, work.throw, work.close

    def __await__(self) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        future = self._send(value)
        _due[weakref.ref(future, _due.pop)] = weakref.ref(self)
        return future


_due: dict[weakref.ref[asyncio.Future[None]], weakref.ref[_OperationBatch]] = {}
"""The future of each batch that is not completed. gRPC keeps a future, even a cancelled one, until
it has handed over the completion. A batch that was cancelled is gone before that. All references
are weak: gRPC stops its threads when the last call is gone."""

_execute_batch: Any = getattr(cygrpc, "execute_batch", None)

_ending: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
"""The tasks of completed server calls."""


def _start(call: Any, operations: Any, *rest: Any) -> Any:
    if isinstance(call, cygrpc._AioCall):
        return _OperationBatch(call, operations, *rest)
    if isinstance(operations[0], cygrpc.ReceiveCloseOnServerOperation):
        return _until_over(call, operations, *rest)
    return _execute_batch(call, operations, *rest)


async def _until_over(*given: Any) -> None:
    """The task of a server call waits for the end of the call, and then for its handler."""
    await _execute_batch(*given)
    task = asyncio.current_task()
    assert task is not None  # gRPC creates one for each call
    _ending.add(task)


if _execute_batch is not None:  # without it, in other releases of gRPC, there is no waiting
    cygrpc.execute_batch = _start


async def stop(server: grpc.aio.Server, grace: float | None) -> None:
    """Stop a server and wait for the tasks of its calls: gRPC prints a traceback for a task that is
    cancelled because the loop is closed."""
    await server.stop(grace)
    loop = asyncio.get_running_loop()
    if ending := [task for task in _ending if task.get_loop() is loop and not task.done()]:
        await asyncio.wait(ending, timeout=_WITHIN)


async def settled() -> None:
    """Wait until gRPC has completed all ended calls of this loop."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _WITHIN
    while (waits := _waits(loop)) and (left := end - loop.time()) > 0:
        await asyncio.wait([completed for _, completed in waits], timeout=left)


def _waits(
    loop: asyncio.AbstractEventLoop,
) -> list[tuple[weakref.ref[asyncio.Future[None]], asyncio.Future[None]]]:
    """For each pending completion, a future for it and the reference that resolves it."""
    waits = []
    for reference, of_batch in list(_due.items()):
        future, batch = reference(), of_batch()
        if future is None or future.get_loop() is not loop:
            continue
        if batch is None or batch.call.done():
            completed = loop.create_future()
            waits.append((weakref.ref(future, partial(_set, completed)), completed))
    return waits


def _set(completed: asyncio.Future[None], _: object) -> None:
    if not completed.done():
        completed.set_result(None)
