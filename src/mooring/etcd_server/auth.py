"""The Auth service: logins against the users of the configuration. Every user may do everything.

Tokens live in memory: after a restart clients are told that theirs is invalid, and log in again,
as they do when it has expired.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc.aio

from mooring.etcd_server.errors import (
    BAD_LOGIN,
    BAD_TOKEN,
    NO_AUTH,
    NO_USER,
    RpcAborted,
    RpcStatus,
    not_served,
)
from mooring.etcd_server.messages import header
from mooring.formatting import quoted
from mooring.store.embedded.store import EngineRunner
from mooring.store.etcd import proto

log = logging.getLogger(__name__)

TOKEN_TTL = 300.0
"""Seconds that a token lives without being used (etcd's default)."""

USERS = not_served("changes of users and roles", "users are in the configuration of the server")


class AuthService:
    """`users` are passwords by name; without any, authentication is off."""

    def __init__(
        self,
        runner: EngineRunner,
        users: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._digests = {name: _digest(password) for name, password in users.items()}
        self._tokens: dict[str, float] = {}  # until when each is good
        self._clock = clock

    @property
    def enabled(self) -> bool:
        return bool(self._digests)

    def objection(self, context: grpc.aio.ServicerContext) -> RpcStatus | None:
        """What stands against a call: no token, or one that is not known (any more)."""
        if not self._digests:
            return None
        token = next((v for k, v in context.invocation_metadata() if k == "token"), None)
        if token is None:
            return NO_USER
        now = self._clock()
        if self._tokens.get(str(token), now) <= now:
            return BAD_TOKEN
        self._tokens[str(token)] = now + TOKEN_TTL
        return None

    async def authenticate(self, request: Any) -> Any:
        if not self._digests:
            raise RpcAborted(NO_AUTH)
        # As long for a name that is not known as for a wrong password: neither tells the other.
        expected = self._digests.get(request.name, _NOBODY)
        matches = hmac.compare_digest(expected, _digest(request.password))
        if not matches or request.name not in self._digests:
            name = quoted(request.name)
            log.warning("login of user %s refused: wrong name or password", name)
            raise RpcAborted(BAD_LOGIN)
        now = self._clock()
        self._tokens = {token: until for token, until in self._tokens.items() if until > now}
        token = secrets.token_urlsafe()
        self._tokens[token] = now + TOKEN_TTL
        return proto.AuthenticateResponse(header=header(self._revision()), token=token)

    async def auth_status(self, request: Any) -> Any:
        return proto.AuthStatusResponse(
            header=header(self._revision()), enabled=self.enabled, authRevision=1
        )

    def _revision(self) -> int:
        return self._runner.read(lambda engine: engine.confirmed)


def _digest(password: str) -> bytes:
    """Of one length, whatever the password's."""
    return hashlib.sha256(password.encode()).digest()


_NOBODY = _digest(secrets.token_hex())
