"""Where the calls to a domain go: its live list, the primary, and what follows a failure."""

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

from mooring.discovery.eligibility import callable_now
from mooring.errors import Closed, InvalidRequest, NoInstance, StoreError
from mooring.hub import Hub
from mooring.mirror import Update
from mooring.model import Instance
from mooring.registry.contract import Listing
from mooring.registry.kv.layouts.hprose import server_url


class Server(NamedTuple):
    """A server at a place: one that moved is another, though its UUID is the same."""

    uuid: str
    url: str


class Choice:
    """The servers of a domain, and the one that is called: the primary.

    It is chosen at random. It moves when it is gone from the list and when calls to it failed,
    and for no other reason; a URL that changed under its UUID is followed.
    """

    def __init__(self, choose: Callable[[Sequence[Server]], Server] = random.choice) -> None:
        self.primary: Server | None = None
        """None only where there are no servers."""
        self.servers: tuple[Server, ...] = ()
        self._choose = choose

    def learn(self, servers: Iterable[Server]) -> None:
        """The servers as they are now."""
        self.servers = tuple(servers)
        was = "" if self.primary is None else self.primary.uuid
        here = next((server for server in self.servers if server.uuid == was), None)
        if here is None and self.servers:
            here = self._choose(self.servers)
        self.primary = here

    def leave(self, failed: Collection[Server]) -> Server | None:
        """The server to call once these failed: the primary where it did not, which somebody else
        may have moved already; else another, which becomes the primary. None: no other is known."""
        if self.primary is None or self.primary in failed:
            others = [server for server in self.servers if server not in failed]
            if not others:
                return None
            self.primary = self._choose(others)
        return self.primary


class Decision(enum.Enum):
    """What to do about a call that failed."""

    PASS_THROUGH = "the function itself raised it"
    NEXT = "try another server"
    PAUSE = "every server that is known failed: wait a little, and try them again"
    GIVE_UP = "it was tried often enough"
    NO_SERVER = "there is nobody to call"


def decide(
    error: BaseException,
    *,
    servers: Collection[Server],
    failed: Collection[Server],
    tried: int,
    tries: int,
) -> Decision:
    """What to do about an error, given the list as it is now, those of it that failed this call
    since the last pause, and how often it was tried."""
    if not in_transit(error):
        return Decision.PASS_THROUGH
    if tried >= tries:
        return Decision.GIVE_UP
    if not servers:
        return Decision.NO_SERVER
    return Decision.PAUSE if all(server in failed for server in servers) else Decision.NEXT


def in_transit(error: BaseException) -> bool:
    """Whether a call failed on its way (refused, reset, cut off, not answered in time), and not in
    the function that was called."""
    return isinstance(error, (OSError, EOFError, http.client.HTTPException))


log = logging.getLogger(__name__)

Connect = Callable[[str], HproseClient]
"""What makes hprose's client for the URL of a server. `ValueError` where it cannot."""

Run = Callable[[Callable[[], object]], Awaitable[object]]


@dataclass(slots=True)
class Call:
    """One call under way: where it is, and where it failed since the last pause."""

    function: str
    server: Server
    tried: int = 0
    failed: set[Server] = field(default_factory=set)


