"""Calls to one Redis server, sent together."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

import hiredis
from redis import exceptions as driver
from redis.asyncio import Redis

from mooring.errors import InvalidRequest
from mooring.messages import Message, as_message, message
from mooring.tasks import settle


class Script(NamedTuple):
    name: str
    text: str
    digest: str


_OWN = "mooring.registry.redis"


def load_script(name: str, package: str = _OWN) -> Script:
    """Load a script, after the functions that most scripts share."""
    record = (files(_OWN) / "scripts" / "record.lua").read_text()
    shared = "" if name in ("list", "lead", "note") else record
    text = shared + (files(package) / "scripts" / f"{name}.lua").read_text()
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())


REGISTER = load_script("register")
HEARTBEAT = load_script("heartbeat")
DEREGISTER = load_script("deregister")
CLEANUP = load_script("cleanup")
LIST = load_script("list")
EDIT = load_script("edit")
FORGET = load_script("forget")
LEAD = load_script("lead")
NOTE = load_script("note")
RELEASE = load_script("release")
STATE = load_script("state")


Argument: TypeAlias = str | bytes | int | float

LANES = 16
"""Concurrent batches to a server. Each uses a connection, and a Redis that was stopped must not
have hundreds to serve."""

_pack: Any = hiredis.pack_command  # its type stub accepts tuples of one element only


class RedisCall(NamedTuple):
    command: tuple[Argument, ...]
    script: Script | None
    what: Message
    """Its name in errors."""
    writes: bool
    answer: asyncio.Future[Any]
    packed: bytes
    """The command as sent. Packing it first rejects an invalid command before it joins others."""

    def with_text(self, script: Script) -> RedisCall:
        """The call with the text of its script, for a Redis that does not know its digest."""
        command = ("EVAL", script.text, *self.command[2:])
        return self._replace(command=command, packed=_packed(command, self.what))

    @property
    def keys(self) -> tuple[Argument, ...]:
        if self.script is None:
            return self.command[1:2]
        return self.command[3 : 3 + int(self.command[2])]


def scripted(
    script: Script, keys: Sequence[Argument], arguments: Sequence[Argument], *, what: str | Message
) -> RedisCall:
    """A call of a script by its digest. Raises `InvalidRequest` if it cannot be encoded, as does
    `plain`."""
    command = ("EVALSHA", script.digest, len(keys), *keys, *arguments)
    return _call(command, script, as_message(what), writes=script.name not in ("list", "state"))


def plain(*command: Argument, what: str | Message, writes: bool = False) -> RedisCall:
    """A call of a command other than a script."""
    return _call(command, None, as_message(what), writes=writes)


def _call(
    command: tuple[Argument, ...], script: Script | None, what: Message, *, writes: bool
) -> RedisCall:
    packed = _packed(command, what)
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    return RedisCall(command, script, what, writes, answer, packed)


def _packed(command: tuple[Argument, ...], what: Message) -> bytes:
    try:
        packed: bytes = _pack(command)
        return packed
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start]
        raise InvalidRequest(message("not_sendable", operation=what, text=surrogate)) from error


async def send(
    client: Redis, calls: Sequence[RedisCall], *, before_each: tuple[Argument, ...] = ()
) -> list[Any]:
    """Send calls together. Returns the reply or the error of each; each caller gets its reply as
    soon as it arrives. The replies to the command `before_each` are ignored.

    The driver's own API takes three times as long for a command: it packs in Python, and sets a
    timeout for each part of each command. Here one timeout, of the caller, covers all of them.
    """
    pool: Any = client.connection_pool
    connection = await pool.get_connection()
    timeout, connection.socket_timeout = connection.socket_timeout, None
    first = _pack(before_each) if before_each else b""
    try:
        # The connection closes itself if one of these fails or is cancelled.
        packed = b"".join([first + call.packed for call in calls])
        await connection.send_packed_command(packed, check_health=False)
        replies = []
        for call in calls:
            if before_each:
                with contextlib.suppress(driver.ResponseError):
                    await connection.read_response()
            replies.append(await _reply(connection, call))
        return replies
    finally:
        connection.socket_timeout = timeout
        await pool.release(connection)


async def _reply(connection: Any, call: RedisCall) -> Any:
    try:
        reply = await connection.read_response()
    except driver.ResponseError as error:
        return error
    settle(call.answer, reply)
    return reply
