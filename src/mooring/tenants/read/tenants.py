"""The current tenants, for readers in any thread, and lookups that raise `NotConfigured`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, KeysView, Mapping
from types import MappingProxyType
from typing import TypeVar

from mooring.errors import InvalidRequest, NotConfigured
from mooring.formatting import quoted
from mooring.mirror import STALE_AFTER
from mooring.model import JSON, Time
from mooring.store.contract import Query, Store, key
from mooring.tenants.hosts import host_of
from mooring.tenants.keys import IndexKind, TenantKeys
from mooring.tenants.model import (
    KINDS,
    Database,
    Domain,
    Ftp,
    Kind,
    Meta,
    Resolver,
    Storage,
    StorageDirectory,
    Tenant,
    UnreadableValue,
    decode,
)
from mooring.tenants.parts import holder
from mooring.tenants.read.parser import Changed
from mooring.tenants.read.snapshot import TenantSnapshot

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


async def find(store: Store, keys: TenantKeys, kind: IndexKind, name: str) -> int | None:
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


async def _is_called(store: Store, keys: TenantKeys, tenant: int, name: str) -> bool:
    """Whether a name that stands there unescaped is not another one, escaped."""
    entry = (await store.read(key(keys.part(tenant, "meta")))).first
    try:
        meta = decode("meta", entry.value) if entry is not None else None
    except UnreadableValue:
        return False
    return isinstance(meta, dict) and meta.get("name") == name


log = logging.getLogger(__name__)

_NONE: Mapping[str, object] = MappingProxyType({})

Callback = Callable[[Changed], None]


class Tenants:
    """Given by a `Provider` that is entered, and kept up to date by it. What is not configured is
    None, or an empty collection. `mooring.tenants.read.tenants` has lookups that raise."""

    def __init__(
        self, snapshot: TenantSnapshot | None = None, *, age: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._snapshot = snapshot or TenantSnapshot()
        self._age = age
        self._lock = threading.Lock()  # of those who subscribe; nobody who reads takes it
        self._callbacks: dict[int | None, tuple[tuple[Kind | None, Callback], ...]] = {}

    @property
    def snapshot(self) -> TenantSnapshot:
        """All that is known now; it stays as it is."""
        return self._snapshot

    @property
    def revision(self) -> int:
        """The store's revision that the tenants are of."""
        return self._snapshot.revision

    @property
    def age(self) -> float:
        """Seconds since the store was last heard; infinite after a start from the file, and while
        what was heard could not be applied."""
        return self._age()

    @property
    def stale(self) -> bool:
        """Whether this may be old: the store is silent, what it said could not be applied yet, this
        comes from the file, or is closed."""
        return self._age() > STALE_AFTER

    @property
    def problems(self) -> Mapping[str, str]:
        """The keys whose values cannot be understood, and why. Such a part is left out; of
        `resolver` and `storage_directory` the last good one stays."""
        return self._snapshot.problems

    def get(self, tenant: int) -> Tenant | None:
        return self._snapshot.tenants.get(tenant)

    def ids(self) -> KeysView[int]:
        """Of all tenants, in no order."""
        return KeysView(self._snapshot.tenants)

    def enabled(self) -> KeysView[int]:
        """The ids of those whose meta says that they are active, in no order."""
        return KeysView(self._snapshot.enabled)

    def meta(self, tenant: int) -> Meta | None:
        found = self._snapshot.tenants.get(tenant)
        return None if found is None else found.meta

    def domain(self, tenant: int) -> Domain | None:
        """None where no host is configured."""
        found = self._snapshot.tenants.get(tenant)
        if found is None:
            return None
        domain = found.domain
        return domain if domain.primary or domain.aliases or domain.internal else None

    def storage(self, tenant: int) -> Storage | None:
        found = self._snapshot.tenants.get(tenant)
        return None if found is None else found.storage

    def database(self, tenant: int, service: str) -> Database | None:
        """That of one service."""
        found = self._snapshot.tenants.get(tenant)
        return None if found is None else found.databases.get(service)

    def databases(self, tenant: int) -> Mapping[str, Database]:
        """By service."""
        found = self._snapshot.tenants.get(tenant)
        return _NONE if found is None else found.databases  # type: ignore[return-value]

    def ftp(self, tenant: int) -> Mapping[str, Ftp]:
        """All of a tenant, by user name."""
        found = self._snapshot.tenants.get(tenant)
        return _NONE if found is None else found.ftp  # type: ignore[return-value]

    def active_ftp(self, tenant: int) -> Mapping[str, Ftp]:
        """Those whose status is empty or `active`, by user name."""
        found = self._snapshot.tenants.get(tenant)
        return _NONE if found is None else found.active_ftp  # type: ignore[return-value]

    def ftp_user(self, username: str) -> Ftp | None:
        """That of one user, of whichever tenant."""
        return self._snapshot.ftp.get(username)

    def ftp_user_taken(self, username: str) -> bool:
        return username in self._snapshot.ftp

    def by_host(self, host: str) -> int | None:
        """The tenant of a host, as it stands in a request: in any case, with or without a port and
        a trailing dot."""
        known = self._snapshot.hosts.holders
        return known.get(host) or known.get(host_of(host) or "")

    def by_code(self, code: str) -> int | None:
        """The tenant of a code, in whatever case it is written."""
        return self._snapshot.codes.holders.get(code.lower())

    def by_name(self, name: str) -> int | None:
        return self._snapshot.names.holders.get(name)

    def by_ftp_user(self, username: str) -> int | None:
        return self._snapshot.ftp_users.holders.get(username)

    @property
    def resolver(self) -> Resolver | None:
        """How requests name their tenant; the default where nobody configured it. One that cannot
        be understood leaves the last good one in its place: None where there never was one."""
        return self._snapshot.resolver

    @property
    def storage_directory(self) -> StorageDirectory | None:
        """Likewise."""
        return self._snapshot.storage_directory

    def platform(self, key: str) -> JSON:
        """A setting of the platform; None where there is none. It must not be changed in place."""
        return self._snapshot.platform.get(key)

    @property
    def health(self) -> Time | None:
        """When the publisher's sentinel was last written."""
        return self._snapshot.health

    def subscribe(
        self, callback: Callback, *, tenant: int | None = None, kind: Kind | None = None
    ) -> Callable[[], None]:
        """Call back at each change, or at those of one tenant or one kind, after all changes of its
        revision can be read. On the thread of the event loop: it must not block. What is returned
        ends it, and does nothing more when it is called again. Raises `InvalidRequest` where there
        is no such kind."""
        if kind is not None and kind not in KINDS:
            raise InvalidRequest(
                f"there is no kind {quoted(kind)}: it is one of {', '.join(KINDS)}"
            )
        subscription = (kind, callback)
        with self._lock:
            self._callbacks[tenant] = (*self._callbacks.get(tenant, ()), subscription)

        def end() -> None:
            with self._lock:
                held = self._callbacks.get(tenant, ())
                if left := tuple(each for each in held if each is not subscription):
                    self._callbacks[tenant] = left
                else:
                    self._callbacks.pop(tenant, None)

        return end

    def show(self, snapshot: TenantSnapshot, changes: Iterable[Changed] = ()) -> None:
        """For who keeps it up to date: what readers see from now on, and what to tell them."""
        self._snapshot = snapshot
        if not self._callbacks:
            return
        for change in changes:
            for each in (change.tenant, None):
                for kind, callback in self._callbacks.get(each, ()):
                    if kind is None or kind in change.kinds:
                        _call(callback, change)

    def __repr__(self) -> str:
        return f"<{len(self._snapshot.tenants)} tenants at revision {self.revision}>"


def _call(callback: Callback, change: Changed) -> None:
    try:
        callback(change)
    except Exception:
        log.exception("tenant %d: a subscriber failed", change.tenant)
