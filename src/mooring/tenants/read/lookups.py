"""Lookups for who cannot go on without an answer: they raise `NotConfigured`, which names the
tenant and what it lacks. Nothing is held here: each looks at what is known now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mooring.errors import NotConfigured
from mooring.formatting import quoted
from mooring.store.contract import Query, Store, key
from mooring.tenants.keys import IndexKind, Keys
from mooring.tenants.publish.claims import holder
from mooring.tenants.read.tenants import Tenants
from mooring.tenants.resolve.hosts import host_of
from mooring.tenants.values import Database, Domain, Ftp, Storage, Unreadable, decode

T = TypeVar("T")


class DatabaseCache:
    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def get(self, tenant: int, service: str) -> Database:
        found = self._tenants.database(tenant, service)
        return _found(self._tenants, tenant, found, f"database for the service {quoted(service)}")

    def all(self, tenant: int) -> Mapping[str, Database]:
        """By service."""
        return _found(self._tenants, tenant, self._tenants.databases(tenant) or None, "databases")


class FtpCache:
    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def get(self, tenant: int, username: str) -> Ftp:
        found = self._tenants.ftp(tenant).get(username)
        return _found(self._tenants, tenant, found, f"FTP user {quoted(username)}")

    def user(self, username: str) -> Ftp:
        """That of one user, of whichever tenant."""
        found = self._tenants.ftp_user(username)
        if found is None:
            raise NotConfigured(f"no tenant has the FTP user {quoted(username)}")
        return found

    def all(self, tenant: int) -> Mapping[str, Ftp]:
        """By user name."""
        return _found(self._tenants, tenant, self._tenants.ftp(tenant) or None, "FTP users")

    def active(self, tenant: int) -> Mapping[str, Ftp]:
        """Those whose status is empty or `active`, by user name."""
        found = self._tenants.active_ftp(tenant) or None
        return _found(self._tenants, tenant, found, "active FTP users")


class StorageCache:
    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def get(self, tenant: int) -> Storage:
        return _found(self._tenants, tenant, self._tenants.storage(tenant), "storage")


class DomainCache:
    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def get(self, tenant: int) -> Domain:
        return _found(self._tenants, tenant, self._tenants.domain(tenant), "domain")

    def tenant(self, host: str) -> int:
        """The tenant of a host."""
        found = self._tenants.by_host(host)
        if found is None:
            raise NotConfigured(f"no tenant has the host {quoted(host)}")
        return found


def _found(tenants: Tenants, tenant: int, value: T | None, what: str) -> T:
    if value is not None:
        return value
    if tenants.get(tenant) is None:
        raise NotConfigured(f"there is no tenant {tenant}, and so no {what}")
    raise NotConfigured(f"tenant {tenant} has no {what}")


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
