"""An immutable snapshot of all tenants, with lookups by code, name, host and FTP user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec
from immutables import Map, MapMutation

from mooring.formatting import quoted
from mooring.model import JSON, Time
from mooring.store.contract import Entry
from mooring.tenants.cooperative import SlicedWork, run_now, slices
from mooring.tenants.model import (
    Ftp,
    Resolver,
    StorageDirectory,
    Tenant,
)

NameClaim = tuple[str, int]
"""What is claimed, and by which tenant."""

Contested = MapMutation[str, Map[int, None]]


class ClaimConflict(msgspec.Struct, frozen=True):
    """A claim that stands against another."""

    kind: str
    name: str
    holder: int
    """Whom it leads to."""
    claimant: int
    """Who claims it, too."""

    def __str__(self) -> str:
        return (
            f"the {self.kind} {quoted(self.name)} is claimed by tenant {self.claimant}, too: "
            f"it leads to tenant {self.holder}"
        )


class ClaimIndex(msgspec.Struct, frozen=True):
    """All claims of one kind."""

    kind: str
    """For people: `host`."""
    holders: Map[str, int] = Map()
    """Whom each leads to."""
    contested: Map[str, Map[int, None]] = Map()
    """All who claim it, of those with several."""

    def changing(
        self, gone: Iterable[NameClaim], news: Iterable[NameClaim]
    ) -> SlicedWork[tuple[ClaimIndex, tuple[ClaimConflict, ...]]]:
        """The same with other claims, and those of the new ones that stand against another.

        What is `gone` must have been there, what is new must not.
        """
        holders, contested = self.holders.mutate(), self.contested.mutate()
        for some in slices(gone):
            for name, tenant in some:
                _give_up(name, tenant, holders, contested)
            yield
        clashes: list[NameClaim] = []
        for some in slices(news):
            clashes += [each for each in some if _clashes(*each, holders, contested)]
            yield
        told: list[ClaimConflict] = []
        for some in slices(clashes):
            for name, tenant in some:
                holder = holders[name]
                rival = _rival(tenant, holder, contested[name])
                told.append(ClaimConflict(self.kind, name, holder, rival))
            yield
        return ClaimIndex(self.kind, holders.finish(), contested.finish()), tuple(told)


def _give_up(name: str, tenant: int, holders: MapMutation[str, int], contested: Contested) -> None:
    rivals = contested.get(name)
    if rivals is None:
        del holders[name]
        return
    rivals = rivals.delete(tenant)
    holders[name] = min(rivals) if holders[name] == tenant else holders[name]
    if len(rivals) > 1:
        contested[name] = rivals
    else:
        del contested[name]


def _clashes(name: str, tenant: int, holders: MapMutation[str, int], contested: Contested) -> bool:
    """Whether the new claim stands against another."""
    holder = holders.get(name)
    if holder is None:
        holders[name] = tenant
        return False
    rivals = contested.get(name)
    contested[name] = (Map({holder: None}) if rivals is None else rivals).set(tenant, None)
    holders[name] = min(holder, tenant)
    return True


def _rival(tenant: int, holder: int, rivals: Map[int, None]) -> int:
    """The other one, where the newcomer is the holder."""
    return tenant if tenant != holder else min(each for each in rivals if each != holder)


K = TypeVar("K")
V = TypeVar("V")


class TenantSnapshot(msgspec.Struct, frozen=True):
    revision: int = 0
    """The store's revision that the tenants are of."""
    tenants: Map[int, Tenant] = Map()
    enabled: Map[int, bool] = Map()
    """The ids of those whose meta says that they are active."""
    codes: ClaimIndex = ClaimIndex("code")
    """In lower case."""
    names: ClaimIndex = ClaimIndex("name")
    hosts: ClaimIndex = ClaimIndex("host")
    """In lower case."""
    ftp_users: ClaimIndex = ClaimIndex("FTP user")
    ftp: Map[str, Ftp] = Map()
    """By user name, of whom the name leads to."""
    resolver: Resolver | None = Resolver()
    """The default where nobody configured it. One that cannot be understood leaves the last good
    one in its place; None where there never was one: nobody knows what was meant."""
    storage_directory: StorageDirectory | None = StorageDirectory()
    """Likewise."""
    good: Map[bytes, Entry] = Map()
    """What these two come from."""
    platform: Map[str, JSON] = Map()
    health: Time | None = None
    """When the sentinel was last written."""
    problems: Map[str, str] = Map()
    """Keys whose values cannot be understood, and why. Such a part of a tenant is as one that is
    not there."""

    def __repr__(self) -> str:
        return (
            f"<Snapshot of {len(self.tenants)} tenants and {len(self.platform)} settings of the "
            f"platform at revision {self.revision}, {len(self.problems)} problems>"
        )

    def changed(
        self, tenants: Mapping[int, Tenant | None]
    ) -> tuple[TenantSnapshot, tuple[ClaimConflict, ...]]:
        """The same with other tenants, None for one that is gone; and the claims of theirs that
        stand against somebody else's."""
        return run_now(self.changing(tenants))

    def changing(
        self, tenants: Mapping[int, Tenant | None]
    ) -> SlicedWork[tuple[TenantSnapshot, tuple[ClaimConflict, ...]]]:
        """The same in slices."""
        if not tenants:
            return self, ()
        held, enabled = self.tenants.mutate(), self.enabled.mutate()
        pairs: list[Pair] = []
        for some in slices(tenants.items()):
            for id, after in some:
                before = self.tenants.get(id)
                pairs.append((before, after))
                _put(held, id, after)
                active = after is not None and after.active
                if active is not (before is not None and before.active):
                    _put(enabled, id, active or None)
            yield
        contests: list[ClaimConflict] = []
        claims: dict[str, ClaimIndex] = {}
        for field, (section, claimed) in _CLAIMED.items():
            gone, news = yield from _differences(pairs, section, claimed)
            if gone or news:
                of_kind: ClaimIndex = getattr(self, field)
                claims[field], told = yield from of_kind.changing(gone, news)
                contests += told
        ftp, holders = self.ftp.mutate(), claims.get("ftp_users", self.ftp_users).holders
        for users in slices(_changed_users(pairs)):
            for user in users:
                holder = holders.get(user)
                _put(ftp, user, None if holder is None else held[holder].ftp[user])
            yield
        changed = msgspec.structs.replace(
            self, tenants=held.finish(), enabled=enabled.finish(), ftp=ftp.finish(), **claims
        )
        return changed, tuple(contests)

    def knows(self, contest: ClaimConflict) -> bool:
        """Whether it stands already, and was told."""
        of_kind = (self.codes, self.names, self.hosts, self.ftp_users)
        (claims,) = [claims for claims in of_kind if claims.kind == contest.kind]
        return contest.claimant in claims.contested.get(contest.name, ())

    def with_tenants(self, other: TenantSnapshot) -> TenantSnapshot:
        """The same with the tenants of another, and all that follows from them."""
        return msgspec.structs.replace(self, **{name: getattr(other, name) for name in _OF_TENANTS})


