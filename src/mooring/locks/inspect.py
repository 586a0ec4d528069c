"""Lists locks with their holders and waiters, and releases locks for operators."""

from __future__ import annotations

import msgspec

from mooring.errors import Conflict
from mooring.locks.admission_rules import (
    FOREIGN,
    ContenderValue,
    QueueOrder,
    decode_value,
    encode_value,
    rule_of,
)
from mooring.store.contract import Delete, Entry, Store, created_at, everything, key, prefix


class Contender(msgspec.Struct, frozen=True):
    """A holder or waiter of a lock."""

    key: bytes
    token: int
    lease: int
    kind: str
    """`lock`, `read`, `place`, `party`; empty for etcdctl and for elections."""
    by: str
    """The contender, `host:pid`; empty if unknown."""
    value: bytes
    """The value of a candidate of an election."""


class LockInfo(msgspec.Struct, frozen=True):
    """A lock with its holders and waiters, in the order of the queue."""

    name: str
    holders: tuple[Contender, ...]
    waiting: tuple[Contender, ...]


async def locks(store: Store, start: str = "") -> list[LockInfo]:
    """The locks whose names start with `start`: keys whose last part is their own lease."""
    first = start.encode()
    range = prefix(first) if first else everything()
    queues: dict[bytes, list[Entry]] = {}
    for entry in (await store.read(range)).entries:
        name, slash, lease = entry.key.rpartition(b"/")
        if slash and name.startswith(first) and lease == b"%x" % entry.lease and entry.lease:
            queues.setdefault(name, []).append(entry)
    return [_info(name, entries) for name, entries in sorted(queues.items())]


def _info(name: bytes, entries: list[Entry]) -> LockInfo:
    order = QueueOrder(name + b"/", entries)
    holders: list[Contender] = []
    waiting: list[Contender] = []
    for entry in order:
        value = _decode(entry)
        admitted = rule_of(value).admits(order, (entry.created, entry.key))
        candidate = b"" if value.kind else entry.value
        (holders if admitted else waiting).append(
            Contender(entry.key, entry.created, entry.lease, value.kind, value.by, candidate)
        )
    return LockInfo(name.decode(errors="backslashreplace"), tuple(holders), tuple(waiting))


def _decode(entry: Entry) -> ContenderValue:
    """A value that Mooring would encode differently is a candidate's, whatever it looks like."""
    value = decode_value(entry.value)
    return value if value.by and encode_value(value) == entry.value else FOREIGN


async def find_lock(store: Store, name: str) -> LockInfo | None:
    """One lock by its full name; None if it has no contenders."""
    return next((lock for lock in await locks(store, name) if lock.name == name), None)


async def release(store: Store, name: str, lease: int, *, token: int = 0) -> Contender | None:
    """Release a lock for the holder with this lease; with a `token`, only that holding. Returns the
    former holder; None if there is no such holder, and nothing was changed."""
    while True:
        lock = await find_lock(store, name)
        for holder in () if lock is None else lock.holders:
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
            continue  # the holder left, and may have joined again
