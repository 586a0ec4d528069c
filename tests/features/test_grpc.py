"""gRPC channels for asyncio: balanced, retried, followed; with generated stubs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest

import mooring
from mooring import fork_safety as forks
from mooring.discovery.resilience import Resilience
from mooring.errors import Closed, InvalidName, InvalidRequest, InvalidURL
from mooring.grpc import CHANNEL_OPTIONS
from mooring.grpc.aio import Channel, channel
from mooring.model import Instance
from mooring.testing.servers import free_port
from tests.backends import usual
from tests.features.grpc_echo.servers import EchoServer, Word, pb2_grpc
from tests.waiting import eventually, retried_at_once

SAY = "echo.Echo/Say"
COUNT = "echo.Echo/Count"
AT_ONCE = Resilience(slow_start=0, retry_least=5.0)


def here(port: int, **fields: Any) -> Instance:
    return Instance("echo", "127.0.0.1", port, **fields)


@pytest.fixture
async def hub() -> AsyncIterator[mooring.Hub]:
    async with mooring.connect("memory://") as opened:
        yield opened


Serve = Callable[..., Awaitable[EchoServer]]


@pytest.fixture
async def serve(hub: mooring.Hub) -> AsyncIterator[Serve]:
    """Start and register servers; `server.registration` ends it."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(by: str, **fields: Any) -> EchoServer:
            server = EchoServer(by)
            server.health.serve(server.server)
            await stack.enter_async_context(server)
            registration = hub.register(here(server.port, **fields))
            server.registration = await stack.enter_async_context(registration)
            return server

        yield start


@contextlib.asynccontextmanager
async def calling(hub: mooring.Hub | str, **options: Any) -> AsyncIterator[tuple[Channel, Any]]:
    options.setdefault("policy", "round_robin")
    options.setdefault("resilience", AT_ONCE)
    async with channel("etcdv3:///echo", hub=hub, **options) as opened:
        yield opened, pb2_grpc.EchoStub(opened)


async def by(stub: Any, text: str = "hello", **options: Any) -> str:
    return str((await stub.Say(Word(text=text), **options)).by)


async def ready(opened: Channel, count: int) -> None:
    await eventually(
        lambda: sum(candidate.called for candidate in opened.explain()) == count, within=20
    )


async def test_retrying_without_a_pause_does_not_starve_the_loop(hub: mooring.Hub):
    async with calling(hub) as (_, stub):
        await retried_at_once(lambda: by(stub), grpc.aio.AioRpcError)


async def test_calls_are_distributed_over_the_instances(hub: mooring.Hub, serve: Serve):
    for name in "abc":
        await serve(name)
    async with calling(hub) as (opened, stub):
        await ready(opened, 3)
        assert isinstance(opened, grpc.aio.Channel)
        assert Counter([await by(stub) for _ in range(9)]) == {"a": 3, "b": 3, "c": 3}


async def test_weights_are_exact(hub: mooring.Hub, serve: Serve):
    for name, weight in (("five", 5), ("three", 3), ("two", 2)):
        await serve(name, weight=weight)
    async with calling(hub, policy="weighted") as (opened, stub):
        await ready(opened, 3)
        spread = Counter([await by(stub) for _ in range(100)])
    assert spread == {"five": 50, "three": 30, "two": 20}


async def test_new_instances_are_called_and_removed_ones_are_not(hub: mooring.Hub, serve: Serve):
    first = await serve("first")
    async with calling(hub) as (opened, stub):
        assert await by(stub) == "first"
        await serve("second")
        await eventually(lambda: is_served_by(stub, "second"), within=20)
        await first.registration.aclose()
        await ready(opened, 1)
        assert {await by(stub) for _ in range(4)} == {"second"}


async def is_served_by(stub: Any, name: str) -> bool:
    return await by(stub) == name


