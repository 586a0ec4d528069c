"""Responses: JSON bodies, ETags, and errors as JSON."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, overload

import msgspec

from mooring.messages import Message, Parameter, message


def _encode_other(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


encode = msgspec.json.Encoder(enc_hook=_encode_other).encode


@overload
def rfc3339(moment: datetime.datetime) -> str: ...
@overload
def rfc3339(moment: None) -> None: ...
def rfc3339(moment: datetime.datetime | None) -> str | None:
    """A time in UTC with milliseconds."""
    if moment is None:
        return None
    text = moment.astimezone(datetime.UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Response:
    value: Any = None
    """Encoded as JSON, unless it is bytes; None if the status has no body."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    etag: str = ""
    """Input of the ETag, if not the whole body: times in the body change with every request."""
    media: str = "application/json"
    stream: AsyncIterator[bytes] | None = None
    """Replaces `value`; sent until the client disconnects."""

    def body(self) -> bytes:
        if isinstance(self.value, bytes):
            return self.value
        return b"" if self.status == 204 else encode(self.value)


def digest(body: bytes) -> str:
    """A digest for ETags."""
    return hashlib.blake2b(body, digest_size=12).hexdigest()


def etag_matches(header: str, etag: str) -> bool:
    """Whether an `If-None-Match` names this ETag."""
    etags = [item.strip().removeprefix("W/") for item in header.split(",")]
    return "*" in etags or etag.removeprefix("W/") in etags


class Failure(msgspec.Struct, frozen=True):
    code: str
    """The class of the error, for programs."""
    message: str
    """What happened, to what, and what to do."""
    kind: str
    """The kind of the message: with its parameters it can be translated."""
    params: dict[str, Parameter]


class ErrorBody(msgspec.Struct, frozen=True):
    error: Failure


class HTTPError(Exception):
    """Raised by handlers to answer with an error."""

    def __init__(
        self,
        status: int,
        code: str,
        kind: str | Message,
        /,
        *,
        headers: Mapping[str, str] | None = None,
        retry_after: int | None = None,
        **params: object,
    ) -> None:
        """`kind` and `params` are those of a message, unless it is a message itself. The client
        should retry after `retry_after` seconds."""
        self.message = kind if isinstance(kind, Message) else message(kind, **params)
        super().__init__(self.message.text)
        self.status, self.code, self.headers = status, code, dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)


def error_response(error: HTTPError) -> Response:
    failure = Failure(error.code, error.message.text, error.message.kind, error.message.params)
    body = ErrorBody(failure)
    return Response(body, error.status, headers=error.headers)
