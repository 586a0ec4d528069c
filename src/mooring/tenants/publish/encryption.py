"""Encryption of the passwords below a namespace: prevents that one is added in clear text once
others are encrypted, and changes the key of all.

A marker beside the tenants has the id of the key in use. A publisher that writes an encrypted
password writes the marker. If there is no marker, a publish in clear text searches all tenants for
encrypted passwords of other programs, and marks the key that it finds.
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
from mooring.tenants import history
from mooring.tenants.keys import AREAS, Owner, TenantKeys, kind_of, named
from mooring.tenants.parts import NOTHING_RESENT, Parts, Resent, read_in_slices
from mooring.tenants.publish.merge import resealed
from mooring.tenants.secrets import CURRENT, Keyring

_ENCRYPTED = re.compile(rb'"passwordEncrypted"\s*:\s*"[^"]')


class EncryptionMarker(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    key_id: str = ""
    """The key of the encrypted passwords; empty: unknown."""


class SealedPassword(NamedTuple):
    """An encrypted password in a stored database."""

    text: str
    key_id: str


class PasswordPlan(NamedTuple):
    """What a publish does to passwords, and the writes and checks that it requires."""

    clear: tuple[str, ...] = ()
    """The parts whose new password is in clear text."""
    writes: tuple[Write, ...] = ()
    checks: tuple[Check, ...] = ()


class PasswordPlanner:
    """Plans the passwords of publishes below one namespace."""

    def __init__(self, store: Store, keys: TenantKeys, ring: Keyring) -> None:
        self._store, self._keys, self._ring = store, keys, ring
        self._lock = asyncio.Lock()
        self._begun = self._done = 0
        self._marker: EncryptionMarker | None = None

    async def plan(
        self,
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
        `resent`: these count as added, so that a right and a wrong guess get the same answer.
        `dry`: nothing is written."""
        clear = tuple(path for path in after if _added(path, before, after, "password", resent))
        sealed = [path for path in after if _added(path, before, after, "passwordEncrypted")]
        if not clear and not sealed:
            return PasswordPlan()
        store, keys, ring = self._store, self._keys, self._ring
        entry = (await store.read(key(keys.encryption))).first
        revision = 0 if entry is None else entry.modified
        stored = marker = None if entry is None else _decode_marker(entry.value)
        own_keys = {str(_fields(after, path).get("passwordKeyId") or "") for path in sealed}
        problem = ""
        if clear and refuse:
            marker = stored or await self.key_in_use()
            plain = f"{clear[0]}.password would be stored in clear text"
            if marker is None and sealed:
                problem = (
                    f"{plain}, but that of {sealed[0]} is encrypted: set {CURRENT[0]}{ring.remark}"
                )
            if marker is not None:
                which = f" with the key {marker.key_id}" if marker.key_id else ""
                problem = (
                    f"{plain}, but {keys.namespace} has or had passwords that are encrypted"
                    f"{which}: set {CURRENT[0]}{ring.remark}, or "
                    f"delete {keys.encryption.decode()} if none is left"
                )
        if ring.borrowed and ring.current in own_keys and not problem:
            foreign = await _foreign_key(store, keys, ring, marker)
            if foreign is not None:
                marker = foreign
                which = f"the key {marker.key_id}" if marker.key_id else "an unknown key"
                problem = (
                    f"passwords are encrypted with {which}, and {CURRENT[1]} holds the key "
                    f"{ring.current}, which may belong to another application: set {CURRENT[0]}"
                )
        if sealed and not problem and (marker is None or ring.current in own_keys):
            marker = EncryptionMarker(ring.current if ring.current in own_keys else min(own_keys))
        new = marker is not None and marker != stored
        writes = (Put(keys.encryption, msgspec.json.encode(marker)),) if new else ()
        checks = (unchanged(keys.encryption, revision),) if clear or new else ()
        if problem:
            if new and not dry:
                with contextlib.suppress(Conflict):  # another publisher wrote the marker
                    await store.commit(*writes, require=checks)
            raise InvalidRequest(f"{named(tenant)}: {problem}")
        return PasswordPlan(clear, writes, checks)

    async def key_in_use(self) -> EncryptionMarker | None:
        """The key of the first encrypted password of any tenant; None if there is none. Concurrent
        calls share a search if it began after the call."""
        called = self._begun
        async with self._lock:
            if self._done <= called:
                self._begun += 1
                self._marker = await self._first()
                self._done = self._begun
            return self._marker

    async def _first(self) -> EncryptionMarker | None:
        async with contextlib.aclosing(_sealed_passwords(self._store, self._keys)) as passwords:
            async for password in passwords:
                return EncryptionMarker(password.key_id)
        return None


