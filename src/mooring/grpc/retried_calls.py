"""Calls that wait for an instance, and may be retried on another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from typing import Any, NamedTuple

import grpc
import grpc.aio

from mooring.discovery.balance import Node
from mooring.discovery.resilience import RetryBudget
from mooring.formatting import describe
from mooring.grpc.methods import NOTICED_WITHIN, RETRYABLE, ConnectionMethod, was_not_sent
from mooring.grpc.subchannels import Subchannel, Subchannels
from mooring.tasks import Tasks

_CANCELLED = "Locally cancelled by application!"  # as gRPC says


class CallArguments(NamedTuple):
    request: Any
    """Or the iterator of requests."""
    deadline: float | None
    """On the loop's clock."""
    wait_for_ready: bool
    key: str | None
    """The key for consistent hashing."""
    tries: int
    options: Mapping[str, Any]


def failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


class ReplayableRequests:
    """The caller's stream of requests, for several attempts. Each attempt iterates over it.

    gRPC reads the first request before it knows whether there is a connection, and the second one
    after the first was sent. So after an attempt that sent nothing, the next one begins with the
    last request that was read.
    """

    def __init__(self, requests: Any, tasks: Tasks) -> None:
        self._requests, self._tasks = _aiter(requests), tasks
        self._last: list[Any] = []
        self._next: asyncio.Task[Any] | None = None
        """The read in progress, which an earlier attempt may have started."""
        self._attempts = 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        self._attempts += 1
        attempt = self._attempts
        for request in self._last:
            yield request
        while True:
            if self._next is None:
                self._next = self._tasks.start(self._read(), name="next request of a call")
            try:
                request = await asyncio.shield(self._next)
            except asyncio.CancelledError:
                self._next.cancel()
                raise
            if attempt != self._attempts:
                return  # it belongs to the next attempt
            if isinstance(request, Exception):
                raise request
            if request is grpc.aio.EOF:
                return
            self._last, self._next = [request], None
            yield request

    async def _read(self) -> Any:
        """The next request, or the error of the caller's iterator."""
        try:
            return await anext(self._requests, grpc.aio.EOF)
        except Exception as error:  # noqa: BLE001 - for gRPC, which ends the call
            return error


async def _aiter(requests: Any) -> AsyncIterator[Any]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


class PendingCall(grpc.aio.Call):  # type: ignore[misc]
    """A call that waits for an instance and may be retried. It is settled once the last attempt
    stands, or there is an error."""

    def __init__(
        self,
        subchannels: Subchannels,
        method: ConnectionMethod[Subchannel],
        arguments: CallArguments,
    ) -> None:
        self._subchannels, self._method, self._arguments = subchannels, method, arguments
        self._loop = asyncio.get_running_loop()
        self._call: Any = None
        """The current or last attempt."""
        self._error: Exception | None = None
        self._locally_cancelled = False
        self._callbacks: list[Callable[[Any], None]] = []
        self._settled: asyncio.Future[None] = self._loop.create_future()
        self._attempts = subchannels.tasks.start(self._attempt(), name=f"call of {method.name}")
        # A callback, because a task that is cancelled before its first step runs no code at all.
        self._attempts.add_done_callback(self._settle)

    async def _attempt(self) -> None:
        try:
            await self._run_attempts()
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._error = error

    def _settle(self, attempts: asyncio.Task[None]) -> None:
        if attempts.cancelled():
            self._locally_cancelled = True
            if self._call is None:
                self._error = failure(grpc.StatusCode.CANCELLED, _CANCELLED)
            else:
                self._call.cancel()
        self._settled.set_result(None)
        del self._attempts  # its traceback refers to this call, and gRPC waits for unused calls
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._add_callback(callback)

    async def _run_attempts(self) -> None:
        subchannels, tries, tried = self._subchannels, self._arguments.tries, list[str]()
        node, subchannel = await self._next_instance()
        view = subchannels.view
        assert view is not None  # since there is an instance
        if tries > 1:
            view.retries.request(time.monotonic())
        while True:
            self._start(node, subchannel)
            if self._arguments.wait_for_ready and await self._was_not_sent():
                await asyncio.sleep(NOTICED_WITHIN)
                node, subchannel = await self._next_instance()
                continue
            tried.append(node.id)
            if len(tried) >= tries or not await self._should_retry():
                return
            other = self._instance_for_retry(view.retries, tried)
            if other is None:
                return
            node, subchannel = other

    def _instance_for_retry(
        self, budget: RetryBudget, tried: Sequence[str]
    ) -> tuple[Node, Subchannel] | None:
        """Another instance; None if there is none, or neither time nor budget for a retry."""
        other = self._subchannels.pick(self._arguments.key, tried)
        if other is None or self.time_remaining() == 0:
            return None
        # The budget last: it is not spent on retries that cannot be made.
        return other if budget.try_retry(time.monotonic()) else None

    async def _next_instance(self) -> tuple[Node, Subchannel]:
        subchannels, arguments = self._subchannels, self._arguments
        try:
            async with asyncio.timeout_at(arguments.deadline):
                while (choice := subchannels.pick(arguments.key)) is None:
                    if subchannels.closed:
                        raise failure(grpc.StatusCode.CANCELLED, "the channel was closed")
                    if not arguments.wait_for_ready and subchannels.unavailable_reason():
                        await subchannels.find_reasons()
                        if why := subchannels.unavailable_reason():
                            raise failure(grpc.StatusCode.UNAVAILABLE, why)
                        continue
                    await subchannels.change()
                return choice
        except TimeoutError:
            await subchannels.find_reasons()
            details = f"Deadline Exceeded: {subchannels.waiting_reason()}"
            raise failure(grpc.StatusCode.DEADLINE_EXCEEDED, details) from None

    async def _was_not_sent(self) -> bool:
        """Wait until the call is connected; whether it failed before anything was sent."""
        try:
            await self._call.wait_for_connection()
        except grpc.aio.AioRpcError as error:
            return was_not_sent(error)
        except Exception:  # noqa: BLE001 - an interceptor's own error, which the caller gets
            return False
        return False

    def _request(self) -> Any:
        return self._arguments.request

    def _start(self, node: Node, subchannel: Subchannel) -> None:
        self._call = self._subchannels.start_call(
            node,
            subchannel,
            self._method,
            self._request(),
            timeout=self.time_remaining(),
            **self._arguments.options,
        )

    async def _should_retry(self) -> bool:
        """A stream of requests is never retried: the server may have received some of them."""
        return False

    async def _final_call(self) -> Any:
        """The attempt that stands; raises the error if there is none."""
        try:
            await asyncio.wait([self._settled])
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._error is None:
            return self._call
        if self._locally_cancelled:
            raise asyncio.CancelledError
        raise self._error

    @property
    def _error_status(self) -> grpc.aio.AioRpcError:
        """The error as a status: INTERNAL if it is not one of gRPC."""
        if isinstance(self._error, grpc.aio.AioRpcError):
            return self._error
        return failure(grpc.StatusCode.INTERNAL, describe(self._error) if self._error else "")

    async def _of_final_call(self, method: str, otherwise: Callable[[], Any]) -> Any:
        """The result of a method of the attempt that stands, or `otherwise` after an error."""
        await asyncio.wait([self._settled])
        return otherwise() if self._error is not None else await getattr(self._call, method)()

    def cancelled(self) -> bool:
        return self._locally_cancelled or (self._call is not None and self._call.cancelled())

    def done(self) -> bool:
        if not self._settled.done():
            return False
        return self._error is not None or self._call.done()

    def time_remaining(self) -> float | None:
        deadline = self._arguments.deadline
        return None if deadline is None else max(deadline - self._loop.time(), 0.0)

    def cancel(self) -> bool:
        if self.done():
            return False
        self._locally_cancelled = True
        if self._settled.done():
            self._call.cancel()
        else:
            self._attempts.cancel()
        return True

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._settled.done():
            self._add_callback(callback)
        else:
            self._callbacks.append(callback)

    def _add_callback(self, callback: Callable[[Any], None]) -> None:
        if self._error is not None:
            callback(self)
        else:
            self._call.add_done_callback(lambda _: callback(self))

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return await self._of_final_call("initial_metadata", grpc.aio.Metadata)

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return await self._of_final_call("trailing_metadata", grpc.aio.Metadata)

    async def code(self) -> Any:
        return await self._of_final_call("code", lambda: self._error_status.code())

    async def details(self) -> str:
        return str(await self._of_final_call("details", lambda: self._error_status.details()))

    async def debug_error_string(self) -> str:
        return str(await self._of_final_call("debug_error_string", str))

    async def wait_for_connection(self) -> None:
        await (await self._final_call()).wait_for_connection()


