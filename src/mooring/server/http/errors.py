"""What goes wrong, in one shape: `{"error": {"code": …, "message": …}}`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mooring import errors
from mooring.server.http.answers import Answer


class Failure(msgspec.Struct, frozen=True):
    code: str
    message: str
    """What happened, to what, and what to do."""


class ErrorBody(msgspec.Struct, frozen=True):
    error: Failure


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, dict(headers or {})


_STATUS: tuple[tuple[type[errors.MooringError], int, str], ...] = (
    (errors.NotConfigured, 404, "not_found"),
    (errors.NoInstance, 404, "not_found"),
    (errors.InvalidRequest, 400, "bad_request"),
    (errors.Superseded, 409, "superseded"),
    (errors.Removed, 410, "removed"),
    (errors.Taken, 409, "taken"),
    (errors.Undecipherable, 409, "undecipherable"),
    (errors.Conflict, 409, "conflict"),
    (errors.InUse, 409, "in_use"),
    (errors.TooLarge, 413, "too_large"),
    (errors.OutOfSpace, 507, "out_of_space"),
    (errors.OutcomeUnknown, 504, "outcome_unknown"),
    (errors.StoreError, 503, "unavailable"),
    (errors.MooringError, 409, "refused"),
)
"""The first that fits counts."""

STATUSES = {status: code for _, status, code in reversed(_STATUS)}


def refusal(error: errors.MooringError) -> Refused:
    """How an error of ours is answered."""
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            headers = {"Retry-After": "1"} if status == 503 else None
            return Refused(status, code, str(error), headers=headers)
    raise AssertionError("unreachable: the last one is the root of the tree")


def answer(refused: Refused) -> Answer:
    body = ErrorBody(Failure(refused.code, str(refused)))
    return Answer(body, refused.status, headers=refused.headers)
