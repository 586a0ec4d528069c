"""gRPC channels for threads, with generated stubs."""

from __future__ import annotations

import contextlib
import gc
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

import mooring
import mooring.grpc
import mooring.sync
from mooring import fork_safety as forks
from mooring.errors import Closed, InvalidName, InvalidRequest
from mooring.grpc.resolver import target_of
from mooring.testing.servers import free_port
from tests.acceptance.commands import python_program
from tests.features.grpc_echo.servers import BlockingEcho, Word, pb2_grpc
from tests.waiting import until

SAY = "echo.Echo/Say"


def here(port: int, **fields: Any) -> mooring.Instance:
    return mooring.Instance("echo", fields.pop("host", "127.0.0.1"), port, **fields)


class Server:
    def __init__(self, by: str, credentials: grpc.ServerCredentials | None = None) -> None:
        self.echo = BlockingEcho(by)
        self.health = mooring.grpc.Health()
        self.server = grpc.server(ThreadPoolExecutor(8), options=mooring.grpc.SERVER_OPTIONS)
        pb2_grpc.add_EchoServicer_to_server(self.echo, self.server)
        self.health.serve(self.server)
        if credentials is None:
            self.port = self.server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self.server.add_secure_port("127.0.0.1:0", credentials)
        self.server.start()
        self.registration: Any = None


@pytest.fixture
def hub() -> Iterator[Any]:
    with mooring.sync.connect("memory://") as opened:
        yield opened


Serve = Callable[..., Server]


@pytest.fixture
def serve(hub: Any) -> Iterator[Serve]:
    """Start and register servers; `server.registration.close()` ends it."""
    with contextlib.ExitStack() as stack:

        def start(by: str, **fields: Any) -> Server:
            server = Server(by, fields.pop("credentials", None))
            stack.callback(lambda: server.server.stop(0).wait())
            stack.callback(server.echo.go.set)
            server.registration = hub.register(here(server.port, **fields))
            stack.enter_context(server.registration)
            return server

        yield start


@contextlib.contextmanager
def calling(hub: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
    with mooring.grpc.channel("etcdv3:///echo", hub=hub, **options) as channel:
        yield channel, pb2_grpc.EchoStub(channel)


def by(stub: Any, text: str = "hello", **options: Any) -> str:
    return str(stub.Say(Word(text=text), **options).by)


def called(stub: Any, count: int = 8) -> set[str]:
    return {by(stub) for _ in range(count)}


def test_instances_are_called_in_turn_and_changes_are_followed(hub: Any, serve: Serve):
    first = serve("a")
    with calling(hub) as (channel, stub):
        assert isinstance(channel, grpc.Channel)
        assert by(stub) == "a"
        serve("b")
        until(lambda: called(stub) == {"a", "b"}, within=20)
        spread = Counter(by(stub) for _ in range(20))
        assert spread == {"a": 10, "b": 10}
        first.registration.close()
        until(lambda: called(stub) == {"b"}, within=20)


def test_all_four_kinds_of_calls(hub: Any, serve: Serve):
    serve("a")
    with calling(hub) as (_, stub):
        assert stub.Say(Word(text="hello")).text == "hello"
        answer, call = stub.Say.with_call(Word(text="hello"), metadata=(("who", "me"),))
        assert (answer.by, call.code()) == ("a", grpc.StatusCode.OK)
        assert stub.Say.future(Word(text="later")).result().text == "later"
        assert [word.text for word in stub.Count(Word(text="3"))] == ["1", "2", "3"]
        words = [Word(text="a"), Word(text="b")]
        assert stub.Join(iter(words)).text == "a b"
        assert stub.Join.future(iter(words)).result().text == "a b"
        assert [word.text for word in stub.Chat(iter(words))] == ["A", "B"]


def test_without_an_instance_every_kind_of_call_fails_at_once(hub: Any):
    with calling(hub) as (_, stub):
        with pytest.raises(grpc.RpcError) as caught:
            by(stub)
        failed: Any = caught.value
        assert failed.code() is grpc.StatusCode.UNAVAILABLE
        assert failed.details() == "echo: no instance is registered"
        future = stub.Say.future(Word(text="hello"))
        assert future.exception().code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError):
            future.result()
        stream = stub.Count(Word(text="3"))
        assert stream.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError):
            next(stream)


def test_wait_for_ready_waits_for_an_instance(hub: Any, serve: Serve):
    with calling(hub) as (_, stub), ThreadPoolExecutor(2) as pool:
        with pytest.raises(grpc.RpcError, match="no instance is registered"):
            by(stub)  # from now on the channel knows that
        with pytest.raises(grpc.RpcError) as caught:
            by(stub, wait_for_ready=True, timeout=0.05)
        failed: Any = caught.value
        assert failed.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no instance is registered" in failed.details()
        with hub.register(here(free_port())):
            waiting = pool.submit(by, stub, wait_for_ready=True, timeout=60)
            with pytest.raises(grpc.RpcError) as caught:
                by(stub, wait_for_ready=True, timeout=0.2)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        serve("late")
        assert waiting.result() == "late"
        assert {by(stub, wait_for_ready=True) for _ in range(3)} == {"late"}


