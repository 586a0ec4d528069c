"""Servers of the echo service, whose responses contain their name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import grpc.aio

from mooring import Registration
from mooring.grpc import SERVER_OPTIONS, Health
from tests.features.grpc_echo import stubs

pb2, pb2_grpc = stubs()
Word: Callable[..., Any] = pb2.Word


class Echo(pb2_grpc.EchoServicer):  # type: ignore[misc, name-defined]
    """`Say("slow")` waits for `go`, or for `slow` seconds; `Say("fail CODE")` fails; `Count("3")`
    counts to 3, and every call of `Count("held 3")` but the first waits for `go`."""

    def __init__(self, by: str) -> None:
        self.by = by
        self.received: list[str] = []
        self.metadata: list[dict[str, Any]] = []
        self.fails = False
        """Whether it answers everything with UNAVAILABLE."""
        self.go = asyncio.Event()
        self.slow: float | None = None
        self.waiting = 0

    async def Say(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        self.received.append(request.text)
        self.metadata.append(dict(context.invocation_metadata()))
        if self.fails:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self.by} is not available")
        if request.text == "slow":
            self.waiting += 1
            await (self.go.wait() if self.slow is None else asyncio.sleep(self.slow))
        if request.text.startswith("fail "):
            code = grpc.StatusCode[request.text.removeprefix("fail ")]
            await context.abort(code, f"as {self.by} was told")
        return Word(text=request.text, by=self.by)

    async def Count(self, request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        self.received.append(request.text)
        if request.text.startswith("fail "):
            code = grpc.StatusCode[request.text.removeprefix("fail ")]
            await context.abort(code, f"as {self.by} was told")
        held, most = request.text.startswith("held "), int(request.text.removeprefix("held "))
        for number in range(1, most + 1):
            if held and number > 1:
                await self.go.wait()
            yield Word(text=str(number), by=self.by)

    async def Join(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> Any:
        words = [word.text async for word in request_iterator]
        return Word(text=" ".join(words), by=self.by)

    async def Chat(
        self, request_iterator: Any, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Any]:
        async for word in request_iterator:
            yield Word(text=word.text.upper(), by=self.by)


class BlockingEcho(pb2_grpc.EchoServicer):  # type: ignore[misc, name-defined]
    """The same, with threads."""

    def __init__(self, by: str, slow: float = 10.0) -> None:
        self.by, self.slow = by, slow
        self.received: list[str] = []
        self.metadata: list[dict[str, Any]] = []
        self.go = threading.Event()
        self.waiting = 0

    def Say(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.received.append(request.text)
        self.metadata.append(dict(context.invocation_metadata()))
        if request.text == "slow":
            self.waiting += 1
            self.go.wait(self.slow)
        if request.text.startswith("fail "):
            code = grpc.StatusCode[request.text.removeprefix("fail ")]
            context.abort(code, f"as {self.by} was told")
        return Word(text=request.text, by=self.by)

    def Count(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        held, most = request.text.startswith("held "), int(request.text.removeprefix("held "))
        for number in range(1, most + 1):
            if held and number > 1:
                self.go.wait(self.slow)
            yield Word(text=str(number), by=self.by)

    def Join(self, request_iterator: Any, context: grpc.ServicerContext) -> Any:
        return Word(text=" ".join(word.text for word in request_iterator), by=self.by)

    def Chat(self, request_iterator: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        for word in request_iterator:
            yield Word(text=word.text.upper(), by=self.by)


class EchoServer:
    """A server on a free port, in this event loop."""

    def __init__(
        self, by: str, *, credentials: grpc.ServerCredentials | None = None, port: int = 0
    ) -> None:
        self.echo = Echo(by)
        self.health = Health()
        self.registration: Registration
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        pb2_grpc.add_EchoServicer_to_server(self.echo, self.server)
        where = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self.server.add_insecure_port(where)
        else:
            self.port = self.server.add_secure_port(where, credentials)

    async def __aenter__(self) -> EchoServer:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(0)
