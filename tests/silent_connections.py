"""Connections that send nothing, not even a TLS handshake."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def connected(
    port: int, number: int, *, source: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(number):
            connection = socket.create_connection(
                ("127.0.0.1", port), timeout=10, source_address=(source, 0)
            )
            connection.setblocking(False)
            opened.append(stack.enter_context(connection))
        yield opened


def still_open(connections: list[socket.socket]) -> int:
    return sum(map(_is_open, connections))


def _is_open(connection: socket.socket) -> bool:
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False
