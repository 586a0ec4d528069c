"""Who holds what, and who waits: for people."""

from __future__ import annotations

import msgspec

from mooring.errors import Conflict
from mooring.locks.ordering import (
    FOREIGN,
    ContenderValue,
    QueueOrder,
    decode_value,
    encode_value,
    rule_of,
)
from mooring.store.contract import Delete, Entry, Store, created_at, everything, key, prefix


class Contender(msgspec.Struct, frozen=True):
    """One who holds a lock or waits for it."""

    key: bytes
    token: int
    lease: int
    kind: str
    """`lock`, `read`, `place`, `party`; empty for somebody else's: etcdctl, an election."""
    by: str
    """Who it is, `host:pid`, where it says so."""
    value: bytes
    """What an election's candidate says of itself."""


class LockInfo(msgspec.Struct, frozen=True):
    """A lock with its holders and those who wait, in their order."""

    name: str
    holders: tuple[Contender, ...]
    waiting: tuple[Contender, ...]


async def locks(store: Store, start: str = "") -> list[LockInfo]:
    """The locks whose names start so. A key is a contender's if its last part is its own lease."""
    first = start.encode()
    range = prefix(first) if first else everything()
    lines: dict[bytes, list[Entry]] = {}
    for entry in (await store.read(range)).entries:
        name, slash, lease = entry.key.rpartition(b"/")
        if slash and name.startswith(first) and lease == b"%x" % entry.lease and entry.lease:
            lines.setdefault(name, []).append(entry)
    return [_info(name, entries) for name, entries in sorted(lines.items())]


def _info(name: bytes, entries: list[Entry]) -> LockInfo:
    order = QueueOrder(name + b"/", entries)
    holders: list[Contender] = []
    waiting: list[Contender] = []
    for entry in order:
        card = _ours(entry)
        admitted = rule_of(card).admits(order, (entry.created, entry.key))
        (holders if admitted else waiting).append(_contender(entry, card))
    return LockInfo(name.decode(errors="backslashreplace"), tuple(holders), tuple(waiting))


def _ours(entry: Entry) -> ContenderValue:
    """The card of a contender. One that is not written as ours are is what a candidate of an
    election says of itself, whatever it looks like."""
    card = decode_value(entry.value)
    return card if card.by and encode_value(card) == entry.value else FOREIGN


def _contender(entry: Entry, card: ContenderValue) -> Contender:
    value = b"" if card.kind else entry.value
    return Contender(entry.key, entry.created, entry.lease, card.kind, card.by, value)


async def look(store: Store, name: str) -> LockInfo | None:
    """One lock, by its whole name; None where nobody contends for it."""
    return next((each for each in await locks(store, name) if each.name == name), None)


async def release(store: Store, name: str, lease: int, *, token: int = 0) -> Contender | None:
    """Take a lock from the holder with this lease, and with a `token` only if it is that very one;
    who it was. None where nobody holds it so: nothing was changed then."""
    while True:
        found = await look(store, name)
        for holder in () if found is None else found.holders:
            if holder.lease == lease and token in (0, holder.token):
                break
        else:
            return None
        try:
            await store.commit(
                Delete(key(holder.key)), require=[created_at(holder.key, holder.token)]
            )
            return holder
        except Conflict:
            continue  # it left, and may have come back
