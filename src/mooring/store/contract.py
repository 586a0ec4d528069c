"""The store: a small revisioned key-value contract, with the semantics of etcd.

Everything above this file (sessions, mirrors, the registry, locks, tenants) knows a store only
through it. Two implementations stand behind it, `mooring.store.embedded` and `mooring.store.etcd`,
and one test suite holds both to what is said here.

**Keys and values** are bytes. A key is not empty. Keys are ordered by their bytes.

**Revisions.** The store as a whole has one counter, its revision. An empty store is at revision 1.
A commit that changes anything raises it by exactly one, and all changes of that commit carry that
number; a commit that changes nothing leaves it. Two commits never share a number, and if commit A
was answered before commit B was sent, A's is the lower. Revisions never go back, save where an
operator restores the store from a backup.

**Atomicity.** A commit happens whole or not at all, and no read or watch ever shows half of one.

**Reads** are linearizable: a read sees every commit that was answered before it was sent. All
entries of one answer belong to one revision, however large the answer (a store may fetch it in
pages; it fetches them at one revision).

**Leases.** A key may hang on a lease. Where a lease expires or is revoked, all its keys are deleted
in one commit. A store never expires a lease earlier than its time-to-live after the last renewal
was *sent*, and normally within a second after it is due. Writing a key again without a lease, or
with another, detaches it from the former one.

**Watches** are
- *ordered*: batches come in the order of their revisions, one batch a revision;
- *unique*: no revision comes twice;
- *reliable*: no revision that touches the range is left out between two that came;
- *atomic*: a batch holds all changes of its revision within the range;
- *resumable*: a watch that broke is opened again after the last revision that was seen, and
  misses nothing, or says at once that it cannot (`CannotResume`);
- *bookmarkable*: a live watch says how recently the store was heard (`heard`), changes or not.

**Errors** are those of `mooring.errors`. Which call raises what is said at each method; any call
may raise `Unavailable`, `AccessDenied` and `Closed`. Only calls that write may raise
`OutcomeUnknown`, and then only where the request may have reached the store.

**Cancellation.** A cancelled read or watch leaves nothing behind. A cancelled commit, grant or
revocation may or may not have happened, exactly as after `OutcomeUnknown`: who must know looks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Self

import msgspec

from mooring.errors import InvalidRequest
from mooring.formatting import quoted, readable

MAX_OPERATIONS = 128
"""The most that one commit may carry: writes and reads together, and as many checks."""

MAX_REQUEST_BYTES = 1536 * 1024
"""The most bytes of one commit: etcd's default, kept by the embedded store too."""

MAX_TTL = 9_000_000_000
"""The longest time-to-live of a lease, in seconds (etcd's bound)."""


# Records are msgspec structs, not dataclasses: a frozen one is made in 0.1 µs instead of 1 µs, and
# `gc=False` keeps a million entries out of the collector's way (none can be part of a cycle).
# Those that hold values do not show them: they may be secrets, and end up in logs.


class Range(msgspec.Struct, frozen=True, gc=False):
    """A stretch of keys: from `start` up to, not including, `end`. Made by the functions below.

    `end` is empty for all keys from `start` on.
    """

    start: bytes
    end: bytes

    def __contains__(self, name: bytes) -> bool:
        return self.start <= name and (not self.end or name < self.end)


def key(name: bytes) -> Range:
    """The one key `name`."""
    check_key(name)
    return Range(name, name + b"\0")


def prefix(start: bytes) -> Range:
    """All keys that start with `start`. End it with `/` where `a` must not match `ab`."""
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
    """All keys of the store. On a shared store this can be a lot: prefer a prefix."""
    return Range(b"\0", b"")


