"""Registers a server under its domains while it runs."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
import uuid as uuids
from collections.abc import Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, TypedDict, Unpack, cast, overload

from mooring.errors import Closed, InvalidRequest, StoreError
from mooring.formatting import quoted
from mooring.hub import Hub
from mooring.registry.kv.layouts.hprose import Hprose, instance_at
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
    """Created by `register`; an async context manager.

    Entering registers the server; it waits and raises as entering a `Registration` does. Leaving
    revokes the lease that all domains share.
    """

    def __init__(
        self,
        hub: Hub,
        domains: Iterable[str],
        server_url: str,
        *,
        uuid: str = "",
        ttl: float = TTL,
        heartbeat: float = HEARTBEAT,
        wait: float = 5.0,
    ) -> None:
        if not 0 < heartbeat < ttl:
            raise InvalidRequest(
                f"heartbeat={heartbeat:g}: must be shorter than ttl={ttl:g}, after which the "
                "record expires"
            )
        self.uuid: str = uuid or str(uuids.uuid4())
        """The id of this server under all its domains."""
        self.registrations: tuple[Registration, ...] = ()
        """One for each domain, in the given order."""
        self._hub, self._ttl, self._heartbeat, self._wait = hub, ttl, heartbeat, wait
        self._instances = [
            instance_at(domain, self.uuid, server_url) for domain in dict.fromkeys(domains)
        ]
        _check_url(server_url)
        if not self._instances:
            raise InvalidRequest(f"{server_url} is registered under no domain: pass at least one")
        self._open = AsyncExitStack()
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        deadline = time.monotonic() + self._wait
        async with AsyncExitStack() as opening:
            for instance in self._instances:
                wait = max(deadline - time.monotonic(), 0.0)
                registration = self._hub.register(instance, ttl=self._ttl, wait=wait)
                if registration.instance.id != self.uuid:
                    raise InvalidRequest(
                        "this registry does not store UUIDs: use connect(…, layout='hprose')"
                    )
                await opening.enter_async_context(registration)
                self.registrations += (registration,)
            self._open = opening.pop_all()
        store = self._hub.registry.lease_store  # it may differ from the hub's
        if self._heartbeat < self._ttl / 3 and store is not None:
            self._tasks.start(self._beat(store), name=f"heartbeat of {self.uuid}")
        return self

    async def _beat(self, store: Store) -> None:
        """Renew the lease earlier than its session does (a third of the TTL)."""
        first = self.registrations[0]
        (name,) = Hprose().encode(first.instance)
        while True:
            await asyncio.sleep(self._heartbeat)
            if first.state != "registered":
                continue  # the record may belong to another server now
            try:
                entry = (await store.read(key(name))).first
                # The state may have changed during the read.
                if entry is not None and entry.lease and first.state == "registered":
                    await store.renew(entry.lease)
            except Closed:
                return
            except StoreError as error:
                # The session reports lasting failures, and the registration recovers from them.
                log.debug("%s: heartbeat failed: %s", self.uuid, error)

    async def aclose(self) -> None:
        """Deregister from all domains."""
        await self._tasks.aclose()
        await self._open.aclose()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _check_url(url: str) -> None:
    """Raise `InvalidRequest` for URL parts that clients must not or do not receive."""
    parts = urllib.parse.urlsplit(url)
    if "@" in parts.netloc:
        raise InvalidRequest(
            "anyone with access to the registry could read a user and password in the server URL: "
            "omit them, and pass them to the clients with connect="
        )
    if parts.fragment:
        raise InvalidRequest(f"{quoted(url)}: the part after # is never sent: omit it")


class BlockingRegistered(Protocol):
    """Created by `register` from a hub of `mooring.sync`."""

    @property
    def uuid(self) -> str: ...
    @property
    def registrations(self) -> tuple[mooring.sync.Registration, ...]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class RegisterOptions(TypedDict, total=False):
    """The options of `register`."""

    uuid: str
    """The id of the server; a new UUID by default."""
    ttl: float
    """The record expires this number of seconds after the last heartbeat: 10 by default."""
    heartbeat: float
    """Seconds between two heartbeats: 3 by default."""
    wait: float
    """How long entering waits for the registry, in seconds: 5 by default."""


@overload
def register(
    hub: Hub, domains: str | Iterable[str], server_url: str, **options: Unpack[RegisterOptions]
) -> Registered: ...
@overload
def register(
    hub: mooring.sync.Hub,
    domains: str | Iterable[str],
    server_url: str,
    **options: Unpack[RegisterOptions],
) -> BlockingRegistered: ...
def register(
    hub: Hub | mooring.sync.Hub,
    domains: str | Iterable[str],
    server_url: str,
    **options: Unpack[RegisterOptions],
) -> Registered | BlockingRegistered:
    """Keep a server registered under one or more domains.

    Registering the same UUID again, even with another URL, replaces the previous registration.
    Raises `InvalidRequest` for a URL that clients cannot call.
    """
    names = [domains] if isinstance(domains, str) else list(domains)
    make = partial(Registered, domains=names, server_url=server_url, **options)
    return make(hub) if isinstance(hub, Hub) else cast("BlockingRegistered", within(hub, make))