async def test_all_four_kinds_of_calls(hub: mooring.Hub, serve: Serve):
    await serve("a")
    async with calling(hub) as (opened, stub):
        for _ in ("before a connection", "after a connection"):
            chat = stub.Chat()
            joining = stub.Join()
            await asyncio.gather(*(call_say(stub) for _ in range(3)))
            assert [word.text async for word in stub.Count(Word(text="3"))] == ["1", "2", "3"]
            counting = stub.Count(Word(text="1"))
            assert (await counting.read()).text == "1"
            assert await counting.read() is grpc.aio.EOF
            assert (await stub.Join(iter([Word(text="a"), Word(text="b")]))).text == "a b"
            await joining.write(Word(text="c"))
            await joining.done_writing()
            assert (await joining).text == "c"
            await chat.write(Word(text="hi"))
            assert (await chat.read()).text == "HI"
            await chat.write(Word(text="there"))
            await chat.done_writing()
            assert [word.text async for word in chat_rest(chat)] == ["THERE"]
            assert await chat.code() is grpc.StatusCode.OK
            await opened.channel_ready()


async def call_say(stub: Any) -> None:
    call = stub.Say(Word(text="hello"))
    assert (await call).text == "hello"
    assert await call.code() is grpc.StatusCode.OK
    assert call.done()
    assert not call.cancel()
    assert await call.details() == ""
    assert len(await call.trailing_metadata()) == 0
    await call.initial_metadata()


async def chat_rest(chat: Any) -> AsyncIterator[Any]:
    while (word := await chat.read()) is not grpc.aio.EOF:
        yield word


LAYOUTS = "the contract of registries runs each layout on these stores"


@pytest.mark.parametrize(
    ("layout", "backend"),
    [
        ("tree", "memory"),
        ("tree", "etcd-3.5"),
        ("hprose", "memory"),
        ("plain:/grpc/", "memory"),
        ("endpoints:/grpc/", "memory"),
        *(
            pytest.param(layout, backend, marks=pytest.mark.extended(LAYOUTS))
            for layout in ("tree", "hprose", "plain:/grpc/", "endpoints:/grpc/")
            for backend in ("etcd-3.5", "served")
            if (layout, backend) != ("tree", "etcd-3.5")
        ),
    ],
)
async def test_calls_work_on_every_layout(store_url: str, layout: str):
    async with (
        EchoServer("a") as server,
        mooring.connect(store_url, layout=layout) as hub,
        hub.register(here(server.port, protocol="http" if layout == "hprose" else "tcp")),
        calling(hub) as (_, stub),
    ):
        assert await by(stub) == "a"


@pytest.mark.parametrize(
    "backend",
    usual(["redis-7.0"], ["redis-cluster"], reason="the contract of registries runs on it"),
)
async def test_calls_work_on_redis(store_url: str):
    async with (
        EchoServer("a") as server,
        mooring.connect(store_url) as hub,
        calling(hub) as (opened, stub),
    ):
        async with hub.register(here(server.port)):
            await ready(opened, 1)
            assert await by(stub) == "a"
        await ready(opened, 0)


async def test_a_url_opens_a_separate_hub(tmp_path: Path):
    url = f"memory://{tmp_path.name}"
    async with (
        EchoServer("a") as server,
        mooring.connect(url) as hub,
        hub.register(here(server.port)),
        calling(url) as (_, stub),
    ):
        assert await by(stub) == "a"


async def test_without_an_instance_calls_fail_at_once_with_the_reason(
    hub: mooring.Hub, serve: Serve
):
    async with calling(hub) as (opened, stub):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await by(stub)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "echo: no instance is registered"
        assert opened.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
    await serve("a", weight=0)
    async with calling(hub) as (_, stub):
        call = stub.Say(Word(text="hello"))
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert "1 × its weight is 0" in await call.details()


async def test_wait_for_ready_waits_for_an_instance(hub: mooring.Hub, serve: Serve):
    async with calling(hub) as (opened, stub):
        await opened.wait_for_state_change(grpc.ChannelConnectivity.CONNECTING)
        call = stub.Say(Word(text="hello"), wait_for_ready=True, timeout=60)
        count = stub.Count(Word(text="2"), wait_for_ready=True)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await by(stub, wait_for_ready=True, timeout=0.05)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no instance is registered" in str(caught.value.details())
        assert not call.done()
        assert 0 < call.time_remaining() <= 60
        await serve("late")
        assert (await call).by == "late"
        assert [word.text async for word in count] == ["1", "2"]


