"""Who registers: an instance that really listens, and answers as well as it is."""

from __future__ import annotations

import asyncio
import contextlib

from mooring.demo.script import Gauges, Role, next_version
from mooring.hub import Hub
from mooring.model import Instance
from mooring.registry.registration import Registration

TTL = 10.0
"""Seconds after which an actor is gone whose demo was killed."""
_WAIT = 5.0
_HOST = "127.0.0.1"


class Actor:
    """One instance. Its place, an address on this machine, stays the same through all rounds."""

    def __init__(self, hub: Hub, role: Role, *, seed: int) -> None:
        self._hub, self.role = hub, role
        self._gauges = Gauges(seed)
        self._version = role.version
        self._server: asyncio.Server | None = None
        self._port = 0
        self._registration: Registration | None = None

    @property
    def name(self) -> str:
        return f"{self.role.service} {_HOST}:{self._port}"

    @property
    def present(self) -> bool:
        """Whether it is registered, or tries to be."""
        return self._registration is not None

    @property
    def taken_out(self) -> bool:
        """Whether an operator, or another process, put an end to its registration."""
        return self._registration is not None and self._registration.state in (
            "removed",
            "superseded",
        )

    async def enter(self) -> None:
        """Listen and register; what cannot be registered now is so as soon as it can."""
        self._server = await asyncio.start_server(self._answer, _HOST, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        instance = Instance(
            self.role.service,
            _HOST,
            self._port,
            protocol="http",
            version=self._version,
            zone=self.role.zone,
            metadata={"by": "mooring demo", "team": self.role.service.partition("/")[0]},
        )
        registration = self._hub.register(instance, ttl=TTL, wait=_WAIT)
        self._gauges.failing = False
        registration.update(metrics=self._gauges.collect())
        try:
            self._registration = await registration.__aenter__()
        except BaseException:
            await self._close()
            raise

    def beat(self) -> None:
        """Tell the metrics of now."""
        if self._registration is not None and not self.taken_out:
            self._registration.update(metrics=self._gauges.collect())

    def fail(self) -> None:
        self._turn(healthy=False)

    def recover(self) -> None:
        self._turn(healthy=True)

    def _turn(self, *, healthy: bool) -> None:
        self._gauges.failing = not healthy
        if self._registration is not None and not self.taken_out:
            self._registration.update(healthy=healthy, metrics=self._gauges.collect())

    async def drain(self) -> None:
        """Go so that nobody notices, and come back newer."""
        self._version = next_version(self._version)
        if self._registration is not None:
            await self._registration.drain()
        await self.leave()

    async def leave(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.aclose()
        await self._close()

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, whatever it is about."""
        status = b"503 Service Unavailable" if self._gauges.failing else b"200 OK"
        head = b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n" % status
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(head + b"Connection: close\r\n\r\n")
                await writer.drain()
        writer.close()
