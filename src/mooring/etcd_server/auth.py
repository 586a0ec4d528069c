"""The Auth service: logins of the configured users. Every user has all permissions.

Tokens are in memory: after a restart, clients get an error that their token is invalid, and log in
again, as they do with an expired token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Mapping
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
"""Seconds after which an unused token expires (etcd's default)."""

USERS = not_served("changes of users and roles", "configure users in the server's settings")


class AuthService:
    """`users` maps names to passwords; without users, authentication is off."""

    def __init__(self, runner: EngineRunner, users: Mapping[str, str]) -> None:
        self._runner = runner
        self._digests = {name: _digest(password) for name, password in users.items()}
        self._tokens: dict[str, float] = {}  # token to expiry

    def objection(self, context: grpc.aio.ServicerContext) -> RpcStatus | None:
        """The error for a call without a token, or with an invalid one; None for a valid one."""
        if not self._digests:
            return None
        token = next((v for k, v in context.invocation_metadata() if k == "token"), None)
        if token is None:
            return NO_USER
        now = time.monotonic()
        if self._tokens.get(str(token), now) <= now:
            return BAD_TOKEN
        self._tokens[str(token)] = now + TOKEN_TTL
        return None

    async def authenticate(self, request: Any) -> Any:
        if not self._digests:
            raise RpcAborted(NO_AUTH)
        # Takes as long for an unknown name as for a wrong password, so timing reveals neither.
        expected = self._digests.get(request.name, _NOBODY)
        matches = hmac.compare_digest(expected, _digest(request.password))
        if not matches or request.name not in self._digests:
            name = quoted(request.name)
            log.warning("login of user %s refused: wrong name or password", name)
            raise RpcAborted(BAD_LOGIN)
        now = time.monotonic()
        self._tokens = {token: until for token, until in self._tokens.items() if until > now}
        token = secrets.token_urlsafe()
        self._tokens[token] = now + TOKEN_TTL
        return proto.AuthenticateResponse(header=header(self._runner.revision), token=token)

    async def auth_status(self, request: Any) -> Any:
        return proto.AuthStatusResponse(
            header=header(self._runner.revision), enabled=bool(self._digests), authRevision=1
        )


def _digest(password: str) -> bytes:
    """A digest has the same length for every password."""
    return hashlib.sha256(password.encode()).digest()


_NOBODY = _digest(secrets.token_hex())
