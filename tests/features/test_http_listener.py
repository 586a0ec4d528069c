"""The HTTP listener: acknowledgements and limits of connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import msgspec
from starlette.types import Receive, Scope, Send

from mooring.server.http_listener import listen
from mooring.server.settings import ServerSettings
from tests.silent_connections import connected, still_open
from tests.waiting import eventually


async def test_a_response_does_not_wait_for_an_acknowledgement_of_its_head(tmp_path: Path):
    delayed: list[bool] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        connection: socket.socket = receive.__self__.transport.get_extra_info("socket")  # type: ignore[attr-defined]
        delayed.append(not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    given = {"data": str(tmp_path), "http": "127.0.0.1:0"}
    settings = msgspec.convert(given, ServerSettings)
    async with listen(application, settings) as url, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(url)).status_code == 204
    assert delayed == [False]


async def test_connections_above_the_limit_of_an_address_are_refused(tmp_path: Path):
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
    given = {"data": str(tmp_path), "http": "127.0.0.1:0", "connections": connections}
    settings = msgspec.convert(given, ServerSettings)
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


async def test_a_connection_counts_before_its_tls_handshake(tmp_path: Path, certificates: Path):
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    given = {
        "data": str(tmp_path),
        "http": "127.0.0.1:0",
        "connections": {"per_address": 3, "exempt": []},
        "tls": {
            "cert": str(certificates / "server.pem"),
            "key": str(certificates / "server.key"),
        },
    }
    trusted = ssl.create_default_context(cafile=certificates / "ca.pem")

    async def answers(url: str) -> bool:
        async with httpx.AsyncClient(verify=trusted, trust_env=False) as client:
            try:
                return (await client.get(url)).status_code == 204
            except httpx.TransportError:
                return False

    async with listen(application, msgspec.convert(given, ServerSettings)) as url:
        place = httpx.URL(url)
        assert place.port is not None
        assert await answers(url)
        with connected(place.port, 10) as many:
            await eventually(lambda: still_open(many) == 3)
            assert not await answers(url)
        await eventually(lambda: answers(url))


async def is_served(
    ask: Callable[..., Awaitable[tuple[asyncio.StreamWriter, bytes]]], url: str
) -> bool:
    writer, status = await ask("127.0.0.1", url)
    writer.close()
    return status == b"204"
