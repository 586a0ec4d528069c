"""Server processes on free loopback ports."""

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


class ProgramNotFound(Exception):
    """A server program is not installed. The message contains the command that installs it."""


class ServerFailed(Exception):
    """A server did not start. The message contains the end of its log."""


_turns = itertools.count(os.getpid() * 487)
_reserved: deque[int] = deque()
_MAX_RESERVED = 64
"""A process reserves the ports that it got last."""

_BUS_OFFSET = 10000
"""The offset of the cluster bus port of a Redis server."""
_USUAL = range(11000, 21000)
_MIN_CHOICE = 1000
"""The smallest acceptable number of ports to choose from."""


def free_port() -> int:
    """A free port. The port 10000 above it, the bus of a Redis cluster member, is free as well.

    Both are outside the range of client ports, unless the kernel gives nearly all ports to clients.
    So no client gets the port of a stopped server, not even by connecting to itself. Ports are
    chosen in turn, because the last ones may not have a listener yet, and reserved, so that other
    processes do not get the port of a server that is stopped for a while.
    """
    ports = _ports_for_servers(*_ports_of_clients())
    for _ in range(len(ports)):
        port = ports[next(_turns) % len(ports)]
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + _BUS_OFFSET))
            _reserve(port)
            return port
    raise ServerFailed(
        f"no free port: all of {ports[0]} to {ports[-1]} are taken, or {_BUS_OFFSET} above them"
    )


def _ports_for_servers(first: int, last: int) -> range:
    """The ports below or above those of clients, or the usual range if both are too few."""
    below = range(_USUAL.start, min(_USUAL.stop, first - _BUS_OFFSET))
    above = range(last + 1, 65536 - _BUS_OFFSET)
    return next((ports for ports in (below, above) if len(ports) >= _MIN_CHOICE), _USUAL)


@functools.cache
def _ports_of_clients() -> tuple[int, int]:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return 49152, 65535  # IANA's range, which other systems use
    return int(first), int(last)


def _reserve(port: int) -> None:
    """Reserve a port on this machine. Raises `OSError` if another process has reserved it.

    The reservation is the name of an abstract Unix socket, which needs no file and ends with the
    process.
    """
    if sys.platform == "linux":
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0mooring test port {port}")
        except OSError:
            reservation.close()
            raise
        _reserved.append(reservation.detach())
        if len(_reserved) > _MAX_RESERVED:
            os.close(_reserved.popleft())


class ServerProcess:
    """One process and its log. A context manager: leaving kills it."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.arguments, self.log = list(arguments), log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.arguments, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    @property
    def running(self) -> bool:
        """Whether the process exists, even if it is paused."""
        return self.process is not None and self.process.poll() is None

    def wait_until(self, ready: Callable[[], bool], *, within: float = 20.0) -> None:
        """Wait until `ready()` is true. Raises `ServerFailed` if the process ends or time is up."""
        deadline = time.monotonic() + within
        while not ready():
            if not self.running or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-2000:]
                raise ServerFailed(f"{' '.join(self.arguments)} did not start:\n{tail}")
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is running."""
        if self.process is not None and self.running:
            self.process.send_signal(number)

    def pause(self) -> None:
        """Stop the process with SIGSTOP: connections stay open, and nothing answers."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with SIGKILL. Unlike in a power failure, the page cache survives."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class ServerGroup:
    """Several servers. A context manager: leaving kills them all."""

    def __init__(self, processes: Sequence[ServerProcess]) -> None:
        self._processes = list(processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._processes:
            server.kill()
