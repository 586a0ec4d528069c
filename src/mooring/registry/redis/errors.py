"""Translates the errors of the driver, and decides whether to retry. Pure."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from typing import Literal

from redis import exceptions as redis

from mooring.errors import AccessDenied, OutcomeUnknown, OutOfSpace, StoreError, Unavailable
from mooring.formatting import describe

LOST = (redis.RedisError, redis.RedisClusterException, OSError, RuntimeError, AttributeError)
"""What the driver raises for a lost connection. It raises the last two if a connection was closed
during a call, by uvloop's transport or by its pool."""

Verdict = Literal["script", "again", "elsewhere", "final"]
"""`script`: send the text of the script. `again`: retry. `elsewhere`: reconnect to the current
master and retry. `final`: do not retry."""

_AGAIN = re.compile(r"^(LOADING|BUSY|TRYAGAIN|CLUSTERDOWN|MISCONF)\b")
_ELSEWHERE = re.compile(r"^(READONLY|NOREPLICAS|MASTERDOWN|MOVED|ASK|UNKILLABLE)\b")
# For an error in a script, Redis 6.2 writes the place before the error, later versions after it.
_WHERE_FIRST = re.compile(r"^(?:Error running script[^@]*)?(?:@\w+: ?\d+: )*-?")
_WHERE_LAST = re.compile(r" script: (?:\w+, )?on @\w+:\d+$")
_FORBIDDEN = re.compile(r"The user executing the script can't|ACL failure in script")
_KINDS = {
    "services": "set",
    "heartbeats": "zset",
    "persistent": "zset",
    "removed": "zset",
    "evictions": "string",
}
"""The types of the registry's keys by the end of their names; all other keys are hashes."""
_NEVER_SENT = re.compile(
    r"Error -?\d+ connecting to|No master found|Connect call failed|Timeout connecting|"
    r"Error connecting|no node of the cluster answers|Name or service not known"
)
_CONNECTING = re.compile(r"Error (.*?) ?connecting to (\S+?)\.?(?: (.*))?$")


def code_of(error: BaseException) -> str:
    """The code in front of Redis' message, like `READONLY`. The driver strips some of them."""
    text = str(error)
    known = {
        redis.ReadOnlyError: "READONLY",
        redis.NoScriptError: "NOSCRIPT",
        redis.BusyLoadingError: "LOADING",
        redis.OutOfMemoryError: "OOM",
        redis.NoPermissionError: "NOPERM",
        redis.TryAgainError: "TRYAGAIN",
        redis.MasterDownError: "MASTERDOWN",
        redis.ClusterDownError: "CLUSTERDOWN",
    }
    for kind, code in known.items():
        if isinstance(error, kind):
            return code
    if _FORBIDDEN.search(text):
        return "NOPERM"
    match = re.match(r"[A-Z]{3,}\b", _WHERE_FIRST.sub("", text))
    return match[0] if match else ""


def kind_of(key: str) -> str:
    """The type that a key of the registry should have, as TYPE reports it."""
    return _KINDS.get(key.rpartition(":")[2] if ":instance:" not in key else "", "hash")


def judge(error: BaseException) -> Verdict:
    code = code_of(error)
    if code == "NOSCRIPT":
        return "script"
    if _AGAIN.match(code) or isinstance(error, redis.AskError):  # a slot that moves
        return "again"
    if _ELSEWHERE.match(code):
        return "elsewhere"
    if isinstance(error, redis.AuthenticationError | redis.AuthorizationError):
        return "final"
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return "elsewhere"
    if isinstance(error, redis.RedisClusterException | redis.ClusterError):
        return "elsewhere"
    return "final"


def refused(text: str, *, what: str, key: str) -> StoreError:
    """The error for one of the records that a script processed."""
    wrong = [f"{key} should be a {kind_of(key)}"]
    return translate(redis.ResponseError(text), what=what, where="Redis", writes=True, wrong=wrong)


def translate(
    error: BaseException, *, what: str, where: str, writes: bool, wrong: Sequence[str] = ()
) -> StoreError:
    """The error that the caller gets. `wrong` describes the keys with wrong types, if known."""
    text, code = in_words(error), code_of(error)
    if isinstance(error, redis.AuthenticationError | redis.AuthorizationError):
        return AccessDenied(f"{what}: the login at {where} failed: {text}")
    if code in ("NOPERM", "NOAUTH", "WRONGPASS"):
        return AccessDenied(f"{what}: {where} does not allow it: {text}")
    if code == "OOM":
        return OutOfSpace(
            f"{what}: {where} is out of memory and refuses writes: raise its maxmemory or free some"
        )
    if code == "WRONGTYPE":
        which = ", ".join(wrong) or "check the keys of this service with TYPE"
        return StoreError(
            f"{what}: a key of the registry at {where} has the wrong type (WRONGTYPE): {which}; "
            "delete it, or choose another prefix"
        )
    if isinstance(error, redis.AskError | redis.ClusterCrossSlotError):
        return Unavailable(
            f"{what}: {where} belongs to a cluster and does not hold this key: write the URL as "
            "redis+cluster://"
        )
    if judge(error) == "final":
        return StoreError(f"{what}: {where} answered: {text}")
    lost = isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError)
    if writes and lost and not code and not _NEVER_SENT.search(str(error)):
        return OutcomeUnknown(f"{what}: no answer from {where} ({text}): it may have been done")
    return Unavailable(f"{what}: {text if where in text else f'{where} is not available: {text}'}")


def in_words(error: BaseException) -> str:
    """The message of the driver, without its notation."""
    return _shortened(_CONNECTING.sub(_not_connected, describe(error).rstrip(".")))


def _not_connected(match: re.Match[str]) -> str:
    number, address, reason = match[1], match[2], match[3] or match[1]
    if re.search(rf"\b{errno.ECONNREFUSED}\b", f"{number} {reason}"):
        return (
            f"nothing listens at {address} (connection refused). Check that the server runs and "
            "that the port is right"
        )
    if reason.startswith("Connect call failed"):
        reason = os.strerror(int(number))
    return f"{address} cannot be reached: {reason}"


def _shortened(text: str) -> str:
    line = re.sub(r" : <.*", "", text.split("\n")[0])  # the driver appends the client
    line = _WHERE_FIRST.sub("", line.strip()).rstrip(".")
    line = _WHERE_LAST.sub("", line).rstrip(".")
    return line if len(line) <= 200 else f"{line[:199]}…"
