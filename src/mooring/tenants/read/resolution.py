"""Finds the tenant of a name or a request in the store, and says why."""

from __future__ import annotations

from typing import Literal, NamedTuple

from mooring.errors import TenantError
from mooring.formatting import quoted
from mooring.messages import message
from mooring.store.contract import Query, Store, key
from mooring.tenants.keys import IndexKind, TenantKeys, host_of, is_id
from mooring.tenants.model import Resolver, UnreadableValue, decode, to_record
from mooring.tenants.parts import Parts, claims, holder, read_parts
from mooring.tenants.resolver import Request, TenantRejection, tenant_reference

By = Literal["id", "code", "host", "name", "ftp-user"]
_INDEXES: dict[By, IndexKind] = {
    "code": "by-code",
    "host": "host",
    "name": "by-name",
    "ftp-user": "ftp-user",
}


class Resolution(NamedTuple):
    """The tenant, or None, and how it was determined."""

    tenant: int | None
    by: By | None
    name: str
    reason: str
    status: str = ""


async def resolve_request(store: Store, keys: TenantKeys, request: Request) -> Resolution:
    reference = tenant_reference(await _read_resolver(store, keys), request)
    if isinstance(reference, TenantRejection):
        return Resolution(None, None, "", f"{reference.message} ({reference.status})")
    return await look_up(store, keys, reference.by, reference.name)


async def _read_resolver(store: Store, keys: TenantKeys) -> Resolver:
    path = "common/resolver"
    entry = (await store.read(key(keys.common_part(path)))).first
    if entry is None:
        return Resolver()
    try:
        value = decode(path, entry.value)
        assert isinstance(value, dict)
        return to_record(Resolver, value)
    except UnreadableValue as error:
        raise TenantError(message("resolver_unreadable", problem=error)) from None


async def look_up(store: Store, keys: TenantKeys, by: By, name: str) -> Resolution:
    what = f"{'FTP user' if by == 'ftp-user' else by} {quoted(name)}"
    if by == "id":
        parts = (await read_parts(store, keys, int(name))).parts if is_id(name) else {}
        if "meta" not in parts:
            return Resolution(None, by, name, f"tenant {name} not found")
        return Resolution(int(name), by, name, f"the {what}", _status(parts))
    kind = _INDEXES[by]
    tenant = await find(store, keys, kind, name)
    index = keys.index(kind, name)
    if tenant is None:
        reason = f"no tenant has the {what}: key {index.decode()} not found"
        return Resolution(None, by, name, reason)
    parts = (await read_parts(store, keys, tenant)).parts
    if index not in claims(keys, tenant, parts):
        reason = f"{index.decode()} leads to tenant {tenant}, which does not have the {what}"
        return Resolution(None, by, name, f"{reason}: publish that tenant again")
    return Resolution(tenant, by, name, f"{index.decode()} leads to it", _status(parts))


async def find(store: Store, keys: TenantKeys, kind: IndexKind, name: str) -> int | None:
    """The tenant with a code, name, FTP user or host, read from the index. Another publisher may
    have written names unescaped, and codes and hosts in any case. A host may be given as in a
    request."""
    normal = host_of(name) or name if kind == "host" else name
    places = dict.fromkeys([keys.index(kind, normal), keys.as_written(kind, name)])
    answer = await store.commit(read=[Query(key(place)) for place in places])
    for place, read in zip(places, answer.reads, strict=True):
        if read.first is None or not (tenant := holder(read.first.value)):
            continue
        unescaped = kind == "by-name" and place != keys.index(kind, name)
        if not unescaped or await _has_name(store, keys, tenant, name):
            return tenant
    return None


async def _has_name(store: Store, keys: TenantKeys, tenant: int, name: str) -> bool:
    """Distinguishes an unescaped name in the index from the escaped form of another name."""
    entry = (await store.read(key(keys.part(tenant, "meta")))).first
    try:
        meta = decode("meta", entry.value) if entry is not None else None
    except UnreadableValue:
        return False
    return isinstance(meta, dict) and meta.get("name") == name


def _status(parts: Parts) -> str:
    meta = parts.get("meta")
    return str(meta.get("status") or "active") if isinstance(meta, dict) else ""
