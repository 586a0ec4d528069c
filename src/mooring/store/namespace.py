"""A store with a prefix: it adds the prefix to all keys, and removes it from results."""

from __future__ import annotations

from collections.abc import Sequence

from mooring.errors import Conflict, InvalidURL
from mooring.formatting import readable
from mooring.store.contract import (
    Batch,
    Check,
    Committed,
    Delete,
    Entry,
    Event,
    Lease,
    LeaseTime,
    Put,
    Query,
    Range,
    Snapshot,
    Store,
    StoreStatus,
    Watch,
    Write,
    after_prefix,
)
from mooring.store.validation import check_commit, check_range


class Namespaced(Store):
    """Only keys get the prefix. Revisions and leases are those of the underlying store."""

    def __init__(self, store: Store, prefix: bytes) -> None:
        if not prefix:
            raise InvalidURL("namespace= must not be empty")
        self.url, self.guarantees = store.url, store.guarantees
        self._store, self._prefix = store, prefix

    @property
    def identity(self) -> str:
        inner = self._store.identity
        return f"{inner} {readable(self._prefix)}" if inner else ""

    async def _read(self, query: Query, at: int | None = None) -> Snapshot:
        return self._snapshot(await self._store._read(self._query(query), at))

    async def commit(
        self, *writes: Write, require: Sequence[Check] = (), read: Sequence[Query] = ()
    ) -> Committed:
        check_commit(writes, require, read)  # before the keys get the prefix
        try:
            done = await self._store.commit(
                *map(self._write, writes),
                require=[
                    Check(self._prefix + check.key, check.field, check.expected, check.equal)
                    for check in require
                ],
                read=[self._query(query) for query in read],
            )
        except Conflict as conflict:
            conflict.reads = tuple(map(self._snapshot, conflict.reads))
            raise
        return Committed(done.revision, tuple(map(self._snapshot, done.reads)))

    def watch(self, range: Range, *, after: int | None = None) -> Watch:
        return _NamespacedWatch(self._store.watch(self._in(range), after=after), len(self._prefix))

    async def grant(self, ttl: float) -> Lease:
        return await self._store.grant(ttl)

    async def renew(self, lease: int) -> float:
        return await self._store.renew(lease)

    async def revoke(self, lease: int) -> None:
        await self._store.revoke(lease)

    async def remaining(self, lease: int) -> LeaseTime | None:
        return await self._store.remaining(lease)

    async def compact(self, revision: int) -> None:
        await self._store.compact(revision)

    async def status(self) -> StoreStatus:
        return await self._store.status()

    async def aclose(self) -> None:
        await self._store.aclose()

    def _in(self, range: Range) -> Range:
        check_range(range)
        end = self._prefix + range.end if range.end else after_prefix(self._prefix)
        return Range(self._prefix + range.start, end)

    def _query(self, q: Query) -> Query:
        return Query(self._in(q.range), q.keys_only, q.limit, q.order, q.created_before)

    def _write(self, write: Write) -> Write:
        if isinstance(write, Put):
            return Put(self._prefix + write.key, write.value, write.lease)
        return Delete(self._in(write.range))

    def _snapshot(self, inner: Snapshot) -> Snapshot:
        cut = len(self._prefix)
        return Snapshot(tuple(_out(e, cut) for e in inner.entries), inner.revision, inner.more)


class _NamespacedWatch(Watch):
    def __init__(self, watch: Watch, cut: int) -> None:
        self._watch, self._cut = watch, cut

    @property
    def heard(self) -> float:
        return self._watch.heard

    @property
    def seen(self) -> int:
        return self._watch.seen

    async def __aenter__(self) -> _NamespacedWatch:
        await self._watch.__aenter__()
        return self

    async def __anext__(self) -> Batch:
        batch = await anext(self._watch)
        cut = self._cut
        return Batch(
            batch.revision,
            tuple(
                Event(event.key[cut:], _out(event.entry, cut) if event.entry else None)
                for event in batch.events
            ),
        )

    async def __aexit__(self, *exc: object) -> None:
        await self._watch.__aexit__(None, None, None)


def _out(e: Entry, cut: int) -> Entry:
    return Entry(e.key[cut:], e.value, e.created, e.modified, e.version, e.lease)