class _UnaryResponse(PendingCall):
    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    async def _response(self) -> Any:
        return await (await self._final_call())


class _StreamResponse(PendingCall):
    _first: Any = None
    _first_error: grpc.aio.AioRpcError | None = None
    """The error of the first read: a call with interceptors raises it only once."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def read(self) -> Any:
        call = await self._final_call()
        if self._first_error is not None:
            raise self._first_error
        if self._first is not None:
            message, self._first = self._first, None
            return message
        return await call.read()


class _StreamRequest(PendingCall):
    _replayable: ReplayableRequests | None = None

    def _request(self) -> Any:
        requests = self._arguments.request
        if requests is None or not self._arguments.wait_for_ready:
            return requests
        if self._replayable is None:
            self._replayable = ReplayableRequests(requests, self._subchannels.tasks)
        return self._replayable

    async def write(self, request: Any) -> None:
        await (await self._final_call()).write(request)

    async def done_writing(self) -> None:
        await (await self._final_call()).done_writing()


class PendingUnaryUnary(_UnaryResponse, grpc.aio.UnaryUnaryCall):  # type: ignore[misc]
    async def _should_retry(self) -> bool:
        return await _is_retryable(self._call)


class PendingUnaryStream(_StreamResponse, grpc.aio.UnaryStreamCall):  # type: ignore[misc]
    async def _should_retry(self) -> bool:
        """Only before the first message: messages that were read cannot be taken back."""

        async def first_read() -> None:
            self._first_error = None
            try:
                self._first = await self._call.read()
            except grpc.aio.AioRpcError as error:
                self._first_error = error
                raise

        return await _is_retryable(first_read())


class PendingStreamUnary(_StreamRequest, _UnaryResponse, grpc.aio.StreamUnaryCall):  # type: ignore[misc]
    pass


class PendingStreamStream(_StreamRequest, _StreamResponse, grpc.aio.StreamStreamCall):  # type: ignore[misc]
    pass


async def _is_retryable(response: Awaitable[object]) -> bool:
    """Wait for a response; whether it failed with a retryable status."""
    try:
        await response
    except grpc.aio.AioRpcError as error:
        return error.code() is RETRYABLE
    except Exception:  # noqa: BLE001 - a request that cannot be serialized, or an interceptor's error
        return False
    return False
