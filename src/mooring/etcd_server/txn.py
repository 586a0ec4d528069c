"""Transactions: which branches are taken is decided first, for all levels, then everything is
checked, and only then is anything changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, eq, gt, lt, ne
from typing import Any

from mooring.errors import Compacted, FutureRevision, LeaseNotFound
from mooring.etcd_server.errors import KEY_NOT_FOUND, Refused
from mooring.etcd_server.kv import (
    Look,
    apply_delete,
    apply_put,
    confirmed,
    earliest,
    growth,
    present,
    read_range,
    within,
)
from mooring.etcd_server.messages import header, range_of
from mooring.etcd_server.validation import check_size, check_txn, is_read_only
from mooring.store.contract import Entry
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.runner import Host
from mooring.store.embedded.transaction import Transaction
from mooring.store.etcd import proto

# By number: the field of a compare, and of an entry, that a target names.
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


@dataclass(slots=True)
class Branch:
    """The operations of one transaction that will happen, and the branches of those nested."""

    succeeded: bool
    operations: Sequence[Any]
    nested: list[Branch]


class Transactions:
    def __init__(self, host: Host) -> None:
        self._host = host

    async def txn(self, request: Any) -> Any:
        check_txn(request)
        if is_read_only(request):
            return self._host.read(lambda engine: _read(engine, request))
        check_size(request)
        return await self._host.write(lambda engine, now: _write(engine, now, request))


def _read(engine: Engine, request: Any) -> Any:
    look = confirmed(engine)
    branch = choose(look, request)
    for operation in branch.operations:
        _check_range(engine, operation.request_range, engine.confirmed)
    answer = proto.TxnResponse(header=header(engine.confirmed), succeeded=branch.succeeded)
    for operation in branch.operations:
        found = read_range(engine, look, operation.request_range)
        answer.responses.add(response_range=within(found, engine.confirmed))
    return answer


def _write(engine: Engine, now: float, request: Any) -> Any:
    if (growing := _growth(request)) is not None:
        engine.check_space(growing)
    branch = choose(engine.newest, request)
    # All puts before any range, as etcd does: where both are wrong, the put is what is told.
    for operation in _flat(branch):
        if operation.HasField("request_put"):
            _check_put(engine, operation.request_put)
    for operation in _flat(branch):
        if operation.HasField("request_range"):
            _check_range(engine, operation.request_range, engine.confirmed)
    before = engine.revision
    transaction = engine.begin()
    answer = proto.TxnResponse()
    _Applying(engine, transaction, before).apply(branch, answer)
    engine.end(transaction, now)
    answer.header.CopyFrom(header(engine.revision))
    return answer


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
    """Every compare, nested ones too, is judged on what stands before the transaction."""
    succeeded = all(holds(compare, look) for compare in request.compare)
    operations = request.success if succeeded else request.failure
    nested = [choose(look, op.request_txn) for op in operations if op.HasField("request_txn")]
    return Branch(succeeded, operations, nested)


def holds(compare: Any, look: Look) -> bool:
    """Whether a compare is true for every key of its range."""
    entries = list(look(range_of(compare.key, compare.range_end)))
    if not entries:
        # An absent key has 0 for every number; a value it has not, so that it compares to none.
        if compare.target == proto.VALUE:
            return False
        entries = [_ABSENT]
    field, actual = _TARGETS.get(compare.target, ("", None))
    result = _RESULTS.get(compare.result)
    if actual is None or result is None:
        return result is None or result is eq  # a number that etcd does not know compares equal
    expected = getattr(compare, field)
    return all(result(actual(entry), expected) for entry in entries)


def _flat(branch: Branch) -> Iterator[Any]:
    """The operations of a branch in their order, those of nested ones in their place."""
    nested = iter(branch.nested)
    for operation in branch.operations:
        if operation.HasField("request_txn"):
            yield from _flat(next(nested))
        else:
            yield operation


def _check_put(engine: Engine, request: Any) -> None:
    if (request.ignore_value or request.ignore_lease) and present(engine, request.key) is None:
        raise Refused(KEY_NOT_FOUND)
    if request.lease and request.lease not in engine.leases:
        raise LeaseNotFound(request.lease)


def _check_range(engine: Engine, request: Any, newest: int) -> None:
    if request.revision > newest:
        raise FutureRevision(request.revision)
    if request.revision and request.revision < earliest(engine):
        raise Compacted(request.revision, revision=engine.compacted)


class _Applying:
    """The changes of a transaction, with the revision that each answer is to carry."""

    def __init__(self, engine: Engine, transaction: Transaction, before: int) -> None:
        self._engine, self._transaction = engine, transaction
        self._before = self._revision = before

    def apply(self, branch: Branch, answer: Any) -> None:
        answer.succeeded = branch.succeeded
        nested = iter(branch.nested)
        for operation in branch.operations:
            response = answer.responses.add()
            match operation.WhichOneof("choice0"):
                case "request_range":
                    found = read_range(
                        self._engine, self._engine.newest, operation.request_range, changing=True
                    )
                    response.response_range.CopyFrom(within(found, self._revision))
                case "request_put":
                    put = apply_put(self._engine, self._transaction, operation.request_put)
                    self._revision = self._before + 1
                    response.response_put.CopyFrom(within(put, self._revision))
                case "request_delete_range":
                    gone = apply_delete(self._transaction, operation.request_delete_range)
                    if gone.deleted:
                        self._revision = self._before + 1
                    response.response_delete_range.CopyFrom(within(gone, self._revision))
                case _:
                    response.response_txn.header.SetInParent()
                    self.apply(next(nested), response.response_txn)
