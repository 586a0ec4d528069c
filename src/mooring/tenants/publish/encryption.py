"""Whether the passwords below a namespace are encrypted, so that none is added in clear text.

A marker beside the tenants says so, with the id of the key. A publisher that writes an encrypted
password leaves it there. Without a marker, a publish in clear text looks through all tenants for
encrypted passwords of other programs, and marks what it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from mooring.errors import Conflict, InvalidRequest, TenantError, TooLarge, Undecipherable
from mooring.store.contract import Check, Entry, Put, Store, Write, key, unchanged
from mooring.tenants import history as chronicle
from mooring.tenants.cooperative import read_in_slices
from mooring.tenants.keys import AREAS, Owner, TenantKeys, kind_of, named
from mooring.tenants.parts import NOTHING_RESENT, Parts, Resent
from mooring.tenants.publish.merge import resealed
from mooring.tenants.secrets import CURRENT, Keyring

_SEALED = re.compile(rb'"passwordEncrypted"\s*:\s*"[^"]')


class EncryptionMarker(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    key_id: str = ""
    """The key of the encrypted passwords; empty: unknown."""


class SealedPassword(NamedTuple):
    """An encrypted password, as it stands in a database of a tenant."""

    text: str
    key_id: str


class PasswordPlan(NamedTuple):
    """What a publish does to passwords, and what goes with it."""

    clear: tuple[str, ...] = ()
    """The parts whose new password is in clear text."""
    writes: tuple[Write, ...] = ()
    checks: tuple[Check, ...] = ()


class EncryptionSearch:
    """Searches all tenants for an encrypted password. Calls at the same time share a search: it
    counts for a call if it began after it."""

    def __init__(self, store: Store, keys: TenantKeys) -> None:
        self.store, self.keys = store, keys
        self._turn = asyncio.Lock()
        self._begun = self._done = 0
        self._found: EncryptionMarker | None = None

    async def key_in_use(self) -> EncryptionMarker | None:
        """The key of the first encrypted password; None if there is none."""
        called = self._begun
        async with self._turn:
            if self._done <= called:
                self._begun += 1
                self._found = await self._first()
                self._done = self._begun
            return self._found

    async def _first(self) -> EncryptionMarker | None:
        async with contextlib.aclosing(_encrypted(self.store, self.keys)) as found:
            async for first in found:
                return EncryptionMarker(first.key_id)
        return None


async def plan_passwords(
    search: EncryptionSearch,
    ring: Keyring,
    tenant: Owner,
    before: Parts,
    after: Parts,
    *,
    refuse: bool = True,
    resent: Resent = NOTHING_RESENT,
    dry: bool = False,
) -> PasswordPlan:
    """Raises `InvalidRequest` if a password would be added in clear text while others are
    encrypted, or under the key of another application. `refuse=False`: clear text is allowed.
    `resent`: these count as added, so that the answer is the same for a right and a wrong guess.
    `dry`: nothing is written."""
    clear = tuple(path for path in after if _added(path, before, after, "password", resent))
    sealed = [path for path in after if _added(path, before, after, "passwordEncrypted")]
    if not clear and not sealed:
        return PasswordPlan()
    store, keys = search.store, search.keys
    entry = (await store.read(key(keys.encryption))).first
    at = 0 if entry is None else entry.modified
    there = known = None if entry is None else _marker(entry.value)
    ours = {str(_fields(after, path).get("passwordKeyId") or "") for path in sealed}
    problem = ""
    if clear and refuse:
        known = there or await search.key_in_use()
        if known is None and sealed:
            problem = (
                f"{clear[0]}.password would be stored in clear text, but that of {sealed[0]} is "
                f"encrypted: set {CURRENT[0]}{ring.remark}"
            )
        if known is not None:
            which = f" with the key {known.key_id}" if known.key_id else ""
            problem = (
                f"{clear[0]}.password would be stored in clear text, but {keys.namespace} has or "
                f"had passwords that are encrypted{which}: set {CURRENT[0]}{ring.remark}, or "
                f"delete {keys.encryption.decode()} if none is left"
            )
    if ring.borrowed and ring.current in ours and not problem:
        foreign = await _foreign_key(store, keys, ring, known)
        if foreign is not None:
            known = foreign
            which = f"the key {known.key_id}" if known.key_id else "a key that is not known here"
            problem = (
                f"passwords are encrypted with {which}, and {CURRENT[1]} holds the key "
                f"{ring.current}, which may belong to another application: set {CURRENT[0]}"
            )
    if sealed and not problem and (known is None or ring.current in ours):
        known = EncryptionMarker(ring.current if ring.current in ours else next(iter(ours)))
    new = known is not None and known != there
    writes = (Put(keys.encryption, msgspec.json.encode(known)),) if new else ()
    checks = (unchanged(keys.encryption, at),) if clear or new else ()
    if problem:
        if new and not dry:
            with contextlib.suppress(Conflict):  # another publisher marked it
                await store.commit(*writes, require=checks)
        raise InvalidRequest(f"{named(tenant)}: {problem}")
    return PasswordPlan(clear, writes, checks)


async def _foreign_key(
    store: Store, keys: TenantKeys, ring: Keyring, known: EncryptionMarker | None
) -> EncryptionMarker | None:
    """The key in use, if passwords are encrypted and none of our keys opens one."""
    if known is not None and known.key_id:
        return None if known.key_id in ring else known
    foreign = None
    async with contextlib.aclosing(_encrypted(store, keys)) as found:
        async for each in found:
            with contextlib.suppress(Undecipherable):
                ring.unseal(each.text, each.key_id)
                return None
            foreign = foreign or EncryptionMarker(each.key_id)
    return foreign


async def _encrypted(store: Store, keys: TenantKeys) -> AsyncGenerator[SealedPassword, None]:
    """The encrypted passwords of all tenants."""
    async with contextlib.aclosing(read_in_slices(store, keys.all)) as pieces:
        async for entries in pieces:
            for sealed in _sealed(entries):
                yield sealed


def _sealed(entries: Iterable[Entry]) -> Iterator[SealedPassword]:
    for entry in entries:
        if _SEALED.search(entry.value):
            try:
                value = msgspec.json.decode(entry.value)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            fields = value if isinstance(value, dict) else {}
            if text := fields.get("passwordEncrypted"):
                yield SealedPassword(str(text), str(fields.get("passwordKeyId") or ""))


def _fields(parts: Parts, path: str) -> dict[str, object]:
    value = parts.get(path)
    return dict(value) if isinstance(value, dict) else {}


def _added(
    path: str, before: Parts, after: Parts, field: str, resent: Resent = NOTHING_RESENT
) -> bool:
    if kind_of(path) != "database":
        return False
    value = _fields(after, path).get(field)
    changed = field in resent.get(path, ()) or _fields(before, path).get(field) != value
    return bool(value) and changed


def _marker(raw: bytes) -> EncryptionMarker:
    try:
        return msgspec.json.decode(raw, type=EncryptionMarker)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return EncryptionMarker()


Progress = Callable[[int, int], None]
Publish = Callable[[Owner, Callable[[Parts], Parts]], Awaitable[bool]]
"""Publishes what the function returns for the stored parts; whether anything changed."""


class RekeyResult(msgspec.Struct, frozen=True):
    tenants: int
    """How many were changed."""
    entries: int
    """How many entries of histories were."""
    problems: tuple[str, ...]
    """What could not be decrypted, and stays as it is."""


async def rekey(
    store: Store, keys: TenantKeys, ring: Keyring, publish: Publish, progress: Progress
) -> RekeyResult:
    """One tenant after another; one that cannot be changed does not hold up the others."""
    ids = await _owners(store, keys)
    tenants = entries = 0
    problems: list[str] = []
    for done, tenant in enumerate(ids):
        progress(done, len(ids))
        try:
            tenants += await publish(
                tenant,
                lambda there, tenant=tenant: _resealed(tenant, there, ring, problems),  # type: ignore[misc]
            )
        except (TenantError, TooLarge) as error:
            problems.append(str(error))
        entries += await _history(store, keys, ring, tenant, problems)
    progress(len(ids), len(ids))
    return RekeyResult(tenants, entries, tuple(dict.fromkeys(problems)))


def _resealed(tenant: Owner, there: Parts, ring: Keyring, problems: list[str]) -> Parts:
    wanted = dict(there)
    for path, value in there.items():
        try:
            wanted[path] = resealed(path, value, ring) or value
        except Undecipherable as error:
            problems.append(f"{named(tenant)}: {path}: {error}")
    return wanted


async def _history(
    store: Store, keys: TenantKeys, ring: Keyring, tenant: Owner, problems: list[str]
) -> int:
    """Entry by entry; one that was trimmed meanwhile is no loss."""
    count = 0
    for entry in (await store.read(keys.history_of(tenant))).entries:
        if not (number := keys.history_number(entry.key)):
            continue
        about = f"{named(tenant)}: entry {number} of its history"
        fresh = chronicle.resealed(
            chronicle.decode_entry(entry),
            ring,
            lambda problem, about=about: problems.append(f"{about}: {problem}"),  # type: ignore[misc]
        )
        if fresh is not None:
            with contextlib.suppress(Conflict):
                await store.commit(
                    Put(entry.key, msgspec.json.encode(fresh)),
                    require=[unchanged(entry.key, entry.modified)],
                )
                count += 1
    return count


async def _owners(store: Store, keys: TenantKeys) -> list[Owner]:
    """Those that have parts or a history: tenants, and what they share."""
    found = await asyncio.gather(
        store.read(keys.all, keys_only=True), store.read(keys.histories, keys_only=True)
    )
    names = [entry.key for each in found for entry in each.entries]
    shared = [
        area
        for area in AREAS
        if any(name.startswith(keys.history_of(area).start) for name in names)
    ]
    return [*sorted({id for name in names if (id := keys.tenant(name))}), *shared]
