"""The decision that repairs the keys of an instance, and notices a successor. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mooring.model import Instance
from mooring.registry.contract import removed, superseded
from mooring.store.contract import Check, Delete, Entry, Put, Write, key, unchanged


def repair(
    instance: Instance,
    desired: Mapping[bytes, bytes],
    current: Mapping[bytes, Entry],
    *,
    lease: int,
    ours: Collection[int],
    tombstone: bytes,
    fresh: bool = False,
    since: int = 0,
) -> tuple[list[Write], list[Check]]:
    """The commit that turns the current keys into the desired ones (contract M6).

    `lease` is the current lease, one of `ours`, which are all leases of this process so far.
    `fresh`: this instance was never written, and replaces a predecessor. `since`: it may have been
    written after that revision, and replaces a predecessor from before. Raises `Superseded` or
    `Removed` if this instance must not write the keys any more.
    """
    if fresh:
        puts = [Put(name, value, lease) for name, value in desired.items()]
        return [*puts, Delete(key(tombstone))], []
    existing = [current[name] for name in desired if name in current]
    if _has_successor(existing, ours, since):
        raise superseded(instance.service, instance.id)
    removal = current.get(tombstone)
    if removal is not None and removal.modified > since:
        raise removed(instance.service, instance.id)
    writes: list[Write] = []
    for name, value in desired.items():
        entry = current.get(name)
        if entry is None or (entry.lease, entry.value) != (lease, value):
            writes.append(Put(name, value, lease))
    if removal is not None:
        writes.append(Delete(key(tombstone)))
    checks = [
        unchanged(name, current[name].modified if name in current else 0)
        for name in (*desired, tombstone)
    ]
    return writes, checks


def _has_successor(entries: Iterable[Entry], ours: Collection[int], since: int) -> bool:
    """Whether a key is on the lease of another process that did not write before `since`."""
    predecessors = {entry.lease for entry in entries if entry.modified <= since}
    return any(entry.lease not in {0, *ours, *predecessors} for entry in entries)
