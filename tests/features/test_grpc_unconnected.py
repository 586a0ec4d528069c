"""Calls that find no connection fail with the reason that gRPC reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import mooring
import mooring.grpc
import mooring.sync
from mooring.grpc.swappable_channel import Route
from mooring.model import Instance
from mooring.testing.servers import free_port
from tests.features.grpc_echo.servers import EchoServer, Word, pb2_grpc
from tests.features.test_grpc_sync import Server
from tests.waiting import eventually, until

NAMED = [("grpc.ssl_target_name_override", "etcd.test")]
REFUSED = "Failed to connect to remote host: Connection refused"
EXPECTED = {False: grpc.StatusCode.UNAVAILABLE, True: grpc.StatusCode.DEADLINE_EXCEEDED}


class Caller:
    """Calls a service with either kind of channel, and returns how that failed."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self._kind, self._url, self._options = kind, url, options

    async def failure(self, **options: Any) -> tuple[grpc.StatusCode, str]:
        error: Any
        if self._kind == "blocking":
            error = await asyncio.to_thread(self._blocking, options)
        else:
            async with (
                mooring.connect(self._url) as hub,
                mooring.grpc.aio.channel("etcdv3:///echo", hub=hub, **self._options) as channel,
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await pb2_grpc.EchoStub(channel).Say(Word(text="hello"), **options)
                error = caught.value
        return error.code(), error.details()

    def _blocking(self, options: dict[str, Any]) -> Any:
        with (
            mooring.sync.connect(self._url) as hub,
            mooring.grpc.channel("etcdv3:///echo", hub=hub, **self._options) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            pb2_grpc.EchoStub(channel).Say(Word(text="hello"), **options)
        return caught.value


@contextlib.asynccontextmanager
async def registered(name: str, *ports: int) -> AsyncIterator[str]:
    url = f"memory://{name}"
    async with mooring.connect(url) as hub, contextlib.AsyncExitStack() as stack:
        for port in ports:
            await stack.enter_async_context(hub.register(Instance("echo", "127.0.0.1", port)))
        yield url


waiting = pytest.mark.parametrize("wait_for_ready", [False, True], ids=["at once", "waiting"])
kinds = pytest.mark.parametrize("kind", ["asyncio", "blocking"])


@waiting
@kinds
async def test_a_refused_connection_is_reported(kind: str, wait_for_ready: bool):
    port = free_port()
    async with registered("refused", port) as url:
        code, details = await Caller(kind, url).failure(timeout=5, wait_for_ready=wait_for_ready)
    assert code is EXPECTED[wait_for_ready]
    assert f"127.0.0.1:{port}: {REFUSED}" in details


@waiting
@kinds
async def test_an_untrusted_certificate_is_reported(
    kind: str, wait_for_ready: bool, certificates: Path
):
    key, pem = ((certificates / f"server.{end}").read_bytes() for end in ("key", "pem"))
    other = grpc.ssl_channel_credentials((certificates / "other-ca.pem").read_bytes())
    server = EchoServer("a", credentials=grpc.ssl_server_credentials([(key, pem)]))
    async with server, registered("untrusted", server.port) as url:
        caller = Caller(kind, url, credentials=other, options=NAMED)
        code, details = await caller.failure(timeout=5, wait_for_ready=wait_for_ready)
    assert code is EXPECTED[wait_for_ready]
    assert f"127.0.0.1:{server.port}: " in details
    assert "CERTIFICATE_VERIFY_FAILED" in details


@kinds
async def test_an_instance_that_does_not_serve_is_reported(kind: str):
    server = EchoServer("a")
    server.health.serve(server.server)
    server.health.set("", False)
    async with server, registered("unhealthy", server.port) as url:
        _, details = await Caller(kind, url).failure(timeout=5)
    assert f"127.0.0.1:{server.port}: backend unhealthy" in details


async def test_the_latest_reason_of_every_instance_is_reported():
    """Also after gRPC tried again, with another result. Interceptors do not see the probes."""
    ill = EchoServer("a")
    ill.health.serve(ill.server)
    ill.health.set("", False)
    noting, port = NotingCalls(), free_port()
    async with contextlib.AsyncExitStack() as stack:
        await ill.server.start()
        url = await stack.enter_async_context(registered("several", ill.port, port))
        hub = await stack.enter_async_context(mooring.connect(url))
        channel = mooring.grpc.aio.channel("etcdv3:///echo", hub=hub, interceptors=[noting])
        stub = pb2_grpc.EchoStub(await stack.enter_async_context(channel))

        async def details() -> str:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Say(Word(text="hello"), timeout=5)
            return str(caught.value.details())

        text = await details()
        assert text.startswith("echo: none of its instances (2) can be called: 2 × no connection; ")
        assert f"127.0.0.1:{ill.port}: backend unhealthy" in text
        assert f"127.0.0.1:{port}: {REFUSED}" in text
        await ill.server.stop(0)

        async def refused() -> bool:
            return (await details()).count(REFUSED) == 2

        await eventually(refused)
        assert noting.methods == []


class NotingCalls(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def __init__(self) -> None:
        self.methods: list[str] = []

    async def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
        self.methods.append(details.method)
        return await proceed(details, request)


async def test_an_error_without_a_status_is_reported_in_words():
    token = grpc.access_token_call_credentials("token")
    server = EchoServer("a")
    async with (
        server,
        registered("words", server.port) as url,
        mooring.connect(url) as hub,
        mooring.grpc.aio.channel("etcdv3:///echo", hub=hub) as channel,
    ):
        call = pb2_grpc.EchoStub(channel).Say(Word(text="hello"), credentials=token)
        assert await call.code() is grpc.StatusCode.INTERNAL
        assert await call.details() == "Call credentials are only valid on secure channels"


def test_a_blocking_call_waits_on_if_the_connection_breaks_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
):
    """gRPC reports a break with a delay: until then the channel counts as connected."""
    monkeypatch.setattr(Route, "ready", property(lambda _: True, lambda *_: None))
    with (
        mooring.sync.connect("memory://") as hub,
        hub.register(Instance("echo", "127.0.0.1", free_port())),
        mooring.grpc.channel("etcdv3:///echo", hub=hub) as channel,
        ThreadPoolExecutor(1) as pool,
    ):
        say = pb2_grpc.EchoStub(channel).Say
        with pytest.raises(grpc.RpcError, match=REFUSED):
            say(Word(text="hello"))
        answer = pool.submit(say, Word(text="hello"), wait_for_ready=True, timeout=30)
        until(lambda: answer.running() or answer.done())
        server = Server("late")
        with hub.register(Instance("echo", "127.0.0.1", server.port)):
            assert answer.result().by == "late"
        server.server.stop(0).wait()
