"""Servers that die or leave while they are called: callers notice nothing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import mooring
import mooring.grpc
import mooring.sync
from mooring.testing.etcd import EtcdServer
from tests.features.grpc_echo.servers import EchoServer, Word, pb2_grpc
from tests.waiting import eventually, until

CALLERS = 20
SAY = "echo.Echo/Say"


class Process:
    """A server in a separate process."""

    def __init__(self, url: str, name: str, *how: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.features.grpc_echo", url, name, *how],
            stdout=subprocess.PIPE,
            text=True,
        )

    def prints(self, word: str) -> bool:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip() == word

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def url(etcd: Callable[[str], EtcdServer], request: pytest.FixtureRequest) -> str:
    return f"{etcd('3.5').url}?namespace=/{abs(hash(request.node.nodeid)):x}"


Start = Callable[..., list[Process]]


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    started: list[Process] = []

    def processes(names: str, *how: str) -> list[Process]:
        new = [Process(url, name, *how) for name in names]
        started.extend(new)
        assert all(process.prints("ready") for process in new)
        return new

    yield processes
    for process in started:
        process.kill()


class Callers:
    """Twenty callers that call without a pause, and their results."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.answers: list[str] = []
        self.errors: list[str] = []
        self.stopping = False

    async def __aenter__(self) -> Callers:
        self._tasks = [asyncio.ensure_future(self._call()) for _ in range(CALLERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stopping = True
        await asyncio.gather(*self._tasks)

    async def _call(self) -> None:
        while not self.stopping:
            try:
                self.answers.append((await self.stub.Say(Word(text="slow"), timeout=60)).by)
            except grpc.aio.AioRpcError as error:
                self.errors.append(f"{error.code()} {error.details()}")

    def call_in_a_thread(self) -> None:
        while not self.stopping:
            try:
                self.answers.append(self.stub.Say(Word(text="slow"), timeout=60).by)
            except grpc.RpcError as error:
                self.errors.append(f"{error.code()} {error.details()}")

    def since(self, count: int) -> set[str]:
        return set(self.answers[count:])


@pytest.fixture
async def hub(url: str):
    async with mooring.connect(url) as opened:
        yield opened


async def test_a_killed_server_fails_no_retryable_call(hub: mooring.Hub, start: Start):
    victim, *_ = await asyncio.to_thread(start, "ab")
    async with mooring.grpc.aio.channel("etcdv3:///echo", hub=hub, retry=[SAY]) as channel:
        await eventually(lambda: sum(candidate.called for candidate in channel.explain()) == 2)
        async with Callers(pb2_grpc.EchoStub(channel)) as callers:
            await eventually(lambda: callers.since(0) == {"a", "b"})
            victim.kill()
            seen = len(callers.answers)
            await eventually(lambda: len(callers.answers) > seen + 5 * CALLERS)
        assert callers.errors == []
        assert callers.since(seen + 3 * CALLERS) == {"b"}


async def test_all_callers_of_a_killed_server_are_served_by_another(hub: mooring.Hub, start: Start):
    """Twenty calls are in flight on the server that dies, and hardly any were made before."""
    (victim,) = await asyncio.to_thread(start, "a")
    async with mooring.grpc.aio.channel("etcdv3:///echo", hub=hub, retry=[SAY]) as channel:
        await channel.channel_ready()
        stub = pb2_grpc.EchoStub(channel)
        calls = [stub.Say(Word(text="slow")) for _ in range(CALLERS)]
        victim.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(start, "b")
        await eventually(lambda: sum(candidate.called for candidate in channel.explain()) == 2)
        victim.kill()
        answers = await asyncio.gather(*calls)
        assert {answer.by for answer in answers} <= {"a", "b"}


@pytest.mark.parametrize("how", [(), ("threads",)])
async def test_a_terminating_server_fails_no_call(
    hub: mooring.Hub, start: Start, how: tuple[str, ...]
):
    leaving, *_ = await asyncio.to_thread(start, "ab", *how)
    async with mooring.grpc.aio.channel("etcdv3:///echo", hub=hub) as channel:
        await eventually(lambda: sum(candidate.called for candidate in channel.explain()) == 2)
        async with Callers(pb2_grpc.EchoStub(channel)) as callers:
            await eventually(lambda: callers.since(0) == {"a", "b"})
            leaving.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(leaving.prints, "stopped")
            assert await asyncio.to_thread(leaving.process.wait, 60) == 0
            seen = len(callers.answers)
            await eventually(lambda: len(callers.answers) > seen + 3 * CALLERS)
        assert callers.errors == []
        assert callers.since(seen + CALLERS) == {"b"}  # its last answers may arrive late


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_blocking_callers_notice_nothing_either(url: str, start: Start, end: signal.Signals):
    victim, *_ = start("ab", "threads")
    retry = [SAY] if end is signal.SIGKILL else []
    with (
        mooring.sync.connect(url) as hub,
        mooring.grpc.channel("etcdv3:///echo", hub=hub, retry=retry) as channel,
        concurrent.futures.ThreadPoolExecutor(CALLERS) as pool,
    ):
        callers = Callers(pb2_grpc.EchoStub(channel))
        for _ in range(CALLERS):
            pool.submit(callers.call_in_a_thread)
        try:
            until(lambda: callers.since(0) == {"a", "b"})
            victim.process.send_signal(end)
            threading.Thread(target=victim.process.wait, daemon=True).start()
            until(lambda: victim.process.poll() is not None)
            seen = len(callers.answers)
            until(lambda: len(callers.answers) > seen + 5 * CALLERS)
        finally:
            callers.stopping = True
    assert callers.errors == []
    assert callers.since(seen + 3 * CALLERS) == {"b"}


async def test_a_copy_on_disk_replaces_an_unavailable_registry(
    fresh_etcd: Callable[..., EtcdServer], tmp_path: Path
):
    registry = fresh_etcd(series="3.5")
    cache = tmp_path / "copies"
    async with EchoServer("a") as server:
        me = mooring.Instance("echo", "127.0.0.1", server.port)
        async with (
            mooring.connect(registry.url, cache=cache) as hub,
            hub.register(me),
            mooring.grpc.aio.channel("etcdv3:///echo", hub=hub) as channel,
        ):
            stub = pb2_grpc.EchoStub(channel)
            assert (await stub.Say(Word(text="hello"))).by == "a"
            await eventually(lambda: any(cache.rglob("*")) if cache.exists() else False)
            registry.kill()
            assert (await stub.Say(Word(text="hello"))).by == "a"
        async with (
            mooring.connect(registry.url, cache=cache) as hub,
            mooring.grpc.aio.channel("etcdv3:///echo", hub=hub) as channel,
        ):
            assert (await pb2_grpc.EchoStub(channel).Say(Word(text="hello"))).by == "a"
