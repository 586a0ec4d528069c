"""Who did what: a line of JSON for every write, on the disk before it is answered.

There are three files, so that nobody pushes out what others did who could do less: what operators
and admins did, what viewers and services did, which is much and of little weight, and what was
refused, of which everybody can bring about as much as they like. They are read as one.
"""

from __future__ import annotations

import contextlib
import datetime
import heapq
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from mooring.server.auth.data_dir import DataDir
from mooring.server.auth.rate_limits import TokenBuckets, network
from mooring.server.http.response import shown

if TYPE_CHECKING:
    from mooring.server.http.request import ApiCall

log = logging.getLogger(__name__)

LARGEST = 10 * 1024 * 1024
"""Bytes of a file before another is begun."""
KEPT = 5
"""Files that are kept beside the one that is written."""
_LONGEST = 2000
_LONGEST_REFUSED = 200
"""Bytes of what somebody chose who may have had no right to."""
_LONGEST_NOTES = 8000
_NAMES = 100
_LONGEST_NAME = 200
_REFUSALS = 60.0
"""Refusals a minute, of one token or of one address without any, that are written down."""
_STRANGERS = 600.0
"""Refusals a minute of all who did not say who they are."""
_BLOCK = 64 * 1024


class AuditEntry(
    msgspec.Struct, frozen=True, kw_only=True, rename={"client": "from", "left_out": "leftOut"}
):
    """What somebody did, or tried to."""

    id: str
    """Later ones are larger."""
    time: str
    who: str
    role: str = ""
    token: str = ""
    """The id of the token."""
    session: str = ""
    """The id of the browser's session, where it was one."""
    client: str = ""
    """The address that it came from."""
    method: str
    path: str
    service: str = ""
    tenant: str = ""
    status: int
    notes: dict[str, Any] = {}
    """What the action itself has to say: a reason, what it was before."""
    left_out: int = 0
    """Refusals before this one, of anybody, that were too many to write down."""

    @property
    def kind(self) -> Literal["done", "routine", "refused"]:
        if is_refused(self.status, stranger=not self.token):
            return "refused"
        return "routine" if self.role in ("viewer", "service") else "done"


_decoder = msgspec.json.Decoder(AuditEntry)


class Audit:
    def __init__(
        self,
        folder: DataDir,
        *,
        largest: int = LARGEST,
        kept: int = KEPT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._journals = {
            "done": _Journal(folder, folder.audit, largest, kept),
            "routine": _Journal(folder, folder.routine, largest, kept),
            "refused": _Journal(folder, folder.refused, largest, kept),
        }
        self._refusals = TokenBuckets(_REFUSALS / 60, _REFUSALS)
        self._strangers = TokenBuckets(_STRANGERS / 60, _STRANGERS, most=1)
        self._left_out = 0
        self._last = 0
        self.failures = 0
        """Entries that could not be written."""
        self.appended: Callable[[AuditEntry], None] | None = None
        """Called with each entry, after it was written."""

    def write(self, call: ApiCall, status: int) -> None:
        """Write down how a call was answered: never its body, nor its query. A failure is logged
        and counted, and does not undo what was done."""
        who = call.principal
        refused = is_refused(status, stranger=not who.token)
        if refused and self._is_too_much(who.token, call.client):
            self._left_out += 1
            return
        most = _LONGEST_REFUSED if refused else _LONGEST
        entry = AuditEntry(
            id=self._next(),
            time=shown(datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)) or "",
            who=who.name if who.token else "nobody",
            role=who.role if who.token else "",
            token=who.token,
            session=who.session,
            client=call.client,
            method=call.request.method[:20],
            path=_cut(call.here, most),
            service=_cut(call.path.get("service", ""), most),
            tenant=_cut(call.path.get("tenant", ""), most),
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
                "the audit lost what %s did (%s %s, answered %d): %s: %s",
                entry.who,
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
        """The newest first, and of those older than `before`, the id of an entry. Blocks on the
        disk. Lines that are no entries are passed over. Raises `OSError`."""
        found: list[AuditEntry] = []
        entries = (each.entries() for each in self._journals.values())
        for entry in heapq.merge(*entries, key=attrgetter("id"), reverse=True):
            if before and entry.id >= before:
                continue
            if matches(entry):
                found.append(entry)
                if len(found) == limit:
                    break
        return found

    def _is_too_much(self, token: str, client: str) -> bool:
        if token:
            return self._refusals.take(f"token {token}") > 0
        return self._refusals.take(network(client)) > 0 or self._strangers.take("") > 0

    def _next(self) -> str:
        self._last = max(self._last + 1, int(self._clock() * 1_000_000))
        return f"{self._last:014x}{secrets.token_hex(2)}"


def is_refused(status: int, *, stranger: bool) -> bool:
    """Whether nothing was done. Where we failed something may have been, by who was let in."""
    return status >= 400 and (stranger or status < 500)


class _Journal:
    """A file of lines that goes on in another when it is full."""

    def __init__(self, folder: DataDir, file: Path, largest: int, kept: int) -> None:
        self._folder, self.file, self._largest, self._kept = folder, file, largest, kept
        self._torn = False

    def append(self, line: bytes) -> None:
        """Raises `OSError`."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.file, flags, 0o600)
        try:
            if self._torn:
                line = b"\n" + line  # the last one has no end
            written = os.write(descriptor, line)
            self._torn = written < len(line)
            if self._torn:
                raise OSError(28, "the disk is full, and the entry cut short")
            full = os.fstat(descriptor).st_size >= self._largest
        finally:
            os.close(descriptor)
        if full:
            self._rotate()

    def _rotate(self) -> None:
        """Begin another file; later, where somebody holds the lock: requests do not wait for it."""
        with contextlib.suppress(BlockingIOError), self._folder.locked(wait=False):
            if self.file.stat().st_size < self._largest:
                return  # another server was faster
            for number in range(self._kept - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(self._numbered(number), self._numbered(number + 1))
            os.replace(self.file, self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self.file.with_name(f"{self.file.name}.{number}")

    def entries(self) -> Iterator[AuditEntry]:
        """All that are kept, the last first."""
        for file in (self.file, *map(self._numbered, range(1, self._kept + 1))):
            with contextlib.suppress(FileNotFoundError):
                for line in _backwards(file):
                    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                        yield _decoder.decode(line)


def _backwards(file: Path) -> Iterator[bytes]:
    """The lines of a file from its end to its beginning, but for a last one without an end."""
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


def _cut(text: str, most: int) -> str:
    """No more bytes of a text than these."""
    return text if len(text) * 4 <= most else text.encode()[:most].decode(errors="ignore")


def _bounded(notes: dict[str, Any]) -> dict[str, Any]:
    try:
        if len(msgspec.json.encode(notes)) <= _LONGEST_NOTES:
            return dict(notes)
    except (TypeError, ValueError):
        return {"notes": "these cannot be written as JSON"}
    for most in (200, 20, 0):
        short = {name[:100]: _shortened(value, most) for name, value in list(notes.items())[:30]}
        if len(msgspec.json.encode(short)) <= _LONGEST_NOTES:
            break
    return short


def _shortened(value: object, most: int) -> object:
    """Every name that a note has, with so much of what it says of each as fits."""
    if isinstance(value, dict):
        some = list(value.items())[:_NAMES]
        return {str(name)[:_LONGEST_NAME]: _text(inner, most) for name, inner in some}
    if isinstance(value, list | tuple):
        return [_text(inner, _LONGEST_NAME) for inner in value[:_NAMES]]
    return _text(value, max(most, 200))


def _text(value: object, most: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= most else f"{text[:most]}…"
