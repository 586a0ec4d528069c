"""In virtual time the clock jumps, but stands still while work is in progress."""

from __future__ import annotations

import asyncio
import socket
import time

from tests.virtual_time import VirtualTimeLoop


async def test_an_hour_passes_at_once():
    began, clock = time.perf_counter(), time.monotonic()
    shown = time.time()
    await asyncio.sleep(3600)
    assert 3600 <= time.monotonic() - clock < 3601
    assert 3600 <= time.time() - shown < 3601
    assert time.perf_counter() - began < 60


async def test_timers_run_in_their_order():
    order: list[int] = []
    loop = asyncio.get_running_loop()
    for seconds in (30, 10, 20):
        loop.call_later(seconds, order.append, seconds)
    await asyncio.sleep(31)
    assert order == [10, 20, 30]


async def test_the_clock_waits_for_threads():
    async with asyncio.timeout(0.01):
        await asyncio.to_thread(time.sleep, 0.1)


async def test_data_on_a_socket_arrives_before_the_clock_jumps():
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1000))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, family=socket.AF_INET)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(1):
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(bytes(1000))
            assert await reader.readexactly(1000) == bytes(1000)
            writer.close()
            await writer.wait_closed()


def test_the_real_clock_is_back_after_the_loop():
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(asyncio.sleep(1e6))
    assert abs(time.clock_gettime(time.CLOCK_MONOTONIC) - time.monotonic()) < 60
    assert abs(time.clock_gettime(time.CLOCK_REALTIME) - time.time()) < 60
