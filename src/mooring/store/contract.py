"""The store contract: a small revisioned key-value interface with the semantics of etcd.

Sessions, mirrors, the registry, locks and tenants use a store only through this interface.
`mooring.store.embedded` and `mooring.store.etcd` implement it, and one test suite runs against
both.

**Keys and values** are bytes. A key is not empty. Keys are ordered by their bytes.

**Revisions.** A store has one counter, its revision. An empty store is at revision 1. A commit that
changes something increments the revision by exactly one, and all its changes carry the new number.
A commit that changes nothing does not increment it. No two commits share a revision. If commit A
was answered before commit B was sent, A has the lower revision. Revisions never decrease, unless an
operator restores the store from a backup.

**Atomicity.** A commit is applied completely or not at all. No read or watch shows part of one.

**Reads** are linearizable: a read sees every commit that was answered before the read was sent. All
entries of one result belong to one revision, however large the result is. A store may read in
pages, but it reads all pages at one revision.

**Leases.** A key may be attached to a lease. When a lease expires or is revoked, all its keys are
deleted in one commit. A store never expires a lease before its time-to-live has passed since the
last renewal was *sent*, and normally expires it within a second after that. Writing a key again
without a lease, or with another lease, detaches it from the previous lease.

**Watches** are
- *ordered*: batches arrive in the order of their revisions, one batch per revision;
- *unique*: no revision arrives twice;
- *reliable*: no revision that touches the range is missing between two that arrived;
- *atomic*: a batch holds all changes of its revision within the range;
- *resumable*: a broken watch can be reopened after the last revision that was received. It misses
  nothing, or reports immediately that it cannot resume (`CannotResume`);
- *bookmarkable*: `heard` is the time of the last contact with the store, with or without changes.

**Errors** are defined in `mooring.errors`. Each method lists the errors it raises. Any call may
raise `Unavailable`, `AccessDenied` and `Closed`. Only writes may raise `OutcomeUnknown`, and only
if the request may have reached the store.

**Cancellation.** A cancelled read or watch leaves nothing behind. A cancelled commit, grant or
revocation may or may not have been applied, as after `OutcomeUnknown`: read to find out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Self

import msgspec

from mooring.errors import InvalidRequest
from mooring.formatting import quoted, readable
from mooring.messages import Message

MAX_OPERATIONS = 128
"""The maximum number of writes and reads together in one commit, and of checks."""

MAX_REQUEST_BYTES = 1536 * 1024
"""The maximum size of a commit in bytes: etcd's default, which the embedded store uses too."""

MAX_TTL = 9_000_000_000
"""The longest time-to-live of a lease, in seconds (etcd's limit)."""


# Records are msgspec structs, not dataclasses: creating a frozen one takes 0.1 µs instead of 1 µs,
# and `gc=False` excludes a million entries from garbage collection (none can be part of a cycle).
# Their repr hides values, which may be secrets and could end up in logs.


class Range(msgspec.Struct, frozen=True, gc=False):
    """The keys from `start` up to, not including, `end`. Created by the functions below.

    An empty `end` means all keys from `start` on.
    """

    start: bytes
    end: bytes

    def __contains__(self, name: bytes) -> bool:
        return self.start <= name and (not self.end or name < self.end)


def key(name: bytes) -> Range:
    """The single key `name`."""
    check_key(name)
    return Range(name, name + b"\0")


def prefix(start: bytes) -> Range:
    """All keys that start with `start`. End it with `/` if `a` must not match `ab`."""
    check_key(start, "prefix")
    return Range(start, after_prefix(start))


def between(start: bytes, end: bytes) -> Range:
    """All keys from `start` up to, not including, `end`."""
    check_key(start, "start of a range")
    check_key(end, "end of a range")
    if end <= start:
        raise InvalidRequest(
            f"the range from {readable(start)} to {readable(end)} is empty: the end comes first"
        )
    return Range(start, end)


def everything() -> Range:
    """All keys of the store. A shared store may hold many: prefer a prefix."""
    return Range(b"\0", b"")


