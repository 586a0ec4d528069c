"""What the status that ends a call says of the instance that was called, and of errors. Pure."""

from __future__ import annotations

from typing import Final

import grpc

from mooring.errors import MooringError

BLAMED: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
"""It could not be reached, or did not answer in time. What it answers is its own affair."""

AGAIN: Final = grpc.StatusCode.UNAVAILABLE
"""After this a call is tried again elsewhere, where its method may be repeated."""


def verdict(code: grpc.StatusCode | None) -> bool | None:
    """Whether an instance did well; None where that cannot be told: the caller gave up."""
    if code is grpc.StatusCode.OK:
        return True
    if code is None or code is grpc.StatusCode.CANCELLED:
        return None
    return code not in BLAMED


def reason(error: Exception) -> str:
    """Why no channel can be made, for the details of a status."""
    if isinstance(error, MooringError):
        return str(error)
    return f"{type(error).__name__}: {error}"
