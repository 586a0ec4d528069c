"""All tenants in short, for lists and for the search: read from the store in one go."""

from __future__ import annotations

import msgspec

from mooring.store.contract import Store
from mooring.tenants.keys import DOMAIN, PartOf, TenantKeys, kind_of
from mooring.tenants.model import UnreadableValue, decode


class TenantSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    id: int
    code: str | None
    name: str | None
    status: str | None
    primary_domain: str | None
    hosts: tuple[str, ...]
    databases: int
    ftp_users: int
    problems: int
    """Parts that cannot be understood, of those that are looked at here."""


async def read_tenants(store: Store, keys: TenantKeys) -> list[TenantSummary]:
    """By id. Only what a list shows is looked into."""
    drafts: dict[int, _Draft] = {}
    for entry in (await store.read(keys.all)).entries:
        place = keys.understand(entry.key)
        if isinstance(place, PartOf):
            drafts.setdefault(place.tenant, _Draft()).add(place.path, entry.value)
    return [draft.summary(id) for id, draft in sorted(drafts.items())]


class _Draft:
    __slots__ = ("counts", "meta", "parts", "problems")

    def __init__(self) -> None:
        self.meta: dict[str, object] = {}
        self.parts: dict[str, list[str]] = {}
        self.counts = {"database": 0, "ftp": 0}
        self.problems = 0

    def add(self, path: str, raw: bytes) -> None:
        kind = kind_of(path)
        if kind in self.counts:
            self.counts[kind] += 1
            return
        if path != "meta" and path not in DOMAIN:
            return
        try:
            value = decode(path, raw)
        except UnreadableValue:
            self.problems += 1
            return
        if path == "meta":
            self.meta = dict(value) if isinstance(value, dict) else {}
        else:
            hosts = value if isinstance(value, list) else [value]
            self.parts[path] = [host for host in hosts if isinstance(host, str) and host]

    def summary(self, id: int) -> TenantSummary:
        hosts = [host for path in DOMAIN for host in self.parts.get(path, ())]
        primary = self.parts.get("domain/primary", ())
        return TenantSummary(
            id=id,
            code=self._said("code"),
            name=self._said("name"),
            status=self._said("status") or ("active" if self.meta else None),
            primary_domain=primary[0] if primary else None,
            hosts=tuple(hosts),
            databases=self.counts["database"],
            ftp_users=self.counts["ftp"],
            problems=self.problems,
        )

    def _said(self, field: str) -> str | None:
        told = self.meta.get(field)
        return told if isinstance(told, str) and told else None
