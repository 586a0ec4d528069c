"""Rejects requests that etcd rejects: for their size, keys, options or overlapping operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from mooring.etcd_server.errors import (
    DUPLICATE_KEY,
    EMPTY_KEY,
    KEY_NOT_FOUND,
    LEASE_PROVIDED,
    TOO_LARGE,
    TOO_MANY_OPERATIONS,
    VALUE_PROVIDED,
    RpcAborted,
)
from mooring.store.contract import MAX_OPERATIONS, MAX_REQUEST_BYTES

_ENVELOPE = 18
"""The bytes that etcd adds to a request before it measures it: its id, a tag, a length."""

Interval = tuple[bytes, bytes]


def check_size(request: Any) -> None:
    """Check the size of a write. etcd measures what goes into its log, so only writes."""
    if request.ByteSize() + _ENVELOPE > MAX_REQUEST_BYTES:
        raise RpcAborted(TOO_LARGE)


def check_key(request: Any) -> None:
    if not request.key:
        raise RpcAborted(EMPTY_KEY)


def check_put(request: Any) -> None:
    check_key(request)
    if request.ignore_value and request.value:
        raise RpcAborted(VALUE_PROVIDED)
    if request.ignore_lease and request.lease:
        raise RpcAborted(LEASE_PROVIDED)


def check_txn(request: Any) -> None:
    _check_operations(request, MAX_OPERATIONS)
    _touched(request.success)
    _touched(request.failure)


def is_read_only(request: Any) -> bool:
    operations = chain(request.success, request.failure)
    return all(operation.HasField("request_range") for operation in operations)


_CHECKS = {"request_range": check_key, "request_put": check_put, "request_delete_range": check_key}


def _check_operations(request: Any, most: int) -> None:
    count = max(len(request.compare), len(request.success), len(request.failure))
    if count > most:
        raise RpcAborted(TOO_MANY_OPERATIONS)
    for compare in request.compare:
        check_key(compare)
    for operation in chain(request.success, request.failure):
        kind = operation.WhichOneof("choice0")
        if kind is None:
            raise RpcAborted(KEY_NOT_FOUND)
        if kind == "request_txn":
            # Nested operations count too, which also limits the depth.
            _check_operations(operation.request_txn, most - count)
        else:
            _CHECKS[kind](getattr(operation, kind))


def _touched(operations: Sequence[Any]) -> tuple[set[bytes], list[Interval]]:
    """The keys that operations put and the intervals that they delete. No key may be put twice, nor
    put and deleted, except in the two branches of a transaction: only one is executed."""
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
            raise RpcAborted(DUPLICATE_KEY)


def _interval(request: Any) -> Interval:
    # A deletion of all keys from a start on has a zero byte as its end. As an interval that is
    # empty, and etcd treats it so: such a deletion may be combined with a put that it covers.
    return request.key, request.range_end or request.key + b"\0"
