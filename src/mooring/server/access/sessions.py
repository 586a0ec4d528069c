"""The sessions of browsers: begun with a code that is good once, kept in memory, and over when the
token behind them is."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from starlette.requests import Request

from mooring.server.access.principals import Principal
from mooring.server.access.tokens import Token, Tokens, digest

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


@dataclass(frozen=True, slots=True)
class _Issued:
    token: str
    sha256: str
    """Of the token, so that another one of the same id is not it."""
    until: float
    id: str = ""


class Sessions:
    def __init__(
        self, tokens: Tokens, *, secure: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokens, self._secure, self._clock = tokens, secure, clock
        self.cookie = HOST_COOKIE if secure else COOKIE
        """The name of the cookie."""
        self._codes: OrderedDict[str, _Issued] = OrderedDict()
        self._sessions: OrderedDict[str, _Issued] = OrderedDict()

    def issue(self, token: str) -> str:
        """A code for the holder of a token, by its id; empty where that token is no good."""
        if not (sha256 := self._tokens.sha256(token)):
            return ""
        code = secrets.token_urlsafe(32)
        until = self._clock() + CODE_LASTS
        self._keep(self._codes, digest(code), _Issued(token, sha256, until))
        return code

    def redeem(self, code: str) -> tuple[Principal, str] | None:
        """Begin a session with a code, which is used up; who it is and the cookie. None for one
        that is unknown, used, too old, or of a token that is no longer good."""
        issued = self._codes.pop(digest(code), None)
        token = self._current(issued)
        return None if token is None else self._begin(token)

    def begin(self, text: str) -> tuple[Principal, str] | None:
        """Begin a session with a token itself; None for one that is no good."""
        principal = self._tokens.bearer(text)
        if principal is None:
            return None
        token = self._tokens.current(principal.token, digest(text))
        return None if token is None else self._begin(token)

    def principal(self, request: Request) -> Principal | None:
        """Whose session the cookie of a request belongs to, if any. Of two sessions at once one
        was slipped in by somebody else, who would like to be taken for the user: neither counts."""
        found: dict[str, Principal] = {}
        for value in _cookies(request, self.cookie):
            key = digest(value)
            issued = self._sessions.get(key)
            token = self._current(issued)
            if token is not None and issued is not None:
                found[issued.id] = token.principal(session=issued.id)
            else:
                self._sessions.pop(key, None)
        return next(iter(found.values())) if len(found) == 1 else None

    def end(self, request: Request) -> None:
        """End the sessions that a request has a cookie of."""
        for value in _cookies(request, self.cookie):
            self._sessions.pop(digest(value), None)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def farewell(self) -> str:
        """The cookie that removes ours."""
        return self._cookie("", 0)

    def _begin(self, token: Token) -> tuple[Principal, str]:
        value, id = secrets.token_urlsafe(32), secrets.token_hex(6)
        issued = _Issued(token.id, token.sha256, self._clock() + SESSION_LASTS, id)
        self._keep(self._sessions, digest(value), issued)
        return token.principal(session=id), self._cookie(value, int(SESSION_LASTS))

    def _current(self, issued: _Issued | None) -> Token | None:
        if issued is None or self._clock() >= issued.until:
            return None
        return self._tokens.current(issued.token, issued.sha256)

    def _keep(self, kept: OrderedDict[str, _Issued], key: str, issued: _Issued) -> None:
        now = self._clock()
        while kept and (len(kept) >= MOST or next(iter(kept.values())).until <= now):
            kept.popitem(last=False)  # all of one kind last equally long
        kept[key] = issued

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
