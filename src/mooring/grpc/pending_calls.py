"""Calls of our own: they wait for an instance, and may go from one to another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import grpc.aio

from mooring.formatting import describe
from mooring.grpc.subchannels import Subchannel
from mooring.grpc.target import AGAIN, NOTICED, never_left

if TYPE_CHECKING:
    from mooring.discovery.balance import Node
    from mooring.grpc.aio import Method
    from mooring.tasks import Tasks

_CANCELLED = "Locally cancelled by application!"  # as gRPC says


class CallArguments(NamedTuple):
    """What a call was asked with."""

    request: Any
    """Or the iterator of requests."""
    deadline: float | None
    """By the loop's clock."""
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool
    compression: grpc.Compression | None
    key: str | None


def failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


class ReplayableRequests:
    """The caller's requests, for several tries. Each try iterates over it.

    gRPC takes the first request before it knows whether there is a connection, and the second one
    after the first is sent. So a try after one that never left begins with the last one taken.
    """

    def __init__(self, requests: Any, tasks: Tasks) -> None:
        self._requests, self._tasks = _aiter(requests), tasks
        self._last: list[Any] = []
        self._next: asyncio.Task[Any] | None = None
        """The request that is being waited for, by this try or the one before."""
        self._tries = 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        self._tries += 1
        mine = self._tries
        for request in self._last:
            yield request
        while True:
            if self._next is None:
                self._next = self._tasks.start(self._taken(), name="a request of a call")
            try:
                request = await asyncio.shield(self._next)
            except asyncio.CancelledError:
                self._next.cancel()
                raise
            if mine != self._tries:
                return  # another try has it
            if isinstance(request, Exception):
                raise request
            if request is grpc.aio.EOF:
                return
            self._last, self._next = [request], None
            yield request

    async def _taken(self) -> Any:
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
    """A call that is settled once an instance has it for good, or nobody will have it."""

    def __init__(self, method: Method, asked: CallArguments) -> None:
        self._method, self._subchannels, self._asked = method, method.subchannels, asked
        self._loop = asyncio.get_running_loop()
        self._call: Any = None
        """What is under way at an instance, or was in the end."""
        self._error: Exception | None = None
        self._locally_cancelled = False
        self._callbacks: list[Callable[[Any], None]] = []
        self._settled = self._subchannels.tasks.start(self._settle(), name=f"call of {method.name}")

    async def _settle(self) -> None:
        try:
            await self._try()
        except Exception as error:  # noqa: BLE001 - of gRPC, or of what was asked: it is the caller's
            self._error = error
        except asyncio.CancelledError:
            self._locally_cancelled = True
            if self._call is None:
                self._error = failure(grpc.StatusCode.CANCELLED, _CANCELLED)
            else:
                self._call.cancel()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._when_over(callback)

    async def _try(self) -> None:
        subchannels, tries, tried = self._subchannels, self._method.tries, list[str]()
        node, subchannel = await self._turn()
        view = subchannels.view
        assert view is not None  # there is somebody to call
        if tries > 1:
            view.retries.request(time.monotonic())
        while True:
            self._begin(node, subchannel)
            if self._asked.wait_for_ready and await self._never_left():
                await asyncio.sleep(NOTICED)
                node, subchannel = await self._turn()
                continue
            tried.append(node.id)
            if len(tried) >= tries or not await self._failed():
                return
            # Others first: the budget is not spent on tries that there cannot be.
            other = subchannels.next(self._asked.key, tried)
            if other is None or not self._in_time():
                return
            if not view.retries.try_retry(time.monotonic()):
                return
            node, subchannel = other

    async def _turn(self) -> tuple[Node, Subchannel]:
        """Wait for somebody to call."""
        subchannels, asked = self._subchannels, self._asked
        try:
            async with asyncio.timeout_at(asked.deadline):
                while (found := subchannels.next(asked.key)) is None:
                    if subchannels.closed:
                        raise failure(grpc.StatusCode.CANCELLED, "the channel was closed")
                    if not asked.wait_for_ready and subchannels.why_not():
                        await subchannels.learn_why()
                        if why := subchannels.why_not():
                            raise failure(grpc.StatusCode.UNAVAILABLE, why)
                        continue
                    await subchannels.change()
                return found
        except TimeoutError:
            await subchannels.learn_why()
            told = f"Deadline Exceeded: {subchannels.why_waiting()}"
            raise failure(grpc.StatusCode.DEADLINE_EXCEEDED, told) from None

    async def _never_left(self) -> bool:
        """Wait until the call is connected: whether it failed before anything of it was sent."""
        try:
            await self._call.wait_for_connection()
        except grpc.aio.AioRpcError as error:
            return never_left(error)
        except Exception:  # noqa: BLE001 - an interceptor's mistake, which the caller gets
            return False
        return False

    def _request(self) -> Any:
        """What the next try sends."""
        return self._asked.request

    def _begin(self, node: Node, subchannel: Subchannel) -> None:
        asked = self._asked
        self._call = self._method.at(subchannel)(
            self._request(),
            timeout=self.time_remaining(),
            metadata=asked.metadata,
            credentials=asked.credentials,
            compression=asked.compression,
        )
        self._subchannels.begun(node, subchannel, self._call, stream=self._method.streams)

    def _in_time(self) -> bool:
        left = self.time_remaining()
        return left is None or left > 0

    async def _failed(self) -> bool:
        """Wait until it is known whether this try failed in a way that is worth another. What is
        asked with a stream never is: some of it may have been heard."""
        return False

    async def _taken(self) -> Any:
        """The call at the instance that has it for good; raises the error where nobody has."""
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
    def _status(self) -> grpc.aio.AioRpcError:
        """The error as a status, which mistakes in what was asked are none."""
        if isinstance(self._error, grpc.aio.AioRpcError):
            return self._error
        return failure(grpc.StatusCode.INTERNAL, describe(self._error) if self._error else "")

    async def _over(self) -> Any:
        """Who can tell of the end: the call at the instance, or the error."""
        await asyncio.wait([self._settled])
        return None if self._error is not None else self._call

    def cancelled(self) -> bool:
        return self._locally_cancelled or (self._call is not None and self._call.cancelled())

    def done(self) -> bool:
        if not self._settled.done():
            return False
        return self._error is not None or self._call.done()

    def time_remaining(self) -> float | None:
        deadline = self._asked.deadline
        return None if deadline is None else max(deadline - self._loop.time(), 0.0)

    def cancel(self) -> bool:
        if self.done():
            return False
        self._locally_cancelled = True
        if self._settled.done():
            self._call.cancel()
        else:
            self._settled.cancel()
        return True

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._settled.done():
            self._when_over(callback)
        else:
            self._callbacks.append(callback)

    def _when_over(self, callback: Callable[[Any], None]) -> None:
        if self._error is not None:
            callback(self)
        else:
            self._call.add_done_callback(lambda _: callback(self))

    async def initial_metadata(self) -> grpc.aio.Metadata:
        call = await self._over()
        return grpc.aio.Metadata() if call is None else await call.initial_metadata()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        call = await self._over()
        return grpc.aio.Metadata() if call is None else await call.trailing_metadata()

    async def code(self) -> grpc.StatusCode:
        call = await self._over()
        return self._status.code() if call is None else await call.code()

    async def details(self) -> str:
        call = await self._over()
        told = self._status.details() if call is None else await call.details()
        return str(told)

    async def debug_error_string(self) -> str:
        call = await self._over()
        return "" if call is None else str(await call.debug_error_string())

    async def wait_for_connection(self) -> None:
        await (await self._taken()).wait_for_connection()


