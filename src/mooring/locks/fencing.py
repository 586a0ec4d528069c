"""Fencing for resources outside the store: a token older than the newest seen is refused.

A check of a lock (`held.check`) guards what is in the store. A database, a file or a device that
only one holder may write to must itself refuse who was overtaken: give it the lock's token with
each write, and let it compare.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from importlib.resources import files
from typing import Literal, Protocol

from mooring.errors import InvalidRequest, StaleToken
from mooring.formatting import quoted

ParamStyle = Literal["qmark", "format", "numeric"]
"""How a database's driver writes parameters: `?` (sqlite3), `%s` (psycopg), `$1` (asyncpg)."""


class Guard:
    """The newest token of each resource, in this process: for a service that guards a device, a
    file, or an API. It forgets with the process; what must outlast it belongs into a database."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._changing = threading.Lock()

    def admit(self, resource: str, token: int) -> None:
        """Take note of a token. Raises `StaleToken` where a newer one was seen."""
        check_token(token)
        with self._changing:
            newest = self._newest.get(resource, 0)
            if token < newest:
                raise stale(resource, token, newest)
            self._newest[resource] = token


class Cursor(Protocol):
    """What is needed of a cursor of Python's database API."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, operation: str, parameters: tuple[object, ...], /) -> object: ...


def admit(cursor: Cursor, resource: str, token: int, *, style: ParamStyle = "qmark") -> None:
    """Take note of a token in a database, in the transaction that `cursor` is in: the same that
    writes what is guarded. Raises `StaleToken` where a newer one was seen: roll back then.

    The table is made with `SQL["table"]`.
    """
    check_token(token)
    cursor.execute(admission(style), (resource, token))
    if cursor.rowcount != 1:
        raise stale(resource, token)


def admission(style: ParamStyle) -> str:
    """The statement that admits a token, with parameters as a driver writes them."""
    if style not in _MARKS:
        raise InvalidRequest(
            f"parameters of style {quoted(style)} are not known: {', '.join(_MARKS)}"
        )
    first, second = _MARKS[style]
    return SQL["admit"].replace("(?, ?)", f"({first}, {second})")


_MARKS: Mapping[str, tuple[str, str]] = {
    "qmark": ("?", "?"),
    "format": ("%s", "%s"),
    "numeric": ("$1", "$2"),
}


def check_token(token: object) -> None:
    if not isinstance(token, int) or token < 1:
        raise InvalidRequest(
            f"the fencing token {quoted(token)} is not possible: it is a lock's token"
        )


def stale(resource: str, token: int, newest: int | None = None) -> StaleToken:
    seen = f"{newest} was seen" if newest is not None else "a newer one was seen"
    return StaleToken(
        f"{quoted(resource)} refuses the fencing token {token}: {seen}; its holder lost its lock"
    )


def _statements() -> Mapping[str, str]:
    text = files("mooring.locks").joinpath("sql/guard.sql").read_text("utf-8")
    parts = re.split(r"^-- (\w+)$", text, flags=re.MULTILINE)[1:]
    return {
        name: "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


SQL: Mapping[str, str] = _statements()
"""The statements by name: `table`, `admit`."""
