"""The MVCC engine: revisions, transactions, history, leases and watchers in one state machine.

It does no I/O, starts no tasks and has no clock. Its runner passes `now`, the seconds of a
monotonic clock, and calls `advance` at `leases.next_deadline`. It is not thread-safe.

Writes are *unconfirmed* at first: transactions see them, but reads and watches do not until
`confirm` is called. A runner with a journal confirms writes once the journal is on disk, or rolls
them back with `undo` if that failed.

Compaction only moves a number: revisions below it cannot be read any more. `forget` drops the
versions themselves, some at a time, so that no call waits for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, islice
from math import inf
from operator import attrgetter

from mooring.errors import (
    Compacted,
    Conflict,
    FutureRevision,
    LeaseNotFound,
    OutOfSpace,
    StoreError,
    TooLarge,
)
from mooring.messages import Message, message, named
from mooring.store.contract import (
    MAX_OPERATIONS,
    MAX_REQUEST_BYTES,
    Batch,
    Check,
    Committed,
    Entry,
    Event,
    Put,
    Query,
    Range,
    Snapshot,
    Write,
    everything,
)
from mooring.store.embedded.keyspace import (
    RevisionHistory,
    Transaction,
    VersionedKeyspace,
    obsolete_bytes,
)
from mooring.store.embedded.leases import LeaseTable, Undo
from mooring.store.embedded.watchers import Watcher, Watchers, part_of

QUOTA = 2 * 1024**3
"""The default quota: the total bytes of all versions. The value is etcd's. All versions are in
memory, so unlimited growth would end the process."""

HISTORY, HISTORY_AGE, HISTORY_BYTES = 100_000, 3600.0, 256 * 1024 * 1024
"""The default limits of the history: revisions, seconds, bytes."""

FORGET = 500
"""The maximum number of changes whose old versions are dropped at once, …"""
FORGET_BYTES = 2 * 1024 * 1024
"""…and the maximum number of their bytes."""

_CATCH_UP = 100  # batches that a lagging watcher takes from the history at a time
_SCAN = 10_000  # revisions that it searches for them


class Engine:
    """`history`, `history_age` and `history_bytes` limit the history by revisions, seconds, and
    bytes of old versions. `quota` limits the bytes of all versions, as in etcd; 0: no limit."""

    def __init__(
        self,
        *,
        revision: int = 1,
        history: int = HISTORY,
        history_age: float = HISTORY_AGE,
        history_bytes: int = HISTORY_BYTES,
        quota: int = 0,
    ) -> None:
        self.quota = quota
        self.out_of_space = False
        """etcd's alarm NOSPACE: writes that grow the store are refused until it is disarmed."""
        self.revision = revision
        """The newest revision, confirmed or not."""
        self.confirmed = revision
        """The newest revision that reads and watches see."""
        self.compacted = revision
        """The lowest revision that can be read."""
        self.leases = LeaseTable()
        self._keys = VersionedKeyspace()
        self._watchers = Watchers()
        self._history = RevisionHistory(revision)
        self._undo: list[Undo] = []
        self._max_revisions, self._max_seconds = history, history_age
        self._max_bytes = history_bytes
        self._times: deque[tuple[float, int]] = deque()  # (now, revision), at most one a second
        self.quiet_until = 0.0
        """`advance` has nothing to do before this time."""

    def load(
        self, entries: Iterable[Entry], *, revision: int, compacted: int, now: float
    ) -> list[Entry]:
        """Load a stored state: all versions, in the order of their revisions. Returns those that
        are compacted, which are not loaded. Leases must be granted before."""
        self.revision = self.confirmed = revision
        self.compacted = compacted
        self._times.append((now, revision))
        events: dict[int, list[Event]] = {}
        obsolete: dict[int, int] = {}
        settled: list[bytes] = []
        for entry, replaced in self._keys.load(entries):
            if (at := entry.modified) <= compacted:
                settled.append(entry.key)
                continue
            event = Event(entry.key, entry if entry.version else None)
            events.setdefault(at, []).append(event)
            obsolete[at] = obsolete.get(at, 0) + obsolete_bytes(replaced, entry)
        if sorted(events) != list(range(compacted + 1, revision + 1)):
            raise StoreError(message("history_incomplete"))
        self._history = RevisionHistory(compacted)
        for at in range(compacted + 1, revision + 1):
            self._history.append(Batch(at, tuple(events[at])), obsolete[at])
        forgotten: list[Entry] = []
        for name in settled:
            forgotten += self._keys.forget(name, compacted)
        for entry in self._keys.present(everything()):
            if entry.lease:
                self.leases.attach(entry.key, entry.lease)
        return forgotten

    def catch_up(
        self,
        entries: Iterable[Entry],
        leases: Sequence[tuple[int, int, float]],
        *,
        revision: int,
        compacted: int,
        now: float,
    ) -> None:
        """Apply what the journal contains beyond the newest confirmed revision, which must be the
        newest revision of the engine: the entries since then, and all leases. Makes it visible."""
        batches = {at: list(group) for at, group in groupby(entries, attrgetter("modified"))}
        expected = [*range(self.revision + 1, revision + 1)]
        if revision < self.revision or [*batches] != expected:
            raise StoreError(message("history_lost", revision=revision, confirmed=self.revision))
        self.leases.restore(leases)
        for batch in batches.values():
            transaction = self.begin()
            for entry in batch:
                if entry.version:
                    transaction.put(entry.key, entry.value, entry.lease)
                else:
                    transaction.delete_key(entry.key)
            self.end(transaction, now)
        self.compacted = max(self.compacted, compacted)
        self.confirm()

    def read(self, query: Query, at: int | None = None) -> Snapshot:
        """Read the newest confirmed revision, or an older one."""
        if at is not None:
            return _evaluate(query, self.past(query.range, at), at)
        if self.confirmed < self.revision:
            return _evaluate(query, self._keys.past(query.range, self.confirmed), self.confirmed)
        return _evaluate(query, self._keys.present(query.range), self.confirmed)

    def past(self, range: Range, at: int) -> Iterable[Entry]:
        """The entries of a range at a revision, by key."""
        if at > self.confirmed:
            raise FutureRevision(at)
        if at < self.compacted:
            raise Compacted(at, revision=self.compacted)
        return self._keys.past(range, at)

    def newest(self, range: Range) -> Iterable[Entry]:
        """The entries of a range as a transaction sees them, including unconfirmed ones."""
        return self._keys.present(range)

    def count(self, range: Range, at: int) -> int:
        """The number of entries of a range at a readable revision. Its cost depends on the changes
        since then, not on the range. Not while a transaction is open."""
        number = self._keys.count(range)
        since = self._history.since(at)
        changed = {event.key for batch in since for event in batch.events if event.key in range}
        for name in changed:
            number += self._keys.existed(name, at) - (self._keys.get(name) is not None)
        return number

    def begin(self) -> Transaction:
        """Start the next revision. Only one transaction may be open."""
        return Transaction(self._keys, self.leases, self._undo, self.revision + 1)

    def end(self, transaction: Transaction, now: float) -> None:
        """Make a transaction the newest revision. Without changes there is no new revision."""
        if not transaction.events:
            return
        self.revision = transaction.revision
        self._history.append(
            Batch(transaction.revision, tuple(transaction.events)), transaction.obsolete
        )
        self._undo.append(self._reopen)
        if not self._times or now - self._times[-1][0] >= 1.0:
            self._times.append((now, self.revision))

    def _reopen(self) -> None:
        self._history.pop()
        self.revision -= 1

    def commit(
        self, writes: Sequence[Write], require: Sequence[Check], reads: Sequence[Query], now: float
    ) -> Committed:
        """Implements `Store.commit` for arguments that passed `check_commit`."""
        _check_size(writes, require, reads)
        if puts := [_size(write) for write in writes if isinstance(write, Put)]:
            self.check_space(sum(puts))
        for check in require:
            if not self._holds(check):
                raise Conflict(_conflict(check), revision=self.revision, reads=self._reads(reads))
        for write in writes:
            if isinstance(write, Put) and write.lease and write.lease not in self.leases:
                raise LeaseNotFound(write.lease)
        transaction = self.begin()
        for write in writes:
            if isinstance(write, Put):
                transaction.put(write.key, write.value, write.lease)
            else:
                transaction.delete(write.range)
        self.end(transaction, now)
        return Committed(self.revision, self._reads(reads))

    def _reads(self, queries: Sequence[Query]) -> tuple[Snapshot, ...]:
        return tuple(_evaluate(query, self.newest(query.range), self.revision) for query in queries)

    def _holds(self, check: Check) -> bool:
        entry = self._keys.get(check.key)
        if entry is None and check.field == "value":
            return False
        actual = getattr(entry, check.field) if entry is not None else 0
        return bool(actual == check.expected) is check.equal

    def grant(self, ttl: int, now: float, lease: int = 0) -> int:
        self.check_space(_OVERHEAD)
        lease = lease or self.leases.new_id()
        self.quiet_until = min(self.quiet_until, now + ttl)
        self._undo.append(self.leases.grant(lease, ttl, now + ttl))
        return lease

    def renew(self, lease: int, now: float) -> int:
        self._undo.append(self.leases.renew(lease, now))
        return self.leases[lease].ttl

    def revoke(self, lease: int, now: float) -> None:
        transaction = self.begin()
        for name in sorted(self.leases[lease].keys):
            transaction.delete_key(name)
        self._undo.append(self.leases.end(lease))
        self.end(transaction, now)

    @property
    def size(self) -> int:
        """The bytes of all versions."""
        return self._keys.size

    def check_space(self, growth: int) -> None:
        """Check the quota before a write that adds bytes. As in etcd, the checks of the write do
        not matter, and the first write that does not fit raises the alarm, until it is disarmed."""
        if self.quota and self.size + growth > self.quota:
            self.out_of_space = True
        if self.out_of_space:
            raise OutOfSpace(message("quota_exceeded", size=self.size, quota=self.quota))

    def unconfirmed(self) -> list[Batch]:
        return self._history.since(self.confirmed) if self.confirmed < self.revision else []

    def confirm(self) -> None:
        """Make all writes visible."""
        self._undo.clear()
        self.leases.settle()
        if self.confirmed == self.revision:
            return
        batches = self.unconfirmed()
        self.confirmed = self.revision
        for batch in batches:
            self._watchers.deliver(batch)
        self.compacted = max(self.compacted, self._bound())

    def _bound(self) -> int:
        """The revision below which the history exceeds its limits by so much that it is worth a
        compaction."""
        bound, history = 0, self._history
        if self.revision - self.compacted > self._max_revisions + self._max_revisions // 100 + 16:
            bound = self.revision - self._max_revisions
        if history.obsolete_since(self.compacted) > self._max_bytes + self._max_bytes // 50:
            bound = max(bound, history.compaction_for(self._max_bytes))
        return bound

    def mark(self) -> int:
        """A position for `undo`. Every change moves it."""
        return len(self._undo)

    def undo(self, mark: int = 0) -> None:
        """Roll back everything since a mark, or since the last confirmation."""
        while len(self._undo) > mark:
            self._undo.pop()()
        if not mark:
            self.leases.settle()

    def watch(self, range: Range, after: int | None, wake: Callable[[], None]) -> Watcher:
        """A watcher of the changes after a revision. `wake` is called when `take` has more."""
        position = self.confirmed if after is None else max(after, 1)
        if position < self.compacted:
            raise Compacted(position, revision=self.compacted)
        watcher = Watcher(range, position, wake, lagging=position < self.confirmed)
        self._watchers.add(watcher)
        return watcher

    def take(self, watcher: Watcher) -> list[Batch]:
        """The next batches of a watcher; empty if there are none."""
        while watcher.lagging:
            if watcher.position < self.compacted:
                raise Compacted(watcher.position, revision=self.compacted)
            end = min(watcher.position + _SCAN, self.confirmed)
            batches_in_scan = self._history.since(watcher.position, end)
            batches = part_of(batches_in_scan, watcher.range, _CATCH_UP)
            full = len(batches) == _CATCH_UP
            watcher.position = batches[-1].revision if full else batches_in_scan[-1].revision
            watcher.lagging = watcher.position < self.confirmed
            if batches:
                return batches
        return watcher.take()

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)

    def advance(self, now: float) -> None:
        """Expire the leases that are due, and compact the history that is too old."""
        while (lease := self.leases.due(now)) is not None:
            self.revoke(lease, now)
        old = self.compacted
        while self._times and now - self._times[0][0] > self._max_seconds:
            old = self._times.popleft()[1]
        if self.confirmed >= old > self.compacted:
            self.compact(old)
        self.quiet_until = min(self.leases.next_deadline() or inf, now + 1.0)

    def compact(self, revision: int) -> None:
        """Make all revisions below this one unreadable. `forget` drops them."""
        if revision > self.confirmed:
            raise FutureRevision(revision)
        if revision <= self.compacted:
            raise Compacted(revision, revision=self.compacted)
        before, self.compacted = self.compacted, revision

        def undo() -> None:
            self.compacted = before

        self._undo.append(undo)

    @property
    def forgetting(self) -> bool:
        """Whether `forget` has something to do."""
        return self._history.floor < self.compacted

    def forget(self) -> list[Entry]:
        """Drop some compacted versions and return them. Call it only after `confirm`."""
        revision, events = self._history.take_oldest(self.compacted, FORGET, FORGET_BYTES)
        forgotten: list[Entry] = []
        for event in events:
            forgotten += self._keys.forget(event.key, revision)
        return forgotten