_OF_TENANTS = ("tenants", "enabled", "codes", "names", "hosts", "ftp_users", "ftp")

Pair = tuple[Tenant | None, Tenant | None]
"""A tenant before and after."""


def _put(held: MapMutation[K, V], key: K, value: V | None) -> None:
    if value is None:
        held.pop(key, None)
    else:
        held[key] = value


def _changed_users(pairs: Iterable[Pair]) -> Iterator[str]:
    for before, after in pairs:
        had = None if before is None else before.ftp
        has = None if after is None else after.ftp
        if had is not has:
            yield from had or ()
            yield from has or ()


def _differences(
    pairs: Iterable[Pair], section: str, claimed: Callable[[Tenant], Iterable[str]]
) -> SlicedWork[tuple[list[NameClaim], list[NameClaim]]]:
    gone: list[NameClaim] = []
    news: list[NameClaim] = []
    for some in slices(pairs):
        for before, after in some:
            if before is not None and getattr(before, section) is getattr(after, section, None):
                continue
            had = dict.fromkeys(claimed(before) if before is not None else ())
            has = dict.fromkeys(claimed(after) if after is not None else ())
            if before is not None:
                gone += [(name, before.id) for name in had if name not in has]
            if after is not None:
                news += [(name, after.id) for name in has if name not in had]
        yield
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
