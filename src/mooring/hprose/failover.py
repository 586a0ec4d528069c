"""Failover of calls to a domain: its live servers, the primary, and retries."""

from __future__ import annotations

import asyncio
import enum
import http.client
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Self

from hprose import HproseClient  # type: ignore[import-untyped]

from mooring.discovery.exclusion import callable_now
from mooring.errors import Closed, InvalidRequest, NoInstance, StoreError
from mooring.hub import Hub
from mooring.mirror import Update
from mooring.model import Instance
from mooring.registry.contract import Discovery, Listing
from mooring.registry.kv.layouts.hprose import server_url


class Server(NamedTuple):
    """A server at a URL. After a move it is a different `Server` with the same UUID."""

    uuid: str
    url: str


class ServerPool:
    """The servers of a domain, and the primary, which receives the calls. It is chosen at random,
    and changes only if it is removed from the list or calls to it fail. If the URL of its UUID
    changes, calls go to the new URL."""

    def __init__(self, choose: Callable[[Sequence[Server]], Server] = random.choice) -> None:
        self.primary: Server | None = None
        """None only if there are no servers."""
        self.servers: tuple[Server, ...] = ()
        self._choose = choose

    def update(self, servers: Iterable[Server]) -> None:
        self.servers = tuple(servers)
        uuid = "" if self.primary is None else self.primary.uuid
        primary = next((server for server in self.servers if server.uuid == uuid), None)
        if primary is None and self.servers:
            primary = self._choose(self.servers)
        self.primary = primary

    def fail_over(self, failed: Collection[Server]) -> Server | None:
        """The primary if it has not failed, else another server, which becomes the primary. None if
        no other server is known."""
        if self.primary is None or self.primary in failed:
            others = [server for server in self.servers if server not in failed]
            if not others:
                return None
            self.primary = self._choose(others)
        return self.primary


class FailoverAction(enum.Enum):
    """How to proceed after a failed call."""

    PASS_THROUGH = "the function itself raised the error"
    NEXT = "call another server"
    PAUSE = "all known servers failed: pause, then retry them"
    GIVE_UP = "the call has used all its tries"
    NO_SERVER = "no server is known"


def decide(
    error: BaseException,
    *,
    servers: Collection[Server],
    failed: Collection[Server],
    tried: int,
    tries: int,
) -> FailoverAction:
    """How to proceed after an error. `servers` is the current list, `failed` are the servers that
    failed this call since the last pause, `tried` counts the calls so far."""
    if not is_transport_error(error):
        return FailoverAction.PASS_THROUGH
    if tried >= tries:
        return FailoverAction.GIVE_UP
    if not servers:
        return FailoverAction.NO_SERVER
    if all(server in failed for server in servers):
        return FailoverAction.PAUSE
    return FailoverAction.NEXT


def is_transport_error(error: BaseException) -> bool:
    """Whether the transport failed (refused, reset, closed, timed out), and not the function."""
    return isinstance(error, (OSError, EOFError, http.client.HTTPException))


log = logging.getLogger(__name__)

Connect = Callable[[str], HproseClient]
"""Creates hprose's client for the URL of a server. Raises `ValueError` if it cannot."""

RunBlocking = Callable[[Callable[[], object]], Awaitable[object]]
"""Executes a blocking function."""


@dataclass(slots=True)
class RemoteCall:
    """A call in flight: its current server, and the servers that failed since the last pause."""

    function: str
    server: Server
    tried: int = 0
    failed: set[Server] = field(default_factory=set)