def _evaluate(query: Query, entries: Iterable[Entry], revision: int) -> Snapshot:
    if (before := query.created_before) is not None:
        entries = (entry for entry in entries if entry.created < before)
    if query.order == "created":
        entries = sorted(entries, key=lambda entry: (entry.created, entry.key))
    result = tuple(islice(entries, query.limit + 1) if query.limit else entries)
    more = bool(query.limit) and len(result) > query.limit
    if more:
        result = result[: query.limit]
    if query.keys_only:
        result = tuple(map(without_value, result))
    return Snapshot(result, revision, more)


def without_value(entry: Entry) -> Entry:
    return Entry(entry.key, b"", entry.created, entry.modified, entry.version, entry.lease)


def _check_size(writes: Sequence[Write], checks: Sequence[Check], reads: Sequence[Query]) -> None:
    operations = max(len(writes) + len(reads), len(checks))
    if operations > MAX_OPERATIONS:
        raise TooLarge(message("commit_operations", count=operations, limit=MAX_OPERATIONS))
    size = sum(map(_size, writes)) + sum(map(_check_bytes, checks))
    if size > MAX_REQUEST_BYTES:
        raise TooLarge(message("commit_bytes", size=size, limit=MAX_REQUEST_BYTES))


_OVERHEAD = 16  # approximate bytes that a request adds to each of its parts


def _size(write: Write) -> int:
    if isinstance(write, Put):
        return len(write.key) + len(write.value) + _OVERHEAD
    return len(write.range.start) + len(write.range.end) + _OVERHEAD


def _check_bytes(check: Check) -> int:
    value = len(check.expected) if isinstance(check.expected, bytes) else 8
    return len(check.key) + value + _OVERHEAD


def _conflict(check: Check) -> Message:
    # A value may be a secret.
    value = isinstance(check.expected, bytes)
    return message(
        "check_failed_on",
        key=named(check.key),
        field=check.field,
        sign="=" if check.equal else "≠",
        expected=message("the_expected_one") if value else str(check.expected),
    )
