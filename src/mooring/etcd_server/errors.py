"""etcd's error codes and texts, and the checks of requests that raise them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from mooring.errors import (
    Closed,
    Compacted,
    FutureRevision,
    InvalidRequest,
    LeaseNotFound,
    MooringError,
    OutcomeUnknown,
    OutOfSpace,
    TooLarge,
    Unavailable,
)
from mooring.store.contract import MAX_OPERATIONS, MAX_REQUEST_BYTES

_Code = grpc.StatusCode


@dataclass(frozen=True, slots=True)
class RpcStatus:
    """How a call ends that is not answered."""

    code: grpc.StatusCode
    text: str

    def __str__(self) -> str:
        """As etcd's own language prints it, which is how it stands in a watch's cancellation."""
        name = "".join(word.capitalize() for word in self.code.name.split("_"))
        return f"rpc error: code = {name} desc = {self.text}"


class RpcAborted(Exception):
    """A call that ends with an error status. Raised before anything was changed."""

    def __init__(self, status: RpcStatus) -> None:
        super().__init__(status.text)
        self.status = status


EMPTY_KEY = RpcStatus(_Code.INVALID_ARGUMENT, "etcdserver: key is not provided")
KEY_NOT_FOUND = RpcStatus(_Code.INVALID_ARGUMENT, "etcdserver: key not found")
VALUE_PROVIDED = RpcStatus(_Code.INVALID_ARGUMENT, "etcdserver: value is provided")
LEASE_PROVIDED = RpcStatus(_Code.INVALID_ARGUMENT, "etcdserver: lease is provided")
TOO_MANY_OPERATIONS = RpcStatus(
    _Code.INVALID_ARGUMENT, "etcdserver: too many operations in txn request"
)
DUPLICATE_KEY = RpcStatus(_Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request")
TOO_LARGE = RpcStatus(_Code.INVALID_ARGUMENT, "etcdserver: request is too large")
COMPACTED = RpcStatus(_Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
FUTURE_REVISION = RpcStatus(
    _Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision"
)
NO_SPACE = RpcStatus(_Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
LEASE_NOT_FOUND = RpcStatus(_Code.NOT_FOUND, "etcdserver: requested lease not found")
LEASE_EXISTS = RpcStatus(_Code.FAILED_PRECONDITION, "etcdserver: lease already exists")
TTL_TOO_LARGE = RpcStatus(_Code.OUT_OF_RANGE, "etcdserver: too large lease TTL")
NO_USER = RpcStatus(_Code.INVALID_ARGUMENT, "etcdserver: user name is empty")
BAD_LOGIN = RpcStatus(
    _Code.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password"
)
BAD_TOKEN = RpcStatus(_Code.UNAUTHENTICATED, "etcdserver: invalid auth token")
NO_AUTH = RpcStatus(_Code.FAILED_PRECONDITION, "etcdserver: authentication is not enabled")
STOPPED = RpcStatus(_Code.UNAVAILABLE, "etcdserver: server stopped")
NO_LEADER = RpcStatus(_Code.UNAVAILABLE, "etcdserver: no leader")
TIMED_OUT = RpcStatus(_Code.UNAVAILABLE, "etcdserver: request timed out")


# How the text starts where a message cannot be read; the reason is the parser's own.
UNREADABLE = "grpc: error unmarshalling request:"
UNREADABLE_IN_STREAM = "grpc: failed to unmarshal the received message"


# What a watch is refused for stands in its cancellation, not in a status.
EMPTY_WATCH_RANGE = "mvcc: watcher range is empty"
DUPLICATE_WATCH_ID = "mvcc: duplicate watch ID provided on the WatchStream"


def oversized(size: int, limit: int) -> RpcStatus:
    """A message over the limit of the transport, as etcd's says it."""
    return RpcStatus(
        _Code.RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {limit})"
    )


def unknown(service: str, method: str | None) -> RpcStatus:
    """A method that is none, of a service that is one or not."""
    if method is None:
        return RpcStatus(_Code.UNIMPLEMENTED, f"unknown service {service}")
    return RpcStatus(_Code.UNIMPLEMENTED, f"unknown method {method} for service {service}")


def malformed(path: str) -> RpcStatus:
    return RpcStatus(_Code.RESOURCE_EXHAUSTED, f'malformed method name: "{path}"')


def not_served(what: str, instead: str) -> RpcStatus:
    """A method of etcd that makes no sense here; `instead` is what to do."""
    return RpcStatus(_Code.UNIMPLEMENTED, f"mooring does not serve {what}: {instead}")


_ENGINE: tuple[tuple[type[MooringError], RpcStatus], ...] = (
    (Compacted, COMPACTED),
    (FutureRevision, FUTURE_REVISION),
    (LeaseNotFound, LEASE_NOT_FOUND),
    (OutOfSpace, NO_SPACE),
    (TooLarge, TOO_LARGE),
    (Closed, STOPPED),
    # etcd says this if it did not take the request: a client may send it again.
    (Unavailable, NO_LEADER),
    # A client that reads "timed out" looks before it writes again.
    (OutcomeUnknown, TIMED_OUT),
)


def status_of(error: MooringError) -> RpcStatus:
    """What the engine or its runner raised, in etcd's words."""
    for kind, answer in _ENGINE:
        if isinstance(error, kind):
            return answer
    code = _Code.INVALID_ARGUMENT if isinstance(error, InvalidRequest) else _Code.UNKNOWN
    return RpcStatus(code, f"etcdserver: {error}")


_ENVELOPE = 18
"""The bytes that etcd puts around a request before it measures it: its id, a tag, a length."""

Interval = tuple[bytes, bytes]


def check_size(request: Any) -> None:
    """Only what is written is measured: etcd measures what goes into its log."""
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
    return all(
        operation.HasField("request_range")
        for operations in (request.success, request.failure)
        for operation in operations
    )


def _check_operations(request: Any, most: int) -> None:
    count = max(len(request.compare), len(request.success), len(request.failure))
    if count > most:
        raise RpcAborted(TOO_MANY_OPERATIONS)
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
            raise RpcAborted(KEY_NOT_FOUND)


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
            raise RpcAborted(DUPLICATE_KEY)


def _interval(request: Any) -> Interval:
    # A deletion of "all from here on" has a zero byte for its end. As an interval that is empty,
    # which is how etcd takes it: such a deletion may stand beside a put that it covers.
    return request.key, request.range_end or request.key + b"\0"