class _UnaryResponse(PendingCall):
    """What ends in one message."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        return await (await self._taken())


class _StreamResponse(PendingCall):
    """What answers with a stream."""

    _first: Any = None
    _failed_first: grpc.aio.AioRpcError | None = None
    """How the first read failed: a call with interceptors does not say it twice."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def read(self) -> Any:
        call = await self._taken()
        if self._failed_first is not None:
            raise self._failed_first
        if self._first is not None:
            message, self._first = self._first, None
            return message
        return await call.read()


class _StreamRequest(PendingCall):
    """What is asked with a stream."""

    _sending: ReplayableRequests | None = None

    def _request(self) -> Any:
        requests = self._asked.request
        if requests is None or not self._asked.wait_for_ready:
            return requests
        if self._sending is None:
            self._sending = ReplayableRequests(requests, self._subchannels.tasks)
        return self._sending

    async def write(self, request: Any) -> None:
        await (await self._taken()).write(request)

    async def done_writing(self) -> None:
        await (await self._taken()).done_writing()


class PendingUnaryUnary(_UnaryResponse, grpc.aio.UnaryUnaryCall):  # type: ignore[misc]
    async def _failed(self) -> bool:
        return await _worth_another(self._call)


class PendingUnaryStream(_StreamResponse, grpc.aio.UnaryStreamCall):  # type: ignore[misc]
    async def _failed(self) -> bool:
        """Only up to the first message: what was seen cannot be taken back."""

        async def begun() -> None:
            self._failed_first = None
            try:
                self._first = await self._call.read()
            except grpc.aio.AioRpcError as error:
                self._failed_first = error
                raise

        return await _worth_another(begun())


class PendingStreamUnary(_StreamRequest, _UnaryResponse, grpc.aio.StreamUnaryCall):  # type: ignore[misc]
    pass


class PendingStreamStream(_StreamRequest, _StreamResponse, grpc.aio.StreamStreamCall):  # type: ignore[misc]
    pass


async def _worth_another(answer: Awaitable[object]) -> bool:
    """Wait for an answer: whether it failed in a way that is worth another try. Whatever comes of
    it the caller gets from the call itself."""
    try:
        await answer
    except grpc.aio.AioRpcError as error:
        return error.code() is AGAIN
    except Exception:  # noqa: BLE001 - a request that cannot be written, an interceptor's mistake
        return False
    return False
