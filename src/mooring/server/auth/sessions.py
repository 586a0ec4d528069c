"""Browser sessions: started with a one-time code, shared by all servers of a store, and ended with
their token.

Only the SHA-256 of a cookie or code is stored. While the store is unavailable, new sessions are
valid only on this server, until it stops.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable

import msgspec
from starlette.requests import Request

from mooring.errors import StoreError
from mooring.server.auth.authorization import Principal
from mooring.server.auth.signed_records import SignedRecords
from mooring.server.auth.tokens import Tokens, digest

log = logging.getLogger(__name__)

COOKIE = "mooring-session"
HOST_COOKIE = f"__Host-{COOKIE}"
"""The name with TLS: browsers accept it only from this host, and only over TLS."""
CODE_LASTS = 600.0
SESSION_LASTS = 12 * 3600.0
MOST = 10_000
"""Codes, and sessions. Beyond that, the oldest ones end."""
_MAX_COOKIES = 200
"""Session cookies of one request that are checked. Another server on this host may have set one,
and without TLS any sibling domain can set as many as a browser keeps."""
_LENGTH = 43
"""Characters of a cookie value of this server."""
_STORE_TIMEOUT = 3.0
"""Seconds that the store has to accept a login before it is kept on this server only."""


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session or a login code."""

    token: str
    """The id of its token."""
    sha256: str
    """The digest of that token, so that another token with the same id does not count."""
    until: float
    """Seconds since 1970."""
    id: str = ""


class Logins:
    """Sessions, or login codes, by the digest of the secret that the browser sends."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._local: dict[str, Login] = {}
        self.records: SignedRecords[Login] | None = None

    def get(self, sha256: str) -> Login | None:
        login = self._local.get(sha256)
        if login is None and self.records is not None:
            login = self.records.get(sha256)
        return None if login is None or self._clock() >= login.until else login

    async def find(self, sha256: str) -> Login | None:
        """Like `get`, but also finds one that another server has just created. Raises what the
        store raises."""
        if sha256 not in self._local and self.records is not None:
            await self.records.find(sha256)
        return self.get(sha256)

    async def add(self, login: Login) -> str:
        """Keep it in the store, or locally if the store is unavailable. Returns its secret."""
        await self._make_room()
        secret = secrets.token_urlsafe(32)
        try:
            if self.records is not None:
                async with asyncio.timeout(_STORE_TIMEOUT):
                    ttl = max(login.until - self._clock(), 1.0)
                    await self.records.create(digest(secret), login, ttl=ttl)
                    return secret
        except (StoreError, TimeoutError) as error:
            reason = str(error) or "the store did not answer in time"
            log.warning("a login is valid only on this server: %s", reason)
            # The store may have accepted it all the same. With another secret, no login is kept in
            # two places and survives its end in one of them.
            secret = secrets.token_urlsafe(32)
        self._local[digest(secret)] = login
        return secret

    async def remove(self, sha256: str) -> bool:
        """Whether this call removed it. Raises what the store raises."""
        if self._local.pop(sha256, None) is not None:
            return True
        return self.records is not None and await self.records.remove(sha256)

    def __len__(self) -> int:
        return len(self._local) + (0 if self.records is None else len(self.records))

    async def _make_room(self) -> None:
        if len(self) < MOST:
            return
        known = {**self._local, **({} if self.records is None else self.records.all())}
        by_age = sorted(known, key=lambda sha256: known[sha256].until)
        for sha256 in by_age[: len(self) - MOST + 1]:
            try:
                await self.remove(sha256)
            except StoreError as error:
                log.debug("an old login was not removed and will expire: %s", error)


class Sessions:
    def __init__(
        self, tokens: Tokens, *, secure: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._tokens, self._secure, self._clock = tokens, secure, clock
        self.cookie = HOST_COOKIE if secure else COOKIE
        """The name of the cookie."""
        self._codes, self._sessions = Logins(clock), Logins(clock)

    def attach(self, sessions: SignedRecords[Login], codes: SignedRecords[Login]) -> None:
        """Keep sessions and codes in these records from now on."""
        self._sessions.records, self._codes.records = sessions, codes

    async def issue(self, token: str) -> str:
        """A login code for a token, by its id; empty if the token is not valid."""
        if not (sha256 := self._tokens.sha256(token)):
            return ""
        until = self._clock() + CODE_LASTS
        return await self._codes.add(Login(token=token, sha256=sha256, until=until))

    async def redeem(self, code: str) -> tuple[Principal, str] | None:
        """Start a session with a code, which becomes invalid on every server. Returns the principal
        and the cookie; None if the code is unknown, used or expired, or its token is not valid.
        Raises what the store raises."""
        login = await self._codes.find(digest(code))
        if login is None or not await self._codes.remove(digest(code)):
            return None
        return await self._start(login.sha256)

    async def start(self, text: str) -> tuple[Principal, str] | None:
        """Start a session with a token; None if it is not valid."""
        if self._tokens.bearer(text) is None:
            return None
        return await self._start(digest(text))

    def principal(self, request: Request) -> Principal | None:
        """The principal of the session cookie of a request. With cookies of two sessions, one of
        which must have been injected, there is none."""
        principals: dict[str, Principal] = {}
        for value in _cookies(request, self.cookie):
            login = self._sessions.get(digest(value))
            token = None if login is None else self._tokens.current(login.sha256)
            if token is not None and login is not None:
                principals[login.id] = token.principal(session=login.id)
        return next(iter(principals.values())) if len(principals) == 1 else None

    async def end(self, request: Request) -> None:
        """End the sessions whose cookies a request has. Raises what the store raises."""
        for value in _cookies(request, self.cookie):
            await self._sessions.remove(digest(value))

    @property
    def removal_cookie(self) -> str:
        """The `Set-Cookie` value that removes the session cookie."""
        return self._cookie("", 0)

    async def _start(self, sha256: str) -> tuple[Principal, str] | None:
        token = self._tokens.current(sha256)
        if token is None:
            return None
        id = secrets.token_hex(6)
        until = self._clock() + SESSION_LASTS
        login = Login(token=token.id, sha256=token.sha256, until=until, id=id)
        value = await self._sessions.add(login)
        return token.principal(session=id), self._cookie(value, int(SESSION_LASTS))

    def _cookie(self, value: str, lasts: int) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{self.cookie}={value}; Max-Age={lasts}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _cookies(request: Request, wanted: str) -> list[str]:
    headers = request.headers.getlist("cookie")
    pairs = (pair.strip().partition("=") for header in headers for pair in header.split(";"))
    values = (value for name, _, value in pairs if name == wanted and len(value) == _LENGTH)
    return list(itertools.islice(values, _MAX_COOKIES))
