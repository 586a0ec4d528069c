"""The stored parts of a tenant, the index entries that they require, and diffs of two states."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from mooring.masking import is_secret
from mooring.messages import Message, message
from mooring.model import JSON, walk
from mooring.store.contract import MAX_REQUEST_BYTES, Entry, Range, Store
from mooring.tasks import slices
from mooring.tenants.keys import (
    DOMAIN,
    IndexKind,
    Owner,
    TenantKeys,
    field_of,
    is_id,
    kind_of,
    name_of,
)
from mooring.tenants.model import UnreadableValue, decode, json_object

COMMIT_BYTES = MAX_REQUEST_BYTES - 64 * 1024
"""Bytes of one commit for the parts, their indexes and their history."""

CASE_INSENSITIVE: tuple[IndexKind, ...] = ("by-code", "host")
"""Indexes whose names are looked up in any case."""

_PAGE = 10_000  # entries per read: etcd counts the whole range for each page
_SEAL = 160  # bytes that encryption adds to a value


class UnreadablePart(msgspec.Struct, frozen=True):
    """The stored bytes of a part that cannot be decoded."""

    raw: bytes

    def __repr__(self) -> str:
        return f"<unreadable, {len(self.raw)} bytes>"

    @property
    def text(self) -> str:
        return base64.b64encode(self.raw).decode()


Parts: TypeAlias = "Mapping[str, JSON | UnreadablePart]"
"""The parts of a tenant, by path."""

Resent: TypeAlias = "Mapping[str, Sequence[str]]"
"""Secrets that a caller sent and that count as changed whether or not they did, by path and field.
An answer that said whether they changed would confirm a guess."""
NOTHING_RESENT: Resent = MappingProxyType({})


class Claim(msgspec.Struct, frozen=True):
    """An index entry that a tenant requires. Each name of a kind belongs to one tenant."""

    kind: IndexKind
    name: str
    key: bytes
    value: bytes
    path: str
    """The part that the claim is derived from."""

    @property
    def shown(self) -> Message:
        return message(f"claim_{self.kind.replace('-', '_')}", name=self.name)


def claims(keys: TenantKeys, tenant: Owner, parts: Mapping[str, object]) -> dict[bytes, Claim]:
    """The index entries that a tenant with these parts requires, by key. They depend on nothing
    else, so that a rename or a new domain changes all that it must. Shared settings require none.
    """
    required: dict[bytes, Claim] = {}
    if isinstance(tenant, str):
        return required
    for kind, name, value, path in _index_entries(tenant, parts):
        key = keys.index(kind, name)
        required.setdefault(key, Claim(kind, name, key, msgspec.json.encode(value), path))
    return required


def _index_entries(
    tenant: int, parts: Mapping[str, object]
) -> Iterator[tuple[IndexKind, str, dict[str, JSON], str]]:
    code, name = _meta_field(parts, "code"), _meta_field(parts, "name")
    primary = parts.get("domain/primary")
    for path in parts:
        if kind_of(path) == "ftp":
            yield "ftp-user", name_of(path), {"tenantId": tenant, "code": code, "name": name}, path
    for path in DOMAIN:
        value = parts.get(path)
        kind = "internal" if path == "domain/internal" else "frontend"
        for host in value if isinstance(value, list) else [value]:
            if isinstance(host, str) and host:
                yield "host", host, {"tenantId": tenant, "code": code, "hostType": kind}, path
    if code:
        yield "by-code", code, {"id": tenant, "code": code, "name": name}, "meta"
    if name:
        domain = primary if isinstance(primary, str) else ""
        yield "by-name", name, {"id": tenant, "code": code, "primaryDomain": domain}, "meta"


def _meta_field(parts: Mapping[str, object], field: str) -> str:
    meta = parts.get("meta")
    value = meta.get(field) if isinstance(meta, dict) else None
    return value if isinstance(value, str) else ""


def unclear_kinds(parts: Parts) -> frozenset[IndexKind]:
    """The kinds of claims that unreadable parts may have."""
    kinds: set[IndexKind] = set()
    if isinstance(parts.get("meta"), UnreadablePart):
        kinds |= {"by-code", "by-name"}
    if any(isinstance(parts.get(path), UnreadablePart) for path in DOMAIN):
        kinds.add("host")
    return frozenset(kinds)


def normalized_key(keys: TenantKeys, key: bytes) -> bytes:
    """The key of an index entry, in lower case if the index is case-insensitive."""
    if key.isascii() and key == key.lower():
        return key  # the common case
    if keys.index_kind(key) in CASE_INSENSITIVE:
        return key.decode().lower().encode()
    return key


def holder(value: bytes) -> int:
    """The tenant in the value of an index entry; 0 if the value names none."""
    entry = json_object(value)
    id = entry.get("tenantId") or entry.get("id")
    return id if isinstance(id, int) and is_id(str(id)) else 0


class StoredParts(msgspec.Struct, frozen=True):
    """The parts of a tenant as read from the store."""

    parts: dict[str, JSON | UnreadablePart]
    revisions: dict[str, int]
    unknown_keys: tuple[bytes, ...] = ()
    """Keys below the tenant's that are not parts."""
    resent: Resent = NOTHING_RESENT

    def __repr__(self) -> str:
        return f"<{', '.join(self.parts) or 'nothing'}>"

    @property
    def revision(self) -> str:
        """Identifies this state. It depends on when each part was written and not on its value, so
        that it does not help to guess a secret."""
        revisions = "\n".join(f"{path} {number}" for path, number in sorted(self.revisions.items()))
        return hashlib.blake2b(revisions.encode(), digest_size=8).hexdigest()

    def may_claim(self, keys: TenantKeys, tenant: int, claim: Claim) -> bool:
        """Whether this tenant has, or because of an unreadable part may have, a claim of another
        tenant."""
        own = {normalized_key(keys, name) for name in claims(keys, tenant, self.parts)}
        return claim.kind in unclear_kinds(self.parts) or normalized_key(keys, claim.key) in own


