"""The current tenants, for readers in any thread, and lookups that raise `NotConfigured`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, KeysView, Mapping
from typing import TypeVar

from mooring.errors import InvalidRequest, NotConfigured
from mooring.messages import message
from mooring.mirror import STALE_AFTER
from mooring.model import JSON, Time
from mooring.tenants.keys import host_of, named
from mooring.tenants.model import (
    KINDS,
    Database,
    Domain,
    Ftp,
    Meta,
    PartKind,
    Resolver,
    Storage,
    StorageDirectory,
    Tenant,
)
from mooring.tenants.read.parser import Changed
from mooring.tenants.read.snapshot import TenantSnapshot

T = TypeVar("T")


class _Cache:
    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def _require(self, tenant: int, value: T | None, what: str, **params: str) -> T:
        if value is not None:
            return value
        kind = "tenant_lacks" if self._tenants.get(tenant) else "tenant_not_found"
        raise NotConfigured(message(kind, tenant=named(tenant), what=message(what, **params)))


class DatabaseCache(_Cache):
    """Databases by tenant. Lookups raise `NotConfigured` for what is not configured."""

    def get(self, tenant: int, service: str) -> Database:
        """The database of a service."""
        database = self._tenants.database(tenant, service)
        return self._require(tenant, database, "a_database", service=service)

    def all(self, tenant: int) -> Mapping[str, Database]:
        """By service."""
        return self._require(tenant, self._tenants.databases(tenant) or None, "the_databases")


class FtpCache(_Cache):
    """FTP users by tenant. Lookups raise `NotConfigured` for what is not configured."""

    def get(self, tenant: int, username: str) -> Ftp:
        """An FTP user of a tenant."""
        user = self._tenants.ftp(tenant).get(username)
        return self._require(tenant, user, "an_ftp_user", name=username)

    def user(self, username: str) -> Ftp:
        """The user with this name, of any tenant."""
        user = self._tenants.ftp_user(username)
        if user is None:
            raise NotConfigured(
                message("claim_not_found", claim=message("claim_ftp_user", name=username))
            )
        return user

    def all(self, tenant: int) -> Mapping[str, Ftp]:
        """By user name."""
        return self._require(tenant, self._tenants.ftp(tenant) or None, "the_ftp_users")

    def active(self, tenant: int) -> Mapping[str, Ftp]:
        """Users whose status is empty or `active`, by user name."""
        return self._require(
            tenant, self._tenants.active_ftp(tenant) or None, "the_active_ftp_users"
        )


class StorageCache(_Cache):
    """Quotas by tenant. Lookups raise `NotConfigured` for what is not configured."""

    def get(self, tenant: int) -> Storage:
        """The quotas of a tenant."""
        return self._require(tenant, self._tenants.storage(tenant), "the_storage")


class DomainCache(_Cache):
    """Hosts by tenant, and tenants by host. Lookups raise `NotConfigured` for what is not
    configured."""

    def get(self, tenant: int) -> Domain:
        """The hosts of a tenant."""
        return self._require(tenant, self._tenants.domain(tenant), "the_domain")

    def tenant(self, host: str) -> int:
        """The tenant of a host."""
        tenant = self._tenants.by_host(host)
        if tenant is None:
            raise NotConfigured(message("claim_not_found", claim=message("claim_host", name=host)))
        return tenant


log = logging.getLogger(__name__)

_MISSING = Tenant(0)

TenantCallback = Callable[[Changed], None]


class Tenants:
    """The current tenants, which a `Provider` keeps up to date. Lookups return None or an empty
    collection for what is not configured; the caches in `mooring.tenants` raise instead."""

    def __init__(
        self, snapshot: TenantSnapshot | None = None, *, age: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._snapshot = snapshot or TenantSnapshot()
        self._age = age
        self._lock = threading.Lock()  # for subscriptions; lookups do not take it
        self._callbacks: dict[int | None, tuple[tuple[PartKind | None, TenantCallback], ...]] = {}

    @property
    def snapshot(self) -> TenantSnapshot:
        """The current state, which is immutable."""
        return self._snapshot

    @property
    def revision(self) -> int:
        """The store's revision of the tenants."""
        return self._snapshot.revision

    @property
    def age(self) -> float:
        """Seconds since the last response of the store. Infinite after a start from the file, and
        while an update cannot be applied."""
        return self._age()

    @property
    def stale(self) -> bool:
        """Whether the tenants may be outdated: the store is silent, an update cannot be applied,
        they are from the file, or the provider is closed."""
        return self._age() > STALE_AFTER

    @property
    def problems(self) -> Mapping[str, str]:
        """The keys whose values cannot be decoded, and the reasons. Such a part is left out; for
        `resolver` and `storage_directory` the last valid value stays."""
        return self._snapshot.problems

    def get(self, tenant: int) -> Tenant | None:
        """The tenant; None if it does not exist."""
        return self._snapshot.tenants.get(tenant)

    def _tenant(self, tenant: int) -> Tenant:
        return self._snapshot.tenants.get(tenant, _MISSING)

    def ids(self) -> KeysView[int]:
        """The ids of all tenants, in no order."""
        return KeysView(self._snapshot.tenants)

    def enabled(self) -> KeysView[int]:
        """The ids of active tenants, in no order."""
        return KeysView(self._snapshot.enabled)

    def meta(self, tenant: int) -> Meta | None:
        """The names, the status and the plan of a tenant."""
        return self._tenant(tenant).meta

    def domain(self, tenant: int) -> Domain | None:
        """None if no host is configured."""
        domain = self._tenant(tenant).domain
        return domain if domain.primary or domain.aliases or domain.internal else None

    def storage(self, tenant: int) -> Storage | None:
        """The quotas of a tenant."""
        return self._tenant(tenant).storage

    def database(self, tenant: int, service: str) -> Database | None:
        """The database of a service."""
        return self._tenant(tenant).databases.get(service)

    def databases(self, tenant: int) -> Mapping[str, Database]:
        """By service."""
        return self._tenant(tenant).databases

    def ftp(self, tenant: int) -> Mapping[str, Ftp]:
        """All users of a tenant, by user name."""
        return self._tenant(tenant).ftp

    def active_ftp(self, tenant: int) -> Mapping[str, Ftp]:
        """Users whose status is empty or `active`, by user name."""
        return self._tenant(tenant).active_ftp

    def ftp_user(self, username: str) -> Ftp | None:
        """The user with this name, of any tenant."""
        return self._snapshot.ftp.get(username)

    def ftp_user_taken(self, username: str) -> bool:
        """Whether a tenant has this FTP user."""
        return username in self._snapshot.ftp

    def by_host(self, host: str) -> int | None:
        """The tenant of a host as in a request: in any case, with or without a port and a trailing
        dot."""
        known = self._snapshot.hosts.holders
        return known.get(host) or known.get(host_of(host) or "")

    def by_code(self, code: str) -> int | None:
        """The tenant of a code, in any case."""
        return self._snapshot.codes.holders.get(code.lower())

    def by_name(self, name: str) -> int | None:
        """The id of the tenant with this name."""
        return self._snapshot.names.holders.get(name)

    def by_ftp_user(self, username: str) -> int | None:
        """The id of the tenant with this FTP user."""
        return self._snapshot.ftp_users.holders.get(username)

    @property
    def resolver(self) -> Resolver | None:
        """How requests name their tenant; a default if it is not configured. If the value cannot be
        decoded, the last valid one stays; None if there never was one."""
        return self._snapshot.resolver

    @property
    def storage_directory(self) -> StorageDirectory | None:
        """Where the files of tenants are; None if it is not configured. If the value cannot be
        decoded, the last valid one stays."""
        return self._snapshot.storage_directory

    def platform(self, key: str) -> JSON:
        """A platform setting; None if it is not set. It must not be changed in place."""
        return self._snapshot.platform.get(key)

    @property
    def health(self) -> Time | None:
        """When a publisher last wrote the sentinel."""
        return self._snapshot.health

    def subscribe(
        self, callback: TenantCallback, *, tenant: int | None = None, kind: PartKind | None = None
    ) -> Callable[[], None]:
        """Call back at each change, or at those of one tenant or kind, once all changes of its
        revision can be read. The callback runs on the event loop's thread and must not block. Call
        the result to end the subscription. Raises `InvalidRequest` for an unknown kind."""
        if kind is not None and kind not in KINDS:
            raise InvalidRequest(
                message("argument_not_allowed", name="kind", allowed=KINDS, value=kind)
            )
        subscription = (kind, callback)
        with self._lock:
            self._callbacks[tenant] = (*self._callbacks.get(tenant, ()), subscription)

        def end() -> None:
            with self._lock:
                current = self._callbacks.get(tenant, ())
                if left := tuple(other for other in current if other is not subscription):
                    self._callbacks[tenant] = left
                else:
                    self._callbacks.pop(tenant, None)

        return end

    def show(self, snapshot: TenantSnapshot, changes: Iterable[Changed] = ()) -> None:
        """For the provider: replace the state, then notify subscribers of the changes."""
        self._snapshot = snapshot
        if not self._callbacks:
            return
        for change in changes:
            for tenant in (change.tenant, None):
                for kind, callback in self._callbacks.get(tenant, ()):
                    if kind is None or kind in change.kinds:
                        _call(callback, change)

    def __repr__(self) -> str:
        return f"<{len(self._snapshot.tenants)} tenants at revision {self.revision}>"


def _call(callback: TenantCallback, change: Changed) -> None:
    try:
        callback(change)
    except Exception:
        log.exception("tenant %d: a subscriber failed", change.tenant)
