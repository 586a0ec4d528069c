"""The store contract on etcd."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec

from mooring.errors import (
    CannotResume,
    Closed,
    Conflict,
    TooLarge,
    Unavailable,
)
from mooring.messages import Message, message, named, verbatim
from mooring.settings.connections import EtcdConnectionSettings
from mooring.store.contract import (
    Check,
    Committed,
    Entry,
    Guarantees,
    Lease,
    LeaseTime,
    Member,
    Put,
    Query,
    Range,
    Snapshot,
    Store,
    StoreStatus,
    Watch,
    Write,
)
from mooring.store.etcd import proto
from mooring.store.etcd.connection import EtcdConnection
from mooring.store.etcd.diagnosis import clock_ahead, diagnose
from mooring.store.etcd.endpoints import MAX_MESSAGE, EtcdEndpoint
from mooring.store.etcd.errors import absence, is_too_large_for_us, shorten, translate
from mooring.store.etcd.keepalive import KeepAlives
from mooring.store.etcd.watches import EtcdWatch, Watches, entry, range_end
from mooring.store.validation import (
    check_commit,
    check_number,
    check_query,
    check_ttl,
    check_watch,
)
from mooring.tasks import Tasks, cleanup

T = TypeVar("T")

_FIRST_PAGE = 100  # entries; the size of later pages depends on the size of the entries
_RESTARTS = 5  # of a read whose revision is compacted between two pages
_PAGE_BYTES = 4 * 1024 * 1024
_PROBE = 2.0  # seconds for each request to a member
_CLOSE = 5.0  # the maximum time to close, in seconds


class EtcdStore(Store):
    guarantees = Guarantees(durable=True, replicated=True, shared=True)

    def __init__(self, settings: EtcdConnectionSettings, *, url: str = "") -> None:
        self._tasks = Tasks()
        self._cluster = EtcdConnection(settings, self._tasks)
        self.url = url or self._cluster.name
        self._watches = Watches(self._cluster, self._tasks)
        self._keepalives = KeepAlives(self._cluster, self._tasks)
        self._cluster_id = 0

    @property
    def identity(self) -> str:
        return f"{self._cluster_id:016x}" if self._cluster_id else ""

    async def _read(self, query: Query, at: int | None = None) -> Snapshot:
        check_query(query, at)
        one_key = query.range.end == query.range.start + b"\0"
        if one_key or (query.order == "created" and query.limit):
            try:
                answer = await self._range(_range_request(query, at), at)
                return _snapshot(answer, query, at or answer.header.revision)
            except (TooLarge, Unavailable) as error:
                # The server can sort, but only pages by key return an answer of any size.
                if one_key or not _smaller_page_may_help(error):
                    raise
        if at is not None:
            return await self._pages(query, at)
        return await self._restarting(lambda: self._pages(query, None), query)

    async def _restarting(self, read: Callable[[], Awaitable[T]], query: Query) -> T:
        """A read in several calls, restarted if its revision is compacted between them, or if
        failover leads to a member that has not reached it."""
        for _ in range(_RESTARTS):
            with contextlib.suppress(CannotResume):
                return await read()
        raise Unavailable(message("read_outrun", operation=_reading(query.range.start)))

    async def _pages(self, query: Query, at: int | None) -> Snapshot:
        """Read a range in pages by key, all at one revision. Sorting by creation is done here."""
        if query.order == "key":
            return await self._pages_by_key(query, at)
        whole = await self._pages_by_key(msgspec.structs.replace(query, limit=0, order="key"), at)
        entries = sorted(whole.entries, key=lambda entry: (entry.created, entry.key))
        limit = query.limit or len(entries)
        return Snapshot(tuple(entries[:limit]), whole.revision, len(entries) > limit)

    async def _pages_by_key(self, query: Query, at: int | None) -> Snapshot:
        """All pages are read at the revision of the first. Each starts after the last key."""
        request = _range_request(query, at)
        size, revision = _FIRST_PAGE, at
        entries: list[Entry] = []
        while True:
            request.limit = min(size, query.limit - len(entries)) if query.limit else size
            try:
                answer = await self._range(request, revision)
            except (TooLarge, Unavailable) as error:
                if request.limit == 1 or not _smaller_page_may_help(error):
                    raise
                size = max(1, request.limit // 8)
                continue
            if revision is None:
                request.revision = revision = answer.header.revision
            entries.extend(map(entry, answer.kvs))
            if not answer.more or len(entries) == query.limit:
                return Snapshot(tuple(entries), revision, answer.more)
            request.key = answer.kvs[-1].key + b"\0"
            size = max(1, min(10_000, _PAGE_BYTES * len(answer.kvs) // answer.ByteSize()))

    async def _range(self, request: Any, at: int | None) -> Any:
        return await self._call(
            "range", request, lambda: _reading(request.key), writes=False, at=at or 0
        )

    async def commit(
        self, *writes: Write, require: Sequence[Check] = (), read: Sequence[Query] = ()
    ) -> Committed:
        check_commit(writes, require, read)
        if read and not writes and not require:
            return await self._together(read)

        def what() -> Message:
            return _committing(writes, require)

        lease = next((write.lease for write in writes if isinstance(write, Put) and write.lease), 0)
        if len(writes) == 1 and not require and not read:
            # If etcd is out of space, it rejects all transactions, but not a deletion.
            answer = await self._call(*_single_request(writes[0]), what, lease=lease)
            return Committed(answer.header.revision)
        request = _txn_request(writes, require, read)
        answer = await self._call("txn", request, what, writes=bool(writes), lease=lease)
        revision = answer.header.revision
        ranges = [op.response_range for op in answer.responses if op.HasField("response_range")]
        reads = tuple(
            _snapshot(response, query, revision)
            for response, query in zip(ranges, read, strict=True)
        )
        if not answer.succeeded:
            failed = message("check_failed", operation=what())
            raise Conflict(failed, revision=revision, reads=reads)
        return Committed(revision, reads)

    async def _together(self, queries: Sequence[Query]) -> Committed:
        """Answer several queries at one revision. With reads, because a read-only transaction would
        have to be a write: see `_txn_request`."""

        async def read() -> Committed:
            first = await self._read(queries[0])
            rest = (self._read(query, first.revision) for query in queries[1:])
            return Committed(first.revision, (first, *await asyncio.gather(*rest)))

        return await self._restarting(read, queries[0])

    def watch(self, range: Range, *, after: int | None = None) -> Watch:
        check_watch(range, after)
        return EtcdWatch(self._watches, range, after)

    async def grant(self, ttl: float) -> Lease:
        request = proto.LeaseGrantRequest(TTL=check_ttl(ttl))
        # Repeated if the reply is lost: an unused lease expires.
        answer = await self._call("grant", request, message("op_grant"), writes=False)
        return Lease(answer.ID, float(answer.TTL))

    async def renew(self, lease: int) -> float:
        check_number("lease", lease)
        return float(await self._keepalives.renew(lease))

    async def revoke(self, lease: int) -> None:
        check_number("lease", lease)
        request = proto.LeaseRevokeRequest(ID=lease)
        what = message("op_revocation", lease=f"{lease:x}")
        await self._call("revoke", request, what, lease=lease)

    async def remaining(self, lease: int) -> LeaseTime | None:
        check_number("lease", lease)
        request = proto.LeaseTimeToLiveRequest(ID=lease)
        what = message("op_lease", lease=f"{lease:x}")
        answer = await self._call("time_to_live", request, what, writes=False, lease=lease)
        if answer.TTL < 0:
            return None
        return LeaseTime(float(answer.grantedTTL), float(min(answer.TTL, answer.grantedTTL)))

    async def compact(self, revision: int) -> None:
        check_number("revision", revision)
        request = proto.CompactionRequest(revision=revision)
        what = message("op_compaction", revision=str(revision))
        await self._call("compact", request, what, at=revision)

    async def status(self) -> StoreStatus:
        if self._cluster.closed:
            raise Closed(message("store_closed", store=verbatim(self.url)))
        looks = await asyncio.gather(*map(self._look, self._cluster.endpoints))
        answers = [answer for _, answer in looks if answer is not None]
        return StoreStatus(
            kind="etcd",
            revision=max((answer.header.revision for answer in answers), default=0),
            members=tuple(member for member, _ in looks),
            alarms=tuple(_alarms(answers)),
        )

    async def _look(self, endpoint: EtcdEndpoint) -> tuple[Member, Any]:
        """The current state of one member."""
        tls = self._cluster.settings.tls
        try:
            await self._ask_status(endpoint)  # the first request may have to connect
            sent, sent_at = time.monotonic(), time.time()
            answer = await self._ask_status(endpoint)
            heard_at = time.time()
        except grpc.aio.AioRpcError as error:
            diagnosis = await diagnose(endpoint.address, tls, within=_PROBE)
            text = error.details() or error.code().name
            return Member(
                endpoint.address, problem=diagnosis.problem if diagnosis else shorten(text)
            ), None
        latency = time.monotonic() - sent
        leader = answer.leader == answer.header.member_id
        ahead: tuple[float, float] | None
        if answer.mooring_time:  # Mooring's own server includes its clock
            ahead = answer.mooring_time - heard_at, answer.mooring_time - sent_at
        else:
            ahead = await clock_ahead(endpoint.address, tls, within=_PROBE)
        return Member(endpoint.address, answer.version, latency, leader, ahead), answer

    async def _ask_status(self, endpoint: EtcdEndpoint) -> Any:
        call = endpoint.methods.status
        return await call(proto.StatusRequest(), timeout=_PROBE, metadata=self._cluster.metadata)

    async def aclose(self) -> None:
        if not self._cluster.closed:
            self._cluster.closed = True
            await cleanup(self._close(), within=_CLOSE)

    async def _close(self) -> None:
        await self._tasks.aclose()
        await self._cluster.aclose()

    async def _call(
        self,
        method: str,
        request: Any,
        what: Message | Callable[[], Message],
        *,
        writes: bool = True,
        at: int = 0,
        lease: int = 0,
    ) -> Any:
        """Make a call and translate its errors; `at` and `lease` are its subject."""
        described = what if callable(what) else lambda: what
        try:
            answer = await self._cluster.call(method, request, what=described, writes=writes)
            self._cluster_id = answer.header.cluster_id
            return answer
        except grpc.aio.AioRpcError as error:
            text = error.details() or ""
            if (absent := absence(text, at=at, lease=lease)) is not None:
                raise absent from error
            if is_too_large_for_us(text) and not writes:
                raise TooLarge(
                    message("answer_too_large", operation=described(), limit=MAX_MESSAGE)
                ) from error
            where = verbatim(self.url)
            raise translate(
                error.code(), text, where=where, what=described(), writes=writes
            ) from error


def _range_request(query: Query, at: int | None = None) -> Any:
    request = proto.RangeRequest(key=query.range.start, range_end=range_end(query.range))
    if query.limit:
        request.limit = query.limit
    if at is not None:
        request.revision = at
    if query.keys_only:
        request.keys_only = True
    if query.order == "created":
        request.sort_order, request.sort_target = proto.ASCEND, proto.SORT_BY_CREATE
    if query.created_before is not None:
        request.max_create_revision = query.created_before - 1
    return request


def _snapshot(answer: Any, query: Query, revision: int) -> Snapshot:
    return Snapshot(tuple(map(entry, answer.kvs)), revision, bool(query.limit and answer.more))


def _smaller_page_may_help(error: Exception) -> bool:
    """Whether a call failed because the page was too large, or too slow."""
    cause = error.__cause__
    slow = isinstance(cause, grpc.aio.AioRpcError) and (
        cause.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    )
    return slow or isinstance(error, TooLarge)


def _txn_request(writes: Sequence[Write], checks: Sequence[Check], reads: Sequence[Query]) -> Any:
    """A read-only transaction ends when its caller disconnects, and etcd before 3.5.5 panics then.
    An empty nested transaction makes etcd execute it to the end."""
    ranges = [proto.RequestOp(request_range=_range_request(query)) for query in reads]
    done = map(_operation, writes) if writes else [proto.RequestOp(request_txn=proto.TxnRequest())]
    return proto.TxnRequest(compare=map(_compare, checks), success=[*done, *ranges], failure=ranges)


def _single_request(write: Write) -> tuple[str, Any]:
    """A write without a transaction: the method and its request."""
    if isinstance(write, Put):
        return "put", proto.PutRequest(key=write.key, value=write.value, lease=write.lease)
    start, end = write.range.start, range_end(write.range)
    return "delete_range", proto.DeleteRangeRequest(key=start, range_end=end)


def _operation(write: Write) -> Any:
    method, request = _single_request(write)
    return proto.RequestOp(**{f"request_{method}": request})


_TARGETS = {
    "created": (proto.CREATE, "create_revision"),
    "modified": (proto.MOD, "mod_revision"),
    "lease": (proto.LEASE, "lease"),
    "value": (proto.VALUE, "value"),
}


def _compare(check: Check) -> Any:
    target, field = _TARGETS[check.field]
    result = proto.EQUAL if check.equal else proto.NOT_EQUAL
    return proto.Compare(key=check.key, target=target, result=result, **{field: check.expected})


def _reading(start: bytes) -> Message:
    return message("op_read", key=named(start))


def _committing(writes: Sequence[Write], checks: Sequence[Check]) -> Message:
    """A commit in errors: its first key and the number of others."""
    keys = [write.key if isinstance(write, Put) else write.range.start for write in writes]
    keys = keys or [check.key for check in checks]
    more = len(keys) - 1 if len(keys) > 1 else None
    return message("op_commit", key=named(keys[0]) if keys else None, more=more)


def _alarms(answers: Sequence[Any]) -> Iterable[Message]:
    texts = [text for answer in answers for text in answer.errors]
    for name, kind in (("CORRUPT", "alarm_corrupt"), ("NOSPACE", "alarm_nospace")):
        if any(name in text for text in texts):
            yield message(kind)