async def _foreign_key(
    store: Store, keys: TenantKeys, ring: Keyring, marker: EncryptionMarker | None
) -> EncryptionMarker | None:
    """The key in use, if passwords are encrypted and none of our keys opens one."""
    if marker is not None and marker.key_id:
        return None if marker.key_id in ring else marker
    foreign = None
    async with contextlib.aclosing(_sealed_passwords(store, keys)) as passwords:
        async for password in passwords:
            with contextlib.suppress(Undecipherable):
                ring.unseal(password.text, password.key_id)
                return None
            foreign = foreign or EncryptionMarker(password.key_id)
    return foreign


async def _sealed_passwords(store: Store, keys: TenantKeys) -> AsyncGenerator[SealedPassword, None]:
    """The encrypted passwords of all tenants."""
    async with contextlib.aclosing(read_in_slices(store, keys.all)) as pieces:
        async for entries in pieces:
            for password in _sealed_in(entries):
                yield password


def _sealed_in(entries: Iterable[Entry]) -> Iterator[SealedPassword]:
    for entry in entries:
        if _ENCRYPTED.search(entry.value):
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


def _decode_marker(raw: bytes) -> EncryptionMarker:
    try:
        return msgspec.json.decode(raw, type=EncryptionMarker)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return EncryptionMarker()


Progress = Callable[[int, int], None]
Publish = Callable[[Owner, Callable[[Parts], Parts]], Awaitable[bool]]
"""Publishes what the function returns for the stored parts; whether anything changed."""


class RekeyResult(msgspec.Struct, frozen=True):
    tenants: int
    """How many tenants changed."""
    entries: int
    """How many history entries changed."""
    problems: tuple[str, ...]
    """What could not be decrypted, and was left unchanged."""


async def rekey(
    store: Store, keys: TenantKeys, ring: Keyring, publish: Publish, progress: Progress
) -> RekeyResult:
    """Encrypt the passwords of all tenants and their histories with the current key, one tenant
    after another. A tenant that cannot be changed does not stop the others."""
    owners = await _owners(store, keys)
    tenants = entries = 0
    problems: list[str] = []
    for done, owner in enumerate(owners):
        progress(done, len(owners))
        try:
            tenants += await publish(
                owner,
                lambda stored, owner=owner: _rekeyed(owner, stored, ring, problems),  # type: ignore[misc]
            )
        except (TenantError, TooLarge) as error:
            problems.append(str(error))
        entries += await _rekey_history(store, keys, ring, owner, problems)
    progress(len(owners), len(owners))
    return RekeyResult(tenants, entries, tuple(dict.fromkeys(problems)))


def _rekeyed(owner: Owner, stored: Parts, ring: Keyring, problems: list[str]) -> Parts:
    target = dict(stored)
    for path, value in stored.items():
        try:
            target[path] = resealed(path, value, ring) or value
        except Undecipherable as error:
            problems.append(f"{named(owner)}: {path}: {error}")
    return target


async def _rekey_history(
    store: Store, keys: TenantKeys, ring: Keyring, owner: Owner, problems: list[str]
) -> int:
    """How many entries changed. An entry that is trimmed meanwhile is skipped."""
    count = 0
    for entry in (await store.read(keys.history_of(owner))).entries:
        if not (number := keys.history_number(entry.key)):
            continue
        about = f"{named(owner)}: entry {number} of its history"
        fresh = history.resealed(
            history.decode_entry(entry),
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
    """The tenants and areas that have parts or a history."""
    parts, histories = await asyncio.gather(
        store.read(keys.all, keys_only=True), store.read(keys.histories, keys_only=True)
    )
    names = [entry.key for entry in (*parts.entries, *histories.entries)]
    areas = [
        area
        for area in AREAS
        if any(name.startswith(keys.history_of(area).start) for name in names)
    ]
    return [*sorted({id for name in names if (id := keys.tenant(name))}), *areas]
