"""Lookups for who cannot go on without an answer: they raise `NotConfigured`, which names the
tenant and what it lacks. Nothing is held here: each looks at what is known now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mooring.display import quoted
from mooring.errors import NotConfigured
from mooring.tenants.live import Tenants
from mooring.tenants.values import Database, Domain, Ftp, Storage

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
