"""Sends `PING` to Redis continuously and reports the longest wait for a reply.

python -m bench.roles.pinger PORT

Prints, every 50 ms, [start of the interval on the monotonic clock, longest wait in it in
milliseconds].
"""

from __future__ import annotations

import socket
import sys
import time

from bench.processes import emit

_STRETCH = 0.05
_PAUSE = 0.0005


def ping(port: int) -> None:
    clock = time.monotonic
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            start, longest = clock(), 0.0
            while (sent := clock()) < start + _STRETCH:
                connection.sendall(b"PING\r\n")
                connection.recv(64)
                longest = max(longest, clock() - sent)
                time.sleep(_PAUSE)
            emit([start, longest * 1000])


if __name__ == "__main__":
    ping(int(sys.argv[1]))
