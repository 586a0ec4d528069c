"""Servers that are registered while they serve, and the order of their start and stop."""

from __future__ import annotations

import asyncio
import textwrap
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest

import mooring
import mooring.grpc
import mooring.sync
from mooring.errors import Closed, InvalidRequest
from mooring.grpc import CHANNEL_OPTIONS, SERVER_OPTIONS, Health, serve_and_register
from mooring.grpc.health import SERVICE, ServingStatus
from mooring.mirror import Update
from mooring.model import Instance
from tests.acceptance.commands import python_program
from tests.features.grpc_echo.servers import BlockingEcho, EchoServer, Word, pb2_grpc
from tests.waiting import eventually, until


@pytest.fixture
async def hub() -> AsyncIterator[mooring.Hub]:
    async with mooring.connect("memory://") as opened:
        yield opened


def here(port: int, service: str = "echo") -> Instance:
    return Instance(service, "127.0.0.1", port)


async def names(hub: mooring.Hub, service: str = "echo") -> list[str]:
    return [instance.address for instance in (await hub.registry.instances(service)).instances]


async def test_a_server_serves_then_registers_and_stops_in_reverse_order(hub: mooring.Hub):
    server = EchoServer("a")
    seen: list[Any] = []
    address = f"127.0.0.1:{server.port}"
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb2_grpc.EchoStub(channel)
        watch = channel.unary_stream(f"/{SERVICE}/Watch")
        async with serve_and_register(server.server, hub, here(server.port)) as serving:
            assert await names(hub) == [address]
            assert (await stub.Say(Word(text="hello"))).by == "a"
            assert [registration.state for registration in serving.registrations] == ["registered"]
            health = watch(b"")
            seen.append(await health.read())
            leaving = asyncio.ensure_future(health.read())
            slow = stub.Say(Word(text="slow"))
            await eventually(lambda: server.echo.waiting == 1)

            async def observe() -> None:
                await eventually(lambda: draining(hub))
                assert (await stub.Say(Word(text="hello"))).by == "a"  # it lingers
                assert not leaving.done()
                seen.append(await leaving)
                assert await names(hub) == []
                server.echo.go.set()
                assert (await slow).by == "a"

            observing = asyncio.ensure_future(observe())
        await observing
    assert seen == [b"\x08\x01", b"\x08\x02"]


async def draining(hub: mooring.Hub) -> bool:
    instances = (await hub.registry.instances("echo")).instances
    return [instance.status.state for instance in instances] == ["draining"]


async def test_the_health_of_services_can_be_checked_and_watched(hub: mooring.Hub):
    server, health = EchoServer("a"), Health({"echo.Echo": False})
    serving = serve_and_register(server.server, hub, here(server.port), health=health, linger=0)
    async with serving, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        check = channel.unary_unary(f"/{SERVICE}/Check")
        assert await check(b"") == bytes([8, ServingStatus.SERVING])
        assert await check(b"\x0a\x09echo.Echo") == bytes([8, ServingStatus.NOT_SERVING])
        assert await check(b"\x0a\x01x").code() is grpc.StatusCode.NOT_FOUND
        watched = channel.unary_stream(f"/{SERVICE}/Watch")(b"\x0a\x01x")
        assert await watched.read() == bytes([8, ServingStatus.SERVICE_UNKNOWN])
        health.set("x", True)
        assert await watched.read() == bytes([8, ServingStatus.SERVING])
        watched.cancel()


async def test_a_server_can_offer_several_services(hub: mooring.Hub):
    server = EchoServer("a")
    instances = [here(server.port), here(server.port, "Common/Echo")]
    async with serve_and_register(server.server, hub, instances, linger=0):
        assert await names(hub, "Common/Echo") == await names(hub)
    assert await names(hub, "Common/Echo") == []


async def test_a_server_that_cannot_be_registered_does_not_serve():
    async with mooring.connect("memory://", layout="hprose") as hub:
        server = EchoServer("a")
        with pytest.raises(InvalidRequest):
            async with serve_and_register(server.server, hub, here(server.port, "group/echo")):
                pass
    await server.server.stop(None)


async def test_a_failing_body_stops_in_order_too(hub: mooring.Hub):
    server = EchoServer("a")
    with pytest.raises(RuntimeError, match="of its own"):
        async with serve_and_register(server.server, hub, here(server.port), linger=0):
            raise RuntimeError("a mistake of its own")
    assert await names(hub) == []


