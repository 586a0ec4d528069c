"""An immutable snapshot of all tenants, with lookups by code, name, host and FTP user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec
from immutables import Map, MapMutation

from mooring.formatting import quoted
from mooring.model import JSON, Time
from mooring.store.contract import Entry
from mooring.tasks import SlicedWork, slices
from mooring.tenants.model import Ftp, Resolver, StorageDirectory, Tenant

NameClaim = tuple[str, int]
"""A name and a tenant that claims it."""

Contested = MapMutation[str, Map[int, None]]


class ClaimConflict(msgspec.Struct, frozen=True):
    """A name that two tenants claim."""

    kind: str
    name: str
    holder: int
    """The tenant that lookups return."""
    claimant: int
    """The other tenant."""

    def __str__(self) -> str:
        return (
            f"the {self.kind} {quoted(self.name)} is claimed by tenant {self.claimant}, too: "
            f"it leads to tenant {self.holder}"
        )


class ClaimIndex(msgspec.Struct, frozen=True):
    """The names of one kind. The tenant with the lowest id holds a name that several claim."""

    kind: str
    """For messages: `host`."""
    holders: Map[str, int] = Map()
    """The tenant that each name leads to."""
    contested: Map[str, Map[int, None]] = Map()
    """All claimants of the names that have several."""

    def changing(
        self, removed: Iterable[NameClaim], added: Iterable[NameClaim]
    ) -> SlicedWork[tuple[ClaimIndex, tuple[ClaimConflict, ...]]]:
        """The index with other claims, and the conflicts of the added ones. The removed claims must
        be in the index; the added ones must not."""
        holders, contested = self.holders.mutate(), self.contested.mutate()
        for piece in slices(removed):
            for name, tenant in piece:
                _remove_claim(name, tenant, holders, contested)
            yield
        conflicting: list[NameClaim] = []
        for piece in slices(added):
            conflicting += [claim for claim in piece if _conflicts(*claim, holders, contested)]
            yield
        conflicts: list[ClaimConflict] = []
        for piece in slices(conflicting):
            for name, tenant in piece:
                holder = holders[name]
                rival = tenant
                if tenant == holder:
                    rival = min(other for other in contested[name] if other != holder)
                conflicts.append(ClaimConflict(self.kind, name, holder, rival))
            yield
        return ClaimIndex(self.kind, holders.finish(), contested.finish()), tuple(conflicts)


def _remove_claim(
    name: str, tenant: int, holders: MapMutation[str, int], contested: Contested
) -> None:
    claimants = contested.get(name)
    if claimants is None:
        del holders[name]
        return
    claimants = claimants.delete(tenant)
    holders[name] = min(claimants) if holders[name] == tenant else holders[name]
    if len(claimants) > 1:
        contested[name] = claimants
    else:
        del contested[name]


def _conflicts(
    name: str, tenant: int, holders: MapMutation[str, int], contested: Contested
) -> bool:
    """Add a claim; whether another tenant claims the name, too."""
    holder = holders.get(name)
    if holder is None:
        holders[name] = tenant
        return False
    claimants = contested.get(name)
    contested[name] = (Map({holder: None}) if claimants is None else claimants).set(tenant, None)
    holders[name] = min(holder, tenant)
    return True


K = TypeVar("K")
V = TypeVar("V")


class TenantSnapshot(msgspec.Struct, frozen=True):
    revision: int = 0
    """The store's revision of the tenants."""
    tenants: Map[int, Tenant] = Map()
    enabled: Map[int, bool] = Map()
    """The ids of active tenants."""
    codes: ClaimIndex = ClaimIndex("code")
    """In lower case."""
    names: ClaimIndex = ClaimIndex("name")
    hosts: ClaimIndex = ClaimIndex("host")
    """In lower case."""
    ftp_users: ClaimIndex = ClaimIndex("FTP user")
    ftp: Map[str, Ftp] = Map()
    """By user name, as configured by the holder of the name."""
    resolver: Resolver | None = Resolver()
    """A default if it is not configured. If the stored value cannot be decoded, the last valid one
    stays; None if there never was one."""
    storage_directory: StorageDirectory | None = StorageDirectory()
    """Likewise."""
    good: Map[bytes, Entry] = Map()
    """The entries of these two."""
    platform: Map[str, JSON] = Map()
    health: Time | None = None
    """When the sentinel was last written."""
    problems: Map[str, str] = Map()
    """The keys whose values cannot be decoded, and the reasons. Such parts count as missing."""

    def __repr__(self) -> str:
        return (
            f"<TenantSnapshot of {len(self.tenants)} tenants and {len(self.platform)} platform "
            f"settings at revision {self.revision}, {len(self.problems)} problems>"
        )

    def changing(
        self, tenants: Mapping[int, Tenant | None]
    ) -> SlicedWork[tuple[TenantSnapshot, tuple[ClaimConflict, ...]]]:
        """The snapshot with these tenants replaced, None for a removed one, and the conflicts of
        their claims."""
        if not tenants:
            return self, ()
        current, enabled = self.tenants.mutate(), self.enabled.mutate()
        pairs: list[Pair] = []
        for piece in slices(tenants.items()):
            for id, after in piece:
                before = self.tenants.get(id)
                pairs.append((before, after))
                _put(current, id, after)
                active = after is not None and after.active
                if active is not (before is not None and before.active):
                    _put(enabled, id, active or None)
            yield
        conflicts: list[ClaimConflict] = []
        indexes: dict[str, ClaimIndex] = {}
        for field, (section, names_of) in _CLAIMED.items():
            removed, added = yield from _claim_changes(pairs, section, names_of)
            if removed or added:
                index: ClaimIndex = getattr(self, field)
                indexes[field], new_conflicts = yield from index.changing(removed, added)
                conflicts += new_conflicts
        ftp, holders = self.ftp.mutate(), indexes.get("ftp_users", self.ftp_users).holders
        for users in slices(_changed_users(pairs)):
            for user in users:
                holder = holders.get(user)
                _put(ftp, user, None if holder is None else current[holder].ftp[user])
            yield
        changed = msgspec.structs.replace(
            self, tenants=current.finish(), enabled=enabled.finish(), ftp=ftp.finish(), **indexes
        )
        return changed, tuple(conflicts)

    def knows(self, conflict: ClaimConflict) -> bool:
        """Whether this snapshot has the conflict already."""
        indexes = (self.codes, self.names, self.hosts, self.ftp_users)
        (index,) = [index for index in indexes if index.kind == conflict.kind]
        return conflict.claimant in index.contested.get(conflict.name, ())

    def with_tenants(self, other: TenantSnapshot) -> TenantSnapshot:
        """This snapshot with the tenants of another, and all that depends on them."""
        fields = {name: getattr(other, name) for name in (*_CLAIMED, "tenants", "enabled", "ftp")}
        return msgspec.structs.replace(self, **fields)