class Cut:
    """What an interceptor does at the first call of each kind: stop the chosen server, and continue
    once its connection is gone."""

    def __init__(self) -> None:
        self.server: EchoServer
        self.opened: Channel
        self.before: set[str] = set()
        """The kinds whose connection is gone."""

    async def __call__(self, kind: str) -> None:
        if kind not in self.before:
            await self.server.server.stop(0)
            await ready(self.opened, 0)
            self.before.add(kind)

    def interceptors(self) -> list[Any]:
        cut = self

        class UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
            async def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
                await cut("Say")
                return await proceed(details, request)

        class UnaryStream(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]
            async def intercept_unary_stream(self, proceed: Any, details: Any, request: Any) -> Any:
                await cut("Count")
                return await proceed(details, request)

        class StreamUnary(grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[misc]
            async def intercept_stream_unary(self, proceed: Any, details: Any, words: Any) -> Any:
                await cut("Join")
                call = await proceed(details, words)
                await call  # like the interceptor of OpenTelemetry
                return call

        class StreamStream(grpc.aio.StreamStreamClientInterceptor):  # type: ignore[misc]
            async def intercept_stream_stream(self, proceed: Any, details: Any, words: Any) -> Any:
                await cut("Chat")
                return await proceed(details, words)

        return [UnaryUnary(), UnaryStream(), StreamUnary(), StreamStream()]


async def say(stub: Any, **options: Any) -> list[str]:
    return [(await stub.Say(Word(text="A"), **options)).text]


async def count(stub: Any, **options: Any) -> list[str]:
    return [word.text async for word in stub.Count(Word(text="2"), **options)]


async def join(stub: Any, **options: Any) -> list[str]:
    return [(await stub.Join(iter([Word(text="a"), Word(text="b")]), **options)).text]


async def chat(stub: Any, **options: Any) -> list[str]:
    async def words() -> AsyncIterator[Any]:
        for text in "ab":
            yield Word(text=text)

    return [word.text async for word in stub.Chat(words(), **options)]


async def chat_slowly(stub: Any, **options: Any) -> list[str]:
    async def words() -> AsyncIterator[Any]:
        for text in "ab":
            await asyncio.sleep(0.5)
            yield Word(text=text)

    return [word.text async for word in stub.Chat(words(), **options)]


async def write_and_read(stub: Any, **options: Any) -> list[str]:
    call = stub.Chat(**options)
    await call.write(Word(text="a"))
    await call.done_writing()
    return [word.text async for word in chat_rest(call)]


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (say, ["A"]),
        (count, ["1", "2"]),
        (join, ["a b"]),
        (chat, ["A", "B"]),
        (chat_slowly, ["A", "B"]),
        (write_and_read, ["A"]),
    ],
)
@pytest.mark.parametrize("retry", [[], ["echo.Echo"]], ids=["once", "retried"])
async def test_wait_for_ready_waits_on_if_the_connection_breaks_before_the_call_is_sent(
    hub: mooring.Hub, serve: Serve, kind: Any, answer: list[str], retry: list[str]
):
    cut = Cut()
    cut.server = await serve("a")
    async with calling(hub, interceptors=cut.interceptors(), retry=retry) as (cut.opened, stub):
        await ready(cut.opened, 1)
        calling_now = asyncio.create_task(kind(stub, wait_for_ready=True, timeout=30))
        await eventually(lambda: bool(cut.before), within=20)
        await serve("b")
        assert await calling_now == answer


