"""What an error of the driver means: whether to try again, and our word for it. Pure."""

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
"""What the driver raises for a connection that is no more. The last two are its ways of finding one
that was closed under its hands: by uvloop's transport, or by a pool that was told to."""

Verdict = Literal["script", "again", "elsewhere", "final"]
"""`script`: send it whole. `again`: it may pass in a moment. `elsewhere`: the same, after a look at
who is the master by now. `final`: the answer to the request itself."""

_AGAIN = re.compile(r"^(LOADING|BUSY|TRYAGAIN|CLUSTERDOWN|MISCONF)\b")
_ELSEWHERE = re.compile(r"^(READONLY|NOREPLICAS|MASTERDOWN|MOVED|ASK|UNKILLABLE)\b")
# Within a script 6.2 says where, and then what; later ones say what, and then where.
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
"""What a key of the registry is, by the end of its name; the others are hashes."""
_NEVER_SENT = re.compile(
    r"Error -?\d+ connecting to|No master found|Connect call failed|Timeout connecting|"
    r"Error connecting|no node of the cluster answers|Name or service not known"
)
_CONNECTING = re.compile(r"Error (.*?) ?connecting to (\S+?)\.?(?: (.*))?$")


def code_of(error: BaseException) -> str:
    """Redis' own word in front of its message: `READONLY`. The driver takes some of them off."""
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
    """What Redis' TYPE should say of a key of ours."""
    return _KINDS.get(key.rpartition(":")[2] if ":instance:" not in key else "", "hash")


def judge(error: BaseException) -> Verdict:
    code = code_of(error)
    if code == "NOSCRIPT":
        return "script"
    if _AGAIN.match(code) or isinstance(error, redis.AskError):  # a slot on the move
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
    """Our error for what a script says of one record among many."""
    wrong = [f"{key} should be a {kind_of(key)}"]
    return translate(redis.ResponseError(text), what=what, where="Redis", writes=True, wrong=wrong)


def translate(
    error: BaseException, *, what: str, where: str, writes: bool, wrong: Sequence[str] = ()
) -> StoreError:
    """Our error for one that nothing could be done about; `wrong` says which keys hold something
    else than they should, where that is known."""
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
        which = ", ".join(wrong) or "look with TYPE at the keys of this service"
        return StoreError(
            f"{what}: a key of the registry at {where} holds something else (WRONGTYPE): {which}; "
            "delete it, or choose another prefix"
        )
    if isinstance(error, redis.AskError | redis.ClusterCrossSlotError):
        return Unavailable(
            f"{what}: {where} belongs to a cluster and does not hold this: write the URL as "
            "redis+cluster://"
        )
    if judge(error) == "final":
        return StoreError(f"{what}: {where} answered: {text}")
    lost = isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError)
    if writes and lost and not code and not _NEVER_SENT.search(str(error)):
        return OutcomeUnknown(f"{what}: no answer of {where} ({text}): it may have happened or not")
    return Unavailable(f"{what}: {where} is not available: {text}")


def in_words(error: BaseException) -> str:
    """What the driver reports, without its notation."""
    return _shortened(_CONNECTING.sub(_not_connected, describe(error).rstrip(".")))


def _not_connected(said: re.Match[str]) -> str:
    number, address, reason = said[1], said[2], said[3] or said[1]
    if re.search(rf"\b{errno.ECONNREFUSED}\b", f"{number} {reason}"):
        return (
            f"nothing listens at {address} (connection refused): is the server up, is the port "
            "right?"
        )
    if reason.startswith("Connect call failed"):
        reason = os.strerror(int(number))
    return f"{address} cannot be reached: {reason}"


def _shortened(text: str) -> str:
    line = re.sub(r" : <.*", "", text.split("\n")[0])  # a client as the driver shows it
    line = _WHERE_FIRST.sub("", line.strip()).rstrip(".")
    line = _WHERE_LAST.sub("", line).rstrip(".")
    return line if len(line) <= 200 else f"{line[:199]}…"