def test_incompatible_arguments_are_refused():
    me = here(1)
    server = grpc.server(ThreadPoolExecutor(1))
    with pytest.raises(InvalidRequest, match=r"mooring\.sync\.connect"):
        serve_and_register(server, mooring.connect("memory://"), me)
    hub = mooring.sync.connect("memory://")
    with pytest.raises(InvalidRequest, match="linger is a time"):
        serve_and_register(server, hub, me, linger=-1)
    with pytest.raises(InvalidRequest, match=r"a mooring\.Instance"):
        serve_and_register(server, hub, [])
    with pytest.raises(Closed), serve_and_register(server, hub, me):
        pass


def test_a_blocking_server_serves_and_registers_in_the_same_order():
    """Many clients watch the health of a server with few threads, and calls are still served."""
    server = grpc.server(ThreadPoolExecutor(2), options=SERVER_OPTIONS)
    pb2_grpc.add_EchoServicer_to_server(BlockingEcho("a"), server)
    port = server.add_insecure_port("127.0.0.1:0")
    with mooring.sync.connect("memory://") as hub:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
            with serve_and_register(server, hub, here(port), linger=2):
                (instance,) = hub.registry.instances("echo").instances
                assert instance.port == port
                watching = [channel.unary_stream(f"/{SERVICE}/Watch")(b"") for _ in range(8)]
                assert [next(watch) for watch in watching] == [b"\x08\x01"] * 8
                watching[0].cancel()
                assert pb2_grpc.EchoStub(channel).Say(Word(text="hello")).by == "a"
                check = channel.unary_unary(f"/{SERVICE}/Check")
                with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
                    check(b"\x0a\x01x")
            assert [next(watch) for watch in watching[1:]] == [b"\x08\x02"] * 7
        assert hub.registry.instances("echo").instances == ()


def test_a_blocking_server_stays_registered_as_draining_while_it_lingers():
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    seen: list[tuple[str, float]] = []

    def note(update: Update[str, Instance]) -> None:
        for change in update.changes:
            state = change.after.status.state if change.after else "deregistered"
            seen.append((state, time.monotonic()))

    with mooring.sync.connect("memory://") as blocking, blocking.discover("echo", hold=0) as view:
        view.subscribe(note)
        with serve_and_register(server, blocking, here(port), linger=1.5):
            leaving = time.monotonic()
        until(lambda: seen[-1:] and seen[-1][0] == "deregistered")
    (before, _), (_, gone) = seen[-2:]
    assert before == "draining"
    assert gone - leaving >= 1.5


class Calls:
    """Continuous calls until a server stops: how many were answered, and why others failed."""

    def __init__(self, server: grpc.Server | grpc.aio.Server) -> None:
        self.answered, self.failures = 0, list[str]()
        self.stopped = threading.Event()
        stop = server.stop

        def noted(grace: float | None) -> Any:
            self.stopped.set()
            return stop(grace)

        server.stop = noted

    def fail(self, error: Any) -> None:
        if not self.stopped.is_set():
            self.failures.append(f"{error.code()} {error.details()}")

    async def make(self, url: str) -> None:
        async with (
            mooring.connect(url) as hub,
            mooring.grpc.aio.channel("etcdv3:///echo", hub=hub) as channel,
        ):
            while not self.stopped.is_set():
                try:
                    await pb2_grpc.EchoStub(channel).Say(Word(text="hello"), timeout=20)
                    self.answered += 1
                except grpc.aio.AioRpcError as error:
                    self.fail(error)
                await asyncio.sleep(0.01)

    def make_in_a_thread(self, url: str) -> None:
        with (
            mooring.sync.connect(url) as hub,
            mooring.grpc.channel("etcdv3:///echo", hub=hub) as channel,
        ):
            while not self.stopped.wait(0.01):
                try:
                    pb2_grpc.EchoStub(channel).Say(Word(text="hello"), timeout=20)
                    self.answered += 1
                except grpc.RpcError as error:
                    self.fail(error)


@pytest.mark.parametrize("backend", ["memory", "etcd-3.5", "redis-7.0"])
async def test_the_only_instance_is_called_until_it_stops(store_url: str):
    server = EchoServer("a")
    calls, of_a_thread = Calls(server.server), Calls(server.server)
    async with (
        mooring.connect(store_url) as hub,
        asyncio.TaskGroup() as callers,
        serve_and_register(server.server, hub, here(server.port)),
    ):
        callers.create_task(calls.make(store_url))
        callers.create_task(asyncio.to_thread(of_a_thread.make_in_a_thread, store_url))
        await eventually(lambda: calls.answered > 0 and of_a_thread.answered > 0)
    assert calls.failures == of_a_thread.failures == []


