"""Tenants for the tests, and what must hold of a store with tenants."""

from __future__ import annotations

from mooring.errors import OutcomeUnknown
from mooring.model import JSON
from mooring.store import Check, Committed, Entry, Query, Store, prefix
from mooring.store.contract import Write
from mooring.tenants.document import Document, parse
from mooring.tenants.keys import PartOf, TenantKeys
from mooring.tenants.parts import claims, stored_parts

KEYS = TenantKeys()


def document(tenant: int, code: str = "", **sections: JSON) -> Document:
    """A tenant with all sections; `code` determines all names that must be unique."""
    code = code or f"t{tenant}"
    defaults: dict[str, JSON] = {
        "meta": {"code": code, "name": f"租户 {code}/"},
        "domain": {
            "primary": f"{code}.example.com",
            "aliases": [f"www.{code}.example.com"],
            "internal": f"{code}.internal",
        },
        "database": {"query": {"driver": "mysql", "database": code, "password": f"pw-{code}"}},
        "ftp": {f"{code}_ftp": {"passwordHash": f"hash-{code}"}, f"meta.{code}": {}},
        "storage": {"uploadQuotaGb": 5},
    }
    return parse({"id": tenant, **defaults, **sections})


def inconsistencies(keys: TenantKeys, entries: tuple[Entry, ...]) -> list[str]:
    """Contradictions between the data and the indexes of entries that were read at once."""
    tenants: dict[int, list[Entry]] = {}
    index: dict[bytes, bytes] = {}
    for entry in entries:
        place = keys.understand(entry.key)
        if isinstance(place, PartOf):
            tenants.setdefault(place.tenant, []).append(entry)
        elif entry.key in keys.indexes:
            index[entry.key] = entry.value
    wanted: dict[bytes, bytes] = {}
    problems = []
    for tenant, its in tenants.items():
        for claim in claims(keys, tenant, stored_parts(keys, tenant, its).parts).values():
            if claim.key in wanted:
                problems.append(f"two tenants claim {claim}")
            wanted[claim.key] = claim.value
    problems += [
        f"{name!r}: {index.get(name)!r} instead of {wanted.get(name)!r}"
        for name in wanted.keys() | index.keys()
        if wanted.get(name) != index.get(name)
    ]
    return problems


async def assert_consistent(store: Store, keys: TenantKeys = KEYS) -> None:
    """Assert that all indexes of the tenants agree with their data."""
    committed = await store.commit(read=[Query(prefix(f"{keys.namespace}/tenants/".encode()))])
    assert inconsistencies(keys, committed.reads[0].entries) == []


async def everything_of(store: Store, keys: TenantKeys = KEYS) -> dict[bytes, bytes]:
    """All entries except the sentinel."""
    snapshot = await store.read(prefix(f"{keys.namespace}/".encode()))
    return {entry.key: entry.value for entry in snapshot.entries if entry.key != keys.sentinel}


class Stopped(Exception):
    """The process died at this point."""


class Interrupted:
    """A store whose commit number `after` fails in the given way."""

    def __init__(self, store: Store, after: int, how: str) -> None:
        self._store, self.after, self.how = store, after, how
        self.lost = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def commit(
        self, *writes: Write, require: tuple[Check, ...] = (), read: tuple[Query, ...] = ()
    ) -> Committed:
        if not writes:
            return await self._store.commit(read=read)
        self.after -= 1
        if self.after >= 0 or (self.how != "stop" and self.lost):
            return await self._store.commit(*writes, require=require, read=read)
        self.lost += 1
        if self.how == "stop":
            raise Stopped
        if self.how == "after":
            await self._store.commit(*writes, require=require, read=read)
        raise OutcomeUnknown("the answer was lost")
