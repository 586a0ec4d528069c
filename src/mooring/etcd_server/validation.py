"""What is wrong with a request in itself, whatever the state of the store. Pure functions.

Each raises `Refused`, in the order of etcd's own checks, for a request may be wrong in two ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mooring.etcd_server.errors import (
    DUPLICATE_KEY,
    EMPTY_KEY,
    KEY_NOT_FOUND,
    LEASE_PROVIDED,
    TOO_LARGE,
    TOO_MANY_OPERATIONS,
    VALUE_PROVIDED,
    Refused,
)
from mooring.store.contract import MAX_OPERATIONS, MAX_REQUEST_BYTES

_ENVELOPE = 18
"""The bytes that etcd puts around a request before it measures it: its id, a tag, a length."""

Interval = tuple[bytes, bytes]


def check_size(request: Any) -> None:
    """Only what is written is measured: etcd measures what goes into its log."""
    if request.ByteSize() + _ENVELOPE > MAX_REQUEST_BYTES:
        raise Refused(TOO_LARGE)


def check_key(request: Any) -> None:
    if not request.key:
        raise Refused(EMPTY_KEY)


def check_put(request: Any) -> None:
    check_key(request)
    if request.ignore_value and request.value:
        raise Refused(VALUE_PROVIDED)
    if request.ignore_lease and request.lease:
        raise Refused(LEASE_PROVIDED)


def check_txn(request: Any) -> None:
    _check_operations(request, MAX_OPERATIONS)
    _touched(request.success)
    _touched(request.failure)


def is_read_only(request: Any) -> bool:
    return all(
        operation.HasField("request_range")
        for operations in (request.success, request.failure)
        for operation in operations
    )


def _check_operations(request: Any, most: int) -> None:
    count = max(len(request.compare), len(request.success), len(request.failure))
    if count > most:
        raise Refused(TOO_MANY_OPERATIONS)
    for compare in request.compare:
        check_key(compare)
    for operations in (request.success, request.failure):
        for operation in operations:
            _check_operation(operation, most - count)


def _check_operation(operation: Any, most: int) -> None:
    match operation.WhichOneof("choice0"):
        case "request_range":
            check_key(operation.request_range)
        case "request_put":
            check_put(operation.request_put)
        case "request_delete_range":
            check_key(operation.request_delete_range)
        case "request_txn":
            # What is nested shares the number of operations, which bounds the depth as well.
            _check_operations(operation.request_txn, most)
        case _:
            raise Refused(KEY_NOT_FOUND)


def _touched(operations: Sequence[Any]) -> tuple[set[bytes], list[Interval]]:
    """The keys that operations put and the intervals that they delete.

    No key may be put twice, nor put and deleted. The two branches of one nested transaction may
    both touch a key, for only one of them happens.
    """
    deleted = [
        _interval(operation.request_delete_range)
        for operation in operations
        if operation.HasField("request_delete_range")
    ]
    put: set[bytes] = set()
    for operation in operations:
        if operation.HasField("request_txn"):
            then_put, then_deleted = _touched(operation.request_txn.success)
            else_put, else_deleted = _touched(operation.request_txn.failure)
            _refuse_overlap(then_put | else_put, put, deleted)
            put |= then_put | else_put
            deleted += then_deleted + else_deleted
    for operation in operations:
        if operation.HasField("request_put"):
            key = operation.request_put.key
            _refuse_overlap((key,), put, deleted)
            put.add(key)
    return put, deleted


def _refuse_overlap(keys: Iterable[bytes], put: set[bytes], deleted: list[Interval]) -> None:
    for key in keys:
        if key in put or any(start <= key < end for start, end in deleted):
            raise Refused(DUPLICATE_KEY)


def _interval(request: Any) -> Interval:
    # A deletion of "all from here on" has a zero byte for its end. As an interval that is empty,
    # which is how etcd takes it: such a deletion may stand beside a put that it covers.
    return request.key, request.range_end or request.key + b"\0"
