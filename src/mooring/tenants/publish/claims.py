"""What leads to a tenant, decided from its parts: one key for its code, its name, each of its FTP
users and each of its hosts. Nothing else ever decides what an index holds, so that a rename or a
new domain changes whatever it has to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from mooring.formatting import quoted
from mooring.model import JSON
from mooring.tenants.keys import IndexEntry, IndexKind, Keys, Owner, is_id, kind_of, name_of


class Claim(msgspec.Struct, frozen=True):
    """What a tenant lays claim to: of its kind, a name belongs to one tenant alone."""

    kind: IndexKind
    name: str
    key: bytes
    value: bytes
    path: str
    """The part that it comes from."""

    def __str__(self) -> str:
        what = {"by-code": "code", "by-name": "name", "ftp-user": "FTP user", "host": "host"}
        return f"the {what[self.kind]} {quoted(self.name)}"


def claims(keys: Keys, tenant: Owner, parts: Mapping[str, object]) -> dict[bytes, Claim]:
    """Everything that a tenant with these parts lays claim to, by key. What all tenants share lays
    no claims."""
    found: dict[bytes, Claim] = {}
    if isinstance(tenant, str):
        return found
    for kind, name, value, path in _wanted(tenant, parts):
        key = keys.index(kind, name)
        found.setdefault(key, Claim(kind, name, key, msgspec.json.encode(value), path))
    return found


ANY_CASE: tuple[IndexKind, ...] = ("by-code", "host")
"""What is looked up without regard to case."""


def folded(keys: Keys, key: bytes) -> bytes:
    """The key of an index, alike for all that differ only in a case that does not count."""
    if key.isascii() and key == key.lower():
        return key  # nearly all are
    place = keys.understand(key)
    if isinstance(place, IndexEntry) and place.kind in ANY_CASE:
        return key.decode().lower().encode()
    return key


def _wanted(
    tenant: int, parts: Mapping[str, object]
) -> Iterator[tuple[IndexKind, str, dict[str, JSON], str]]:
    meta = parts.get("meta")
    code = _word(meta, "code")
    name = _word(meta, "name")
    primary = parts.get("domain/primary")
    for path in parts:
        if kind_of(path) == "ftp":
            told: dict[str, JSON] = {"tenantId": tenant, "code": code, "name": name}
            yield "ftp-user", name_of(path), told, path
    for path, host in _hosts(parts):
        kind = "internal" if path == "domain/internal" else "frontend"
        yield "host", host, {"tenantId": tenant, "code": code, "hostType": kind}, path
    if code:
        yield "by-code", code, {"id": tenant, "code": code, "name": name}, "meta"
    if name:
        domain = primary if isinstance(primary, str) else ""
        yield "by-name", name, {"id": tenant, "code": code, "primaryDomain": domain}, "meta"


def _hosts(parts: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for path in ("domain/primary", "domain/aliases", "domain/internal"):
        value = parts.get(path)
        for host in value if isinstance(value, list) else [value]:
            if isinstance(host, str) and host:
                yield path, host


def _word(meta: object, field: str) -> str:
    found = meta.get(field) if isinstance(meta, dict) else None
    return found if isinstance(found, str) else ""


def holder(value: bytes) -> int:
    """The tenant to whom an index leads; 0 where its value does not say."""
    try:
        told = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    if not isinstance(told, dict):
        return 0
    id = told.get("tenantId") or told.get("id")
    return id if isinstance(id, int) and is_id(str(id)) else 0
