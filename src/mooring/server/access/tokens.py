"""Tokens: who holds one is who it says.

Of a token only its SHA-256 is kept. It is 256 random bits: there is nothing to guess, and no need
for a slow hash. The admin token is the file of that name, as it is at the moment.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias

import msgspec

from mooring.errors import InvalidRequest, MooringError
from mooring.names import check_name
from mooring.replacement import replacing
from mooring.server.access.folder import Folder, new_token
from mooring.server.access.principals import Principal, Role, scope

log = logging.getLogger(__name__)

Time: TypeAlias = datetime.datetime

ADMIN = "admin"
"""The id of the admin token."""
MOST = 10_000
"""Tokens of a folder."""
_LOOK = 1.0
"""Seconds after which files are looked at again: another server may have changed them."""
_KEPT = datetime.timedelta(days=90)
"""For so long a token is listed that is of no more use."""


_Stamp: TypeAlias = tuple[int, int, int, int, int]
"""What tells a file from how it was before, and from another in its place."""


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of a token."""

    id: str
    name: str
    role: Role
    groups: tuple[str, ...] = ()
    tenants: tuple[int, ...] = ()
    created: Time
    expires: Time | None = None
    revoked: Time | None = None
    sha256: str

    def __repr__(self) -> str:
        return f"Token(id={self.id!r}, name={self.name!r}, role={self.role!r})"

    def is_valid(self, now: Time) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)

    def principal(self, session: str = "") -> Principal:
        groups, tenants = scope(self.groups, self.tenants)
        return Principal(self.name, self.role, groups, tenants, token=self.id, session=session)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[Token] = []
    version: int = 1


def digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def utcnow() -> Time:
    return datetime.datetime.now(datetime.UTC)


