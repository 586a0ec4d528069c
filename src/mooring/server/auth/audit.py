"""The audit log of this server: a line of JSON for every write, on disk before the response.

There are three files: "done" for operators and admins, "routine" for viewers and services, and
"refused", which any caller can fill. So lower-privileged callers cannot rotate the entries of
higher-privileged callers out of the log. They are read as one.
"""

from __future__ import annotations

import contextlib
import datetime
import heapq
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from starlette.requests import Request

from mooring.server.auth.authorization import Principal
from mooring.server.auth.data_dir import DataDir
from mooring.server.auth.rate_limits import TokenBuckets, network
from mooring.server.http.response import rfc3339

log = logging.getLogger(__name__)

MAX_BYTES = 10 * 1024 * 1024
"""The size at which a file is rotated."""
KEPT = 5
"""Rotated files that are kept."""
_MAX_TEXT = 2000
_MAX_REFUSED_TEXT = 200
"""The same for refused requests, whose callers may have no rights at all."""
_MAX_NOTES = 8000
_MAX_NAMES = 100
_MAX_NAME = 200
_REFUSALS = 60.0
"""Refusals per minute that are recorded of one token, or of one address without a token."""
_UNAUTHENTICATED = 600.0
"""Refusals per minute that are recorded of all callers without a token."""
_BLOCK = 64 * 1024


class AuditEntry(
    msgspec.Struct, frozen=True, kw_only=True, rename={"client": "from", "left_out": "leftOut"}
):
    """A recorded request, whether it succeeded or was rejected."""

    id: str
    """Increases with time."""
    time: str
    actor: str
    """The name of the token, or `anonymous`."""
    role: str = ""
    token: str = ""
    """The id of the token."""
    session: str = ""
    """The id of the browser session, if there was one."""
    client: str = ""
    """The address of the caller."""
    method: str
    path: str
    service: str = ""
    tenant: str = ""
    status: int
    notes: dict[str, Any] = {}
    """Details of the action, such as a reason and previous values."""
    left_out: int = 0
    """Refusals of any caller before this one that were not recorded because of their rate."""

    @property
    def kind(self) -> Literal["done", "routine", "refused"]:
        if is_refused(self.status, authenticated=bool(self.token)):
            return "refused"
        return "routine" if self.role in ("viewer", "service") else "done"


_decoder = msgspec.json.Decoder(AuditEntry)


class AuditedCall(Protocol):
    """The part of an `ApiCall` that is recorded: neither its body nor its query."""

    @property
    def principal(self) -> Principal: ...
    @property
    def client(self) -> str: ...
    @property
    def request(self) -> Request: ...
    @property
    def raw_path(self) -> str: ...
    @property
    def path(self) -> Mapping[str, str]: ...
    @property
    def notes(self) -> dict[str, Any]: ...


class Audit:
    def __init__(
        self,
        folder: DataDir,
        *,
        max_bytes: int = MAX_BYTES,
        kept: int = KEPT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._journals = {
            "done": _RotatedFile(folder, "audit.jsonl", max_bytes, kept),
            "routine": _RotatedFile(folder, "routine.jsonl", max_bytes, kept),
            "refused": _RotatedFile(folder, "refused.jsonl", max_bytes, kept),
        }
        self._refusals = TokenBuckets(_REFUSALS / 60, _REFUSALS)
        self._unauthenticated = TokenBuckets(_UNAUTHENTICATED / 60, _UNAUTHENTICATED, most=1)
        self._left_out = 0
        self._last = 0
        self.failures = 0
        """Entries that could not be written."""
        self.appended: Callable[[AuditEntry], None] | None = None
        """Called with each entry, after it was written."""

    def write(self, call: AuditedCall, status: int) -> None:
        """Record the outcome of a call. A failure is logged and counted; the call stays done."""
        principal = call.principal
        authenticated = bool(principal.token)
        refused = is_refused(status, authenticated=authenticated)
        if refused and self._exceeds_rate(principal.token, call.client):
            self._left_out += 1
            return
        most = _MAX_REFUSED_TEXT if refused else _MAX_TEXT
        entry = AuditEntry(
            id=self._next_id(),
            time=rfc3339(datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)),
            actor=principal.name,
            role=principal.role if authenticated else "",
            token=principal.token,
            session=principal.session,
            client=call.client,
            method=call.request.method[:20],
            path=_truncated(call.raw_path, most),
            service=_truncated(call.path.get("service", ""), most),
            tenant=_truncated(call.path.get("tenant", ""), most),
            status=status,
            notes=_bounded(call.notes),
            left_out=self._left_out,
        )
        self.append(entry)

    def append(self, entry: AuditEntry) -> None:
        journal = self._journals[entry.kind]
        try:
            journal.append(msgspec.json.encode(entry) + b"\n")
            self._left_out = 0
        except OSError as error:
            self.failures += 1
            log.error(
                "the audit log has no entry for what %s did (%s %s, status %d): %s: %s",
                entry.actor,
                entry.method,
                entry.path,
                entry.status,
                journal.file,
                error.strerror,
            )
        if self.appended is not None:
            self.appended(entry)

    def read(
        self,
        *,
        limit: int,
        before: str = "",
        matches: Callable[[AuditEntry], bool] = lambda entry: True,
    ) -> list[AuditEntry]:
        """Entries, newest first, optionally only those before the id `before`. Skips invalid lines.
        Blocks on the disk. Raises `OSError`."""
        entries = (journal.entries() for journal in self._journals.values())
        merged = heapq.merge(*entries, key=attrgetter("id"), reverse=True)
        earlier = (entry for entry in merged if not before or entry.id < before)
        return list(islice(filter(matches, earlier), limit))

    def _exceeds_rate(self, token: str, client: str) -> bool:
        if token:
            return self._refusals.take(f"token {token}") > 0
        return self._refusals.take(network(client)) > 0 or self._unauthenticated.take("") > 0

    def _next_id(self) -> str:
        self._last = max(self._last + 1, int(self._clock() * 1_000_000))
        return f"{self._last:014x}{secrets.token_hex(2)}"


