"""The compression of a call, as sent over the connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import mooring
import mooring.grpc
import mooring.sync
from mooring.testing.proxy import close_server
from tests.features.grpc_echo.servers import EchoServer, Word, pb2_grpc

LONG = "long" * 50_000


class Counting:
    """A relay to a server that counts the bytes that clients send."""

    def __init__(self, port: int) -> None:
        self._to, self.sent, self.port = port, 0, 0

    @contextlib.asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:

            async def pump(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool
            ) -> None:
                with contextlib.suppress(ConnectionError):
                    while data := await reader.read(65536):
                        self.sent += len(data) * count
                        writer.write(data)
                        await writer.drain()
                writer.close()

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                back, on = await asyncio.open_connection("127.0.0.1", self._to)
                group.create_task(pump(reader, on, count=True))
                group.create_task(pump(back, writer, count=False))

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            yield
            await close_server(server)


BOTH = ("at once", "waiting", "of the channel")


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *(("asyncio", way) for way in (*BOTH, "keyed")),
        *(("blocking", way) for way in (*BOTH, "future")),
    ],
)
async def test_the_compression_of_a_call_is_used_on_the_connection(kind: str, way: str):
    of_calls: dict[str, Any] = {"timeout": 20, "wait_for_ready": way == "waiting"}

    def options(compression: grpc.Compression | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of the channel, and of the call."""
        if way == "of the channel":
            return {"compression": compression}, of_calls
        of_channels = {"policy": "consistent_hash"} if way == "keyed" else {}
        return of_channels, {**of_calls, "compression": compression}

    def call_blocking(compression: grpc.Compression | None) -> str:
        of_channel, of_call = options(compression)
        with (
            mooring.sync.connect(url) as hub,
            mooring.grpc.channel("etcdv3:///echo", hub=hub, **of_channel) as channel,
        ):
            say = pb2_grpc.EchoStub(channel).Say
            if way == "future":
                return str(say.future(Word(text=LONG), **of_call).result().by)
            return str(say(Word(text=LONG), **of_call).by)

    async def call(compression: grpc.Compression | None) -> str:
        if kind == "blocking":
            return await asyncio.to_thread(call_blocking, compression)
        of_channel, of_call = options(compression)
        async with mooring.grpc.aio.channel("etcdv3:///echo", hub=hub, **of_channel) as channel:
            await channel.channel_ready()
            return str((await pb2_grpc.EchoStub(channel).Say(Word(text=LONG), **of_call)).by)

    url = "memory://compression"
    async with EchoServer("a") as server:
        counting = Counting(server.port)
        async with (
            counting.relaying(),
            mooring.connect(url) as hub,
            hub.register(mooring.Instance("echo", "127.0.0.1", counting.port)),
        ):
            assert await call(grpc.Compression.Gzip) == "a"
            compressed = counting.sent
            assert await call(None) == "a"
    assert 0 < compressed < len(LONG) / 10
    assert counting.sent - compressed > len(LONG)