class Tokens:
    """The tokens of a folder, as they are now: what another server changes there is seen within a
    second, what this one changes at once."""

    def __init__(self, folder: Folder, *, clock: Callable[[], Time] = utcnow) -> None:
        self._folder, self._clock = folder, clock
        self._by_digest: dict[str, Token] = {}
        self._by_id: dict[str, Token] = {}
        self._listed: list[Token] = []
        self._admin: Token | None = None
        self._seen: dict[Path, _Stamp | None] = {}
        self._lock = threading.Lock()
        """From reading the files to believing them: a change is made in a thread."""
        self._looked = 0.0
        self.used: dict[str, Time] = {}
        """When a token was last used here, by its id."""

    def open(self) -> None:
        """Read what is kept. Raises `InvalidRequest` for files that cannot be used."""
        with self._lock:
            self._seen = self._stamps()  # before they are read: what changes meanwhile is seen
            self._admin = self._read_admin()
            self._listed = self._read_file()
            self._index()

    def bearer(self, token: str) -> Principal | None:
        """Whose token this is; None for one that is unknown, revoked or expired."""
        found = self._valid(digest(token))
        if found is None:
            return None
        self.used[found.id] = self._clock()
        return found.principal()

    def current(self, id: str, sha256: str) -> Token | None:
        """A token by its id, as long as it is the same and good."""
        found = self._valid(sha256)
        return found if found is not None and found.id == id else None

    def sha256(self, id: str) -> str:
        """What is kept of a token that is good; empty otherwise."""
        self._look()
        found = self._by_id.get(id)
        return found.sha256 if found is not None and found.is_valid(self._clock()) else ""

    def listed(self) -> list[Token]:
        """All that are kept, the admin token first."""
        self._look()
        return [*([self._admin] if self._admin else []), *self._listed]

    def create(
        self,
        name: str,
        role: Role,
        *,
        groups: Collection[str] = (),
        tenants: Collection[int] = (),
        lasts: float | None = None,
    ) -> tuple[Token, str]:
        """A new token, and what its holder shows: that is said here and never again. Blocks on the
        disk. Raises `InvalidRequest`, and `StoreError` where it cannot be kept."""
        for group in groups:
            check_name("group", group)
        text, now = new_token(), self._clock()
        made = Token(
            id=secrets.token_hex(6),
            name=name,
            role=role,
            groups=tuple(sorted(set(groups))),
            tenants=tuple(sorted(set(tenants))),
            created=now,
            expires=None if lasts is None else _later(now, lasts),
            sha256=digest(text),
        )

        def add(kept: list[Token]) -> list[Token]:
            if len(kept) >= MOST:
                raise InvalidRequest(f"there are {MOST} tokens: revoke those that nobody uses")
            return [*kept, made]

        self._change(add)
        return made, text

    def revoke(self, id: str) -> Token | None:
        """From now on it is of no use, nor are the sessions that began with it. The token; None
        where there is none. Blocks on the disk. Raises `InvalidRequest` for the admin token."""
        if id == ADMIN:
            raise InvalidRequest(
                f"the admin token is the file {self._folder.admin_token}: remove it, and the next "
                "start of the server makes another"
            )
        revoked: list[Token] = []

        def mark(kept: list[Token]) -> list[Token]:
            after = [
                msgspec.structs.replace(each, revoked=each.revoked or self._clock())
                if each.id == id
                else each
                for each in kept
            ]
            revoked.extend(each for each in after if each.id == id)
            return after

        self._change(mark)
        return revoked[0] if revoked else None

    def _stamps(self) -> dict[Path, _Stamp | None]:
        return {file: _stamp(file) for file in (self._folder.tokens, self._folder.admin_token)}

    def _valid(self, sha256: str) -> Token | None:
        self._look()
        found = self._by_digest.get(sha256)
        if found is None or not hmac.compare_digest(found.sha256, sha256):
            return None
        return found if found.is_valid(self._clock()) else None

    def _change(self, edit: Callable[[list[Token]], list[Token]]) -> None:
        try:
            # The folder first: for that somebody else may make us wait, and nobody shall for us.
            with self._folder.locked(), self._lock:
                oldest = self._clock() - _KEPT
                kept = [each for each in self._read_file() if _ended(each) > oldest]
                after = edit(kept)
                with replacing(self._folder.tokens) as out:
                    out.write(msgspec.json.format(msgspec.json.encode(_File(after))) + b"\n")
                    out.flush()
                    written = _stamped(os.fstat(out.fileno()))
                self._listed = after
                self._index()
                self._seen[self._folder.tokens] = written
        except OSError as error:
            raise self._folder.unusable(error) from error

    def _look(self) -> None:
        """Read anew what was changed. A file that cannot be read lets nobody in."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        if not self._lock.acquire(blocking=False):
            return  # a change of our own is being written, and is seen by whoever asks after it
        try:
            self._looked = now
            self._read_anew()
        finally:
            self._lock.release()

    def _read_anew(self) -> None:
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self._admin = self._read_admin()
        except MooringError as error:
            log.error("the admin token is good for nothing: %s", error)
            self._admin = None
        try:
            self._listed = self._read_file()
        except MooringError as error:
            log.error("no token but the admin's is good for anything: %s", error)
            self._listed = []
        self._index()

    def _read_admin(self) -> Token | None:
        try:
            token = self._folder.read_admin_token()
            changed = self._folder.admin_token.stat(follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return None
        created = datetime.datetime.fromtimestamp(changed, datetime.UTC)
        return Token(id=ADMIN, name=ADMIN, role="admin", created=created, sha256=digest(token))

    def _read_file(self) -> list[Token]:
        file = self._folder.tokens
        try:
            told = self._folder.read(file, closed=0o022)
            return msgspec.json.decode(told, type=_File).tokens
        except FileNotFoundError:
            return []
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"{file} cannot be understood ({error}): mend it, or remove it, which revokes all "
                "tokens but the admin's"
            ) from error

    def _index(self) -> None:
        everything = [*([self._admin] if self._admin else []), *self._listed]
        # New dictionaries: a change is made in a thread while requests are looked up.
        self._by_digest = {each.sha256: each for each in everything}
        self._by_id = {each.id: each for each in everything}
        for id in list(self.used):
            if id not in self._by_id:
                self.used.pop(id, None)


def _ended(token: Token) -> Time:
    return token.revoked or token.expires or Time.max.replace(tzinfo=datetime.UTC)


def _later(now: Time, seconds: float) -> Time:
    if seconds <= 0:
        raise InvalidRequest("a token that has expired already is of no use to anybody")
    try:
        return now + datetime.timedelta(seconds=seconds)
    except OverflowError as error:
        raise InvalidRequest("a token cannot last that long: let it never expire") from error


def _stamp(file: Path) -> _Stamp | None:
    try:
        return _stamped(file.stat(follow_symlinks=False))
    except OSError:
        return None


def _stamped(told: os.stat_result) -> _Stamp:
    return told.st_mtime_ns, told.st_ino, told.st_size, told.st_mode, told.st_uid
