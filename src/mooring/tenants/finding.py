"""The tenant to whom an index leads: one question to the store, where nobody follows it all."""

from __future__ import annotations

from mooring.store.contract import Query, Store, key
from mooring.tenants.hosts import host_of
from mooring.tenants.indexing import holder
from mooring.tenants.keys import IndexKind, Keys
from mooring.tenants.values import Unreadable, decode


async def find(store: Store, keys: Keys, kind: IndexKind, name: str) -> int | None:
    """By code, name, FTP user or host. Another publisher may have written a name unescaped, and
    codes and hosts in their case. A host may be written as in a request."""
    normal = host_of(name) or name if kind == "host" else name
    places = dict.fromkeys([keys.index(kind, normal), keys.as_written(kind, name)])
    answer = await store.commit(read=[Query(key(place)) for place in places])
    for place, found in zip(places, answer.reads, strict=True):
        if found.first is None or not (tenant := holder(found.first.value)):
            continue
        unescaped = kind == "by-name" and place != keys.index(kind, name)
        if not unescaped or await _is_called(store, keys, tenant, name):
            return tenant
    return None


async def _is_called(store: Store, keys: Keys, tenant: int, name: str) -> bool:
    """Whether a name that stands there unescaped is not another one, escaped."""
    entry = (await store.read(key(keys.part(tenant, "meta")))).first
    try:
        meta = decode("meta", entry.value) if entry is not None else None
    except Unreadable:
        return False
    return isinstance(meta, dict) and meta.get("name") == name
