"""The stored parts of a tenant, the index entries they require, and their differences."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from mooring.formatting import quoted
from mooring.masking import is_secret, masked_field
from mooring.model import JSON, walk
from mooring.store.contract import MAX_REQUEST_BYTES, Entry
from mooring.tenants.keys import (
    DOMAIN,
    IndexEntry,
    IndexKind,
    Owner,
    TenantKeys,
    field_of,
    is_id,
    kind_of,
    name_of,
)
from mooring.tenants.model import UnreadableValue, decode


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


def claims(keys: TenantKeys, tenant: Owner, parts: Mapping[str, object]) -> dict[bytes, Claim]:
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


def normalized_key(keys: TenantKeys, key: bytes) -> bytes:
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


BYTES = MAX_REQUEST_BYTES - 64 * 1024
_SEAL = 160  # bytes that a sealed value takes beside itself


class UnreadablePart(msgspec.Struct, frozen=True):
    """A part that cannot be understood, as it stands in the store."""

    raw: bytes

    def __repr__(self) -> str:
        return f"<unreadable, {len(self.raw)} bytes>"

    @property
    def text(self) -> str:
        return base64.b64encode(self.raw).decode()


Parts: TypeAlias = "Mapping[str, JSON | UnreadablePart]"
"""What a tenant has, by path."""

Resent: TypeAlias = "Mapping[str, Sequence[str]]"
"""Secrets that count as changed whatever they are, by path and field: an answer that says whether
they changed would tell the caller whether a guess is right."""
NOTHING_RESENT: Resent = MappingProxyType({})


class StoredParts(msgspec.Struct, frozen=True):
    """What the store has of a tenant."""

    parts: dict[str, JSON | UnreadablePart]
    revisions: dict[str, int]
    strange: tuple[bytes, ...] = ()
    """Keys below the tenant's that are none of its parts."""
    resent: Resent = NOTHING_RESENT

    def __repr__(self) -> str:
        return f"<{', '.join(self.parts) or 'nothing'}>"

    @property
    def revision(self) -> str:
        """Identifies this state. It depends on when each part was written and not on its value, so
        that it does not help to guess a secret."""
        told = "\n".join(f"{path} {number}" for path, number in sorted(self.revisions.items()))
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()

    @property
    def obscure(self) -> bool:
        """Whether what leads to the tenant cannot be told from its parts."""
        return bool(unclear_kinds(self.parts))

    def may_claim(self, keys: TenantKeys, tenant: int, claim: Claim) -> bool:
        """Whether a tenant that holds this has what another wants; of what cannot be understood,
        what leads to it says so."""
        theirs = {normalized_key(keys, name) for name in claims(keys, tenant, self.parts)}
        return claim.kind in unclear_kinds(self.parts) or normalized_key(keys, claim.key) in theirs


def unclear_kinds(parts: Parts) -> frozenset[IndexKind]:
    """The kinds of claims that parts may lay without saying so: they cannot be understood."""
    found: set[IndexKind] = set()
    if isinstance(parts.get("meta"), UnreadablePart):
        found |= {"by-code", "by-name"}
    if any(isinstance(parts.get(path), UnreadablePart) for path in DOMAIN):
        found.add("host")
    return frozenset(found)


def stored_parts(keys: TenantKeys, owner: Owner, entries: Iterable[Entry]) -> StoredParts:
    parts: dict[str, JSON | UnreadablePart] = {}
    revisions: dict[str, int] = {}
    strange = []
    for entry in entries:
        path = keys.path_of(owner, entry.key)
        if path is None:
            strange.append(entry.key)
            continue
        revisions[path] = entry.modified
        try:
            value = decode(path, entry.value)
        except UnreadableValue:
            value = None
        parts[path] = UnreadablePart(entry.value) if value is None else value
    return StoredParts(parts, revisions, tuple(strange))


def masked_part(path: str, value: JSON | UnreadablePart) -> JSON | UnreadablePart:
    """A part for people: its secrets are masked."""
    return value if isinstance(value, UnreadablePart) else masked_field(field_of(path), value)


class PartDiff(msgspec.Struct, frozen=True):
    """One part that is to change. None: it is not there."""

    path: str
    before: JSON | UnreadablePart
    after: JSON | UnreadablePart
    resent: tuple[str, ...] = ()
    """Secret fields that count as changed: see `Resent`."""

    def __repr__(self) -> str:
        return f"<{self.path}: {self._shown(self.before)!r} → {self._shown(self.after)!r}>"

    def _shown(self, value: JSON | UnreadablePart) -> JSON | UnreadablePart:
        return masked_part(self.path, value)

    @property
    def size(self) -> int:
        """About how many bytes a history needs for it, and no fewer."""
        before = 0 if self.unwieldy else _weight(self.path, self.before)
        return before + _weight(self.path, self.after) + len(self.path) + _SEAL

    @property
    def unwieldy(self) -> bool:
        """Whether what was there is so large that no history takes it: it could not be removed."""
        return _weight(self.path, self.before) > BYTES // 2


def _weight(path: str, value: JSON | UnreadablePart) -> int:
    if isinstance(value, UnreadablePart):
        return 2 * len(value.raw) + _SEAL
    return len(msgspec.json.encode(value)) + _sealing({field_of(path): value})


def _sealing(value: JSON) -> int:
    """An upper bound of the bytes that encryption adds to the secrets of a value."""
    return sum(
        _SEAL + len(msgspec.json.encode(inner))
        for path, inner in walk(value)
        if path and is_secret(path[-1])
    )


def diff_parts(before: Parts, after: Parts, resent: Resent = NOTHING_RESENT) -> list[PartDiff]:
    paths = sorted(before.keys() | after.keys(), key=_place)
    again = {path: tuple(fields) for path, fields in resent.items() if path in before}
    return [
        PartDiff(path, before.get(path), after.get(path), again.get(path, ()))
        for path in paths
        if not _same(before.get(path), after.get(path)) or (path in again and path in after)
    ]


def _same(one: JSON | UnreadablePart, other: JSON | UnreadablePart) -> bool:
    """As they are written: true is not 1."""
    if isinstance(one, UnreadablePart) or isinstance(other, UnreadablePart):
        return one == other
    return one == other and _exactly(one) == _exactly(other)


def _exactly(value: JSON) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _place(path: str) -> tuple[bool, bool, str]:
    return path != "meta", kind_of(path) != "domain", path
