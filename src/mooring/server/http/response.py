"""What a handler gives back."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mooring import errors


def _other(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


encode = msgspec.json.Encoder(enc_hook=_other).encode


def shown(moment: datetime.datetime | None) -> str | None:
    """A moment as the API writes it: UTC with milliseconds."""
    if moment is None:
        return None
    text = moment.astimezone(datetime.UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Answer:
    value: Any = None
    """Written as JSON, unless it is bytes already; None with a status that has no body."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    etag: str = ""
    """What tells this answer from a later one, where that is not all of it: times go on."""
    media: str = "application/json"
    stream: AsyncIterator[bytes] | None = None
    """In place of a value, for as long as the client listens."""

    def body(self) -> bytes:
        if isinstance(self.value, bytes):
            return self.value
        return b"" if self.status == 204 else encode(self.value)


def tag(body: bytes) -> str:
    """An ETag of these bytes."""
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def matches(header: str, etag: str) -> bool:
    """Whether an `If-None-Match` names this ETag."""
    named = [each.strip().removeprefix("W/") for each in header.split(",")]
    return "*" in named or etag.removeprefix("W/") in named


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
