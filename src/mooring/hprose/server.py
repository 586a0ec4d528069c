"""The server's side: one server, registered under all its domains for as long as it lives."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
import uuid as uuids
from collections.abc import Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, cast, overload

from mooring.errors import Closed, InvalidRequest, StoreError
from mooring.formatting import quoted
from mooring.hub import Hub
from mooring.registry.kv.layouts.hprose import Hprose, instance_at
from mooring.registry.kv.registry import StoreRegistry
from mooring.registry.registration import Registration
from mooring.store.contract import Store, key
from mooring.sync.proxy import within
from mooring.tasks import Tasks

if TYPE_CHECKING:
    import mooring.sync

log = logging.getLogger(__name__)

TTL = 10.0
HEARTBEAT = 3.0


class Registered:
    """Made by `register`; use it as an async context manager.

    Entering registers at once; it waits and raises as entering a `Registration` does. Leaving
    revokes the lease that all domains share.
    """

    def __init__(
        self,
        hub: Hub,
        domains: Iterable[str],
        server_url: str,
        *,
        uuid: str,
        ttl: float,
        heartbeat: float,
        wait: float,
    ) -> None:
        if not 0 < heartbeat < ttl:
            raise InvalidRequest(
                f"heartbeat={heartbeat:g}: it must be shorter than the time that the record stays "
                f"without one, ttl={ttl:g}"
            )
        self.uuid = uuid or str(uuids.uuid4())
        """What this server is known by, under all its domains."""
        self.registrations: tuple[Registration, ...] = ()
        """One for each domain, in their order."""
        self._hub, self._ttl, self._heartbeat, self._wait = hub, ttl, heartbeat, wait
        self._instances = [
            instance_at(domain, self.uuid, server_url) for domain in dict.fromkeys(domains)
        ]
        _check_whole(server_url)
        if not self._instances:
            raise InvalidRequest(f"{server_url} has no domain to be registered under")
        self._open = AsyncExitStack()
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        deadline = time.monotonic() + self._wait
        async with AsyncExitStack() as opening:
            for instance in self._instances:
                left = max(deadline - time.monotonic(), 0.0)
                registration = self._hub.register(instance, ttl=self._ttl, wait=left)
                if registration.instance.id != self.uuid:
                    raise InvalidRequest(
                        "this registry keeps no UUIDs: use connect(…, layout='hprose')"
                    )
                await opening.enter_async_context(registration)
                self.registrations += (registration,)
            self._open = opening.pop_all()
        registry = self._hub.registry  # on a store, which may be another than the hub's, or Redis
        if self._heartbeat < self._ttl / 3 and isinstance(registry, StoreRegistry):
            self._tasks.start(self._beat(registry.store), name=f"heartbeat of {self.uuid}")
        return self

    async def _beat(self, store: Store) -> None:
        """Renew the lease sooner than its session does, which is at a third of the TTL."""
        first = self.registrations[0]
        (name,) = Hprose().encode(first.instance)
        while True:
            await asyncio.sleep(self._heartbeat)
            if first.state != "registered":
                continue  # it may be another's record by now
            try:
                entry = (await store.read(key(name))).first
                # The state may have changed during the read.
                if entry is not None and entry.lease and first.state == "registered":
                    await store.renew(entry.lease)
            except Closed:
                return
            except StoreError as error:
                # The session says so where it matters, and the registration puts it right.
                log.debug("%s: no heartbeat: %s", self.uuid, error)

    async def aclose(self) -> None:
        await self._tasks.aclose()
        await self._open.aclose()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _check_whole(url: str) -> None:
    """Raise `InvalidRequest` where clients would not get all of a URL."""
    parts = urllib.parse.urlsplit(url)
    if "@" in parts.netloc:
        raise InvalidRequest(
            "a user and a password in the URL of a server would be there for everybody to read: "
            "leave them out, and give them to the clients, with connect="
        )
    if parts.fragment:
        raise InvalidRequest(f"{quoted(url)}: what comes after # is never sent: leave it out")


class BlockingRegistered(Protocol):
    """What `register` makes of a hub of `mooring.sync`."""

    @property
    def uuid(self) -> str: ...
    @property
    def registrations(self) -> tuple[mooring.sync.Registration, ...]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


@overload
def register(
    hub: Hub,
    domains: str | Iterable[str],
    server_url: str,
    *,
    uuid: str = ...,
    ttl: float = ...,
    heartbeat: float = ...,
    wait: float = ...,
) -> Registered: ...


@overload
def register(
    hub: mooring.sync.Hub,
    domains: str | Iterable[str],
    server_url: str,
    *,
    uuid: str = ...,
    ttl: float = ...,
    heartbeat: float = ...,
    wait: float = ...,
) -> BlockingRegistered: ...


def register(
    hub: Hub | mooring.sync.Hub,
    domains: str | Iterable[str],
    server_url: str,
    *,
    uuid: str = "",
    ttl: float = TTL,
    heartbeat: float = HEARTBEAT,
    wait: float = 5.0,
) -> Registered | BlockingRegistered:
    """Keep a server registered under one domain or several, with one UUID, which is made where
    none is given. Its record goes away `ttl` seconds after the last heartbeat.

    A server that is registered again with its UUID, at whatever URL, takes the place of the former
    one. Raises `InvalidRequest` for a URL that clients cannot call.
    """
    names = [domains] if isinstance(domains, str) else list(domains)
    make = partial(
        Registered,
        domains=names,
        server_url=server_url,
        uuid=uuid,
        ttl=ttl,
        heartbeat=heartbeat,
        wait=wait,
    )
    return make(hub) if isinstance(hub, Hub) else cast("BlockingRegistered", within(hub, make))
