"""WebSocket: the opening handshake of RFC 6455, and a close frame."""

from __future__ import annotations

import base64
import hashlib
import os
import ssl
from collections.abc import Mapping

from mooring.server.health_checks.checker import Outcome, Target
from mooring.server.health_checks.connect import Unhealthy, attempt, connected
from mooring.server.health_checks.http import final_status, read_headers, request

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE = b"\x88\x82\x00\x00\x00\x00\x03\xe8"
"""Masked, as every frame of a client: 1000, normal closure."""


class WebSocketChecker:
    """With a context over TLS, as wss."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context

    async def check(self, target: Target, *, timeout: float) -> Outcome:
        async def shake_hands() -> None:
            key = base64.b64encode(os.urandom(16)).decode()
            async with connected(target, self._context) as (reader, writer):
                writer.write(
                    request(
                        target,
                        "Upgrade: websocket",
                        "Connection: Upgrade",
                        f"Sec-WebSocket-Key: {key}",
                        "Sec-WebSocket-Version: 13",
                    )
                )
                status = await final_status(reader)
                if status != 101:
                    raise Unhealthy(f"it answered {status} and opened no WebSocket")
                if problem := objection(await read_headers(reader), key):
                    raise Unhealthy(problem)
                writer.write(_CLOSE)

        return await attempt(shake_hands, timeout=timeout)


def accept(key: str) -> bytes:
    """What a server that read the key answers."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest())


def objection(headers: Mapping[bytes, bytes], key: str) -> str:
    """Why an answer 101 opens no WebSocket; "" where it does."""
    upgrade = headers.get(b"upgrade", b"").lower()
    connection = {word.strip() for word in headers.get(b"connection", b"").lower().split(b",")}
    if upgrade != b"websocket" or b"upgrade" not in connection:
        return "it changed to a protocol that is no WebSocket"
    if headers.get(b"sec-websocket-accept") != accept(key):
        return "its answer to the handshake of a WebSocket is wrong"
    return ""
