"""Tenants for the tests, and what must hold of a store that has some."""

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
    """A tenant with everything; `code` names all that must be unique."""
    code = code or f"t{tenant}"
    told: dict[str, JSON] = {
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
    return parse({"id": tenant, **told, **sections})


def inconsistencies(keys: TenantKeys, entries: tuple[Entry, ...]) -> list[str]:
    """What is wrong between the data and the indexes of entries that were read at once."""
    tenants: dict[int, list[Entry]] = {}
    index: dict[bytes, bytes] = {}
    for entry in entries:
        place = keys.understand(entry.key)
        if isinstance(place, PartOf):
            tenants.setdefault(place.tenant, []).append(entry)
        elif entry.key in keys.indexes:
            index[entry.key] = entry.value
    wanted: dict[bytes, bytes] = {}
    found = []
    for tenant, its in tenants.items():
        for claim in claims(keys, tenant, stored_parts(keys, tenant, its).parts).values():
            if claim.key in wanted:
                found.append(f"two tenants claim {claim}")
            wanted[claim.key] = claim.value
    found += [
        f"{name!r}: {index.get(name)!r} instead of {wanted.get(name)!r}"
        for name in wanted.keys() | index.keys()
        if wanted.get(name) != index.get(name)
    ]
    return found


async def whole(store: Store, keys: TenantKeys = KEYS) -> None:
    """Fails unless all that leads to the tenants is what their data says."""
    found = await store.commit(read=[Query(prefix(f"{keys.namespace}/tenants/".encode()))])
    assert inconsistencies(keys, found.reads[0].entries) == []


async def everything_of(store: Store, keys: TenantKeys = KEYS) -> dict[bytes, bytes]:
    """All that there is, without the sign of life."""
    found = await store.read(prefix(f"{keys.namespace}/".encode()))
    return {entry.key: entry.value for entry in found.entries if entry.key != keys.sentinel}


class Stopped(Exception):
    """The process died here."""


class Interrupted:
    """A store whose commits end otherwise: `after` of them, one is lost."""

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