def test_calls_wait_for_the_first_list_until_their_deadline():
    url = f"etcd://127.0.0.1:{free_port()}?timeout=1s"
    with mooring.sync.connect(url) as hub, calling(hub) as (_, stub):
        with pytest.raises(grpc.RpcError) as caught:
            by(stub, timeout=0.2)
        failed: Any = caught.value
        assert failed.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "its instances are not known yet" in failed.details()


def test_calls_report_why_a_channel_cannot_be_created(hub: Any, serve: Serve):
    serve("a")
    with calling(hub, options=[("grpc.primary_user_agent", object())]) as (_, stub):
        with pytest.raises(grpc.RpcError, match="no channel can be made: Expected ") as caught:
            by(stub, timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_an_unhealthy_server_leaves_the_rotation(hub: Any, serve: Serve):
    ill, _ = serve("ill"), serve("well")
    with calling(hub) as (_, stub):
        until(lambda: called(stub) == {"ill", "well"}, within=20)
        ill.health.set("", False)
        until(lambda: called(stub) == {"well"}, within=20)


def test_an_open_stream_survives_the_removal_of_its_instance(hub: Any, serve: Serve):
    server = serve("a")
    with calling(hub) as (_, stub):
        count = stub.Count(Word(text="held 3"))
        assert next(count).text == "1"
        serve("b")
        server.registration.close()
        until(lambda: called(stub) == {"b"}, within=20)
        server.echo.go.set()
        assert [word.text for word in count] == ["2", "3"]


def test_only_methods_that_opt_in_are_retried(hub: Any, serve: Serve):
    servers = [serve(name) for name in "abc"]

    def tries() -> int:
        attempts = sum(len(server.echo.received) for server in servers)
        for server in servers:
            server.echo.received.clear()
        return attempts

    for retry, expected in (([SAY], 3), (["echo.Echo"], 3), ([], 1)):
        with calling(hub, retry=retry) as (_, stub):
            until(lambda stub=stub: called(stub) == {"a", "b", "c"}, within=20)  # type: ignore[misc]
            tries()
            with pytest.raises(grpc.RpcError, match="was told"):
                by(stub, "fail UNAVAILABLE")
            assert tries() == expected
            with pytest.raises(grpc.RpcError):
                by(stub, "fail INTERNAL")
            assert tries() == 1


def test_retries_end_when_too_many_calls_fail(hub: Any, serve: Serve):
    """The throttling of gRPC itself: fifty failures, minus the credit of successes."""
    servers = [serve(name) for name in "abc"]
    with calling(hub, retry=[SAY]) as (_, stub):
        until(lambda: called(stub) == {"a", "b", "c"}, within=20)

        def tries() -> int:
            for server in servers:
                server.echo.received.clear()
            with pytest.raises(grpc.RpcError, match="was told"):
                by(stub, "fail UNAVAILABLE")
            return sum(len(server.echo.received) for server in servers)

        assert tries() == 3
        counted = [tries() for _ in range(30)]
        assert counted[:10] == [3] * 10
        assert counted[-10:] == [1] * 10


class Stamping(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
        return proceed(details._replace(metadata=(("stamp", "yes"),)), request)


def test_interceptors_work_inside_and_outside(hub: Any, serve: Serve):
    server = serve("a")
    with calling(hub, interceptors=[Stamping()], compression=grpc.Compression.Gzip) as (_, stub):
        assert by(stub) == "a"
        assert stub.Say.future(Word(text="hello")).result().by == "a"
        assert server.echo.metadata[-1]["stamp"] == "yes"
    with calling(hub) as (channel, _):
        around = pb2_grpc.EchoStub(grpc.intercept_channel(channel, Stamping()))
        assert by(around) == "a"
        assert server.echo.metadata[-1]["stamp"] == "yes"


def test_tls_needs_a_common_name(hub: Any, serve: Serve, certificates: Path):
    key, cert = ((certificates / f"server.{end}").read_bytes() for end in ("key", "pem"))
    serve("secret", credentials=grpc.ssl_server_credentials([(key, cert)]))
    trusted = grpc.ssl_channel_credentials((certificates / "ca.pem").read_bytes())
    named = [("grpc.ssl_target_name_override", "etcd.test")]
    with calling(hub, credentials=trusted, options=named) as (_, stub):
        assert by(stub, credentials=grpc.access_token_call_credentials("token")) == "secret"
    with pytest.raises(InvalidRequest, match="ssl_target_name_override"):
        mooring.grpc.channel("etcdv3:///echo", hub=hub, credentials=trusted)


def test_a_service_config_of_the_caller_keeps_balancing_and_health_checks(hub: Any, serve: Serve):
    ill, _ = serve("ill"), serve("well")
    limit = {"methodConfig": [{"name": [{"service": "echo.Echo"}], "maxRequestMessageBytes": 99}]}
    options = [("grpc.service_config", json.dumps(limit))]
    with calling(hub, options=options, retry=[SAY]) as (_, stub):
        until(lambda: called(stub) == {"ill", "well"}, within=20)
        with pytest.raises(grpc.RpcError) as caught:
            by(stub, "long" * 99)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        ill.health.set("", False)
        until(lambda: called(stub) == {"well"}, within=20)


def test_a_service_can_have_a_thousand_instances(hub: Any, serve: Serve):
    """Servers reject calls whose authority is joined from all addresses."""
    serve("a")
    port = free_port()
    for number in range(1000):
        away = here(port, host=f"127.1.{number // 250}.{number % 250 + 1}")
        hub.registry.enter(away, ttl=600)
    with calling(hub, health=False) as (_, stub):
        assert by(stub, wait_for_ready=True, timeout=20) == "a"


def test_names_are_resolved(hub: Any, serve: Serve):
    serve("a", host="localhost")
    with hub.register(here(1, host="no-such-host.invalid")), calling(hub) as (_, stub):
        assert by(stub) == "a"


@pytest.mark.parametrize(
    ("addresses", "target"),
    [
        ([], ""),
        ([("10.0.0.2", 2), ("10.0.0.1", 1), ("10.0.0.2", 2)], "ipv4:10.0.0.1:1,10.0.0.2:2"),
        ([("fd00::1", 1)], "ipv6:[fd00::1]:1"),
        ([("fd00::1", 1), ("10.0.0.1", 2)], "ipv6:[::ffff:10.0.0.1]:2,[fd00::1]:1"),
    ],
)
def test_a_target_has_addresses_of_one_family(addresses: list[Any], target: str):
    assert target_of(addresses) == target


@pytest.mark.parametrize("backend", ["etcd-3.5", "redis-7.0"], indirect=True)
def test_a_url_opens_a_separate_hub(store_url: str):
    server = Server("a")
    with (
        mooring.sync.connect(store_url) as hub,
        hub.register(here(server.port)),
        calling(store_url) as (_, stub),
    ):
        assert by(stub) == "a"
    server.server.stop(0).wait()


def test_waiting_until_the_channel_is_ready(hub: Any, serve: Serve):
    with calling(hub) as (channel, stub):
        ready = grpc.channel_ready_future(channel)
        assert not ready.done()
        serve("a")
        ready.result(timeout=20)
        assert by(stub) == "a"


def test_closing_cancels_calls_and_refuses_new_ones(hub: Any, serve: Serve):
    server = serve("a")
    with calling(hub) as (channel, stub):
        future = stub.Say.future(Word(text="slow"))
        until(lambda: server.echo.waiting, within=20)
        channel.close()
        channel.close()
        assert future.code() is grpc.StatusCode.CANCELLED
        with pytest.raises(ValueError, match="closed"):
            by(stub)


def test_invalid_arguments_are_refused_when_the_channel_is_created(hub: Any):
    channel = mooring.grpc.channel
    with pytest.raises(InvalidRequest, match="must begin with"):
        channel("echo", hub=hub)
    with pytest.raises(InvalidName, match="two slashes"):
        channel("etcdv3:///a/b/c", hub=hub)
    with pytest.raises(InvalidRequest, match="unknown balancing policy"):
        channel("etcdv3:///echo", hub=hub, policy="fastest")
    with pytest.raises(InvalidRequest, match=r"mooring\.grpc\.aio\.channel"):
        channel("etcdv3:///echo", hub=hub, policy="weighted")
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        channel("etcdv3:///echo", hub=hub, retry=[SAY], options=[("grpc.service_config", "{")])
    with pytest.raises(InvalidRequest, match=r"mooring\.sync\.connect"):
        channel("etcdv3:///echo", hub=mooring.connect("memory://"))  # type: ignore[arg-type]
    with pytest.raises(Closed):
        channel("etcdv3:///echo", hub=mooring.sync.connect("memory://"))
    with (
        pytest.raises(InvalidRequest, match="its requests are a stream"),
        calling(hub, retry=["echo.Echo/Join"]),
    ):
        pass


class Noting(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
):
    """Records the calls, and replaces streams by a generator."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def intercept_unary_unary(self, go_on: Any, details: Any, request: Any) -> Any:
        self.methods.append(details.method)
        return go_on(details, request)

    def intercept_unary_stream(self, go_on: Any, details: Any, request: Any) -> Any:
        return (message.text + "!" for message in go_on(details, request))


def test_interceptors_see_only_calls_of_the_caller(hub: Any, serve: Serve):
    serve("a")
    noting = Noting()
    with calling(hub, interceptors=[noting]) as (_, stub):
        assert by(stub) == "a"
        serve("b")
        until(lambda: called(stub) == {"a", "b"}, within=20)
    assert set(noting.methods) == {f"/{SAY}"}


def test_an_interceptor_can_replace_a_stream(hub: Any, serve: Serve):
    first = serve("a")
    with calling(hub, interceptors=[Noting()]) as (channel, stub):
        assert list(stub.Count(Word(text="2"))) == ["1!", "2!"]
        unread = stub.Count(Word(text="2"))
        serve("b")
        first.registration.close()
        until(lambda: called(stub) == {"b"}, within=20)
        del unread
        until(lambda: not channel._swappable._retired)


def test_a_stub_per_call_leaves_nothing_behind(hub: Any, serve: Serve):
    serve("a")
    with calling(hub) as (channel, stub):
        assert by(stub) == "a"
        for _ in range(20):
            pb2_grpc.EchoStub(channel).Say(Word(text="hello"))
        del stub
        gc.collect()
        assert not channel._swappable._methods


def test_a_name_that_temporarily_cannot_be_resolved_keeps_its_addresses(
    hub: Any, serve: Serve, monkeypatch: pytest.MonkeyPatch
):
    serve("a", host="localhost")
    with calling(hub) as (_, stub):
        assert by(stub) == "a"

        def fails(*_: object, **__: object) -> None:
            raise OSError("the resolver is away")

        monkeypatch.setattr("socket.getaddrinfo", fails)
        serve("b")
        until(lambda: called(stub) == {"a", "b"}, within=20)


def test_a_waiting_call_is_not_stuck_with_removed_instances(hub: Any, serve: Serve):
    first = serve("a")
    with calling(hub) as (_, stub):
        assert by(stub, wait_for_ready=True, timeout=20) == "a"
        first.server.stop(0).wait()
        with pytest.raises(grpc.RpcError):
            by(stub)  # from now on the channel knows that the connection is broken
        with ThreadPoolExecutor(8) as callers:
            asked = [callers.submit(by, stub, wait_for_ready=True, timeout=30) for _ in range(8)]
            serve("b")
            first.registration.close()
            assert {call.result(40) for call in asked} == {"b"}


INHERITED = """
import os, sys
from concurrent.futures import ThreadPoolExecutor

import mooring
import mooring.grpc
import mooring.sync
from mooring.errors import Closed
from tests.features.grpc_echo.servers import Word, pb2_grpc
from tests.features.test_grpc_sync import Server

server = Server("a")
server.echo.slow = 1
with (
    mooring.sync.connect("memory://") as hub,
    hub.register(mooring.Instance("echo", "127.0.0.1", server.port)),
    mooring.grpc.channel("etcdv3:///echo", hub=hub) as channel,
):
    stub = pb2_grpc.EchoStub(channel)
    counting = stub.Count(Word(text="held 3"))
    assert next(counting).text == "1"
    for turn in range(4):
        child = os.fork()
        if not child:
            word = Word(text="hello")
            for use in (
                lambda: stub.Say(word, timeout=5),
                lambda: stub.Say.future(word, timeout=5),
                lambda: stub.Count(word, timeout=5),
                lambda: pb2_grpc.EchoStub(channel),
                lambda: channel.subscribe(print),
            ):
                try:
                    use()
                except Closed as error:
                    assert "made before a fork" in str(error), error
                else:
                    os._exit(2)
            if turn % 2:
                os._exit(0)
            sys.exit(0)  # leaves all blocks
        assert os.waitpid(child, 0)[1] == 0
        assert stub.Say(Word(text="hello"), timeout=5).by == "a"
    server.echo.go.set()
    assert [word.text for word in counting] == ["2", "3"]
server.server.stop(0).wait()
"""


def test_a_forked_child_must_create_its_own_channel():
    """And the channel of the parent still works."""
    run = python_program(INHERITED)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_stub_of_a_closed_channel_keeps_no_connection(hub: Any, serve: Serve):
    """A process can fork after it closed its channels, even if it still has their stubs."""
    serve("a")
    gc.collect()
    before = len(forks._channels)
    with calling(hub) as (_, stub):
        assert by(stub, wait_for_ready=True, timeout=20) == "a"
        assert len(forks._channels) > before

    def freed() -> bool:
        gc.collect()
        return len(forks._channels) <= before

    until(freed)
    assert stub is not None
