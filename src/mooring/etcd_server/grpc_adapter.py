"""Adapts service methods to gRPC: checks tokens, and translates errors into etcd's statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from mooring.errors import MooringError
from mooring.etcd_server.auth import AuthService
from mooring.etcd_server.errors import (
    STOPPED,
    UNREADABLE,
    UNREADABLE_IN_STREAM,
    RpcAborted,
    RpcStatus,
    oversized,
    status_of,
)
from mooring.store.contract import MAX_REQUEST_BYTES
from mooring.store.embedded.store import EngineRunner
from mooring.store.etcd import proto
from mooring.tasks import wait_for

MAX_MESSAGE = MAX_REQUEST_BYTES + 512 * 1024
"""The largest message that etcd's transport accepts by default."""

_LATE = 10  # tenths of a second in which calls may still arrive after a stop

UnaryMethod = Callable[[Any], Awaitable[Any]]
StreamMethod = Callable[[grpc.aio.ServicerContext], Awaitable[None]]
Run = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]


class RpcHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The handlers of a server, by path, and the calls in progress."""

    def __init__(self, auth: AuthService, runner: EngineRunner) -> None:
        self.handlers: dict[str, Any] = {}
        self._runner = runner
        self._auth = auth
        self._streams: set[asyncio.Task[Any]] = set()
        self._came = 0
        self._under_way = 0
        self._none_left = asyncio.Event()
        self._stopping = False

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Called by gRPC: the handler of a call."""
        self._came += 1
        return self.handlers.get(details.method) or self._unknown(details.method)

    def unary(self, name: str, method: UnaryMethod, *, needs_token: bool = True) -> None:
        """Serve a method with one request and one response."""

        async def run(request: Any, _: grpc.aio.ServicerContext) -> Any:
            return await method(request)

        kind = grpc.unary_unary_rpc_method_handler
        self._serve(name, kind, run, UNREADABLE, needs_token=needs_token)

    def stream(self, name: str, method: StreamMethod, *, needs_token: bool = True) -> None:
        """Serve a method that reads requests and writes responses."""

        async def run(_: Any, context: grpc.aio.ServicerContext) -> RpcStatus | None:
            task = asyncio.current_task()
            assert task is not None
            self._streams.add(task)
            try:
                await method(context)
            except asyncio.CancelledError:
                # The client cancelled the call, or the server stops, which the client should know.
                if not self._stopping:
                    raise
                return STOPPED
            finally:
                self._streams.discard(task)
            return None

        kind = grpc.stream_stream_rpc_method_handler
        self._serve(name, kind, run, UNREADABLE_IN_STREAM, needs_token=needs_token)

    def _serve(
        self, name: str, kind: Callable[..., Any], run: Run, unreadable: str, *, needs_token: bool
    ) -> None:
        """Serve a method with a handler of this kind. `run` returns the response, or the error."""

        async def handle(request: Any, context: grpc.aio.ServicerContext) -> Any:
            self._under_way += 1
            try:
                answer = await self._answer(run, request, context, needs_token)
                if isinstance(answer, RpcStatus):
                    await context.abort(answer.code, answer.text)
                return answer
            finally:
                self._done()

        path, read, write = proto.serving(name)
        self.handlers[path] = kind(handle, _reader(read, unreadable), self._with_cluster(write))

    def _with_cluster(self, write: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """Add the id of the cluster to the header of every response."""

        def written(answer: Any) -> bytes:
            answer.header.cluster_id = self._runner.cluster_id
            return write(answer)

        return written

    def refuse(self, service: str, methods: str, answer: RpcStatus) -> None:
        """Reject methods without parsing their requests."""
        for method in methods.split():
            self.handlers[f"/etcdserverpb.{service}/{method}"] = _refusing(answer)

    async def stop(self, grace: float) -> None:
        """End open streams, reject new calls, and wait up to `grace` seconds for the others."""
        self._stopping = True
        for task in self._streams:
            task.cancel()
        if not grace:
            return
        if self._under_way:
            await wait_for(self._none_left, within=grace)
        # Calls that were sent before, but are read only now, still get a response. Clients that
        # keep calling are not waited for.
        for _ in range(_LATE):
            came = self._came
            await asyncio.sleep(0.1)
            if self._came == came:
                return

    def _done(self) -> None:
        self._under_way -= 1
        if self._stopping and not self._under_way:
            self._none_left.set()

    def _unknown(self, path: str) -> Any:
        service, slash, method = path.removeprefix("/").rpartition("/")
        code, text = grpc.StatusCode.UNIMPLEMENTED, f"unknown service {service}"
        if not slash:
            code, text = grpc.StatusCode.RESOURCE_EXHAUSTED, f'malformed method name: "{path}"'
        elif any(name.startswith(f"/{service}/") for name in self.handlers):
            text = f"unknown method {method} for service {service}"
        return _refusing(RpcStatus(code, text))

    async def _answer(
        self, run: Run, request: Any, context: grpc.aio.ServicerContext, needs_token: bool
    ) -> Any:
        if self._stopping:
            return STOPPED
        if isinstance(request, RpcStatus):
            return request
        if needs_token and (objection := self._auth.objection(context)) is not None:
            return objection
        try:
            return await run(request, context)
        except (RpcAborted, MooringError) as error:
            return status_of(error)


def _refusing(answer: RpcStatus) -> Any:
    async def handle(_: Any, context: grpc.aio.ServicerContext) -> None:
        await context.abort(answer.code, answer.text)

    return grpc.stream_stream_rpc_method_handler(handle)


def _reader(parse: Callable[[bytes], Any], unreadable: str) -> Callable[[bytes], Any]:
    """A parser that returns errors: gRPC would log a traceback for each one that is raised."""

    def read(data: bytes) -> Any:
        if len(data) > MAX_MESSAGE:
            return oversized(len(data), MAX_MESSAGE)
        try:
            return parse(data)
        except proto.DecodeError as error:
            return RpcStatus(grpc.StatusCode.INTERNAL, f"{unreadable} proto: {error}")

    return read