class Calls:
    """Where the calls to a domain go. It lives on an event loop; its properties may be read from
    other threads."""

    def __init__(
        self, hub: Hub, domain: str, *, tries: int, pause: float, connect: Connect, wait: float
    ) -> None:
        if tries < 1:
            raise InvalidRequest(f"tries={tries}: a call is tried once at least")
        self.domain = domain
        self._registry, self._view = hub.registry, hub.discover(domain, wait=wait)
        self._tries, self._pause, self._connect = tries, pause, connect
        self._choice = Choice()
        self._clients: dict[str, HproseClient] = {}
        self._unusable: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()
        self._read_at = self._updated_at = 0.0
        self._listing: Listing | None = None
        """What was read after the last update of the view; None if nothing was."""
        self._closed = False

    @property
    def primary(self) -> Server | None:
        return None if self._closed else self._choice.primary

    @property
    def servers(self) -> tuple[Server, ...]:
        return self._choice.servers

    def _client(self, server: Server) -> HproseClient:
        found = self._clients.get(server.url)
        return self._connect(server.url) if found is None else found

    async def __aenter__(self) -> Self:
        await self._view.__aenter__()
        self._learn()
        self._view.subscribe(self._follow)
        return self

    def _follow(self, _: Update[str, Instance]) -> None:
        self._listing, self._updated_at = None, time.monotonic()
        self._learn()

    async def aclose(self) -> None:
        self._closed = True
        self._changed.set()
        await self._view.aclose()

    def _learn(self) -> None:
        """Take the servers from the view, which keeps those that vanished. A list that was read
        after the last update of the view adds to them."""
        instances = {each.id: each for each in self._view.instances}
        if self._listing is not None:
            instances.update((each.id, each) for each in self._listing.instances)
        clients: dict[str, HproseClient] = {}
        unusable: dict[str, str] = {}
        servers = []
        for instance in callable_now(instances.values()):
            try:
                url = server_url(instance)
                known = self._clients.get(url)
                clients[url] = self._connect(url) if known is None else known
            except ValueError as error:
                unusable[instance.id] = str(error)
                if instance.id not in self._unusable:
                    log.warning("%s: left out: %s", self.domain, error)
            else:
                servers.append(Server(instance.id, url))
        before = self.primary
        self._choice.learn(servers)
        self._clients, self._unusable = clients, unusable
        if self.primary != before:
            log.info("%s: calls go to %s", self.domain, self.primary and self.primary.url)
        self._changed.set()

    async def invoke(
        self, name: str, args: Sequence[object], run: Run, **options: object
    ) -> object:
        """Call a remote function, at as many servers as it takes. `run` does the part that blocks,
        and its result or error is awaited."""
        call = Call(name, await self._first())
        while True:
            function = partial(self._client(call.server).invoke, name, args, **options)
            try:
                return await run(function)
            except Exception as error:  # noqa: BLE001 - raised there, unless it is tried again
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
            # A caller that retries at once must not starve the loop that would add a server.
            await asyncio.sleep(0)
            raise self._nobody()
        return self.primary

    async def _next(self, call: Call, error: Exception) -> Server:
        """Where to try a call again. Raises where it shall not be."""
        call.tried += 1
        call.failed.add(call.server)
        decision = self._decide(call, error)
        if decision not in (Decision.PASS_THROUGH, Decision.GIVE_UP):
            await self._read(time.monotonic())
            decision = self._decide(call, error)
        match decision:
            case Decision.PASS_THROUGH:
                raise error
            case Decision.GIVE_UP:
                error.add_note(f"{self.domain}: {call.function} failed {call.tried} times")
                raise error
            case Decision.PAUSE:
                await self._rest(call, error)
        self._check_open()
        before, server = self.primary, self._choice.leave(call.failed)
        if server is None:
            raise self._nobody() from error
        if server != before:
            url = call.server.url
            log.warning("%s: calls go to %s, not to %s: %s", self.domain, server.url, url, error)
        return server

    def _decide(self, call: Call, error: Exception) -> Decision:
        servers: Sequence[Server] = self.servers
        if self._listing is not None and not self._listing.instances:
            # The registry has none: those that are kept and failed are gone.
            servers = [server for server in servers if server not in call.failed]
        return decide(
            error,
            servers=servers,
            failed=call.failed,
            tried=call.tried,
            tries=self._tries,
        )

    async def _read(self, since: float) -> None:
        """Read the list, unless somebody began to do so after `since`. A store that is away leaves
        the last list as it was."""
        async with self._reading:
            if self._read_at > since:
                return
            began = time.monotonic()
            try:
                listing = await self._registry.instances(self.domain)
                # An update during the read may be newer than the list. If it is older, the next
                # update follows.
                self._listing = listing if self._updated_at < began else None
                self._learn()
            except Closed:
                raise
            except StoreError as error:
                self._listing = None
                log.info("%s: the last list has to do: %s", self.domain, error)
            self._read_at = began

    async def _rest(self, call: Call, error: Exception) -> None:
        """Wait for a server that did not fail, for as long as a pause; then try them all again."""
        log.warning(
            "%s: no other server than %s is known, trying again in %g s: %s",
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

    def _nobody(self) -> NoInstance:
        if self._unusable:
            reason = next(iter(self._unusable.values()))
            return NoInstance(f"no server of {self.domain} can be called: {reason}")
        return NoInstance(f"no server of {self.domain} is registered")
