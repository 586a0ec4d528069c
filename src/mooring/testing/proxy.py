"""A TCP proxy that injects network faults."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
import weakref
from dataclasses import dataclass
from typing import Self

from mooring.tasks import Tasks


class FaultProxy:
    """Forwards connections to one address. A fault lasts until `heal`.

    ```python
    async with FaultProxy("127.0.0.1:2379") as proxy:
        hub = mooring.connect(f"etcd://{proxy.address}")
        proxy.blackhole()
    ```
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delay = 0.0
        self._refusing = self._muted = False
        self._links: set[_Link] = set()
        self._transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        self._tasks = Tasks()
        self.address: str = ""
        """The host and port to connect to, once the proxy is entered."""
        self.accepted: int = 0
        """The number of connections accepted so far."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            await close_server(self._server)
        self.reset()
        await self._tasks.aclose()
        for transport in tuple(self._transports):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()  # closing would wait for a peer to read the rest
        await asyncio.sleep(0)

    def reset(self) -> None:
        """Reset all connections. New ones work."""
        for link in list(self._links):
            _reset(link.client)
            _reset(link.server)

    def refuse(self) -> None:
        """Reset all connections, and each new one immediately."""
        self._refusing = True
        self.reset()

    def blackhole(self) -> None:
        """Pass no data in either direction. Connections stay open."""
        self._flowing.clear()

    def half_open(self) -> None:
        """Close the server's side of all connections without notifying the client.

        Data from the client on such a connection is dropped. New connections work.
        """
        for link in self._links:
            link.deaf = True
            _reset(link.server)

    def mute(self) -> None:
        """Drop data from the server. Data from the client still arrives."""
        self._muted = True

    def delay(self, seconds: float) -> None:
        """Delay all data by this many seconds."""
        self._delay = seconds

    def heal(self) -> None:
        """End the fault. Data held back by `blackhole` is delivered."""
        self._refusing = self._muted = False
        self._delay = 0.0
        self._flowing.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.add(writer.transport)
        task = self._tasks.start(self._serve(reader, writer), name="proxy link")
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            _reset(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        self._transports.add(far_writer.transport)
        link = _Link(writer, far_writer)
        self._links.add(link)
        up = self._tasks.start(self._pump(reader, far_writer, link), name="proxy up")
        down = self._tasks.start(self._pump(far_reader, writer, link), name="proxy down")
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            if link.deaf:
                await asyncio.wait([up])  # until the client closes the connection
        finally:
            self._links.discard(link)
            for task in (up, down):
                task.cancel()
            link.client.close()
            link.server.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link
    ) -> None:
        """Forward one direction. Delayed data is in flight concurrently, as in a real network."""
        in_flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1000)
        sending = self._tasks.start(self._send(in_flight, writer, link), name="proxy sends")
        try:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    await in_flight.put((time.monotonic() + self._delay, data))
            await in_flight.put((time.monotonic() + self._delay, b""))
            await asyncio.wait([sending])
        finally:
            sending.cancel()

    async def _send(
        self,
        in_flight: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        link: _Link,
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                due, data = await in_flight.get()
                await asyncio.sleep(max(due - time.monotonic(), 0))
                await self._flowing.wait()
                if not data:
                    return
                if not link.deaf and not (self._muted and writer is link.client):
                    writer.write(data)
                    await writer.drain()


@dataclass(eq=False, slots=True)
class _Link:
    """Both ends of one connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    deaf: bool = False


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def close_server(server: asyncio.Server) -> None:
    """Close a server without leaking a connection. asyncio leaks one that it has accepted but not
    set up when the server closes (https://github.com/python/cpython/issues/109564). So stop
    accepting first, and let asyncio set up what it has accepted."""
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    for _ in range(5):
        await asyncio.sleep(0)
    server.close()
