"""How HTTP is listened to."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import msgspec
from starlette.types import Receive, Scope, Send

from mooring.server.listening import listen
from mooring.server.settings import ServerSettings


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
