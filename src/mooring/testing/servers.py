"""Server processes on free loopback ports: started, paused, killed and stopped by their own id."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self


class ServerFailed(Exception):
    """A server did not start; the message has the end of its log."""


_turns = itertools.count(os.getpid() * 487)
_reserved: deque[int] = deque()
_KEPT = 64
"""Ports that a process reserves at a time: those that it was given last."""


_BUS = 10000
"""How far above its port a member of a Redis cluster listens for the others."""
_USUAL = range(11000, 21000)
_ROOM = 1000
"""Ports that are enough to choose from."""


def free_port() -> int:
    """A port whose neighbour, 10000 above it, is free as well: there the members of a Redis cluster
    speak.

    The kernel gives neither to a client, unless it gives clients nearly all ports: so no client
    sits on the port of a server that is down, not even one that tries to reach it and by chance
    gets itself. They come in turn, because the last ones may not have a listener yet.
    Another process that asks for a port gets none of these either, though a server is down for a
    while.
    """
    ports = _ports_for_servers(*_ports_of_clients())
    for _ in range(len(ports)):
        port = ports[next(_turns) % len(ports)]
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + _BUS))
            _reserve(port)
            return port
    raise ServerFailed(
        f"no free port: all of {ports[0]} to {ports[-1]} are taken, or {_BUS} above them"
    )


def _ports_for_servers(first: int, last: int) -> range:
    """Where to choose ports if clients get those from `first` to `last`: below, or else above, or
    else, if there is no room, among them."""
    below = range(_USUAL.start, min(_USUAL.stop, first - _BUS))
    above = range(last + 1, 65536 - _BUS)
    return next((ports for ports in (below, above) if len(ports) >= _ROOM), _USUAL)


@functools.cache
def _ports_of_clients() -> tuple[int, int]:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return 49152, 65535  # the range of IANA, which other systems use
    return int(first), int(last)


def _reserve(port: int) -> None:
    """Keep a port from the other processes of this machine. Raises OSError if one of them has it.

    The name of a socket, in Linux's abstract namespace, ends with its process and needs no file.
    """
    if sys.platform == "linux":
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0mooring test port {port}")
        except OSError:
            reservation.close()
            raise
        _reserved.append(reservation.detach())
        if len(_reserved) > _KEPT:
            os.close(_reserved.popleft())


class ServerProcess:
    """One process and its log. A context manager: leaving kills it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command, self.log = list(command), log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def wait_until(self, ready: Callable[[], bool], *, within: float = 20.0) -> None:
        deadline = time.monotonic() + within
        while not ready():
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-2000:]
                raise ServerFailed(f"{' '.join(self.command)} did not start:\n{tail}")
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: as if the machine had lost its power, less the page cache."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
