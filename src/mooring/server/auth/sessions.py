"""The sessions of browsers: begun with a code that is good once, kept in the store for all its
servers, and over when the token behind them is.

Of a cookie and of a code only the SHA-256 is kept. If the store is away, what begins is known to
this server alone, until it stops.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator

import msgspec
from starlette.requests import Request

from mooring.errors import StoreError
from mooring.server.auth.authorization import Principal
from mooring.server.auth.signed_records import SignedRecords
from mooring.server.auth.tokens import Token, Tokens, digest

log = logging.getLogger(__name__)

COOKIE = "mooring-session"
HOST_COOKIE = f"__Host-{COOKIE}"
"""Its name with TLS: browsers take one of this name from nobody but this very host, over TLS."""
CODE_LASTS = 600.0
SESSION_LASTS = 12 * 3600.0
MOST = 10_000
"""Of codes and of sessions; of more, the oldest are over."""
_TRIED = 200
"""Cookies of our name in one request: another server on this host may have left one of its own, and
without TLS any name near ours can leave as many as a browser keeps."""
_LENGTH = 43
"""Characters of a cookie's value; any other is none of ours."""


_PATIENCE = 3.0
"""Seconds for the store to take one, before it is kept here alone."""


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session or a code, as it is kept."""

    token: str
    """The id of the token that it began with."""
    sha256: str
    """Of that token, so that another one of the same id is not it."""
    until: float
    """Seconds since 1970."""
    id: str = ""


class Logins:
    """Sessions, or codes, by the digest of what the browser shows."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._here: dict[str, Login] = {}
        self.records: SignedRecords[Login] | None = None

    def get(self, sha256: str) -> Login | None:
        issued = self._here.get(sha256)
        if issued is None and self.records is not None:
            issued = self.records.get(sha256)
        return None if issued is None or self._clock() >= issued.until else issued

    async def find(self, sha256: str) -> Login | None:
        """As `get`, also of one that another server made a moment ago. Raises what the store
        raises."""
        if sha256 not in self._here and self.records is not None:
            await self.records.find(sha256)
        return self.get(sha256)

    async def add(self, issued: Login) -> str:
        """Keep it in the store, or here if that is away; what the browser shows."""
        await self._make_room()
        secret = secrets.token_urlsafe(32)
        try:
            if self.records is not None:
                async with asyncio.timeout(_PATIENCE):
                    ttl = max(issued.until - self._clock(), 1.0)
                    await self.records.create(digest(secret), issued, ttl=ttl)
                    return secret
        except (StoreError, TimeoutError) as error:
            why = str(error) or "the store did not answer in time"
            log.warning("a login is known to this server alone: %s", why)
            # It may be in the store all the same. The browser gets another secret, so that none is
            # kept twice and outlives its end in one of the two places.
            secret = secrets.token_urlsafe(32)
        self._here[digest(secret)] = issued
        return secret

    async def remove(self, sha256: str) -> bool:
        """Whether it was there, and this call removed it. Raises what the store raises."""
        if self._here.pop(sha256, None) is not None:
            return True
        return self.records is not None and await self.records.remove(sha256)

    def __len__(self) -> int:
        return len(self._here) + (0 if self.records is None else len(self.records))

    async def _make_room(self) -> None:
        if len(self) < MOST:
            return
        known = {**self._here, **({} if self.records is None else self.records.all())}
        by_age = sorted(known, key=lambda each: known[each].until)
        for sha256 in by_age[: len(self) - MOST + 1]:
            try:
                await self.remove(sha256)
            except StoreError as error:
                log.debug("an old login is left to expire: %s", error)


class Sessions:
    def __init__(
        self, tokens: Tokens, *, secure: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._tokens, self._secure, self._clock = tokens, secure, clock
        self.cookie = HOST_COOKIE if secure else COOKIE
        """The name of the cookie."""
        self._codes, self._sessions = Logins(clock), Logins(clock)

    def attach(self, sessions: SignedRecords[Login], codes: SignedRecords[Login]) -> None:
        """From now on they are kept there."""
        self._sessions.records, self._codes.records = sessions, codes

    async def issue(self, token: str) -> str:
        """A code for the holder of a token, by its id; empty if that token is not valid."""
        if not (sha256 := self._tokens.sha256(token)):
            return ""
        until = self._clock() + CODE_LASTS
        return await self._codes.add(Login(token=token, sha256=sha256, until=until))

    async def redeem(self, code: str) -> tuple[Principal, str] | None:
        """Begin a session with a code, which is used up on every server; its principal and the
        cookie. None for one that is unknown, used, expired, or of a token that is no longer valid.
        Raises what the store raises."""
        issued = await self._codes.find(digest(code))
        if issued is None or not await self._codes.remove(digest(code)):
            return None
        token = self._tokens.current(issued.sha256)
        return None if token is None else await self._begin(token)

    async def begin(self, text: str) -> tuple[Principal, str] | None:
        """Begin a session with a token itself; None for one that is not valid."""
        if self._tokens.bearer(text) is None:
            return None
        token = self._tokens.current(digest(text))
        return None if token is None else await self._begin(token)

    def principal(self, request: Request) -> Principal | None:
        """Whose session the cookie of a request belongs to, if any. Of two sessions at once one
        was slipped in by somebody else, who would like to be taken for the user: neither counts."""
        found: dict[str, Principal] = {}
        for value in _cookies(request, self.cookie):
            issued = self._sessions.get(digest(value))
            token = None if issued is None else self._tokens.current(issued.sha256)
            if token is not None and issued is not None:
                found[issued.id] = token.principal(session=issued.id)
        return next(iter(found.values())) if len(found) == 1 else None

    async def end(self, request: Request) -> None:
        """End the sessions that a request has a cookie of. Raises what the store raises."""
        for value in _cookies(request, self.cookie):
            await self._sessions.remove(digest(value))

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def removal_cookie(self) -> str:
        """The cookie that removes ours."""
        return self._cookie("", 0)

    async def _begin(self, token: Token) -> tuple[Principal, str]:
        id = secrets.token_hex(6)
        until = self._clock() + SESSION_LASTS
        issued = Login(token=token.id, sha256=token.sha256, until=until, id=id)
        value = await self._sessions.add(issued)
        return token.principal(session=id), self._cookie(value, int(SESSION_LASTS))

    def _cookie(self, value: str, lasts: int) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{self.cookie}={value}; Max-Age={lasts}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _cookies(request: Request, wanted: str) -> Iterator[str]:
    found = 0
    for header in request.headers.getlist("cookie"):
        for pair in header.split(";"):
            name, _, value = pair.strip().partition("=")
            if name == wanted and len(value) == _LENGTH and found < _TRIED:
                found += 1
                yield value
