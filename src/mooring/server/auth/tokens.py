"""Tokens: a caller that shows one is whom it says.

Only the SHA-256 of a token is kept. It is 256 random bits: there is nothing to guess, and no need
for a slow hash. The admin token of a server is the file of that name, as it is at the moment; the
other servers of the store know it as a token like any other.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias

import msgspec

from mooring.errors import Conflict, InvalidRequest, MooringError, OutOfSpace, Unavailable
from mooring.formatting import in_words
from mooring.names import check_name
from mooring.server.auth.authorization import Principal, Role, scope
from mooring.server.auth.data_dir import DataDir, new_token
from mooring.server.auth.signed_records import SignedRecords

log = logging.getLogger(__name__)

Time: TypeAlias = datetime.datetime

ADMIN = "admin"
"""The id of this server's admin token."""
MOST = 10_000
"""Tokens of a store."""
TRUSTED = 3600.0
"""Seconds after which tokens that the store has not confirmed since serve for reading alone."""
_LOOK = 1.0
"""Seconds after which the file of the admin token is looked at again."""
_KEPT = datetime.timedelta(days=90)
"""For so long a token is listed that is of no more use."""
_PRUNED = 100
"""Such tokens that are deleted at once."""


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

    def until(self) -> float | None:
        """When it is no longer valid, in seconds since 1970; None: never."""
        if self.revoked is not None:
            return self.revoked.timestamp()
        return None if self.expires is None else self.expires.timestamp()

    def principal(self, session: str = "") -> Principal:
        groups, tenants = scope(self.groups, self.tenants)
        return Principal(self.name, self.role, groups, tenants, token=self.id, session=session)


class _TokensFile(msgspec.Struct, forbid_unknown_fields=True):
    """`tokens.json` of earlier versions."""

    tokens: list[Token] = []
    version: int = 1


def digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def utcnow() -> Time:
    return datetime.datetime.now(datetime.UTC)


