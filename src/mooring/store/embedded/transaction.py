"""The changes of one revision of the engine, made one by one, each with how to take it back."""

from __future__ import annotations

from mooring.store.contract import Entry, Event, Range
from mooring.store.embedded.history import left_behind, size
from mooring.store.embedded.keyspace import Keyspace
from mooring.store.embedded.leases import Leases, Undo


class Transaction:
    """From `Engine.begin` to `Engine.end`, which makes it the newest revision."""

    def __init__(self, keys: Keyspace, leases: Leases, undo: list[Undo], revision: int) -> None:
        self._keys, self._leases, self._undo = keys, leases, undo
        self.revision = revision
        self.events: list[Event] = []
        self.left = 0
        """The bytes that are left behind by its changes."""

    def put(self, name: bytes, value: bytes, lease: int = 0) -> Entry | None:
        """Write a key; what it was before."""
        keys, leases = self._keys, self._leases
        before = keys.get(name)
        old = before.lease if before is not None else 0
        if old != lease:
            leases.detach(name, old)
            leases.attach(name, lease)
        entry = keys.put(name, value, lease, self.revision)

        def undo() -> None:
            keys.undo(name)
            leases.detach(name, lease)
            leases.attach(name, old)

        self._undo.append(undo)
        self.events.append(Event(name, entry))
        if before is not None:
            self.left += size(before)
        return before

    def delete(self, range: Range) -> list[Entry]:
        """Delete a range; what it held."""
        doomed = list(self._keys.present(range))
        for entry in doomed:
            self.delete_key(entry.key)
        return doomed

    def delete_key(self, name: bytes) -> None:
        """Delete a key that exists."""
        keys, leases = self._keys, self._leases
        before = keys.get(name)
        lease = before.lease if before is not None else 0
        leases.detach(name, lease)
        gone = keys.delete(name, self.revision)

        def undo() -> None:
            keys.undo(name)
            leases.attach(name, lease)

        self._undo.append(undo)
        self.events.append(Event(name, None))
        self.left += left_behind(before, gone)
