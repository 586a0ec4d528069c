"""A service's methods as gRPC calls them: the token checked, errors put into etcd's words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from mooring.errors import MooringError
from mooring.store.contract import MAX_REQUEST_BYTES
from mooring.store.embedded.wire.auth import Auth
from mooring.store.embedded.wire.errors import (
    STOPPED,
    UNREADABLE,
    Refusal,
    Refused,
    oversized,
    refusal,
)
from mooring.store.etcd import proto

MAX_MESSAGE = MAX_REQUEST_BYTES + 512 * 1024
"""The largest message that etcd's transport takes with its defaults."""

Unary = Callable[[Any], Awaitable[Any]]
Stream = Callable[[grpc.aio.ServicerContext], Awaitable[None]]


class Calls:
    """The handlers of a server, by path, and the streams that are open."""

    def __init__(self, auth: Auth) -> None:
        self.handlers: dict[str, Any] = {}
        self._auth = auth
        self._streams: set[asyncio.Task[Any]] = set()
        self._stopping = False

    def unary(self, name: str, method: Unary, *, needs_token: bool = True) -> None:
        """Serve a method with one request and one answer."""

        async def handle(request: Any, context: grpc.aio.ServicerContext) -> Any:
            answer = await self._answer(method, request, context if needs_token else None)
            if isinstance(answer, Refusal):
                await context.abort(answer.code, answer.text)
            return answer

        path, read, write = proto.serving(name)
        self.handlers[path] = grpc.unary_unary_rpc_method_handler(handle, _reader(read), write)

    def stream(self, name: str, method: Stream, *, needs_token: bool = True) -> None:
        """Serve a method that reads and writes as it likes."""
        path, read, write = proto.serving(name)
        handle = self._streaming(method, needs_token)
        self.handlers[path] = grpc.stream_stream_rpc_method_handler(handle, _reader(read), write)

    def refuse(self, service: str, methods: str, answer: Refusal) -> None:
        """Refuse methods whatever the request: their messages are not even read."""

        async def handle(_: bytes, context: grpc.aio.ServicerContext) -> None:
            await context.abort(answer.code, answer.text)

        for method in methods.split():
            path = f"/etcdserverpb.{service}/{method}"
            self.handlers[path] = grpc.unary_unary_rpc_method_handler(handle)

    def end_streams(self) -> None:
        """End the streams that are open, and those that are opened from now on."""
        self._stopping = True
        for task in self._streams:
            task.cancel()

    async def _answer(
        self, method: Unary, request: Any, context: grpc.aio.ServicerContext | None
    ) -> Any:
        if isinstance(request, Refusal):
            return request
        if context is not None and (objection := self._auth.objection(context)) is not None:
            return objection
        try:
            return await method(request)
        except Refused as error:
            return error.refusal
        except MooringError as error:
            return refusal(error)

    def _streaming(
        self, method: Stream, needs_token: bool
    ) -> Callable[[Any, grpc.aio.ServicerContext], Awaitable[None]]:
        async def handle(_: Any, context: grpc.aio.ServicerContext) -> None:
            ended = await self._run(method, context, needs_token)
            if ended is not None:
                await context.abort(ended.code, ended.text)

        return handle

    async def _run(
        self, method: Stream, context: grpc.aio.ServicerContext, needs_token: bool
    ) -> Refusal | None:
        """Run a stream to its end; how it ended, where it did not by itself."""
        if self._stopping:
            return STOPPED
        if needs_token and (objection := self._auth.objection(context)) is not None:
            return objection
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await method(context)
        except Refused as error:
            return error.refusal
        except MooringError as error:
            return refusal(error)
        except asyncio.CancelledError:
            # The client went away; or we do, and the client has a right to know.
            if not self._stopping:
                raise
            return STOPPED
        finally:
            self._streams.discard(task)
        return None


def _reader(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Reads a request. One that cannot be read is not raised, for gRPC would log each at length."""

    def read(data: bytes) -> Any:
        if len(data) > MAX_MESSAGE:
            return oversized(len(data), MAX_MESSAGE)
        try:
            return parse(data)
        except proto.DecodeError:
            return UNREADABLE

    return read
