"""Classifies errors of etcd and gRPC, and translates them. Pure functions of code and text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

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
from mooring.formatting import readable

_Code = grpc.StatusCode
E = TypeVar("E", bound=MooringError)


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
    what = f"watch of {readable(start)}"
    if "user name is empty" in text:
        return _error(_ANONYMOUS, what, "etcd")
    if "permission denied" in text or any(part in text for part in _BAD_TOKEN):
        return _error(_DENIED, what, "etcd")
    return Unavailable(f"{what}: ended by the server ({shorten(text)})")


def translate(
    code: grpc.StatusCode, text: str, *, where: str, what: str, writes: bool
) -> Exception:
    """The error for a call that is not retried."""
    verdict = judge(code, text)
    if writes and is_too_large_for_us(text):
        return OutcomeUnknown(
            f"{what}: the reply of {where} is over the client's limit ({shorten(text)}); it may "
            "have happened: ask for less in the commit's own reads"
        )
    if "user name is empty" in text:
        return _error(_ANONYMOUS, what, where)
    if verdict is Verdict.RETRY or (verdict is Verdict.LOST and not writes):
        return Unavailable(f"{what}: {where} is not available ({shorten(text)})")
    if verdict is Verdict.LOST:
        return OutcomeUnknown(
            f"{what}: the reply of {where} was lost ({shorten(text)}); it may have happened: "
            "read before you try again"
        )
    if verdict is Verdict.LOGIN:
        return AccessDenied(f"{what}: {where} rejects our token repeatedly ({text})")
    for part, answer in _ANSWERS.items():
        if part in text.lower():
            return _error(answer, what, where)
    return StoreError(f"{what}: {where} answered {code.name}: {shorten(text)}")


_DENIED = (
    AccessDenied,
    "permission denied by {where}: grant the user's role read and write on these keys "
    "(docs/etcd.md has the least that suffices)",
)
_ANONYMOUS = (
    AccessDenied,
    "{where} requires a user: add ?user=NAME&password=… to the URL, or set MOORING_ETCD_PASSWORD",
)
_REQUEST_TOO_LARGE = (
    TooLarge,
    "larger than {where} accepts in one commit (--max-request-bytes)",
)
_ANSWERS: Mapping[str, tuple[type[MooringError], str]] = {
    "permission denied": _DENIED,
    "user name not found": _ANONYMOUS,
    "invalid user id or password": (AccessDenied, "{where} rejects the user name or password"),
    "database space exceeded": (
        OutOfSpace,
        "{where} is out of space (alarm NOSPACE) and refuses writes; reads continue. "
        "Compact, defragment and disarm it: etcdctl compact, defrag, alarm disarm",
    ),
    "too many operations in txn": (
        TooLarge,
        "more operations in one commit than {where} accepts (--max-txn-ops)",
    ),
    "request is too large": _REQUEST_TOO_LARGE,
    "received message larger than max": _REQUEST_TOO_LARGE,
    "duplicate key given": (InvalidRequest, "a key is written twice in one commit"),
}
"""The error for each answer of etcd."""


def _error(answer: tuple[type[E], str], what: str, where: str) -> E:
    kind, text = answer
    return kind(f"{what}: {text.format(where=where)}")


def shorten(text: str) -> str:
    """The last reason in gRPC's chain of reasons, without prefixes."""
    text = text.rsplit("last error: ", 1)[-1]
    return re.sub(r"^[A-Z_]+: ", "", text)[:200] or "no reason given"