def after_prefix(start: bytes) -> bytes:
    """The first key after all those that start with `start`; empty where there is none."""
    trimmed = start.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A key with its value and its history in numbers."""

    key: bytes
    value: bytes
    created: int
    """Revision of the commit that created the key (again, if it was deleted before)."""
    modified: int
    """Revision of the commit that wrote this value."""
    version: int
    """How often it was written since it was created: 1 for a new key."""
    lease: int = 0
    """The lease it hangs on; 0 for none."""

    def __repr__(self) -> str:
        return (
            f"Entry(key={self.key!r}, value={_size(self.value)}, created={self.created}, "
            f"modified={self.modified}, version={self.version}, lease={self.lease})"
        )


def _size(value: object) -> str:
    """In place of a value; some pass what is none."""
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else f"<{type(value).__name__}>"


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """An answer to a read: the entries, and the revision they belong to."""

    entries: tuple[Entry, ...]
    revision: int
    more: bool = False
    """Whether the limit cut the answer short."""

    @property
    def first(self) -> Entry | None:
        return self.entries[0] if self.entries else None


Order = Literal["key", "created"]


class Query(msgspec.Struct, frozen=True, gc=False):
    """What to read: a range and how to look at it. Used by `read` and by a commit's own reads."""

    range: Range
    keys_only: bool = False
    """Leave the values out (they come as `b""`)."""
    limit: int = 0
    """At most so many entries; 0 for all."""
    order: Order = "key"
    """By key, or by the revision of creation, oldest first (keys created in one commit come in no
    particular order among themselves)."""
    created_before: int | None = None
    """Only keys that were created at a revision lower than this."""


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write a key. `lease` is the lease it shall hang on, 0 for none."""

    key: bytes
    value: bytes
    lease: int = 0

    def __repr__(self) -> str:
        return f"Put(key={self.key!r}, value={_size(self.value)}, lease={self.lease})"


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Delete every key of a range that exists. It is no error where there are none."""

    range: Range


Write = Put | Delete
Field = Literal["created", "modified", "lease", "value"]


class Check(msgspec.Struct, frozen=True, gc=False):
    """A condition on one key, made by the functions below.

    An absent key has 0 for `created`, `modified` and `lease`; it has no value, so that a check of
    its value always fails.
    """

    key: bytes
    field: Field
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
    """The key was created at `revision`, and never deleted since."""
    return Check(name, "created", revision)


def unchanged(name: bytes, revision: int) -> Check:
    """The key was last written at `revision` (0: it does not exist)."""
    return Check(name, "modified", revision)


def has_value(name: bytes, value: bytes) -> Check:
    """The key exists with exactly this value."""
    return Check(name, "value", value)


def on_lease(name: bytes, lease: int) -> Check:
    """The key hangs on this lease (0: on none, or it does not exist)."""
    return Check(name, "lease", lease)


class Committed(msgspec.Struct, frozen=True, gc=False):
    """A commit that happened: the store's revision after it, and the answers to its reads."""

    revision: int
    reads: tuple[Snapshot, ...] = ()


class Event(msgspec.Struct, frozen=True, gc=False):
    """One key changed. `entry` is what it is now; None where it was deleted."""

    key: bytes
    entry: Entry | None


