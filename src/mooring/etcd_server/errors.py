"""etcd's error codes and texts, and the checks of requests that raise them."""

from __future__ import annotations

from dataclasses import dataclass

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

_Code = grpc.StatusCode


@dataclass(frozen=True, slots=True)
class RpcStatus:
    code: grpc.StatusCode
    text: str

    def __str__(self) -> str:
        """As Go prints it, and as etcd puts it into the cancellation of a watch."""
        name = "".join(word.capitalize() for word in self.code.name.split("_"))
        return f"rpc error: code = {name} desc = {self.text}"


class RpcAborted(Exception):
    """Ends a call with an error status. Raised before anything was changed."""

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


# The start of the text if a message cannot be parsed; the parser's reason follows.
UNREADABLE = "grpc: error unmarshalling request:"
UNREADABLE_IN_STREAM = "grpc: failed to unmarshal the received message"


# Why a watch is refused; part of its cancellation, not of a status.
EMPTY_WATCH_RANGE = "mvcc: watcher range is empty"
DUPLICATE_WATCH_ID = "mvcc: duplicate watch ID provided on the WatchStream"


def oversized(size: int, limit: int) -> RpcStatus:
    """A message over the limit of the transport, in the words of etcd's."""
    return RpcStatus(
        _Code.RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {limit})"
    )


def not_served(what: str, instead: str) -> RpcStatus:
    """The error for a method of etcd that is not supported; `instead` is the alternative."""
    return RpcStatus(_Code.UNIMPLEMENTED, f"mooring does not serve {what}: {instead}")


_ENGINE: tuple[tuple[type[MooringError], RpcStatus], ...] = (
    (Compacted, COMPACTED),
    (FutureRevision, FUTURE_REVISION),
    (LeaseNotFound, LEASE_NOT_FOUND),
    (OutOfSpace, NO_SPACE),
    (TooLarge, TOO_LARGE),
    (Closed, STOPPED),
    # etcd answers this if it did not accept the request: clients may retry.
    (Unavailable, NO_LEADER),
    # A client that gets "timed out" reads before it writes again.
    (OutcomeUnknown, TIMED_OUT),
)


def status_of(error: RpcAborted | MooringError) -> RpcStatus:
    """The error of a service, or of the engine or its runner, as etcd's status."""
    if isinstance(error, RpcAborted):
        return error.status
    for kind, answer in _ENGINE:
        if isinstance(error, kind):
            return answer
    code = _Code.INVALID_ARGUMENT if isinstance(error, InvalidRequest) else _Code.UNKNOWN
    return RpcStatus(code, f"etcdserver: {error}")
