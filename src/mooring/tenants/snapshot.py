"""All that is known of the tenants at one moment. It never changes: a change makes another, at the
cost of the tenants that it touches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from immutables import Map

from mooring.model import JSON, Time
from mooring.tenants.claims import Claims, Contest
from mooring.tenants.tenant import Tenant
from mooring.tenants.values import Ftp, Resolver, StorageDirectory


class Snapshot(msgspec.Struct, frozen=True):
    revision: int = 0
    """The store's revision that the tenants are of."""
    tenants: Map[int, Tenant] = Map()
    enabled: Map[int, Tenant] = Map()
    """Those whose meta says that they are active."""
    codes: Claims = Claims("code")
    """In lower case."""
    names: Claims = Claims("name")
    hosts: Claims = Claims("host")
    """In lower case."""
    ftp_users: Claims = Claims("FTP user")
    ftp: Map[str, Ftp] = Map()
    """By user name, of whom the name leads to."""
    resolver: Resolver = Resolver()
    storage_directory: StorageDirectory = StorageDirectory()
    platform: Map[str, JSON] = Map()
    health: Time | None = None
    """When the sentinel was last written."""
    problems: Map[str, str] = Map()
    """Keys whose values cannot be understood, and why. Such a part is as one that is not there."""

    def changed(self, tenants: Mapping[int, Tenant | None]) -> tuple[Snapshot, tuple[Contest, ...]]:
        """The same with other tenants, None for one that is gone; and the claims of theirs that
        stand against somebody else's."""
        pairs = [(self.tenants.get(id), after) for id, after in tenants.items()]
        held, enabled = self.tenants.mutate(), self.enabled.mutate()
        for id, after in tenants.items():
            if after is None:
                held.pop(id, None)
            else:
                held[id] = after
            if after is not None and after.active:
                enabled[id] = after
            else:
                enabled.pop(id, None)
        contests: list[Contest] = []
        claims: dict[str, Claims] = {}
        for field, (section, claimed) in _CLAIMED.items():
            before: Claims = getattr(self, field)
            gone, news = _differences(pairs, section, claimed)
            if gone or news:
                claims[field], told = before.changed(gone, news)
                contests += told
        ftp, holders = self.ftp.mutate(), claims.get("ftp_users", self.ftp_users).holders
        for user in _changed_users(pairs):
            if (holder := holders.get(user)) is None:
                ftp.pop(user, None)
            else:
                ftp[user] = held[holder].ftp[user]
        changed = msgspec.structs.replace(
            self, tenants=held.finish(), enabled=enabled.finish(), ftp=ftp.finish(), **claims
        )
        return changed, tuple(contests)


Pairs = Iterable[tuple[Tenant | None, Tenant | None]]
"""Tenants before and after."""


def _changed_users(pairs: Pairs) -> Iterator[str]:
    for before, after in pairs:
        had = None if before is None else before.ftp
        has = None if after is None else after.ftp
        if had is not has:
            yield from had or ()
            yield from has or ()


def _differences(
    pairs: Pairs, section: str, claimed: Callable[[Tenant], Iterable[str]]
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    gone: list[tuple[str, int]] = []
    news: list[tuple[str, int]] = []
    for before, after in pairs:
        if before is not None and getattr(before, section) is getattr(after, section, None):
            continue
        had = dict.fromkeys(claimed(before) if before is not None else ())
        has = dict.fromkeys(claimed(after) if after is not None else ())
        if before is not None:
            gone += [(name, before.id) for name in had if name not in has]
        if after is not None:
            news += [(name, after.id) for name in has if name not in had]
    return gone, news


def _code(tenant: Tenant) -> Iterable[str]:
    return (tenant.meta.code.lower(),) if tenant.meta is not None and tenant.meta.code else ()


def _name(tenant: Tenant) -> Iterable[str]:
    return (tenant.meta.name,) if tenant.meta is not None and tenant.meta.name else ()


_CLAIMED: Mapping[str, tuple[str, Callable[[Tenant], Iterable[str]]]] = {
    "codes": ("meta", _code),
    "names": ("meta", _name),
    "hosts": ("domain", lambda tenant: tenant.domain.hosts),
    "ftp_users": ("ftp", lambda tenant: tenant.ftp),
}
"""What a tenant claims, and the part of it from which that follows."""