class Batch(msgspec.Struct, frozen=True, gc=False):
    """All changes of one revision within a watched range, in the order they were made."""

    revision: int
    events: tuple[Event, ...]


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A lease as the store granted it. `ttl` may be longer than what was asked for."""

    id: int
    ttl: float


class LeaseTime(msgspec.Struct, frozen=True, gc=False):
    """A lease that lives: what it was granted for, and what is left of it since it was last
    renewed. Both in seconds; a store may count whole ones alone, and rounds down what is left."""

    ttl: float
    remaining: float


class Guarantees(msgspec.Struct, frozen=True, gc=False):
    """What a store promises beyond this contract. A difference between backends is data."""

    durable: bool
    """An answered commit outlives the process."""
    replicated: bool
    """It outlives the loss of a machine."""
    shared: bool
    """Other processes can open the same store."""


class Member(msgspec.Struct, frozen=True, gc=False):
    """One server behind a store, as seen from here."""

    address: str
    version: str = ""
    latency: float | None = None
    """Seconds of one round trip; None where it did not answer."""
    leader: bool = False
    clock_ahead: tuple[float, float] | None = None
    """By how much its clock is ahead of ours, at least and at most; None if it does not tell."""
    problem: str = ""
    """Why it does not answer, in words."""


class Status(msgspec.Struct, frozen=True, gc=False):
    """What a store says of itself, for people."""

    kind: str
    revision: int
    members: tuple[Member, ...]
    alarms: tuple[str, ...] = ()
    """What is wrong, in words: out of space, corrupt member."""


class Watch(AbstractAsyncContextManager["Watch"], AsyncIterator[Batch], ABC):
    """A watch that stands once it is entered; iterate it for batches; leaving it ends it.

    Iteration raises `CannotResume` where the history it needs is gone, and `Unavailable` where the
    connection broke: open another after the last revision that was seen.
    """

    @property
    @abstractmethod
    def heard(self) -> float:
        """When the store was last heard, on the monotonic clock. It moves without changes too:
        a live watch is never silent for more than about two seconds."""

    @property
    @abstractmethod
    def seen(self) -> int:
        """The revision up to which everything was received: what to watch after, should it break.
        Once entered it is known also where nothing came yet."""

    async def __aenter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Batch: ...


class Store(ABC):
    """A connection to a store. Close it with `aclose`, or use it as an async context manager."""

    url: str
    """Where it is, with any password masked."""

    guarantees: Guarantees

    @property
    @abstractmethod
    def identity(self) -> str:
        """Identifies the keys behind this connection: the id of the cluster that answered last (16
        hexadecimal digits), and the namespace. It is the same for every URL of the same keys. A
        cluster restored from a backup is another one. Empty before the first answer, and if the
        store has no id."""

    @abstractmethod
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
        """Read a range: the present, or as it was `at` a revision. See `Query` for the options.

        Raises `Compacted` or `FutureRevision` where `at` cannot be read.
        """

    @abstractmethod
    async def commit(
        self, *writes: Write, require: Sequence[Check] = (), read: Sequence[Query] = ()
    ) -> Committed:
        """Write everything in `writes` in one revision, if every check in `require` holds.

        `read` is answered in the same instant, after the writes. No key may be touched twice.

        Raises `Conflict` (with the same reads) where a check fails, `LeaseNotFound` where a put
        names a lease that is gone, `TooLarge` over the limits, `OutOfSpace`, and `OutcomeUnknown`
        where the reply was lost. In all but the last nothing was written.
        """

    @abstractmethod
    def watch(self, range: Range, *, after: int | None = None) -> Watch:
        """Watch a range for the changes after a revision; None: from the moment it is entered.

        A revision that has not happened yet is waited for. Entering, or the first batch, raises
        `Compacted` where the history after that revision is no longer whole.
        """

    @abstractmethod
    async def grant(self, ttl: float) -> Lease:
        """A new lease of at least `ttl` seconds (whole seconds; a fraction is rounded up)."""

    @abstractmethod
    async def renew(self, lease: int) -> float:
        """Give a lease its whole time-to-live again, which is returned. Safe to repeat.

        Raises `LeaseNotFound` where it is gone.
        """

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys. Raises `LeaseNotFound` where it is gone already."""

    @abstractmethod
    async def remaining(self, lease: int) -> LeaseTime | None:
        """What is left of a lease. Its time goes on: this renews nothing. None where it is gone."""

    @abstractmethod
    async def compact(self, revision: int) -> None:
        """Forget the history before `revision`. For operators: stores do this by themselves.

        Raises `Compacted` where it was done already, `FutureRevision` where it cannot be.
        """

    @abstractmethod
    async def status(self) -> Status:
        """The servers behind the store, one by one. A server that is down is told, not raised."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close it. Watches end with `Closed`; leases go on until they expire. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def check_key(name: bytes, what: str = "key") -> None:
    if not isinstance(name, bytes):
        raise InvalidRequest(f"the {what} {quoted(name)} must be bytes, not {type(name).__name__}")
    if not name:
        raise InvalidRequest(f"a {what} must not be empty")
