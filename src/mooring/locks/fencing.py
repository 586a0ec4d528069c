"""Fencing for resources outside the store: rejects tokens that are older than the newest one.

The check of a lock (`held.check`) protects keys of the store. A database, a file or a device that
only the holder may write to must itself reject former holders: pass the token of the lock with each
write, and let the resource compare tokens.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from importlib.resources import files
from typing import Literal, Protocol

from mooring.errors import InvalidRequest, StaleToken
from mooring.formatting import quoted
from mooring.messages import message

ParamStyle = Literal["qmark", "format", "numeric"]
"""The placeholders of a database driver: `?` (sqlite3), `%s` (psycopg), `$1` (asyncpg)."""


class Guard:
    """The newest token of each resource, in memory: for a process that protects a device, a file or
    an API. To keep tokens when the process ends, use a database."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._changing = threading.Lock()

    def admit(self, resource: str, token: int) -> None:
        """Record a token. Raises `StaleToken` if a newer one was recorded."""
        check_token(token)
        with self._changing:
            newest = self._newest.get(resource, 0)
            if token < newest:
                raise stale(resource, token, newest)
            self._newest[resource] = token


class Cursor(Protocol):
    """A cursor of Python's database API."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, operation: str, parameters: tuple[object, ...], /) -> object: ...


def admit(cursor: Cursor, resource: str, token: int, *, style: ParamStyle = "qmark") -> None:
    """Record a token in a database, in the same transaction as the write that it protects. Raises
    `StaleToken` if a newer one was recorded: then roll back.

    `SQL["table"]` creates the table.
    """
    check_token(token)
    cursor.execute(admission(style), (resource, token))
    if cursor.rowcount != 1:
        raise stale(resource, token)


def admission(style: ParamStyle) -> str:
    """The statement that records a token, with the placeholders of a driver."""
    if style not in _PLACEHOLDERS:
        raise InvalidRequest(
            f"the parameter style {quoted(style)} is unknown: use one of {', '.join(_PLACEHOLDERS)}"
        )
    first, second = _PLACEHOLDERS[style]
    return SQL["admit"].replace("(?, ?)", f"({first}, {second})")


_PLACEHOLDERS: Mapping[str, tuple[str, str]] = {
    "qmark": ("?", "?"),
    "format": ("%s", "%s"),
    "numeric": ("$1", "$2"),
}


def check_token(token: object) -> None:
    if not isinstance(token, int) or token < 1:
        raise InvalidRequest(
            f"the fencing token {quoted(token)} is invalid: use the token of a held lock"
        )


def stale(resource: str, token: int, newest: int | None = None) -> StaleToken:
    recorded = message("a_newer_one") if newest is None else str(newest)
    return StaleToken(message("token_stale", resource=resource, token=str(token), newest=recorded))


def _statements() -> Mapping[str, str]:
    text = files("mooring.locks").joinpath("sql/fencing.sql").read_text("utf-8")
    parts = re.split(r"^-- (\w+)$", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


SQL: Mapping[str, str] = _statements()
"""The statements by name: `table`, `admit`."""
