"""What the status that ends a call says of the instance that was called, and of errors. Pure."""

from __future__ import annotations

import re
from typing import Final

import grpc

from mooring.formatting import describe

BLAMED: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
"""It could not be reached, or did not answer in time. What it answers is its own affair."""

AGAIN: Final = grpc.StatusCode.UNAVAILABLE
"""After this a call is tried again elsewhere, where its method may be repeated."""

NOTICED: Final = 0.05
"""Seconds in which gRPC notices that a connection is gone."""

ASK_WITHIN: Final = 0.2
"""Seconds for a call that asks why there is no connection: gRPC knows it, and fails at once."""

# What gRPC says if it has one instance to try, and if it goes round among several.
_UNCONNECTED = ("failed to connect to all addresses", "connections to all backends failing")


def never_left(error: grpc.RpcError) -> bool:
    """Whether a call failed since there was no connection: nothing of it was sent. Only gRPC's
    words tell that from a connection that broke under it."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if code is None or details is None or code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    return str(details()).startswith(_UNCONNECTED)


def connection_error(error: grpc.RpcError) -> str:
    """Why there is no connection, in gRPC's words, from a call that failed for want of one."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return ""
    return re.sub(r"^(.*last error: )?([A-Z_]+: )?(ipv[46]:)?", "", str(error.details()))


def verdict(code: grpc.StatusCode | None) -> bool | None:
    """Whether an instance did well; None where that cannot be told: the caller gave up."""
    if code is grpc.StatusCode.OK:
        return True
    if code is None or code is grpc.StatusCode.CANCELLED:
        return None
    return code not in BLAMED


def reason(error: Exception) -> str:
    """Why no channel can be made, for the details of a status."""
    return describe(error)
