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
from mooring.messages import Message, combined, message, verbatim

LOST = (redis.RedisError, redis.RedisClusterException, OSError, RuntimeError, AttributeError)
"""What the driver raises for a lost connection. It raises the last two if a connection was closed
during a call, by uvloop's transport or by its pool."""

RetryDecision = Literal["script", "again", "elsewhere", "final"]
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


def judge(error: BaseException) -> RetryDecision:
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


def refused(text: str, *, what: Message, key: str) -> StoreError:
    """The error for one of the records that a script processed."""
    wrong = [message("redis_key_type", key=key, type=None, expected=kind_of(key))]
    return translate(redis.ResponseError(text), what=what, where="Redis", writes=True, wrong=wrong)


def translate(
    error: BaseException, *, what: Message, where: str, writes: bool, wrong: Sequence[Message] = ()
) -> StoreError:
    """The error that the caller gets. `wrong` describes the keys with wrong types, if known."""
    reason, code, store = reason_of(error), code_of(error), verbatim(where)
    lost = isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError)
    ours: type[StoreError]
    if isinstance(error, redis.AuthenticationError | redis.AuthorizationError):
        kind, ours = "redis_login_failed", AccessDenied
    elif code in ("NOPERM", "NOAUTH", "WRONGPASS"):
        kind, ours = "redis_not_allowed", AccessDenied
    elif code == "OOM":
        return OutOfSpace(message("redis_out_of_memory", operation=what, store=store))
    elif code == "WRONGTYPE":
        which = combined(wrong) if wrong else message("redis_check_types")
        return StoreError(message("redis_wrong_type", operation=what, store=store, which=which))
    elif isinstance(error, redis.AskError | redis.ClusterCrossSlotError):
        return Unavailable(message("redis_is_cluster", operation=what, store=store))
    elif judge(error) == "final":
        kind, ours = "redis_answered", StoreError
    elif writes and lost and not code and not _NEVER_SENT.search(str(error)):
        kind, ours = "redis_reply_lost", OutcomeUnknown
    elif where in reason.text:
        return Unavailable(message("operation_failed", operation=what, problem=reason))
    else:
        kind, ours = "store_unavailable", Unavailable
    return ours(message(kind, operation=what, store=store, reason=reason))


def reason_of(error: BaseException) -> Message:
    """The message of the driver, without its notation."""
    if error.args and isinstance(error.args[0], Message):
        return error.args[0]
    text = describe(error).rstrip(".")
    match = _CONNECTING.match(text)
    if match is None:
        return verbatim(_shortened(text))
    number, address, reason = match[1], match[2], match[3] or match[1]
    if re.search(rf"\b{errno.ECONNREFUSED}\b", f"{number} {reason}"):
        return message("endpoint_refused", address=address)
    if reason.startswith("Connect call failed"):
        reason = os.strerror(int(number))
    return message("endpoint_unreachable", address=address, reason=verbatim(_shortened(reason)))


def _shortened(text: str) -> str:
    line = re.sub(r" : <.*", "", text.split("\n")[0])  # the driver appends the client
    line = _WHERE_FIRST.sub("", line.strip()).rstrip(".")
    line = _WHERE_LAST.sub("", line).rstrip(".")
    return line if len(line) <= 200 else f"{line[:199]}…"