def stored_parts(
    keys: TenantKeys, owner: Owner, entries: Iterable[Entry], resent: Resent = NOTHING_RESENT
) -> StoredParts:
    parts: dict[str, JSON | UnreadablePart] = {}
    revisions: dict[str, int] = {}
    unknown_keys = []
    for entry in entries:
        path = keys.path_of(owner, entry.key)
        if path is None:
            unknown_keys.append(entry.key)
            continue
        revisions[path] = entry.modified
        try:
            value = decode(path, entry.value)
        except UnreadableValue:
            value = None
        parts[path] = UnreadablePart(entry.value) if value is None else value
    return StoredParts(parts, revisions, tuple(unknown_keys), resent)


async def read_parts(store: Store, keys: TenantKeys, owner: Owner) -> StoredParts:
    return stored_parts(keys, owner, (await store.read(keys.parts(owner))).entries)


async def read_in_slices(store: Store, range: Range) -> AsyncGenerator[list[Entry], None]:
    """The entries of a range, with a pause after each slice. Pages may have different
    revisions."""
    while True:
        page = await store.read(range, limit=_PAGE)
        for piece in slices(page.entries):
            yield piece
            await asyncio.sleep(0)
        if not page.more:
            return
        range = Range(page.entries[-1].key + b"\0", range.end)


class PartDiff(msgspec.Struct, frozen=True):
    """One part that differs between two states; None: the part does not exist."""

    path: str
    before: JSON | UnreadablePart
    after: JSON | UnreadablePart
    resent: tuple[str, ...] = ()
    """Secret fields that count as changed: see `Resent`."""

    def __repr__(self) -> str:
        return f"<difference of {self.path}>"  # without the values, which may hold secrets

    @property
    def size(self) -> int:
        """An upper bound of the bytes that the history needs for it."""
        before = 0 if self.oversized else _size(self.path, self.before)
        return before + _size(self.path, self.after) + len(self.path) + _SEAL

    @property
    def oversized(self) -> bool:
        """Whether the former value is too large for the history. Recording it would make it
        impossible to remove."""
        return _size(self.path, self.before) > COMMIT_BYTES // 2


def _size(path: str, value: JSON | UnreadablePart) -> int:
    """An upper bound of the bytes of a value in the history, where its secrets are encrypted."""
    if isinstance(value, UnreadablePart):
        return 2 * len(value.raw) + _SEAL
    sealing = sum(
        _SEAL + len(msgspec.json.encode(inner))
        for names, inner in walk({field_of(path): value})
        if names and is_secret(names[-1])
    )
    return len(msgspec.json.encode(value)) + sealing


def diff_parts(before: Parts, after: Parts, resent: Resent = NOTHING_RESENT) -> list[PartDiff]:
    paths = sorted(before.keys() | after.keys(), key=part_order)
    sent = {path: tuple(fields) for path, fields in resent.items() if path in before}
    return [
        PartDiff(path, before.get(path), after.get(path), sent.get(path, ()))
        for path in paths
        if not _equal(before.get(path), after.get(path)) or (path in sent and path in after)
    ]


def _equal(one: JSON | UnreadablePart, other: JSON | UnreadablePart) -> bool:
    """Whether two values are stored alike: true is not 1."""
    if isinstance(one, UnreadablePart) or isinstance(other, UnreadablePart):
        return one == other
    first, second = (msgspec.json.encode(value, order="deterministic") for value in (one, other))
    return one == other and first == second


def part_order(path: str) -> tuple[bool, bool, str]:
    """Sorts meta first, then domains."""
    return path != "meta", kind_of(path) != "domain", path
