"""Publishers whose commits a test can affect, and what is in the store afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import msgspec

from mooring.errors import Unavailable
from mooring.model import JSON
from mooring.store import Committed, Store, key
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring
from tests.features.tenant_files import (
    Interrupted,
)

Commit = Callable[[], Awaitable[Committed]]


RING = Keyring([b"k" * 32])


NO_KEY = Keyring()


def with_faults(store: Store, after: int, how: str, ring: Keyring = RING) -> Publisher:
    return Publisher(cast(Store, Interrupted(store, after, how)), ring=ring, by="alice")


class Hooked(Interrupted):
    """A store that calls `hook` with the number of each commit and the commit itself."""

    def __init__(self, store: Store, hook: Callable[[int, Commit], Awaitable[Committed]]) -> None:
        super().__init__(store, 0, "")
        self.hook, self.count = hook, 0

    async def commit(self, *writes, require=(), read=()):
        async def go() -> Committed:
            return await self._store.commit(*writes, require=require, read=read)

        if not writes:
            return await go()
        self.count += 1
        return await self.hook(self.count, go)


def hooked(
    store: Store, hook: Callable[[int, Commit], Awaitable[Committed]], ring: Keyring = RING
) -> Publisher:
    return Publisher(cast(Store, Hooked(store, hook)), ring=ring, by="alice")


class Leaving(Interrupted):
    """A store that is unavailable from the moment that a reply is lost."""

    async def commit(self, *writes, **options):
        if self.lost:
            raise Unavailable("nothing listens")
        return await super().commit(*writes, **options)

    async def read(self, *args, **options):
        if self.lost:
            raise Unavailable("nothing listens")
        return await self._store.read(*args, **options)


USERS = 130
"""FTP users of a tenant that takes three commits: each takes two of the 120 operations of one."""


async def value(store: Store, name: bytes) -> JSON:
    entry = (await store.read(key(name))).first
    return None if entry is None else msgspec.json.decode(entry.value)


async def revisions(store: Store, *names: bytes) -> set[int]:
    entries = [(await store.read(key(name))).first for name in names]
    return {entry.modified if entry else 0 for entry in entries}


def huge(users: int = USERS, code: str = "huge", size: int = 0) -> dict[str, JSON]:
    ftp: dict[str, JSON] = {f"user{n}": {"description": "x" * size} for n in range(users)}
    return {"id": 1, "meta": {"code": code, "name": code}, "ftp": ftp}