class Tokens:
    """The tokens that this server accepts: its admin token, and those of the records that it was
    given. To look one up takes no I/O but a look at the admin token's file once a second."""

    def __init__(self, folder: DataDir, *, clock: Callable[[], Time] = utcnow) -> None:
        self._folder, self._clock = folder, clock
        self._records: SignedRecords[Token] | None = None
        self._former: list[Token] = []
        """Those of `tokens.json`, until they are in the records."""
        self._admin: Token | None = None
        self._own = ""
        """The id of the record of our admin token; empty while it is in none."""
        self._shared: str | None = None
        """The digest of the admin token that was shared last; None before the file was read."""
        self._reported = False
        self._by_digest: dict[str, Token] = {}
        self._by_id: dict[str, Token] = {}
        self._changed = True
        self._stamp: _Stamp | None = None
        self._looked = 0.0
        self.used: dict[str, Time] = {}
        """When a token was last used here, by its id."""

    def open(self) -> None:
        """Read what lies in the folder. Raises `InvalidRequest` for files that cannot be used."""
        self._stamp = _stamp(self._folder.admin_token)  # before it is read
        self._admin = self._read_admin()
        self._former = self._read_former()
        self._changed = True

    def changed(self) -> None:
        """The records changed."""
        self._changed = True

    async def attach(self, records: SignedRecords[Token]) -> None:
        """From now on the tokens are those of these records, and those of `tokens.json` are moved
        there. Raises what the store raises."""
        self._records, self._changed = records, True
        for token in self._former:
            if records.get(token.id) is None:
                with contextlib.suppress(Conflict):  # another server has the same
                    await records.create(token.id, token)
        if self._former:
            log.info("%d tokens of %s were moved", len(self._former), self._folder.tokens)
        self._former, self._changed = [], True
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._folder.tokens, self._folder.tokens.with_suffix(".json.moved"))

    async def share_admin(self, server: str) -> None:
        """Let the other servers know our admin token as it is now, unless one of them revoked it.
        Each token is shared once: a record that vanished may have been a revoked one. Raises what
        the store raises, and `StoreError` or `InvalidRequest` for a folder that cannot be used."""
        records = self._records
        if records is None or not records.loaded:
            return
        self._look()
        self._own = own = f"{ADMIN}-{server}"
        admin, known = self._admin, records.get(own)
        if self._shared is None:
            self._shared = self._folder.shared_admin
        if admin is None:
            if known is not None and await records.remove(own) and known.revoked is None:
                self._keep_shared("")
            return
        wanted = msgspec.structs.replace(admin, id=own)
        if known is None:
            if self._shared == admin.sha256:
                self._report_deleted(own)
                return
            await records.discard(own)
            try:
                await records.create(own, wanted)
            except Conflict:  # what is there was not read yet
                return
        elif known.sha256 != admin.sha256 and not await records.change(own, lambda _: wanted):
            return  # it vanished in this moment
        self._reported = False
        self._keep_shared(admin.sha256)

    def _keep_shared(self, sha256: str) -> None:
        if self._shared != sha256:
            self._folder.keep_shared_admin(sha256)
            self._shared = sha256

    def _report_deleted(self, own: str) -> None:
        """The record said whether the token was revoked, and any client of the store can delete it.
        So it is not written again."""
        if not self._reported:
            self._reported = True
            log.error(
                "the record %s of the admin token was deleted from the store or overwritten: the "
                "other servers do not accept this token any more. To share a new one, remove %s "
                "and restart this server",
                own,
                self._folder.admin_token,
            )

    @property
    def loaded(self) -> bool:
        """Whether a token that is unknown here is unknown to the others too."""
        return self._records is not None and self._records.loaded

    def is_confirmed(self, id: str) -> bool:
        """Whether the store was heard recently enough that a token which was revoked elsewhere
        cannot pass for valid."""
        return id == ADMIN or self._records is None or self._records.age < TRUSTED

    def bearer(self, token: str) -> Principal | None:
        """Whose token this is; None for one that is unknown, revoked or expired."""
        found = self.current(digest(token))
        if found is None:
            return None
        self.used[found.id] = self._clock()
        return found.principal()

    def current(self, sha256: str) -> Token | None:
        """A token by its digest, as long as it is valid."""
        self._look()
        found = self._by_digest.get(sha256)
        if found is None or not hmac.compare_digest(found.sha256, sha256):
            return None
        return found if found.is_valid(self._clock()) else None

    def sha256(self, id: str) -> str:
        """The digest of a valid token; empty otherwise."""
        self._look()
        found = self._by_id.get(id)
        return found.sha256 if found is not None and found.is_valid(self._clock()) else ""

    def listed(self) -> list[Token]:
        """All that are kept, the admin token first."""
        self._look()
        first = [] if self._admin is None else [self._admin]
        return first + [each for each in self._by_id.values() if each.id != ADMIN]

    async def create(
        self,
        name: str,
        role: Role,
        *,
        groups: Collection[str] = (),
        tenants: Collection[int] = (),
        lasts: float | None = None,
    ) -> tuple[Token, str]:
        """A new token and its text, which is kept nowhere. Raises `InvalidRequest`, and what the
        store raises."""
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
        records = self._opened()
        await self._prune(records)
        if len(records) >= MOST:
            raise InvalidRequest(f"there are {MOST} tokens: revoke those that are not used")
        await records.create(made.id, made)
        return made, text

    async def revoke(self, id: str) -> Token | None:
        """End a token and the sessions that began with it, on every server. The token; None if
        there is none. Raises `InvalidRequest` for the admin token, and what the store raises."""
        if id in (ADMIN, self._own):
            raise InvalidRequest(
                f"the admin token is the file {self._folder.admin_token}: remove it, and the next "
                "start of the server makes another"
            )
        records, now = self._opened(), self._clock()

        def ended(token: Token) -> Token:
            return msgspec.structs.replace(token, revoked=token.revoked or now)

        try:
            return await records.change(id, ended)
        except OutOfSpace as error:  # a full store deletes
            found = await records.revoke(id)
            if found is None:
                return None
            log.warning("token %s was deleted instead of marked as revoked: %s", id, error)
            return ended(found)

    async def _prune(self, records: SignedRecords[Token]) -> None:
        oldest = self._clock() - _KEPT
        ended = [
            id
            for id, token in records.all().items()
            if _ended(token) <= oldest and not id.startswith(f"{ADMIN}-")  # see `share_admin`
        ]
        for id in ended[:_PRUNED]:
            await records.remove(id)

    def _opened(self) -> SignedRecords[Token]:
        if self._records is None:
            raise Unavailable("the server's tokens are not open yet: try again in a second")
        return self._records

    def _look(self) -> None:
        """Follow what changed. An admin token that cannot be read is not accepted."""
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            self._looked = now
            stamp = _stamp(self._folder.admin_token)
            if stamp != self._stamp:
                self._stamp, self._changed = stamp, True
                try:
                    self._admin = self._read_admin()
                except MooringError as error:
                    log.error("the admin token is not accepted: %s", error)
                    self._admin = None
        if self._changed:
            self._changed = False
            self._index()

    def _read_admin(self) -> Token | None:
        try:
            token = self._folder.read_admin_token()
            changed = self._folder.admin_token.stat(follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return None
        created = datetime.datetime.fromtimestamp(changed, datetime.UTC)
        return Token(id=ADMIN, name=ADMIN, role="admin", created=created, sha256=digest(token))

    def _read_former(self) -> list[Token]:
        file = self._folder.tokens
        try:
            found = self._folder.read(file, closed=0o022)
            return msgspec.json.decode(found, type=_TokensFile).tokens
        except FileNotFoundError:
            return []
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"{in_words(error, str(file))}: repair it, or remove it, which revokes all tokens "
                "but the admin's"
            ) from error

    def _index(self) -> None:
        known = {each.id: each for each in self._former}
        if self._records is not None:
            known.update(self._records.all())
        known.pop(self._own, None)  # it is the file that counts
        if self._admin is not None:
            known[ADMIN] = self._admin
        self._by_digest = {each.sha256: each for each in known.values()}
        self._by_id = known
        for id in list(self.used):
            if id not in known:
                del self.used[id]


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
        told = file.stat(follow_symlinks=False)
    except OSError:
        return None
    return told.st_mtime_ns, told.st_ino, told.st_size, told.st_mode, told.st_uid
