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
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec

from mooring.errors import Conflict, InvalidRequest, TenantError, TooLarge, Undecipherable
from mooring.messages import Message, message
from mooring.model import JSON
from mooring.store.contract import Check, Put, Store, Write, key, unchanged
from mooring.tasks import Progress
from mooring.tenants import history
from mooring.tenants.keys import AREAS, Owner, TenantKeys, kind_of, named
from mooring.tenants.model import json_object
from mooring.tenants.parts import NOTHING_RESENT, Parts, Resent, read_in_slices
from mooring.tenants.publish.merge import resealed
from mooring.tenants.secrets import CURRENT, Keyring

_ENCRYPTED = re.compile(rb'"passwordEncrypted"\s*:\s*"[^"]')


KeyInUse: TypeAlias = str | None
"""The id of the key of the encrypted passwords, empty if it is unknown; None: none is encrypted."""


class AddedPasswords(NamedTuple):
    """The new passwords in a publish."""

    clear: list[str]
    """The parts whose new password is in clear text."""
    sealed: dict[str, str]
    """The keys of the encrypted ones, by part."""


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
        self._key: KeyInUse = None

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
        added = _added_passwords(before, after, resent)
        if not any(added):
            return PasswordPlan()
        name = self._keys.encryption
        entry = (await self._store.read(key(name))).first
        stored = None
        if entry is not None:
            stored = str(json_object(entry.value).get("keyId") or "")
        marker, problem = await self._check(added, stored, refuse=refuse)
        new = marker != stored
        fields = {"keyId": marker} if marker else {}
        writes = (Put(name, msgspec.json.encode(fields)),) if new else ()
        revision = 0 if entry is None else entry.modified
        checks = (unchanged(name, revision),) if added.clear or new else ()
        if problem:
            if new and not dry:
                with contextlib.suppress(Conflict):  # another publisher wrote the marker
                    await self._store.commit(*writes, require=checks)
            raise InvalidRequest(message("of_owner", owner=named(tenant), problem=problem))
        return PasswordPlan(tuple(added.clear), writes, checks)

    async def _check(
        self, added: AddedPasswords, stored: KeyInUse, *, refuse: bool
    ) -> tuple[KeyInUse, Message | None]:
        """The marker to store, and the problem with the added passwords, if any."""
        marker, ring = stored, self._ring
        if added.clear and refuse:
            marker = await self.key_in_use() if stored is None else stored
            problem = self._clear_text_problem(added, marker)
            if problem is not None:
                return marker, problem
        own = ring.current in added.sealed.values()
        if ring.borrowed and own:
            foreign = await self._foreign_key(marker)
            if foreign is not None:
                return foreign, message(
                    "password_key_foreign",
                    key=foreign,
                    own=ring.current,
                    common=CURRENT[1],
                    variable=CURRENT[0],
                )
        if added.sealed and (marker is None or own):
            marker = ring.current if own else min(added.sealed.values())
        return marker, None

    async def key_in_use(self) -> KeyInUse:
        """The key of the first encrypted password of any tenant. Concurrent calls share a search if
        it began after the call."""
        called = self._begun
        async with self._lock:
            if self._done <= called:
                self._begun += 1
                self._key = await self._first()
                self._done = self._begun
            return self._key

    async def _first(self) -> KeyInUse:
        async with contextlib.aclosing(self._sealed_passwords()) as passwords:
            async for _, key_id in passwords:
                return key_id
        return None

    def _clear_text_problem(self, added: AddedPasswords, marker: KeyInUse) -> Message | None:
        """Why passwords in clear text cannot be added."""
        if marker is not None:
            return message(
                "password_in_clear",
                path=added.clear[0],
                namespace=self._keys.namespace,
                key=marker,
                remedy=self._ring.remedy,
                marker=self._keys.encryption,
            )
        if added.sealed:
            remedy, sealed = self._ring.remedy, next(iter(added.sealed))
            return message(
                "password_beside_sealed", path=added.clear[0], sealed=sealed, remedy=remedy
            )
        return None

    async def _foreign_key(self, marker: KeyInUse) -> KeyInUse:
        """The key in use, if passwords are encrypted and none of our keys opens one."""
        if marker:
            return None if marker in self._ring else marker
        foreign = None
        async with contextlib.aclosing(self._sealed_passwords()) as passwords:
            async for sealed, key_id in passwords:
                with contextlib.suppress(Undecipherable):
                    self._ring.unseal(sealed, key_id)
                    return None
                foreign = key_id if foreign is None else foreign
        return foreign

    async def _sealed_passwords(self) -> AsyncGenerator[tuple[str, str], None]:
        """The encrypted passwords of all tenants, each with the id of its key."""
        async with contextlib.aclosing(read_in_slices(self._store, self._keys.all)) as pieces:
            async for entries in pieces:
                for entry in entries:
                    fields = json_object(entry.value) if _ENCRYPTED.search(entry.value) else {}
                    if sealed := fields.get("passwordEncrypted"):
                        yield str(sealed), str(fields.get("passwordKeyId") or "")


def _added_passwords(before: Parts, after: Parts, resent: Resent) -> AddedPasswords:
    clear: list[str] = []
    sealed: dict[str, str] = {}
    for path, value in after.items():
        if kind_of(path) != "database" or not isinstance(value, dict):
            continue
        stored = before.get(path)
        if _is_added("password", value, stored, resent.get(path, ())):
            clear.append(path)
        if _is_added("passwordEncrypted", value, stored):
            sealed[path] = str(value.get("passwordKeyId") or "")
    return AddedPasswords(clear, sealed)


def _is_added(
    field: str, value: Mapping[str, JSON], stored: object, resent: Sequence[str] = ()
) -> bool:
    former = stored.get(field) if isinstance(stored, dict) else None
    return bool(value.get(field)) and (field in resent or value[field] != former)


Publish = Callable[[Owner, Callable[[Parts], Parts]], Awaitable[bool]]
"""Publishes what the function returns for the stored parts; whether anything changed."""


class RekeyResult(msgspec.Struct, frozen=True):
    """The effects of `Publisher.rekey`."""

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
            tenants += await publish(owner, partial(_rekeyed, owner, ring, problems))
        except (TenantError, TooLarge) as error:
            problems.append(str(error))
        entries += await _rekey_history(store, keys, ring, owner, problems)
    progress(len(owners), len(owners))
    return RekeyResult(tenants, entries, tuple(dict.fromkeys(problems)))


def _rekeyed(owner: Owner, ring: Keyring, problems: list[str], stored: Parts) -> Parts:
    target = dict(stored)
    for path, value in stored.items():
        try:
            target[path] = resealed(path, value, ring)
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
        fresh, own_problems = history.resealed(history.decode_entry(entry), ring)
        about = f"{named(owner)}: entry {number} of its history"
        problems += [f"{about}: {problem}" for problem in own_problems]
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
