"""Bearer tokens.

Only their SHA-256 is stored: a token is 256 random bits, so it cannot be guessed and needs no slow
hash. The admin token of a server is the current content of a file. The other servers of the store
know it as an ordinary token.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from mooring.errors import Conflict, InvalidRequest, MooringError, OutOfSpace, Unavailable
from mooring.messages import message
from mooring.model import Time, now
from mooring.names import check_name
from mooring.server.auth.authorization import Principal, Role, scope
from mooring.server.auth.data_dir import DataDir, new_token
from mooring.server.auth.signed_records import SignedRecords

log = logging.getLogger(__name__)

ADMIN = "admin"
"""The id of this server's admin token."""
MOST = 10_000
"""Tokens of a store."""
TRUSTED = 3600.0
"""Seconds without contact with the store after which tokens only permit reads."""
_REFRESH = 1.0
"""Seconds between two checks of the file of the admin token."""
_KEPT = 90 * 86400.0
"""Seconds for which an ended token stays in the list."""
_PRUNE_BATCH = 100


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stored token, without its secret."""

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
        """When it ends or ended, in seconds since 1970; None: never."""
        if self.revoked is not None:
            return self.revoked.timestamp()
        return None if self.expires is None else self.expires.timestamp()

    def principal(self, session: str = "") -> Principal:
        groups, tenants = scope(self.groups, self.tenants)
        return Principal(self.name, self.role, groups, tenants, token=self.id, session=session)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Tokens:
    """The tokens that this server accepts: its admin token, and those of the attached records. A
    lookup causes no I/O, except for one stat of the admin token's file per second."""

    def __init__(self, folder: DataDir, *, clock: Callable[[], Time] = now) -> None:
        """Reads the admin token. Raises `InvalidRequest` if its file is unusable."""
        self._folder, self._clock = folder, clock
        self._records: SignedRecords[Token] | None = None

        self._stamp = _stamp(folder.admin_token)  # before it is read
        self._admin = self._read_admin()
        self._own = ""
        """The id of the record of this server's admin token; empty if it was never shared."""
        self._shared: str | None = None
        """The digest of the last shared admin token; None until it was read."""
        self._reported = False
        self._by_digest: dict[str, Token] = {}
        self._by_id: dict[str, Token] = {}
        self._changed = True
        self._refreshed = 0.0
        self.used: dict[str, Time] = {}
        """When each token was last used on this server, by id."""

    def changed(self) -> None:
        """Called when the records change."""
        self._changed = True

    def attach(self, records: SignedRecords[Token]) -> None:
        """Use the tokens of these records."""
        self._records, self._changed = records, True

    async def share_admin(self, server: str) -> None:
        """Share the current admin token with the other servers, unless one of them revoked it. Each
        token is shared once, because a deleted record may have been a revoked one. Raises what the
        store raises, and `StoreError` or `InvalidRequest` if the folder cannot be used."""
        records = self._records
        if records is None or not records.mirror.loaded:
            return
        self._refresh()
        self._own = own = f"{ADMIN}-{server}"
        if self._shared is None:
            self._shared = self._folder.shared_admin
        admin = self._admin
        if admin is None:
            shared = records.get(own)
            if shared is not None and await records.remove(own) and shared.revoked is None:
                self._keep_shared("")
        elif await self._write_shared(records, msgspec.structs.replace(admin, id=own)):
            self._reported = False
            self._keep_shared(admin.sha256)

    async def _write_shared(self, records: SignedRecords[Token], admin: Token) -> bool:
        """Create or update the record of the admin token. Whether the store has it now."""
        before = records.get(admin.id)
        if before is not None:
            unchanged = before.sha256 == admin.sha256
            return unchanged or await records.change(admin.id, lambda _: admin) is not None
        if self._shared == admin.sha256:
            self._report_deleted(admin.id)
            return False
        await records.discard(admin.id)
        try:
            await records.create(admin.id, admin)
        except Conflict:  # another record exists, but was not read yet
            return False
        return True

    def _keep_shared(self, sha256: str) -> None:
        if self._shared != sha256:
            self._folder.keep_shared_admin(sha256)
            self._shared = sha256

    def _report_deleted(self, own: str) -> None:
        """Log that a shared token will not be shared again. Its record may have said that it was
        revoked, and any client of the store can delete the record."""
        if not self._reported:
            self._reported = True
            log.error(
                "the record %s of the admin token was deleted from the store or overwritten, so "
                "the other servers no longer accept this token. To share a new one, remove %s and "
                "restart this server",
                own,
                self._folder.admin_token,
            )

    @property
    def loaded(self) -> bool:
        """Whether the tokens of the store were read. Before, an unknown token may be valid."""
        return self._records is not None and self._records.mirror.loaded

    def is_confirmed(self, id: str) -> bool:
        """Whether the last contact with the store is recent enough to rule out that another server
        revoked the token."""
        return id == ADMIN or self._records is None or self._records.mirror.age < TRUSTED

    def bearer(self, token: str) -> Principal | None:
        """The principal of a bearer token; None if it is unknown, revoked or expired."""
        current = self.current(digest(token))
        if current is None:
            return None
        self.used[current.id] = self._clock()
        return current.principal()

    def current(self, sha256: str) -> Token | None:
        """The valid token with this digest."""
        self._refresh()
        token = self._by_digest.get(sha256)
        if token is None or not hmac.compare_digest(token.sha256, sha256):
            return None
        return token if token.is_valid(self._clock()) else None

    def sha256(self, id: str) -> str:
        """The digest of a valid token; empty otherwise."""
        self._refresh()
        token = self._by_id.get(id)
        return token.sha256 if token is not None and token.is_valid(self._clock()) else ""

    def listed(self) -> list[Token]:
        """All known tokens, the admin token first."""
        self._refresh()
        first = [] if self._admin is None else [self._admin]
        return first + [token for token in self._by_id.values() if token.id != ADMIN]

    async def create(
        self,
        name: str,
        role: Role,
        *,
        groups: Collection[str] = (),
        tenants: Collection[int] = (),
        lasts: float | None = None,
    ) -> tuple[Token, str]:
        """Create a token; returns it and its secret, which is not stored. Raises `InvalidRequest`,
        and what the store raises."""
        for group in groups:
            check_name("group", group)
        text, now = new_token(), self._clock()
        token = Token(
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
            raise InvalidRequest(message("tokens_too_many", limit=MOST))
        await records.create(token.id, token)
        return token, text

    async def revoke(self, id: str) -> Token | None:
        """Revoke a token and end its sessions, on every server. The token; None if it is unknown.
        Raises `InvalidRequest` for the admin token, and what the store raises."""
        if id in (ADMIN, self._own):
            file = str(self._folder.admin_token)
            raise InvalidRequest(message("admin_token_is_a_file", file=file))
        records, now = self._opened(), self._clock()

        def revoked(token: Token) -> Token:
            return msgspec.structs.replace(token, revoked=token.revoked or now)

        try:
            return await records.change(id, revoked)
        except OutOfSpace as error:  # a full store still deletes
            token = await records.revoke(id)
            if token is None:
                return None
            log.warning("token %s was deleted instead of marked as revoked: %s", id, error)
            return revoked(token)

    async def _prune(self, records: SignedRecords[Token]) -> None:
        oldest = self._clock().timestamp() - _KEPT
        ended = [
            id
            for id, token in records.all().items()
            if (until := token.until()) is not None
            and until <= oldest
            and not id.startswith(f"{ADMIN}-")  # see `share_admin`
        ]
        for id in ended[:_PRUNE_BATCH]:
            await records.remove(id)

    def _opened(self) -> SignedRecords[Token]:
        if self._records is None:
            raise Unavailable(message("tokens_not_open"))
        return self._records

    def _refresh(self) -> None:
        """Apply changes. An admin token that cannot be read is not accepted."""
        now = time.monotonic()
        if now - self._refreshed >= _REFRESH:
            self._refreshed = now
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

    def _index(self) -> None:
        known = {} if self._records is None else self._records.all()
        known.pop(self._own, None)  # the file takes precedence
        if self._admin is not None:
            known[ADMIN] = self._admin
        self._by_digest = {token.sha256: token for token in known.values()}
        self._by_id = known
        for id in list(self.used):
            if id not in known:
                del self.used[id]


def _later(now: Time, seconds: float) -> Time:
    if seconds <= 0:
        raise InvalidRequest(message("token_lifetime_not_positive"))
    try:
        return now + datetime.timedelta(seconds=seconds)
    except OverflowError as error:
        raise InvalidRequest(message("token_lifetime_too_long")) from error


def _stamp(file: Path) -> tuple[int, ...] | None:
    """The attributes of a file that change with its content."""
    try:
        status = file.stat(follow_symlinks=False)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode, status.st_uid
