"""The MVCC engine: revisions, transactions, history, leases and watchers, as one state machine.

It does no I/O, starts no task and asks no clock: whoever drives it passes `now` (monotonic
seconds) and calls `advance` when `next_deadline` comes. It is not thread-safe by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf

from mooring.errors import Compacted, Conflict, FutureRevision, LeaseNotFound, TooLarge
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
)
from mooring.store.embedded.keyspace import Keyspace
from mooring.store.embedded.leases import Leases
from mooring.store.embedded.watchers import Watcher, Watchers, part_of

_CATCH_UP = 100  # batches that a lagging watcher takes out of the history at a time
_SCAN = 10_000  # revisions that it looks through for them


class Engine:
    """`history` and `history_age` bound what is kept of the past, in revisions and seconds."""

    def __init__(
        self, *, revision: int = 1, history: int = 100_000, history_age: float = 3600.0
    ) -> None:
        self.revision = revision
        self.compacted = revision
        """The lowest revision that can be read: below it the history is gone."""
        self.leases = Leases()
        self._keys = Keyspace()
        self._watchers = Watchers()
        self._log: list[Batch] = []  # every batch after `compacted`, one a revision, no gaps
        self._history, self._history_age = history, history_age
        self._times: deque[tuple[float, int]] = deque()  # (now, revision), at most one a second
        self._quiet_until = 0.0  # before this time `advance` has nothing to do

    # Reading

    def read(self, query: Query, at: int | None = None) -> Snapshot:
        if at is None:
            found = self._keys.present(query.range)
            revision = self.revision
        else:
            self._check_readable(at)
            found = self._keys.past(query.range, at)
            revision = at
        if (before := query.created_before) is not None:
            found = (entry for entry in found if entry.created < before)
        if query.order == "created":
            found = sorted(found, key=_by_creation)
        if limit := query.limit:
            entries = tuple(islice(found, limit + 1))
            more = len(entries) > limit
            entries = entries[:limit]
        else:
            entries, more = tuple(found), False
        if query.keys_only:
            entries = tuple(map(_without_value, entries))
        return Snapshot(entries, revision, more)

    def _check_readable(self, revision: int) -> None:
        if revision > self.revision:
            raise FutureRevision(revision)
        if revision < self.compacted:
            raise Compacted(revision, revision=self.compacted)

    # Writing

    def commit(
        self, writes: Sequence[Write], require: Sequence[Check], reads: Sequence[Query], now: float
    ) -> Committed:
        """The contract's commit, on arguments that `check_commit` has passed."""
        _check_size(writes, require, reads)
        for check in require:
            if not self.holds(check):
                answers = tuple(map(self.read, reads))
                raise Conflict(_conflict(check), revision=self.revision, reads=answers)
        for write in writes:
            if isinstance(write, Put) and write.lease and write.lease not in self.leases:
                raise LeaseNotFound(write.lease)
        revision = self.revision + 1
        events: list[Event] = []
        for write in writes:
            if isinstance(write, Put):
                events.append(self._put(write, revision))
            else:
                doomed = [entry.key for entry in self._keys.present(write.range)]
                events.extend(self._delete(name, revision) for name in doomed)
        self._publish(events, now)
        return Committed(self.revision, tuple(map(self.read, reads)))

    def holds(self, check: Check) -> bool:
        entry = self._keys.get(check.key)
        if entry is None and check.field == "value":
            return False
        actual = getattr(entry, check.field) if entry is not None else 0
        return bool(actual == check.expected) is check.equal

    def _put(self, put: Put, revision: int) -> Event:
        before = self._keys.get(put.key)
        if before is not None and before.lease and before.lease != put.lease:
            self.leases.detach(put.key, before.lease)
        if put.lease:
            self.leases.attach(put.key, put.lease)
        return Event(put.key, self._keys.put(put.key, put.value, put.lease, revision))

    def _delete(self, name: bytes, revision: int) -> Event:
        before = self._keys.get(name)
        if before is not None and before.lease:
            self.leases.detach(name, before.lease)
        self._keys.delete(name, revision)
        return Event(name, None)

    def _publish(self, events: Sequence[Event], now: float) -> None:
        """Close a revision: into the history, and to the watchers."""
        if not events:
            return
        self.revision += 1
        batch = Batch(self.revision, tuple(events))
        self._log.append(batch)
        if not self._times or now - self._times[-1][0] >= 1.0:
            self._times.append((now, self.revision))
        self._watchers.hand(batch)
        # Some over the bound before it is cut: cheap for each revision, and never a long pause.
        if len(self._log) > self._history + self._history // 100 + 16:
            self.compact(self.revision - self._history)

    # Leases

    def grant(self, ttl: int, now: float) -> int:
        self._quiet_until = min(self._quiet_until, now + ttl)
        return self.leases.grant(ttl, now)

    def renew(self, lease: int, now: float) -> int:
        return self.leases.renew(lease, now)

    def revoke(self, lease: int, now: float) -> None:
        revision = self.revision + 1
        self._publish([self._delete(name, revision) for name in self.leases.end(lease)], now)

    # Watching

    def watch(self, range: Range, after: int | None, wake: Callable[[], None]) -> Watcher:
        """A watcher of all that comes after a revision. `wake` is called when `take` has more."""
        position = self.revision if after is None else max(after, 1)
        if position < self.compacted:
            raise Compacted(position, revision=self.compacted)
        watcher = Watcher(range, position, wake)
        watcher.lagging = position < self.revision
        self._watchers.add(watcher)
        return watcher

    def take(self, watcher: Watcher) -> list[Batch]:
        """The next batches of a watcher; empty where there are none at present."""
        while watcher.lagging:
            if watcher.position < self.compacted:
                raise Compacted(watcher.position, revision=self.compacted)
            start = watcher.position - self.compacted
            stretch = self._log[start : start + _SCAN]
            batches = part_of(stretch, watcher.range, _CATCH_UP)
            full = len(batches) == _CATCH_UP
            watcher.position = batches[-1].revision if full else stretch[-1].revision
            watcher.lagging = watcher.position < self.revision
            if batches:
                return batches
        batches = [batch for batch in watcher.pending if batch.revision > watcher.position]
        watcher.pending.clear()
        return batches

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)

    # Time and history

    def next_deadline(self) -> float | None:
        """When `advance` has something to do."""
        return self.leases.next_deadline()

    def advance(self, now: float) -> None:
        """Expire the leases that are due, and forget the history that is too old."""
        if now < self._quiet_until:
            return
        while (lease := self.leases.due(now)) is not None:
            self.revoke(lease, now)
        old = self.compacted
        while self._times and now - self._times[0][0] > self._history_age:
            old = self._times.popleft()[1]
        if old > self.compacted:
            self.compact(old)
        self._quiet_until = min(self.leases.next_deadline() or inf, now + 1.0)

    def compact(self, revision: int) -> None:
        if revision > self.revision:
            raise FutureRevision(revision)
        if revision <= self.compacted:
            raise Compacted(revision, revision=self.compacted)
        gone = revision - self.compacted
        for batch in self._log[:gone]:
            for event in batch.events:
                self._keys.forget(event.key, revision)
        del self._log[:gone]
        self.compacted = revision


def _by_creation(entry: Entry) -> tuple[int, bytes]:
    return entry.created, entry.key


def _without_value(entry: Entry) -> Entry:
    return Entry(entry.key, b"", entry.created, entry.modified, entry.version, entry.lease)


def _check_size(writes: Sequence[Write], checks: Sequence[Check], reads: Sequence[Query]) -> None:
    operations = max(len(writes) + len(reads), len(checks))
    if operations > MAX_OPERATIONS:
        raise TooLarge(f"{operations} operations in one commit: the store takes {MAX_OPERATIONS}")
    size = sum(len(write.key) + len(write.value) for write in writes if isinstance(write, Put))
    if size > MAX_REQUEST_BYTES:
        raise TooLarge(f"{size} bytes in one commit: the store takes {MAX_REQUEST_BYTES}")


def _conflict(check: Check) -> str:
    sign = "=" if check.equal else "≠"
    return f"the check {check.field} {sign} {check.expected!r} on {check.key!r} failed"
