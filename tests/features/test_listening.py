"""How HTTP is listened to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import msgspec
from starlette.types import Receive, Scope, Send

from mooring.server.listening import listen
from mooring.server.settings import ServerSettings
from tests.waiting import eventually


async def test_an_answer_does_not_wait_until_its_head_is_acknowledged(tmp_path: Path):
    delayed: list[bool] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        connection: socket.socket = receive.__self__.transport.get_extra_info("socket")  # type: ignore[attr-defined]
        delayed.append(not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    told = {"data": str(tmp_path), "http": "127.0.0.1:0"}
    settings = msgspec.convert(told, ServerSettings)
    async with listen(application, settings) as url, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(url)).status_code == 204
    assert delayed == [False]


async def test_an_address_with_too_many_connections_is_refused_more(tmp_path: Path):
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def ask(source: str, url: str) -> tuple[asyncio.StreamWriter, bytes]:
        place = httpx.URL(url)
        reader, writer = await asyncio.open_connection(
            place.host, place.port, local_addr=(source, 0)
        )
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return writer, (await reader.readuntil(b"\r\n\r\n")).split()[1]

    connections = {"per_address": 3, "exempt": []}
    told = {"data": str(tmp_path), "http": "127.0.0.1:0", "connections": connections}
    settings = msgspec.convert(told, ServerSettings)
    async with listen(application, settings) as url:
        answers = [await ask("127.0.0.1", url) for _ in range(5)]
        assert [status for _, status in answers] == [b"204"] * 3 + [b"429"] * 2
        other, status = await ask("127.0.0.2", url)
        assert status == b"204"
        answers[0][0].close()
        await answers[0][0].wait_closed()
        await eventually(partial(is_served, ask, url))
        for writer, _ in (*answers, (other, b"")):
            writer.close()


async def is_served(
    ask: Callable[..., Awaitable[tuple[asyncio.StreamWriter, bytes]]], url: str
) -> bool:
    writer, status = await ask("127.0.0.1", url)
    writer.close()
    return status == b"204"
