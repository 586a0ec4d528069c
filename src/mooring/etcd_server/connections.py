"""The TCP connections of a gRPC server, found among the file descriptors of this process.

gRPC exposes neither its connections nor its listening socket, and lacks two things that a server
for etcd clients needs. It does not limit the connections of one address. Here they count from the
moment that gRPC accepts them, before any TLS handshake. And when it stops, it resets the calls that
arrive at that moment. Their clients see CANCELLED, as if they had cancelled them themselves: a
watch of etcd's Go client then ends instead of resuming. So connections are closed here, at the
socket, which every client sees as UNAVAILABLE.

All this works without a free descriptor: an address that takes the last one must be limited too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import socket
import stat
import struct
import sys
import weakref
from collections.abc import Iterable, Iterator

from mooring.connection_limit import ConnectionLimit

SWEEP = 0.25
"""Seconds between checks for connections beyond the limit."""

_FLUSH = 0.05  # seconds for gRPC to write pending responses
_CHECKS = 50  # of 10 ms, for clients to close their side
_NUMBERS = 1 << 20  # the maximum number of descriptors on a system without a limit


class ServerSockets:
    """The connections to a port of this process, and the limit per address."""

    def __init__(self, port: int, limit: ConnectionLimit) -> None:
        self._port, self._limit = port, limit
        self._known: dict[tuple[int, int], str | None] = {}  # by descriptor and inode
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._spare = os.dup(self._null)
        for descriptor in (self._null, self._spare):
            weakref.finalize(self, os.close, descriptor)

    async def watch(self) -> None:
        """Close connections beyond the limit, until cancelled."""
        while self._limit.limit:
            self.sweep()
            await asyncio.sleep(SWEEP)

    def sweep(self) -> None:
        seen = set()
        for identity in _sockets():
            seen.add(identity)
            if identity in self._known:
                continue
            with self._copy(identity[0]) as connection:
                self._known[identity] = ""
                if connection is None or _is_listening(connection):
                    continue
                site = self._known[identity] = self._limit.accept(_peer(connection))
                if site is None:
                    _shut(connection, socket.SHUT_RDWR)
        for identity in self._known.keys() - seen:
            self._limit.release(self._known.pop(identity))

    async def close(self) -> None:
        """Close all connections. Nothing that gRPC writes after this reaches a client."""
        for listening in self._all(listening=True):
            _stop_accepting(listening)
        await asyncio.sleep(_FLUSH)
        # Not shut down for reading: closing a socket with unread data would reset it, and the
        # client could lose responses. The client closes its side when it sees the end.
        for _ in range(_CHECKS):
            if not sum(_shut(connection, socket.SHUT_WR) for connection in self._all()):
                break
            await asyncio.sleep(_FLUSH / 5)
        for site in self._known.values():
            self._limit.release(site)
        self._known.clear()

    def _all(self, *, listening: bool = False) -> Iterator[socket.socket]:
        for descriptor, _ in _sockets():
            with self._copy(descriptor) as connection:
                if connection is not None and _is_listening(connection) == listening:
                    yield connection

    @contextlib.contextmanager
    def _copy(self, descriptor: int) -> Iterator[socket.socket | None]:
        """A copy of the socket, if it is bound to the port: gRPC may close its own meanwhile."""
        copy = None
        try:
            os.dup2(descriptor, self._spare, inheritable=False)
            copy = socket.socket(fileno=self._spare)
            internet = copy.family in (socket.AF_INET, socket.AF_INET6)
            stream = internet and copy.type == socket.SOCK_STREAM
            bound = stream and copy.getsockname()[1] == self._port
        except OSError:
            bound = False
        try:
            yield copy if bound else None
        finally:
            if copy is not None:
                copy.detach()
            os.dup2(self._null, self._spare, inheritable=False)


def _sockets() -> list[tuple[int, int]]:
    """The sockets of this process: descriptor and inode."""
    sockets = []
    for descriptor in _descriptors():
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode):
                sockets.append((descriptor, status.st_ino))
    return sockets


def _descriptors() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except OSError:  # listing needs a descriptor; if none is free, all numbers are in use
        return range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _NUMBERS))


def _is_listening(candidate: socket.socket) -> bool:
    return bool(candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _peer(connection: socket.socket) -> object:
    try:
        return connection.getpeername()
    except OSError:
        return None  # disconnected


def _shut(connection: socket.socket, how: int) -> bool:
    """Shut a connection down. Returns whether it was open."""
    try:
        connection.shutdown(how)
    except OSError:
        return False
    return True


_SO_ATTACH_FILTER = 26
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)  # the packet filter "return 0": drop everything


def _stop_accepting(listening: socket.socket) -> None:
    """Accept no connection between the last check and the end of the listening socket. A client
    that connects meanwhile retries a second later. Only Linux supports this, and some kernels only
    for root; elsewhere such a client is disconnected and reconnects."""
    if sys.platform == "linux":
        code = ctypes.create_string_buffer(_DROP)
        program = struct.pack("HP", 1, ctypes.addressof(code))
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