@pytest.mark.parametrize("backend", ["memory", "etcd-3.5", "redis-7.0"])
def test_the_only_blocking_instance_is_called_until_it_stops(store_url: str):
    server = grpc.server(ThreadPoolExecutor(4), options=SERVER_OPTIONS)
    pb2_grpc.add_EchoServicer_to_server(BlockingEcho("a"), server)
    port = server.add_insecure_port("127.0.0.1:0")
    calls = Calls(server)
    with mooring.sync.connect(store_url) as hub, ThreadPoolExecutor(1) as pool:
        with serve_and_register(server, hub, here(port)):
            calling = pool.submit(calls.make_in_a_thread, store_url)
            until(lambda: calls.answered > 0)
        calling.result()
    assert calls.failures == []


def test_signals_require_the_main_thread():
    with mooring.sync.connect("memory://") as hub, ThreadPoolExecutor(1) as pool:
        server = grpc.server(ThreadPoolExecutor(1))
        port = server.add_insecure_port("127.0.0.1:0")
        with serve_and_register(server, hub, here(port), linger=0) as serving:
            with pytest.raises(InvalidRequest, match="main thread"):
                pool.submit(serving.until_stopped).result()
            until(lambda: serving.registrations[0].state == "registered")


SERVING = """
import asyncio, os, signal, sys, traceback
from concurrent.futures import ThreadPoolExecutor

import grpc
import mooring
import mooring.grpc
import mooring.sync
from tests.features.grpc_echo.servers import BlockingEcho, EchoServer, Word, pb2_grpc

def refused():
    url = "memory://child"
    with mooring.sync.connect(url) as hub, hub.register(mooring.Instance("echo", "127.0.0.1", 1)):
        with mooring.grpc.channel("etcdv3:///echo", hub=hub) as channel:
            try:
                channel.unary_unary("/echo.Echo/Say")(b"", timeout=5)
            except grpc.RpcError as error:
                assert "gRPC does not survive that" in error.details(), error
                assert "del server" in error.details(), error
                return
    raise AssertionError("it was not refused")

def answered():
    server = grpc.server(ThreadPoolExecutor(2))
    pb2_grpc.add_EchoServicer_to_server(BlockingEcho("child"), server)
    me = mooring.Instance("echo", "127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    with mooring.sync.connect("memory://child") as hub:
        with mooring.grpc.serve_and_register(server, hub, me, linger=0):
            with mooring.grpc.channel("etcdv3:///echo", hub=hub) as channel:
                answer = pb2_grpc.EchoStub(channel).Say(Word(text="hello"), timeout=10)
    assert answer.by == "child"

def fork(in_child, ending=os._exit):
    child = os.fork()
    if not child:
        signal.alarm(20)
        asyncio._set_running_loop(None)
        try:
            in_child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        ending(0)
    assert os.waitpid(child, 0)[1] == 0

async def serve():
    server = EchoServer("a")
    me = mooring.Instance("echo", "127.0.0.1", server.port)
    async with mooring.connect("memory://") as hub:
        async with mooring.grpc.serve_and_register(server.server, hub, me, linger=0):
            fork(refused)
    return server

def serve_with_threads():
    server = grpc.server(ThreadPoolExecutor(2))
    me = mooring.Instance("echo", "127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    with mooring.sync.connect("memory://") as hub:
        with mooring.grpc.serve_and_register(server, hub, me, linger=0):
            fork(refused)
    return server

server = serve_with_threads() if "threads" in sys.argv else asyncio.run(serve())
"""


@pytest.mark.parametrize("how", ["asyncio", "threads"])
def test_a_child_cannot_use_grpc_until_the_server_of_its_parent_is_gone(how: str):
    """Until then gRPC runs in the parent: children that use it would crash or hang."""
    then = """
        for ending in (os._exit, sys.exit):
            fork(refused, ending)
        del server
        for ending in (os._exit, sys.exit):
            fork(answered, ending)
    """
    run = python_program(SERVING + textwrap.dedent(then), how)
    assert run.returncode == 0, run.stdout + run.stderr