def after_prefix(start: bytes) -> bytes:
    """The first key after all keys that start with `start`; empty if there is none."""
    trimmed = start.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A key with its value, revisions and version."""

    key: bytes
    value: bytes
    created: int
    """Revision of the commit that created the key, or created it again after a deletion."""
    modified: int
    """Revision of the commit that wrote this value."""
    version: int
    """The number of writes since the key was created: 1 for a new key."""
    lease: int = 0
    """The lease that the key is attached to; 0 for none."""

    def __repr__(self) -> str:
        return (
            f"Entry(key={self.key!r}, value={_size(self.value)}, created={self.created}, "
            f"modified={self.modified}, version={self.version}, lease={self.lease})"
        )


def _size(value: object) -> str:
    """Stands for a value in a repr, also for an invalid one."""
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else f"<{type(value).__name__}>"


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """The result of a read: the entries, and the revision they belong to."""

    entries: tuple[Entry, ...]
    revision: int
    more: bool = False
    """Whether the limit truncated the result."""

    @property
    def first(self) -> Entry | None:
        """The first entry; None if there is none."""
        return self.entries[0] if self.entries else None


Order = Literal["key", "created"]


class Query(msgspec.Struct, frozen=True, gc=False):
    """A range and how to read it. Used by `read` and for the reads of a commit."""

    range: Range
    keys_only: bool = False
    """Omit the values (they are `b""`)."""
    limit: int = 0
    """The maximum number of entries; 0 for all."""
    order: Order = "key"
    """By key, or by the revision of creation, oldest first. The order of keys that were created in
    one commit is unspecified."""
    created_before: int | None = None
    """Only keys that were created at a lower revision than this."""


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write a key and attach it to `lease` (0: to none)."""

    key: bytes
    value: bytes
    lease: int = 0

    def __repr__(self) -> str:
        return f"Put(key={self.key!r}, value={_size(self.value)}, lease={self.lease})"


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Delete every key of a range. A range without keys is not an error."""

    range: Range


Write = Put | Delete
CheckField = Literal["created", "modified", "lease", "value"]


class Check(msgspec.Struct, frozen=True, gc=False):
    """A condition on one key, created by the functions below.

    An absent key has 0 for `created`, `modified` and `lease`. It has no value, so a check of its
    value always fails.
    """

    key: bytes
    field: CheckField
    expected: int | bytes
    equal: bool = True

    def __repr__(self) -> str:
        expected = _size(self.expected) if isinstance(self.expected, bytes) else self.expected
        return (
            f"Check(key={self.key!r}, field={self.field!r}, expected={expected}, "
            f"equal={self.equal})"
        )


def absent(name: bytes) -> Check:
    """The key does not exist."""
    return Check(name, "created", 0)


def exists(name: bytes) -> Check:
    """The key exists."""
    return Check(name, "created", 0, equal=False)


def created_at(name: bytes, revision: int) -> Check:
    """The key was created at `revision` and has not been deleted since."""
    return Check(name, "created", revision)


def unchanged(name: bytes, revision: int) -> Check:
    """The key was last written at `revision` (0: it does not exist)."""
    return Check(name, "modified", revision)


def has_value(name: bytes, value: bytes) -> Check:
    """The key exists with exactly this value."""
    return Check(name, "value", value)


def on_lease(name: bytes, lease: int) -> Check:
    """The key is attached to this lease (0: to none, or it does not exist)."""
    return Check(name, "lease", lease)


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The result of a commit: the revision of the store after it, and the results of its reads."""

    revision: int
    reads: tuple[Snapshot, ...] = ()


class Event(msgspec.Struct, frozen=True, gc=False):
    """A change of one key. `entry` is its new state; None if it was deleted."""

    key: bytes
    entry: Entry | None


