"""What a handler gives back."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec


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