def is_refused(status: int, *, authenticated: bool) -> bool:
    """Whether a call had no effect. A call that failed in the server may have had one, if its
    caller was admitted."""
    return status >= 400 and (status < 500 or not authenticated)


class _RotatedFile:
    """A file of lines that is rotated when it is full."""

    def __init__(self, folder: DataDir, name: str, max_bytes: int, kept: int) -> None:
        self._folder, self._max_bytes, self._kept = folder, max_bytes, kept
        self.file = folder.path / name
        self._torn = False

    def append(self, line: bytes) -> None:
        """Raises `OSError`."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.file, flags, 0o600)
        try:
            if self._torn:
                line = b"\n" + line  # the last line is incomplete
            written = os.write(descriptor, line)
            self._torn = written < len(line)
            if self._torn:
                raise OSError(28, "the disk is full, and the entry is incomplete")
            full = os.fstat(descriptor).st_size >= self._max_bytes
        finally:
            os.close(descriptor)
        if full:
            self._rotate()

    def _rotate(self) -> None:
        """Does nothing while another process holds the lock: requests must not wait for it."""
        with contextlib.suppress(BlockingIOError), self._folder.locked(wait=False):
            if self.file.stat().st_size < self._max_bytes:
                return  # another process was faster
            for number in range(self._kept - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(self._rotated(number), self._rotated(number + 1))
            os.replace(self.file, self._rotated(1))

    def _rotated(self, number: int) -> Path:
        return self.file.with_name(f"{self.file.name}.{number}")

    def entries(self) -> Iterator[AuditEntry]:
        """All entries, newest first."""
        for file in (self.file, *map(self._rotated, range(1, self._kept + 1))):
            with contextlib.suppress(FileNotFoundError):
                for line in _backwards(file):
                    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                        yield _decoder.decode(line)


def _backwards(file: Path) -> Iterator[bytes]:
    """The complete lines of a file, from its end to its start."""
    with file.open("rb") as opened:
        position = opened.seek(0, os.SEEK_END)
        rest = b""
        first = True
        while position:
            step = min(_BLOCK, position)
            position -= step
            opened.seek(position)
            lines = (opened.read(step) + rest).split(b"\n")
            rest = lines[0]
            for line in reversed(lines[1:]):
                if line and not first:
                    yield line
                first = False
        if rest and not first:
            yield rest


def _truncated(text: str, most: int) -> str:
    """The start of a text, in at most this many bytes."""
    return text if len(text) * 4 <= most else text.encode()[:most].decode(errors="ignore")


def _bounded(notes: dict[str, Any]) -> dict[str, Any]:
    try:
        if len(msgspec.json.encode(notes)) <= _MAX_NOTES:
            return dict(notes)
    except (TypeError, ValueError):
        return {"omitted": True}
    for most in (200, 20, 0):
        short = {name[:100]: _shortened(value, most) for name, value in list(notes.items())[:30]}
        if len(msgspec.json.encode(short)) <= _MAX_NOTES:
            break
    return short


def _shortened(value: object, most: int) -> object:
    """A value with all its names, and with its texts shortened to `most` characters."""
    if isinstance(value, dict):
        items = list(value.items())[:_MAX_NAMES]
        return {str(name)[:_MAX_NAME]: _text(inner, most) for name, inner in items}
    if isinstance(value, list | tuple):
        return [_text(inner, _MAX_NAME) for inner in value[:_MAX_NAMES]]
    return _text(value, max(most, 200))


def _text(value: object, most: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= most else f"{text[:most]}…"
