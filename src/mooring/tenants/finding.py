"""The tenant to whom an index leads: one question to the store, where nobody follows it all."""

from __future__ import annotations

from mooring.store.contract import Query, Store, key
from mooring.tenants.indexing import holder
from mooring.tenants.keys import IndexKind, Keys


async def find(store: Store, keys: Keys, kind: IndexKind, name: str) -> int | None:
    """By code, name, FTP user or host. A name may stand there unescaped, by an older publisher."""
    places = [keys.index(kind, name)]
    if kind == "by-name" and keys.raw_name(name) != places[0]:
        places.append(keys.raw_name(name))
    answer = await store.commit(read=[Query(key(place)) for place in places])
    for found in answer.reads:
        if found.first is not None and (tenant := holder(found.first.value)):
            return tenant
    return None
