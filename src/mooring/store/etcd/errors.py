"""Classifies errors of etcd and gRPC, and translates them. Pure functions of code and text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

import grpc

from mooring.errors import (
    AccessDenied,
    Compacted,
    FutureRevision,
    InvalidRequest,
    LeaseNotFound,
    MooringError,
    OutcomeUnknown,
    OutOfSpace,
    StoreError,
    TooLarge,
    Unavailable,
)
from mooring.messages import Message, message, named, verbatim

_Code = grpc.StatusCode


class Verdict(Enum):
    """How to proceed after an error."""

    RETRY = "not executed: retry, on another endpoint"
    LOST = "the reply was lost: retry only calls that may be repeated"
    LOGIN = "not executed: the token is no longer valid, get another"
    FINAL = "a definite answer: a retry would get the same"


_NEVER_SENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_NOT_TAKEN = (
    "etcdserver: no leader",
    "etcdserver: not capable",
    "etcdserver: too many requests",
    "etcdserver: rpc not supported for learner",
)
_BAD_TOKEN = (
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",  # authentication was enabled after we connected
)
_TRANSPORT = (_Code.UNAVAILABLE, _Code.DEADLINE_EXCEEDED, _Code.CANCELLED, _Code.INTERNAL)


def judge(code: grpc.StatusCode, text: str) -> Verdict:
    if any(part in text for part in _BAD_TOKEN):
        return Verdict.LOGIN
    if text.startswith((*_NEVER_SENT, *_NOT_TAKEN)):
        return Verdict.RETRY
    if code in _TRANSPORT or (code == _Code.UNKNOWN and not text.startswith("etcdserver:")):
        return Verdict.LOST
    return Verdict.FINAL


def absence(text: str, *, at: int, lease: int) -> StoreError | None:
    """The error for a revision or a lease that does not exist; None for other answers."""
    errors = {
        "required revision is a future revision": FutureRevision(at),
        "required revision has been compacted": Compacted(at),
        "requested lease not found": LeaseNotFound(lease),
    }
    return next((error for part, error in errors.items() if part in text), None)


def is_too_large_for_us(text: str) -> bool:
    """A response over our own message limit, which smaller pages avoid."""
    return "Received message larger than max" in text


def cancellation(text: str, start: bytes) -> StoreError:
    """The error for a watch that the server refused or ended."""
    what = message("op_watch", key=named(start))
    if "user name is empty" in text:
        return AccessDenied(message("etcd_requires_user", operation=what, store="etcd"))
    if "permission denied" in text or any(part in text for part in _BAD_TOKEN):
        return AccessDenied(message("etcd_permission_denied", operation=what, store="etcd"))
    return Unavailable(message("etcd_ended_watch", operation=what, reason=shorten(text)))


def translate(
    code: grpc.StatusCode, text: str, *, where: Message, what: Message, writes: bool
) -> MooringError:
    """The error for a call that is not retried."""
    verdict = judge(code, text)
    reason = shorten(text)
    if writes and is_too_large_for_us(text):
        return OutcomeUnknown(
            message("store_reply_too_large", operation=what, store=where, reason=reason)
        )
    if "user name is empty" in text:
        return AccessDenied(message("etcd_requires_user", operation=what, store=where))
    if verdict is Verdict.RETRY or (verdict is Verdict.LOST and not writes):
        return Unavailable(message("store_unavailable", operation=what, store=where, reason=reason))
    if verdict is Verdict.LOST:
        return OutcomeUnknown(
            message("store_reply_lost", operation=what, store=where, reason=reason)
        )
    if verdict is Verdict.LOGIN:
        return AccessDenied(
            message("store_rejects_token", operation=what, store=where, reason=reason)
        )
    for part, (error, kind) in _ANSWERS.items():
        if part in text.lower():
            return error(message(kind, operation=what, store=where))
    return StoreError(
        message("store_answered", operation=what, store=where, code=code.name, reason=reason)
    )


_ANSWERS: Mapping[str, tuple[type[MooringError], str]] = {
    "permission denied": (AccessDenied, "etcd_permission_denied"),
    "user name not found": (AccessDenied, "etcd_requires_user"),
    "invalid user id or password": (AccessDenied, "etcd_rejects_login"),
    "database space exceeded": (OutOfSpace, "etcd_out_of_space"),
    "too many operations in txn": (TooLarge, "etcd_too_many_operations"),
    "request is too large": (TooLarge, "etcd_request_too_large"),
    "received message larger than max": (TooLarge, "etcd_request_too_large"),
    "duplicate key given": (InvalidRequest, "etcd_key_twice"),
}
"""The error and the kind of its message for each answer of etcd."""


def shorten(text: str) -> Message:
    """The last reason in gRPC's chain of reasons, without prefixes."""
    text = text.rsplit("last error: ", 1)[-1]
    text = re.sub(r"^[A-Z_]+: ", "", text)[:200]
    return verbatim(text) if text else message("no_reason_given")