class Batch(msgspec.Struct, frozen=True, gc=False):
    """All changes of one revision within a watched range, in the order of the commit."""

    revision: int
    events: tuple[Event, ...]


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A lease as granted by the store. `ttl` may be longer than requested."""

    id: int
    ttl: float


class LeaseTime(msgspec.Struct, frozen=True, gc=False):
    """The granted and the remaining time of a lease, in seconds. A store may count in whole seconds
    and rounds the remaining time down."""

    ttl: float
    remaining: float


class Guarantees(msgspec.Struct, frozen=True, gc=False):
    """What a store guarantees beyond this contract. Differences between backends are data."""

    durable: bool
    """Confirmed commits survive the end of the process."""
    replicated: bool
    """Confirmed commits survive the loss of a machine."""
    shared: bool
    """Other processes can open the same store."""


class Member(msgspec.Struct, frozen=True, gc=False):
    """One server of a store, as this client sees it."""

    address: str
    version: str = ""
    latency: float | None = None
    """Seconds of one round trip; None if the server did not answer."""
    leader: bool = False
    clock_ahead: tuple[float, float] | None = None
    """The least and the most by which its clock is ahead of ours, in seconds; None if unknown."""
    problem: Message | None = None
    """Why the server does not answer."""


class StoreStatus(msgspec.Struct, frozen=True, gc=False):
    """The state of a store, for people."""

    kind: str
    revision: int
    members: tuple[Member, ...]
    alarms: tuple[Message, ...] = ()
    """Out of space, or a corrupt member."""


class Watch(AbstractAsyncContextManager["Watch"], AsyncIterator[Batch], ABC):
    """A watch is established when it is entered. Iterate it for batches; leaving it ends it.

    Iteration raises `CannotResume` if the history it needs is gone, and `Unavailable` if the
    connection broke: then open another watch after the last revision that was received.
    """

    @property
    @abstractmethod
    def heard(self) -> float:
        """The time of the last contact with the store, on the monotonic clock. It advances without
        changes too: a live watch is never silent for more than about two seconds."""

    @property
    @abstractmethod
    def seen(self) -> int:
        """The revision up to which everything was received: the one to resume after if the watch
        breaks. It is known once the watch is entered, even before the first batch."""

    async def __aenter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Batch: ...


class Store(ABC):
    """A connection to a store. Close it with `aclose`, or use it as an async context manager."""

    url: str
    """The URL of the store, with any password masked."""

    guarantees: Guarantees
    """How this store differs from others."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Identifies the keys that this connection reaches: the id of the cluster that answered
        last (16 hexadecimal digits), and the namespace. All URLs of the same keys have the same
        identity. A cluster that was restored from a backup has a new one. Empty before the first
        answer, and if the store has no id."""

    async def read(
        self,
        range: Range,
        *,
        keys_only: bool = False,
        limit: int = 0,
        order: Order = "key",
        created_before: int | None = None,
        at: int | None = None,
    ) -> Snapshot:
        """Read a range at the current revision, or `at` another one. See `Query` for the options.

        Raises `Compacted` or `FutureRevision` if `at` cannot be read.
        """
        return await self._read(Query(range, keys_only, limit, order, created_before), at)

    @abstractmethod
    async def _read(self, query: Query, at: int | None = None) -> Snapshot:
        """Implements `read`."""

    @abstractmethod
    async def commit(
        self, *writes: Write, require: Sequence[Check] = (), read: Sequence[Query] = ()
    ) -> Committed:
        """Apply all `writes` in one revision, if every check in `require` holds.

        `read` is answered atomically with the writes, after them. No key may be written twice.

        Raises `Conflict` (with the results of `read`) if a check fails, `LeaseNotFound` if a put
        names a lease that does not exist, `TooLarge` over the limits, `OutOfSpace`, and
        `OutcomeUnknown` if the reply was lost. After any other error nothing was written.
        """

    @abstractmethod
    def watch(self, range: Range, *, after: int | None = None) -> Watch:
        """Watch a range for changes after a revision; None: from the moment the watch is entered.

        A future revision is waited for. Entering the watch, or its first batch, raises `Compacted`
        if the history after that revision is incomplete.
        """

    @abstractmethod
    async def grant(self, ttl: float) -> Lease:
        """Grant a lease of at least `ttl` seconds (fractions are rounded up)."""

    @abstractmethod
    async def renew(self, lease: int) -> float:
        """Restore the full time-to-live of a lease and return it. Safe to repeat.

        Raises `LeaseNotFound` if the lease does not exist.
        """

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys. Raises `LeaseNotFound` if it does not exist."""

    @abstractmethod
    async def remaining(self, lease: int) -> LeaseTime | None:
        """The remaining time of a lease, without renewing it; None if it does not exist."""

    @abstractmethod
    async def compact(self, revision: int) -> None:
        """Discard the history before `revision`. For operators: stores compact automatically.

        Raises `Compacted` if it was compacted already, `FutureRevision` if it is in the future.
        """

    @abstractmethod
    async def status(self) -> StoreStatus:
        """The state of each server of the store. A server that is down is reported, not raised."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the store. Watches end with `Closed`; leases live until they expire. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def check_key(name: bytes, what: str = "key") -> None:
    if not isinstance(name, bytes):
        raise InvalidRequest(f"the {what} {quoted(name)} must be bytes, not {type(name).__name__}")
    if not name:
        raise InvalidRequest(f"a {what} must not be empty")
