"""After a client or a server of ours is closed, its event loop can be closed at once."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from queue import SimpleQueue

import grpc
import grpc.aio
import pytest

import mooring
from mooring.backends import open_store
from mooring.errors import Unavailable
from mooring.etcd_server.server import EtcdAPIServer
from mooring.grpc import serve_and_register
from mooring.grpc.aio import channel
from mooring.model import Instance
from mooring.server.health_checks.checkers import GRPCChecker, Target
from mooring.store import Put, prefix
from mooring.store.contract import Store
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.store import MemoryRunner
from mooring.store.etcd import grpc_shutdown as completions
from mooring.store.etcd.grpc_shutdown import settled
from mooring.xds import proto
from mooring.xds.server import ControlPlane
from tests.features.grpc_echo.servers import BlockingEcho, Echo, Word, pb2_grpc
from tests.waiting import PATIENCE, eventually


def due() -> list[list[object]]:
    """What gRPC will still deliver to this loop: it keeps an object for each completion."""
    loop = asyncio.get_running_loop()
    kept = [tracked for tracked in gc.get_objects() if type(tracked).__name__ == "CallbackWrapper"]
    referents = map(gc.get_referents, kept)
    return [referring for referring in referents if any(of_loop(loop, one) for one in referring)]


def of_loop(loop: asyncio.AbstractEventLoop, referent: object) -> bool:
    return isinstance(referent, asyncio.Future) and referent.get_loop() is loop


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server in threads, which has no completions of a loop."""
    echo = BlockingEcho("threads")
    server = grpc.server(ThreadPoolExecutor(8))
    pb2_grpc.add_EchoServicer_to_server(echo, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    echo.go.set()
    server.stop(None).wait()


@pytest.mark.parametrize("kind", ["Say", "Count", "Join", "Chat"])
async def test_closing_waits_for_the_completions_of_a_cancelled_call(port: int, kind: str):
    opened = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    stub = pb2_grpc.EchoStub(opened)
    await stub.Say(Word(text="connect"))
    match kind:
        case "Say":
            call = stub.Say(Word(text="slow"))
        case "Count":
            call = stub.Count(Word(text="held 2"))
            await call.read()
        case _:
            call = getattr(stub, kind)()
            await call.write(Word(text="hello"))
    await asyncio.sleep(0.01)
    call.cancel()
    await opened.close()
    assert due()  # otherwise this test shows nothing
    await settled()
    assert due() == []


async def test_closing_does_not_wait_for_calls_of_others(
    port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(completions, "_WITHIN", 600.0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        call = pb2_grpc.EchoStub(opened).Count(Word(text="held 2"))
        await call.read()
        await asyncio.wait_for(settled(), PATIENCE)
        assert not call.done()
    await settled()


async def use(store: Store) -> None:
    async with store.watch(prefix(b"/a")) as watch:
        async for _ in watch:
            pass


@pytest.mark.parametrize("backend", ["etcd-3.5"])
async def test_a_store_is_closed_with_its_calls(store_url: str):
    async with open_store(store_url) as store:
        lease = await store.grant(10)
        await store.renew(lease.id)
        works = [
            use(store),
            *(store.read(prefix(b"/")) for _ in range(10)),
            *(store.commit(Put(b"/b", b"x")) for _ in range(10)),
            store.renew(lease.id),
        ]
        tasks = [asyncio.create_task(work) for work in works]
        await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
    assert due() == []
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_channel_to_a_service_is_closed_with_its_calls(port: int):
    async with mooring.connect("memory://") as hub:
        async with (
            hub.register(Instance("echo", "127.0.0.1", port)),
            channel("etcdv3:///echo", hub=hub) as opened,
        ):
            await opened.channel_ready()
            stub = pb2_grpc.EchoStub(opened)
            counting = stub.Count(Word(text="held 2"))
            await counting.read()
            saying = stub.Say(Word(text="slow"))
            waiting = stub.Say(Word(text="slow"), wait_for_ready=True)
            await asyncio.sleep(0.01)
            saying.cancel()
            waiting.cancel()
            del counting, saying, waiting  # gRPC does not end a channel while its calls exist
        assert due() == []


async def test_a_health_check_ends_with_its_call():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        target = Target("echo", "a", "grpc", "127.0.0.1", "127.0.0.1", port)
        check = asyncio.create_task(GRPCChecker().check(target, timeout=10))
        await asyncio.sleep(0.01)
        check.cancel()
        with pytest.raises(asyncio.CancelledError):
            await check
        assert due() == []


def tasks_of_grpc() -> list[asyncio.Task[object]]:
    coroutines = ((type(task.get_coro()).__module__, task) for task in asyncio.all_tasks())
    return [task for module, task in coroutines if module.startswith("_cython")]


@asynccontextmanager
async def serving(hub: mooring.Hub, path: str) -> AsyncIterator[int]:
    """A server of ours with this method; yields its port."""
    if "echo" in path:
        server = grpc.aio.server()
        pb2_grpc.add_EchoServicer_to_server(Echo("asyncio"), server)
        port = server.add_insecure_port("127.0.0.1:0")
        instance = Instance("echo", "127.0.0.1", port)
        async with serve_and_register(server, hub, instance, grace=0, linger=0):
            yield port
    elif "etcd" in path:
        async with EtcdAPIServer(MemoryRunner(Engine()), bind="127.0.0.1:0") as store:
            yield store.port
    else:
        async with ControlPlane(hub, bind="127.0.0.1:0") as plane:
            yield plane.port


@pytest.mark.parametrize(
    "path",
    ["/etcdserverpb.Watch/Watch", proto.STREAM, "/echo.Echo/Chat"],
    ids=["store", "xds", "registered"],
)
async def test_a_server_stops_with_the_tasks_of_its_calls(path: str):
    requests: SimpleQueue[None] = SimpleQueue()
    async with mooring.connect("memory://") as hub:
        async with serving(hub, path) as port:
            client = grpc.insecure_channel(
                f"127.0.0.1:{port}"
            )  # in threads, so that it has no tasks
            calls = [client.stream_stream(path)(iter(requests.get, None)) for _ in range(5)]
            await eventually(lambda: len(tasks_of_grpc()) > 2 * len(calls))
        assert tasks_of_grpc() == []
    for _ in calls:
        requests.put(None)
    client.close()


async def test_a_stream_that_never_got_a_connection_leaves_no_task():
    """gRPC waits forever to send the messages of such a call, if they come from an iterator. A task
    that is still waiting when the loop is closed is an error in the log."""

    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname())
    before = asyncio.all_tasks()
    async with server, open_store(f"etcd://{address}?timeout=300ms") as store:
        for _ in range(3):
            with pytest.raises(Unavailable):
                await store.renew(1)
            with pytest.raises(Unavailable):
                await store.watch(prefix(b"/a")).__aenter__()
    assert asyncio.all_tasks() == before
