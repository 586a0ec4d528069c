"""The KV service: range, put, delete, transactions and compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from operator import attrgetter, eq, gt, lt, ne
from typing import Any

from mooring.errors import Compacted, FutureRevision, LeaseNotFound
from mooring.etcd_server.errors import KEY_NOT_FOUND, RpcAborted
from mooring.etcd_server.messages import header, key_value, range_of
from mooring.etcd_server.validation import (
    check_key,
    check_put,
    check_size,
    check_txn,
    is_read_only,
)
from mooring.store.contract import Entry, Range
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.keyspace import Transaction
from mooring.store.embedded.store import EngineRunner
from mooring.store.etcd import proto

# For each target of a compare, its field in the message and in an entry.
_TARGETS: dict[int, tuple[str, Callable[[Entry], Any]]] = {
    proto.VERSION: ("version", attrgetter("version")),
    proto.CREATE: ("create_revision", attrgetter("created")),
    proto.MOD: ("mod_revision", attrgetter("modified")),
    proto.VALUE: ("value", attrgetter("value")),
    proto.LEASE: ("lease", attrgetter("lease")),
}
_RESULTS: dict[int, Callable[[Any, Any], bool]] = {
    proto.EQUAL: eq,
    proto.GREATER: gt,
    proto.LESS: lt,
    proto.NOT_EQUAL: ne,
}
_ABSENT = Entry(b"", b"", 0, 0, 0)
Look = Callable[[Range], Iterable[Entry]]
"""Reads the current entries of a range, confirmed or not."""

_ORDERS: dict[int, Callable[[Entry], Any]] = {
    proto.SORT_BY_KEY: attrgetter("key"),
    proto.SORT_BY_VERSION: attrgetter("version"),
    proto.SORT_BY_CREATE: attrgetter("created"),
    proto.SORT_BY_MOD: attrgetter("modified"),
    proto.SORT_BY_VALUE: attrgetter("value"),
}

_BEGINNING = 1  # the revision of an empty store
_NEVER = -1  # etcd's last compaction before the first one


class KVService:
    def __init__(self, runner: EngineRunner) -> None:
        self._runner = runner
        self._compacted = _NEVER  # until revision 1 is compacted, as in etcd

    async def range(self, request: Any) -> Any:
        check_key(request)
        return self._runner.read(lambda engine: _range(engine, request))

    async def put(self, request: Any) -> Any:
        check_put(request)
        check_size(request)
        return await self._runner.write(lambda engine, now: _put(engine, now, request))

    async def delete_range(self, request: Any) -> Any:
        check_key(request)
        check_size(request)
        return await self._runner.write(lambda engine, now: _delete(engine, now, request))

    async def txn(self, request: Any) -> Any:
        check_txn(request)
        if is_read_only(request):
            return self._runner.read(lambda engine: _read(engine, request))
        check_size(request)
        return await self._runner.write(lambda engine, now: _write(engine, now, request))

    async def compact(self, request: Any) -> Any:
        def compact(engine: Engine, _: float) -> int:
            if engine.compacted == _BEGINNING and self._compacted < request.revision <= _BEGINNING:
                self._compacted = request.revision  # there is no history before it
            else:
                engine.compact(request.revision)
            return engine.confirmed

        return proto.CompactionResponse(header=header(await self._runner.write(compact)))


def confirmed(engine: Engine) -> Look:
    if engine.confirmed == engine.revision:
        return engine.newest
    return lambda range: engine.past(range, engine.confirmed)


def present(engine: Engine, name: bytes) -> Entry | None:
    """A key as a transaction sees it."""
    return next(iter(engine.newest(Range(name, name + b"\0"))), None)


def _range(engine: Engine, request: Any) -> Any:
    answer = read_range(engine, confirmed(engine), request)
    answer.header.CopyFrom(header(engine.confirmed))
    return answer


def growth(put: Any) -> int:
    return len(put.key) + len(put.value)


def _put(engine: Engine, now: float, request: Any) -> Any:
    engine.check_space(growth(request))
    # Not `_check_put`: outside a transaction etcd checks the lease first.
    if request.lease and request.lease not in engine.leases:
        raise LeaseNotFound(request.lease)
    if (request.ignore_value or request.ignore_lease) and present(engine, request.key) is None:
        raise RpcAborted(KEY_NOT_FOUND)
    return _commit(engine, now, lambda transaction: apply_put(engine, transaction, request))


def _delete(engine: Engine, now: float, request: Any) -> Any:
    return _commit(engine, now, lambda transaction: apply_delete(transaction, request))


def _commit(engine: Engine, now: float, change: Callable[[Transaction], Any]) -> Any:
    """Run a change in a transaction. Returns its response, with the header."""
    transaction = engine.begin()
    response = change(transaction)
    engine.end(transaction, now)
    response.header.CopyFrom(header(engine.revision))
    return response


def read_range(engine: Engine, look: Look, request: Any, *, changing: bool = False) -> Any:
    """The response to a range request, without its header. `changing`: within a transaction that
    writes, where the engine cannot count without visiting the entries."""
    keys = range_of(request.key, request.range_end)
    past = request.revision > 0

    def entries() -> Iterable[Entry]:
        return engine.past(keys, request.revision) if past else look(keys)

    def count_all() -> int:
        if changing:
            return sum(1 for _ in entries())
        return engine.count(keys, request.revision if past else engine.confirmed)

    chosen, count, more = select(request, entries(), count_all)
    keys_only = request.keys_only
    return proto.RangeResponse(
        kvs=[key_value(entry, keys_only=keys_only) for entry in chosen], count=count, more=more
    )


def apply_put(engine: Engine, transaction: Transaction, request: Any) -> Any:
    """Apply a put that was checked. Returns the response without its header."""
    value, lease = request.value, request.lease
    if (request.ignore_value or request.ignore_lease) and (
        entry := present(engine, request.key)
    ) is not None:
        value = entry.value if request.ignore_value else value
        lease = entry.lease if request.ignore_lease else lease
    before = transaction.put(request.key, value, lease)
    if request.prev_kv and before is not None:
        return proto.PutResponse(prev_kv=key_value(before))
    return proto.PutResponse()


def apply_delete(transaction: Transaction, request: Any) -> Any:
    """Apply a deletion. Returns the response without its header."""
    doomed = transaction.delete(range_of(request.key, request.range_end))
    before = map(key_value, doomed) if request.prev_kv else ()
    return proto.DeleteRangeResponse(deleted=len(doomed), prev_kvs=before)


def select(
    request: Any, entries: Iterable[Entry], count_all: Callable[[], int]
) -> tuple[list[Entry], int, bool]:
    """The result of a range request: its entries, the number of entries in the range, and whether
    the limit truncated the result. As in etcd, the number, which `count_all` returns, ignores the
    limit and the filters."""
    if request.count_only:
        return [], count_all(), False
    limit = max(request.limit, 0)
    matches = _filter(request)
    if limit and matches is None and request.sort_order == proto.UNSORTED:
        # One more than the limit shows whether there are more; the rest is only counted.
        chosen = list(islice(entries, limit + 1))
        count = count_all() if len(chosen) > limit else len(chosen)
    else:
        chosen = list(entries)
        count = len(chosen)
    if matches is not None:
        chosen = list(filter(matches, chosen))
    _sort(chosen, request.sort_order, request.sort_target)
    more = bool(limit) and len(chosen) > limit
    return chosen[:limit] if more else chosen, count, more


def _sort(entries: list[Entry], order: int, target: int) -> None:
    """Entries arrive by key. Any other target sorts, even without a sort order, as in etcd."""
    if order == proto.UNSORTED and target == proto.SORT_BY_KEY:
        return
    if (by := _ORDERS.get(target)) is not None:
        entries.sort(key=by, reverse=order == proto.DESCEND)


def _filter(request: Any) -> Callable[[Entry], bool] | None:
    """A filter by revisions; 0 is no limit."""
    least_mod, least_create = request.min_mod_revision, request.min_create_revision
    most_mod, most_create = request.max_mod_revision, request.max_create_revision
    if not (least_mod or most_mod or least_create or most_create):
        return None
    most_mod, most_create = most_mod or inf, most_create or inf
    return lambda entry: (
        least_mod <= entry.modified <= most_mod and least_create <= entry.created <= most_create
    )


def within(answer: Any, revision: int) -> Any:
    """A response within that of a transaction. As in etcd, its header has only the revision."""
    answer.header.revision = revision
    return answer


@dataclass(slots=True)
class Branch:
    """The chosen operations of a transaction, and the branches of nested transactions."""

    succeeded: bool
    operations: Sequence[Any]
    nested: list[Branch]


def _read(engine: Engine, request: Any) -> Any:
    look = confirmed(engine)
    branch = choose(look, request)
    for operation in branch.operations:
        _check_range(engine, operation.request_range)
    answer = proto.TxnResponse(header=header(engine.confirmed), succeeded=branch.succeeded)
    for operation in branch.operations:
        response = read_range(engine, look, operation.request_range)
        answer.responses.add(response_range=within(response, engine.confirmed))
    return answer


def _write(engine: Engine, now: float, request: Any) -> Any:
    if (growing := _growth(request)) is not None:
        engine.check_space(growing)
    branch = choose(engine.newest, request)
    # As in etcd, all puts are checked before any range, so an invalid put is reported first.
    for operation in _flat(branch):
        if operation.HasField("request_put"):
            _check_put(engine, operation.request_put)
    for operation in _flat(branch):
        if operation.HasField("request_range"):
            _check_range(engine, operation.request_range)
    return _commit(engine, now, lambda transaction: _Applying(engine, transaction).apply(branch))


def _growth(request: Any) -> int | None:
    """The bytes that the larger branch adds; None if neither has a put."""
    branches = []
    for operations in (request.success, request.failure):
        puts = [growth(op.request_put) for op in operations if op.HasField("request_put")]
        nested = [_growth(op.request_txn) for op in operations if op.HasField("request_txn")]
        puts += [number for number in nested if number is not None]
        if puts:
            branches.append(sum(puts))
    return max(branches, default=None)


def choose(look: Look, request: Any) -> Branch:
    """Every compare, also in nested transactions, sees the state before the transaction."""
    succeeded = all(holds(compare, look) for compare in request.compare)
    operations = request.success if succeeded else request.failure
    nested = [choose(look, op.request_txn) for op in operations if op.HasField("request_txn")]
    return Branch(succeeded, operations, nested)


def holds(compare: Any, look: Look) -> bool:
    """Whether a compare holds for every key of its range."""
    entries = list(look(range_of(compare.key, compare.range_end)))
    if not entries:
        # An absent key has 0 for every number, and no value, so a compare of its value fails.
        if compare.target == proto.VALUE:
            return False
        entries = [_ABSENT]
    field, actual = _TARGETS.get(compare.target, ("", None))
    result = _RESULTS.get(compare.result)
    if actual is None or result is None:
        return result is None or result is eq  # in etcd unknown numbers compare equal
    expected = getattr(compare, field)
    return all(result(actual(entry), expected) for entry in entries)


def _flat(branch: Branch) -> Iterator[Any]:
    """The operations of a branch in order, including those of nested branches."""
    nested = iter(branch.nested)
    for operation in branch.operations:
        if operation.HasField("request_txn"):
            yield from _flat(next(nested))
        else:
            yield operation


def _check_put(engine: Engine, request: Any) -> None:
    if (request.ignore_value or request.ignore_lease) and present(engine, request.key) is None:
        raise RpcAborted(KEY_NOT_FOUND)
    if request.lease and request.lease not in engine.leases:
        raise LeaseNotFound(request.lease)


def _check_range(engine: Engine, request: Any) -> None:
    if request.revision > engine.confirmed:
        raise FutureRevision(request.revision)
    earliest = engine.compacted if engine.compacted > _BEGINNING else _NEVER
    if request.revision and request.revision < earliest:
        raise Compacted(request.revision, revision=engine.compacted)


class _Applying:
    """Applies the operations of a transaction, with the revision of each response."""

    def __init__(self, engine: Engine, transaction: Transaction) -> None:
        self._engine, self._transaction = engine, transaction
        self._revision = engine.revision

    def apply(self, branch: Branch) -> Any:
        """Apply a branch. Returns its response, without the header."""
        answer = proto.TxnResponse(succeeded=branch.succeeded)
        nested = iter(branch.nested)
        for operation in branch.operations:
            response = answer.responses.add()
            match operation.WhichOneof("choice0"):
                case "request_range":
                    entries = read_range(
                        self._engine, self._engine.newest, operation.request_range, changing=True
                    )
                    response.response_range.CopyFrom(within(entries, self._revision))
                case "request_put":
                    put = apply_put(self._engine, self._transaction, operation.request_put)
                    self._revision = self._transaction.revision
                    response.response_put.CopyFrom(within(put, self._revision))
                case "request_delete_range":
                    gone = apply_delete(self._transaction, operation.request_delete_range)
                    if gone.deleted:
                        self._revision = self._transaction.revision
                    response.response_delete_range.CopyFrom(within(gone, self._revision))
                case _:
                    response.response_txn.CopyFrom(self.apply(next(nested)))
                    response.response_txn.header.SetInParent()
        return answer