class CallDispatcher:
    """Sends the calls to a domain to its servers. Only its properties are thread-safe."""

    def __init__(
        self, hub: Hub, domain: str, *, tries: int, pause: float, connect: Connect, wait: float
    ) -> None:
        if tries < 1:
            raise InvalidRequest(f"tries={tries}: must be at least 1")
        self.domain = domain
        self._discovery: Discovery = hub.registry
        self._view = hub.discover(domain, wait=wait)
        self._tries, self._pause, self._connect = tries, pause, connect
        self._pool = ServerPool()
        self._clients: dict[str, HproseClient] = {}
        self._unusable: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()
        self._read_at = self._updated_at = 0.0
        self._listing: Listing | None = None
        """The list, if it was read after the last update of the view."""
        self._closed = False

    @property
    def primary(self) -> Server | None:
        return None if self._closed else self._pool.primary

    @property
    def servers(self) -> tuple[Server, ...]:
        return self._pool.servers

    def _client(self, url: str) -> HproseClient:
        client = self._clients.get(url)
        return self._connect(url) if client is None else client

    async def __aenter__(self) -> Self:
        await self._view.__aenter__()
        self._update_servers()
        self._view.subscribe(self._follow)
        return self

    def _follow(self, _: Update[str, Instance]) -> None:
        self._listing, self._updated_at = None, time.monotonic()
        self._update_servers()

    async def aclose(self) -> None:
        self._closed = True
        self._changed.set()
        await self._view.aclose()

    def _update_servers(self) -> None:
        """Update the pool from the view, and from the list if it is newer than the view."""
        listing = () if self._listing is None else self._listing.instances
        instances = {instance.id: instance for instance in (*self._view.instances, *listing)}
        clients: dict[str, HproseClient] = {}
        unusable: dict[str, str] = {}
        servers = []
        for instance in callable_now(instances.values()):
            try:
                url = server_url(instance)
                clients[url] = self._client(url)
            except ValueError as error:
                unusable[instance.id] = str(error)
                if instance.id not in self._unusable:
                    log.warning("%s: ignoring a server: %s", self.domain, error)
            else:
                servers.append(Server(instance.id, url))
        before = self.primary
        self._pool.update(servers)
        self._clients, self._unusable = clients, unusable
        if self.primary != before:
            log.info("%s: calls go to %s", self.domain, self.primary and self.primary.url)
        self._changed.set()

    async def invoke(
        self, name: str, args: Sequence[object], run: RunBlocking, **options: object
    ) -> object:
        """Call a remote function, with failover. `run` executes the blocking part."""
        call = RemoteCall(name, await self._first())
        while True:
            function = partial(self._client(call.server.url).invoke, name, args, **options)
            try:
                return await run(function)
            except Exception as error:  # noqa: BLE001 - `_next` raises it unless it retries
                call.server = await self._next(call, error)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the client of {self.domain} is closed")

    async def _first(self) -> Server:
        self._check_open()
        if self.primary is None:
            await self._read(time.monotonic())
            self._check_open()
        if self.primary is None:
            # A caller that retries at once must not starve the loop, which adds new servers.
            await asyncio.sleep(0)
            raise self._no_instance()
        return self.primary

    async def _next(self, call: RemoteCall, error: Exception) -> Server:
        """The server for the next try. Raises the error if the call must not be retried."""
        call.tried += 1
        call.failed.add(call.server)
        action = self._decide(call, error)
        if action not in (FailoverAction.PASS_THROUGH, FailoverAction.GIVE_UP):
            await self._read(time.monotonic())
            action = self._decide(call, error)
        match action:
            case FailoverAction.PASS_THROUGH:
                raise error
            case FailoverAction.GIVE_UP:
                error.add_note(f"{self.domain}: {call.function} failed {call.tried} times")
                raise error
            case FailoverAction.PAUSE:
                await self._wait_for_server(call, error)
        self._check_open()
        before, server = self.primary, self._pool.fail_over(call.failed)
        if server is None:
            raise self._no_instance() from error
        if server != before:
            url = call.server.url
            log.warning("%s: calls go to %s, not to %s: %s", self.domain, server.url, url, error)
        return server

    def _decide(self, call: RemoteCall, error: Exception) -> FailoverAction:
        servers: Sequence[Server] = self.servers
        if self._listing is not None and not self._listing.instances:
            # The registry lists none, so retained servers that failed are gone.
            servers = [server for server in servers if server not in call.failed]
        return decide(
            error,
            servers=servers,
            failed=call.failed,
            tried=call.tried,
            tries=self._tries,
        )

    async def _read(self, since: float) -> None:
        """Read the list, unless another call has started to read it after `since`. If the store is
        unavailable, the servers stay as they are."""
        async with self._reading:
            if self._read_at > since:
                return
            began = time.monotonic()
            try:
                listing = await self._discovery.instances(self.domain)
                # An update during the read may be newer than the list. If it is older, another
                # update follows.
                self._listing = listing if self._updated_at < began else None
                self._update_servers()
            except Closed:
                raise
            except StoreError as error:
                self._listing = None
                log.info("%s: cannot read the servers, keeping the list: %s", self.domain, error)
            self._read_at = began

    async def _wait_for_server(self, call: RemoteCall, error: Exception) -> None:
        """Wait for a server that has not failed. After the pause, all servers may be retried."""
        log.warning(
            "%s: no server besides %s is known, retrying in %g s: %s",
            self.domain,
            call.server.url,
            self._pause,
            error,
        )
        try:
            async with asyncio.timeout(self._pause):
                while not self._closed and all(server in call.failed for server in self.servers):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            call.failed.clear()
            await self._read(time.monotonic())

    def _no_instance(self) -> NoInstance:
        if self._unusable:
            reason = next(iter(self._unusable.values()))
            return NoInstance(f"no server of {self.domain} can be called: {reason}")
        return NoInstance(f"no server of {self.domain} is registered")