Pair = tuple[Tenant | None, Tenant | None]
"""A tenant before and after."""


def _put(items: MapMutation[K, V], key: K, value: V | None) -> None:
    if value is None:
        items.pop(key, None)
    else:
        items[key] = value


def _changed_users(pairs: Iterable[Pair]) -> Iterator[str]:
    for before, after in pairs:
        old = None if before is None else before.ftp
        new = None if after is None else after.ftp
        if old is not new:
            yield from old or ()
            yield from new or ()


def _claim_changes(
    pairs: Iterable[Pair], section: str, names_of: Callable[[Tenant], Iterable[str]]
) -> SlicedWork[tuple[list[NameClaim], list[NameClaim]]]:
    """The claims that were removed and added."""
    removed: list[NameClaim] = []
    added: list[NameClaim] = []
    for piece in slices(pairs):
        for before, after in piece:
            if before is not None and getattr(before, section) is getattr(after, section, None):
                continue
            old = dict.fromkeys(names_of(before) if before is not None else ())
            new = dict.fromkeys(names_of(after) if after is not None else ())
            if before is not None:
                removed += [(name, before.id) for name in old if name not in new]
            if after is not None:
                added += [(name, after.id) for name in new if name not in old]
        yield
    return removed, added


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
"""For each index, the section of a tenant that it depends on, and the names in it."""