async def test_calls_wait_for_the_first_list_until_their_deadline():
    url = f"etcd://127.0.0.1:{free_port()}?timeout=1s"
    async with mooring.connect(url) as hub, calling(hub) as (opened, stub):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await by(stub, timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "its instances are not known yet" in str(caught.value.details())
        assert opened.get_state() is grpc.ChannelConnectivity.CONNECTING


async def test_unreachable_instances_are_unavailable(hub: mooring.Hub, serve: Serve):
    async with hub.register(here(free_port())), calling(hub) as (opened, stub):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await by(stub, timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "1 × no connection" in str(caught.value.details())
        waiting = stub.Say(Word(text="hello"), wait_for_ready=True)
        await serve("a")
        assert (await waiting).by == "a"
        assert sorted(str(candidate).partition(": ")[2] for candidate in opened.explain()) == [
            "called: in rotation",
            "not called: no connection",
        ]


async def test_calls_report_why_a_channel_cannot_be_created(hub: mooring.Hub, serve: Serve):
    await serve("a")
    async with calling(hub, options=[("grpc.primary_user_agent", object())]) as (opened, stub):
        for wait_for_ready in (False, True):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await by(stub, wait_for_ready=wait_for_ready, timeout=1)
            assert "can be made: Expected " in str(caught.value.details())
            deadline = grpc.StatusCode.DEADLINE_EXCEEDED
            unavailable = grpc.StatusCode.UNAVAILABLE
            assert caught.value.code() is (deadline if wait_for_ready else unavailable)
        assert opened.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE


async def test_an_unhealthy_server_leaves_the_rotation_and_returns(hub: mooring.Hub, serve: Serve):
    well, ill = await serve("well"), await serve("ill")
    async with calling(hub) as (opened, stub):
        await ready(opened, 2)
        ill.health.set("", False)
        await ready(opened, 1)
        assert {await by(stub) for _ in range(4)} == {"well"}
        ill.health.set("", True)
        await ready(opened, 2)
        well.health.set("", False)
        await ready(opened, 1)
        assert {await by(stub) for _ in range(4)} == {"ill"}


async def test_a_service_config_of_the_caller_keeps_health_checks(hub: mooring.Hub, serve: Serve):
    ill, _ = await serve("ill"), await serve("well")
    limit = {"methodConfig": [{"name": [{"service": "echo.Echo"}], "maxRequestMessageBytes": 99}]}
    options = [("grpc.service_config", json.dumps(limit))]
    async with calling(hub, options=options) as (opened, stub):
        await ready(opened, 2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await by(stub, "long" * 99)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        ill.health.set("", False)
        await ready(opened, 1)
        assert {await by(stub) for _ in range(4)} == {"well"}


async def test_the_health_of_a_single_service_can_be_checked(hub: mooring.Hub, serve: Serve):
    server = await serve("a")
    server.health.set("echo.Echo", False)
    async with calling(hub, health="echo.Echo") as (opened, stub):
        with pytest.raises(grpc.aio.AioRpcError, match="no connection"):
            await by(stub)
        server.health.set("echo.Echo", True)
        await opened.channel_ready()
        assert await by(stub) == "a"
    server.health.set("", False)
    async with calling(hub, health=False) as (_, stub):
        assert await by(stub) == "a"


async def test_a_server_without_the_health_service_counts_as_healthy(hub: mooring.Hub):
    async with (
        EchoServer("a") as server,
        hub.register(here(server.port)),
        calling(hub) as (_, stub),
    ):
        assert await by(stub) == "a"


async def test_an_open_stream_survives_the_removal_of_its_instance(hub: mooring.Hub, serve: Serve):
    server = await serve("a")
    async with calling(hub) as (opened, stub):
        await opened.channel_ready()
        count = stub.Count(Word(text="held 3"))
        assert (await count.read()).text == "1"
        await server.registration.aclose()
        await ready(opened, 0)
        server.echo.go.set()
        assert [(await count.read()).text for _ in range(2)] == ["2", "3"]
        assert await count.read() is grpc.aio.EOF
        assert await count.code() is grpc.StatusCode.OK


async def test_only_methods_that_opt_in_are_retried(hub: mooring.Hub, serve: Serve):
    servers = [await serve(name) for name in "abc"]

    def tries() -> int:
        attempts = sum(len(server.echo.received) for server in servers)
        for server in servers:
            server.echo.received.clear()
        return attempts

    async with calling(hub, retry=[SAY]) as (opened, stub):
        await ready(opened, 3)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await by(stub, "fail UNAVAILABLE")
        assert "was told" in str(caught.value.details())
        assert tries() == 3
        with pytest.raises(grpc.aio.AioRpcError):
            await by(stub, "fail INTERNAL")
        assert tries() == 1
        with pytest.raises(grpc.aio.AioRpcError):
            [word async for word in stub.Count(Word(text="fail UNAVAILABLE"))]
        assert tries() == 1
    async with calling(hub, retry=["echo.Echo"], tries=2) as (opened, stub):
        await ready(opened, 3)
        call = stub.Count(Word(text="fail UNAVAILABLE"))
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert tries() == 2
        assert [word.text async for word in stub.Count(Word(text="2"))] == ["1", "2"]
        reading = stub.Count(Word(text="2"))
        assert [(await reading.read()).text for _ in range(2)] == ["1", "2"]
        assert await reading.read() is grpc.aio.EOF
        assert [word async for word in stub.Count(Word(text="0"))] == []


async def test_retries_end_with_their_budget(hub: mooring.Hub, serve: Serve):
    servers = [await serve(name) for name in "abc"]
    few = Resilience(retry_least=0.1, retry_ratio=0, consecutive_failures=0, failure_rate=0)
    async with calling(hub, retry=[SAY], resilience=few) as (opened, stub):
        await ready(opened, 3)
        for _ in range(5):
            with pytest.raises(grpc.aio.AioRpcError):
                await by(stub, "fail UNAVAILABLE")
    assert sum(len(server.echo.received) for server in servers) == 5 + 1


async def test_a_failing_instance_is_ejected(hub: mooring.Hub, serve: Serve):
    bad, _ = await serve("bad"), await serve("good")
    once = Resilience(consecutive_failures=1, panic_threshold=0, slow_start=0)
    async with calling(hub, resilience=once) as (opened, stub):
        await ready(opened, 2)
        bad.echo.fails = True
        for _ in range(2):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await by(stub)
        await ready(opened, 1)
        assert {await by(stub) for _ in range(4)} == {"good"}


async def test_deadlines_hold(hub: mooring.Hub, serve: Serve):
    await serve("a")
    for retry in ([], [SAY]):
        async with calling(hub, retry=retry) as (opened, stub):
            await opened.channel_ready()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await by(stub, "slow", timeout=0.1)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


class Broken(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    async def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
        raise RuntimeError("a mistake of its own")


@pytest.mark.parametrize("retry", [[], [SAY]])
async def test_an_error_of_an_interceptor_reaches_the_caller_and_blames_no_instance(
    hub: mooring.Hub, serve: Serve, retry: list[str]
):
    await serve("a")
    async with calling(hub, retry=retry, interceptors=[Broken()]) as (opened, stub):
        await opened.channel_ready()
        for _ in range(10):
            with pytest.raises(RuntimeError, match="of its own"):
                await by(stub)
        assert [str(candidate).partition(": ")[2] for candidate in opened.explain()] == [
            "called: in rotation"
        ]
        assert [subchannel.in_flight for subchannel in opened.subchannels] == [0]


async def test_a_call_can_be_cancelled_at_any_stage(hub: mooring.Hub, serve: Serve):
    async with calling(hub, retry=[SAY]) as (opened, stub):
        for started in (False, True):
            waiting = stub.Say(Word(text="hello"), wait_for_ready=True)
            over: list[Any] = []
            waiting.add_done_callback(over.append)
            if started:
                await asyncio.sleep(0)
            assert waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await waiting.code() is grpc.StatusCode.CANCELLED
            assert waiting.cancelled()
            assert waiting.done()
            assert over == [waiting]
        server = await serve("a")
        await opened.channel_ready()
        for call in (stub.Say(Word(text="slow")), stub.Count(Word(text="held 2"))):
            await asyncio.sleep(0)
            assert call.cancel()
            assert await call.code() is grpc.StatusCode.CANCELLED
            assert call.cancelled()
            assert call.done()
        task = asyncio.ensure_future(by(stub, "slow"))
        before = server.echo.waiting
        await eventually(lambda: server.echo.waiting > before)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await by(stub) == "a"


class Stamping(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    async def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), ("stamp", "yes"))
        return await proceed(details._replace(metadata=metadata), request)


@pytest.mark.parametrize("retry", [[], [SAY]])
async def test_interceptors_metadata_and_compression_reach_the_instance(
    hub: mooring.Hub, serve: Serve, retry: list[str]
):
    server = await serve("a")
    options: dict[str, Any] = {"interceptors": [Stamping()], "options": CHANNEL_OPTIONS}
    async with calling(hub, retry=retry, compression=grpc.Compression.Gzip, **options) as (_, stub):
        for _ in range(2):
            call = stub.Say(Word(text="hello"), metadata=(("who", "me"),))
            assert (await call).by == "a"
            assert await call.code() is grpc.StatusCode.OK
        got = server.echo.metadata[-1]
        assert (got["stamp"], got["who"]) == ("yes", "me")
        failing = stub.Say(Word(text="fail NOT_FOUND"))
        assert await failing.code() is grpc.StatusCode.NOT_FOUND


async def test_tls_with_call_credentials(hub: mooring.Hub, certificates: Path):
    server = EchoServer(
        "secret",
        credentials=grpc.ssl_server_credentials(
            [
                (
                    (certificates / "server.key").read_bytes(),
                    (certificates / "server.pem").read_bytes(),
                )
            ]
        ),
    )
    trusted, other = (
        grpc.ssl_channel_credentials((certificates / name).read_bytes())
        for name in ("ca.pem", "other-ca.pem")
    )
    token = grpc.access_token_call_credentials("token")
    async with server, hub.register(here(server.port)):
        async with calling(hub, credentials=trusted) as (_, stub):
            assert await by(stub, credentials=token) == "secret"
            assert server.echo.metadata[-1]["authorization"] == "Bearer token"
        async with calling(hub, credentials=other) as (_, stub):
            with pytest.raises(grpc.aio.AioRpcError, match="no connection"):
                await by(stub)


async def test_a_key_selects_the_same_instance(hub: mooring.Hub, serve: Serve):
    for name in "abc":
        await serve(name)
    async with calling(hub, policy="consistent_hash") as (opened, stub):
        await ready(opened, 3)
        names_by_key = {
            user: {await by(stub, metadata=(("mooring-key", user),)) for _ in range(5)}
            for user in map(str, range(20))
        }
    assert all(len(names) == 1 for names in names_by_key.values())
    assert len(set.union(*names_by_key.values())) > 1


async def test_only_selected_instances_are_connected(hub: mooring.Hub, serve: Serve):
    await serve("old", version="1.0.0")
    await serve("new", version="2.0.0")
    async with calling(hub, version="2.0.0") as (opened, stub):
        assert {await by(stub) for _ in range(4)} == {"new"}
        assert len(opened.subchannels) == 1


async def test_another_process_at_the_same_address_gets_a_new_connection(hub: mooring.Hub):
    port = free_port()
    server = EchoServer("first", port=port)
    async with calling(hub) as (opened, stub):
        async with server, hub.register(here(port)) as before:
            assert await by(stub, wait_for_ready=True) == "first"
        again = msgspec.structs.replace(before.instance, incarnation="")
        async with EchoServer("second", port=port), hub.register(again):
            await ready(opened, 1)
            assert await by(stub, wait_for_ready=True) == "second"


async def test_the_state_of_the_channel_can_be_followed(hub: mooring.Hub, serve: Serve):
    async with calling(hub) as (opened, _):
        await opened.wait_for_state_change(grpc.ChannelConnectivity.CONNECTING)
        assert opened.get_state(try_to_connect=True) is grpc.ChannelConnectivity.TRANSIENT_FAILURE
        server = await serve("a")
        await opened.channel_ready()
        assert opened.get_state() is grpc.ChannelConnectivity.READY
        await server.registration.aclose()
        await opened.wait_for_state_change(grpc.ChannelConnectivity.READY)
    assert opened.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_closing_cancels_calls_and_refuses_new_ones(hub: mooring.Hub, serve: Serve):
    server = await serve("a")
    async with calling(hub, retry=[COUNT]) as (opened, stub):
        call, waiting = stub.Say(Word(text="slow")), stub.Count(Word(text="held 2"))
        await eventually(lambda: server.echo.waiting == 1)
        await opened.close()
        await opened.close()
        assert await call.code() is grpc.StatusCode.CANCELLED
        assert await waiting.code() is grpc.StatusCode.CANCELLED
        for late in (stub.Say, stub.Count):
            with pytest.raises(grpc.aio.UsageError, match="closed"):
                late(Word(text="hello"))


async def test_closing_with_grace_lets_calls_finish(hub: mooring.Hub, serve: Serve):
    server = await serve("a")
    async with calling(hub) as (opened, stub):
        await opened.channel_ready()
        call = stub.Say(Word(text="slow"))
        await eventually(lambda: server.echo.waiting == 1)
        closing = asyncio.ensure_future(opened.close(grace=20))
        await asyncio.sleep(0)
        server.echo.go.set()
        assert (await call).by == "a"
        await closing


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("echo", {}, "must begin with etcdv3:///"),
        ("etcdv3:///a/b/c", {}, "two slashes"),
        ("etcdv3:///echo", {"policy": "fastest"}, "unknown balancing policy 'fastest'"),
        ("etcdv3:///echo", {"tries": 0}, "1 or more"),
        ("etcdv3:///echo", {"retry": SAY}, "is a list"),
        ("etcdv3:///echo", {"health": 1.5}, "True, False or"),
        ("etcdv3:///echo", {"hub": 3}, "mooring.connect"),
    ],
)
async def test_invalid_arguments_are_refused_when_the_channel_is_created(
    hub: mooring.Hub, target: str, options: dict[str, Any], message: str
):
    with pytest.raises(InvalidRequest, match=message):
        channel(target, **{"hub": hub, **options})


async def test_an_unusable_hub_is_refused_when_the_channel_is_created(hub: mooring.Hub):
    with pytest.raises(InvalidURL):
        channel("etcdv3:///echo", hub="nowhere://")
    with pytest.raises(Closed):
        channel("etcdv3:///echo", hub=mooring.connect("memory://"))
    async with mooring.connect("memory://", layout="hprose") as other:
        with pytest.raises(InvalidName, match="a slash"):
            channel("etcdv3:///group/echo", hub=other)


def test_a_channel_needs_a_running_loop():
    with pytest.raises(InvalidRequest, match="running loop"):
        channel("etcdv3:///echo", hub="memory://")


async def test_methods_with_a_request_stream_cannot_be_retried(hub: mooring.Hub):
    with pytest.raises(InvalidRequest, match="its requests are a stream"):
        async with calling(hub, retry=["echo.Echo/Chat"]):
            pass


async def test_a_waiting_call_uses_an_instance_that_is_enabled_again(
    hub: mooring.Hub, serve: Serve
):
    server = await serve("a")
    async with calling(hub) as (opened, stub):
        assert await by(stub) == "a"
        id = server.registration.instance.id
        await hub.registry.configure("echo", id, set={"enabled": False})
        await ready(opened, 0)
        waiting = asyncio.ensure_future(by(stub, wait_for_ready=True, timeout=20))
        await eventually(lambda: "waiters:1" in repr(opened._subchannels._changed))
        await hub.registry.configure("echo", id, set={"enabled": True})
        assert await waiting == "a"


async def test_a_stub_per_call_leaves_nothing_behind(hub: mooring.Hub, serve: Serve):
    await serve("a")
    async with calling(hub) as (opened, stub):
        assert await by(stub) == "a"
        for _ in range(20):
            await pb2_grpc.EchoStub(opened).Say(Word(text="hello"))
        del stub
        gc.collect()
        assert not opened._subchannels._methods


async def test_a_removed_instance_leaves_nothing_behind(hub: mooring.Hub, serve: Serve):
    gone = await serve("gone")
    async with calling(hub) as (opened, stub):
        assert await by(stub) == "gone"
        await serve("stays")
        await ready(opened, 2)
        await gone.registration.aclose()
        await eventually(lambda: len(opened.subchannels) == 1)
        await eventually(lambda: is_served_by(stub, "stays"))
        (subchannel,) = opened.subchannels
        await eventually(lambda: list(stub.Say.callables) == [subchannel])


async def test_a_stub_of_a_closed_channel_keeps_no_connection(hub: mooring.Hub, serve: Serve):
    """A process can fork after it closed its channels, even if it still has their stubs."""
    await serve("a")
    gc.collect()
    before = len(forks._channels)
    async with calling(hub) as (_, stub):
        assert await by(stub) == "a"
        assert len(forks._channels) > before

    def freed() -> bool:
        gc.collect()
        return len(forks._channels) <= before

    await eventually(freed)
    assert stub is not None


async def test_closing_continues_after_its_caller_gave_up(hub: mooring.Hub, serve: Serve):
    server = await serve("a")
    async with calling(hub) as (opened, stub):
        call = stub.Say(Word(text="slow"))
        await eventually(lambda: server.echo.waiting == 1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await opened.close(2)
        await opened.close()
        await eventually(call.done)
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.parametrize("retry", [(), (SAY,)])
async def test_an_error_in_the_arguments_of_a_call_reaches_the_caller(
    hub: mooring.Hub, serve: Serve, retry: tuple[str, ...]
):
    await serve("a")
    token = grpc.access_token_call_credentials("token")
    async with calling(hub, retry=retry) as (opened, stub):
        await ready(opened, 1)
        with pytest.raises(grpc.aio.UsageError, match="secure"):
            await stub.Say(Word(text="hello"), credentials=token)
        assert await by(stub) == "a"
