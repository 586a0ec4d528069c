"""What concerns all tenants, written: how requests name them, where their files lie, what the
platform is told; and the sign of life of publishers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from mooring.errors import Conflict, NotConfigured, OutcomeUnknown, StoreError
from mooring.model import JSON
from mooring.store.contract import Delete, Entry, Put, Store, Write, key, unchanged
from mooring.tasks import Backoff
from mooring.tenants.keys import PLATFORM, SENTINEL, Keys, joined
from mooring.tenants.rules import EXTRA, FIELDS, checked_common
from mooring.tenants.scribe import sign_of_life
from mooring.tenants.values import Unreadable, decode, encode

_TRIES = 200  # lost races in a row, each of which somebody else won


class Settings:
    """Writes what concerns all tenants below one namespace of a store."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store, self._keys = store, keys

    async def put(self, path: str, value: JSON) -> None:
        name, path = self._keys.common_part(path), joined(path)
        fields = checked_common(path, value)
        gone = _taken_out(path, value)

        def wanted(there: Entry | None) -> bytes:
            return encode(path, _with_foreign(path, there.value if there else b"", fields, gone))

        async def write(there: Entry | None) -> None:
            await self._commit(there, name, Put(name, wanted(there)), sign_of_life(self._keys))

        def is_so(there: Entry | None) -> bool:
            return there is not None and there.value == wanted(there)

        await self._settle(name, path, write, is_so)

    async def remove(self, path: str) -> None:
        sentinel = joined(path) == SENTINEL
        name = self._keys.sentinel if sentinel else self._keys.common_part(path)
        alive: Sequence[Write] = () if sentinel else [sign_of_life(self._keys)]

        async def write(there: Entry | None) -> None:
            if there is None:
                raise NotConfigured(f"there is no {joined(path)}")
            await self._commit(there, name, Delete(key(name)), *alive)

        await self._settle(name, joined(path), write, lambda there: there is None)

    async def _commit(self, there: Entry | None, name: bytes, *writes: Write) -> None:
        check = unchanged(name, there.modified if there else 0)
        await self._store.commit(*writes, require=[check])

    async def _settle(
        self,
        name: bytes,
        path: str,
        write: Callable[[Entry | None], Awaitable[None]],
        is_so: Callable[[Entry | None], bool],
    ) -> None:
        """Write over what is there, until nobody else was first and the answer is known."""
        backoff = Backoff()
        lost: OutcomeUnknown | None = None
        at = 0
        for _ in range(_TRIES):
            try:
                there = (await self._store.read(key(name))).first
            except StoreError as error:
                if lost is not None:
                    raise OutcomeUnknown(f"{path} may have been written: {error}") from lost
                raise
            if lost is not None and is_so(there):
                return
            found_at = there.modified if there else 0
            if lost is not None and found_at != at:
                raise lost  # somebody wrote it after us, or before
            at = found_at
            try:
                await write(there)
                return
            except Conflict:
                await asyncio.sleep(backoff.next())
            except OutcomeUnknown as error:
                lost = error
        raise Conflict(
            f"{path} was not written: others changed it {_TRIES} times meanwhile; try again",
            revision=0,
        )


def _taken_out(path: str, value: JSON) -> frozenset[str]:
    """Fields that are not known here and shall go."""
    extra = value.get(EXTRA) if isinstance(value, dict) and not path.startswith(PLATFORM) else None
    told = extra.items() if isinstance(extra, dict) else ()
    return frozenset(name for name, inner in told if inner is None)


def _with_foreign(path: str, there: bytes, fields: JSON, gone: frozenset[str]) -> JSON:
    """With the fields that are not known here, as they are in the store."""
    if path.startswith(PLATFORM) or not isinstance(fields, dict):
        return fields
    try:
        held = decode(path, there) if there else {}
    except Unreadable:
        held = {}
    assert isinstance(held, dict)
    foreign = {name: inner for name, inner in held.items() if name not in FIELDS[path]}
    return {name: inner for name, inner in (foreign | fields).items() if name not in gone}
