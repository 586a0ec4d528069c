"""A connection to one Redis server, to a master behind sentinels, or to a cluster. Calls of one
iteration of the event loop are sent together.

Every call may be repeated: the scripts are idempotent. So each is retried until its timeout, on the
current master.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from redis import exceptions as driver
from redis.asyncio import Redis, Sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from mooring.errors import Closed, StoreError
from mooring.messages import Message, as_message, message, verbatim
from mooring.registry.redis.cluster import ClusterClient
from mooring.registry.redis.consumer_liveness import ServerClock
from mooring.registry.redis.errors import LOST, code_of, judge, kind_of, translate
from mooring.registry.redis.pipeline import LANES, RedisCall, Script, plain, scripted, send
from mooring.registry.redis.pipeline import Argument as Argument
from mooring.settings.connections import RedisConnectionSettings
from mooring.store.url import read_password
from mooring.tasks import Backoff, Tasks, settle, slices

log = logging.getLogger(__name__)

_BATCH = 500
"""The most commands that are sent together."""
_SHORTEST_TRY = 0.5
"""Seconds of every attempt: if the last were cut short, its timeout would hide why earlier ones
failed."""

_SENTINEL_TIMEOUT = 0.5
"""Seconds that a sentinel has to report the master."""


class Connection:
    """Create it in a running event loop. It connects at its first use."""

    def __init__(self, settings: RedisConnectionSettings, *, url: str) -> None:
        self.url = url
        self.cluster = settings.kind == "cluster"
        self.where = ",".join(settings.hosts)
        self.timeout = settings.timeout
        self.settings = settings
        self._options = options_of(settings)
        self._sentinels: list[Redis] = []
        self._client = self._open()
        self._waiting: list[RedisCall] = []
        self._lanes = asyncio.Semaphore(LANES)
        self._tasks = Tasks()
        self._closed = False
        self._clocks: dict[str, ServerClock] = {}

    def clock(self, service: str) -> ServerClock:
        """The clock of the server that holds a service. The nodes of a cluster may have different
        clocks."""
        return self._clocks.setdefault(service if self.cluster else "", ServerClock())

    def _open(self) -> Redis | ClusterClient:
        settings, options = self.settings, self._options
        hosts = [_split(host) for host in settings.hosts]
        if settings.kind == "cluster":
            return ClusterClient(hosts, options)
        if settings.kind == "sentinel":
            # Sentinels are queried in turn: a silent one must leave time for the others.
            timeout = min(settings.timeout / (len(hosts) + 1), _SENTINEL_TIMEOUT)
            login = {
                **options,
                "username": None,
                "password": settings.sentinel_password or None,
                "credential_provider": None,
                "socket_timeout": timeout,
                "socket_connect_timeout": timeout,
            }
            del login["db"]
            sentinel = Sentinel(hosts, sentinel_kwargs=login, **options)  # type: ignore[no-untyped-call]
            self._sentinels = list(sentinel.sentinels)
            client: Redis = sentinel.master_for(settings.master)
            return client
        host, port = hosts[0]
        return Redis(host=host, port=port, **options)

    async def run(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        *,
        what: str | Message,
    ) -> Any:
        """Run a script; `what` names the call in errors. Raises `StoreError`."""
        return await self._send(scripted(script, keys, arguments, what=what))

    async def call(self, *command: Argument, what: str | Message, writes: bool = False) -> Any:
        """Run a command."""
        return await self._send(plain(*command, what=what, writes=writes))

    def _send(self, call: RedisCall) -> asyncio.Future[Any]:
        if self._closed:
            raise Closed(message("store_closed", store=verbatim(self.url)))
        self._waiting.append(call)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        return call.answer

    def _flush(self) -> None:
        calls, self._waiting = self._waiting, []
        if self._closed:
            return self._fail_all(calls, self._was_closed())
        for group in self._grouped(calls):
            for batch in slices(group, _BATCH):
                self._tasks.start(self._answer(batch), name=f"calls to {self.where}")

    def _grouped(self, calls: list[RedisCall]) -> Iterable[list[RedisCall]]:
        """Calls by node of a cluster, so that no call waits for another node."""
        if not isinstance(self._client, ClusterClient):
            return [calls]
        nodes: dict[object, list[RedisCall]] = {}
        for call in calls:
            nodes.setdefault(self._client.node_of(call), []).append(call)
        return nodes.values()

    async def _answer(self, calls: list[RedisCall]) -> None:
        """Send calls until each has a reply or an error."""
        try:
            await self._answer_within(calls)
        except Exception as error:
            # A bug: the callers get an error that does not claim that the connection is closed.
            problem = message("calls_failed", store=verbatim(self.where), problem=error)
            self._fail_all(calls, StoreError(problem))
            raise
        finally:
            self._fail_all(calls, self._was_closed())

    def _was_closed(self) -> Closed:
        return Closed(message("store_closed_meanwhile", store=verbatim(self.url)))

    def _fail_all(self, calls: list[RedisCall], error: StoreError) -> None:
        for call in calls:
            settle(call.answer, error)

    async def _answer_within(self, calls: list[RedisCall]) -> None:
        deadline = time.monotonic() + self.timeout
        backoff = Backoff()
        while calls := [call for call in calls if not call.answer.done()]:
            retries: list[RedisCall] = []
            pause = False
            for call, result in zip(calls, await self._execute(calls, deadline), strict=True):
                if not isinstance(result, BaseException):
                    settle(call.answer, result)
                    continue
                verdict = judge(result)
                if verdict == "script" and call.script is not None:
                    retries.append(call.with_text(call.script))
                elif verdict == "final" or time.monotonic() >= deadline:
                    self._fail(call, result, await self._wrong_keys(call, result, deadline))
                else:
                    retries.append(call)
                    pause = True
                    if verdict == "elsewhere":
                        await self._reconnect()
            if pause:
                await asyncio.sleep(min(backoff.next(), max(deadline - time.monotonic(), 0.0)))
            calls = retries

    async def _wrong_keys(
        self, call: RedisCall, error: BaseException, deadline: float
    ) -> list[Message]:
        """The keys of a call with the wrong type, if that is the error."""
        if code_of(error) != "WRONGTYPE":
            return []
        queries = [plain("TYPE", key, what=call.what) for key in call.keys]
        keys = [
            key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
            for key in call.keys
        ]
        kinds = [
            kind.decode() if isinstance(kind, bytes) else "none"
            for kind in await self._execute(queries, deadline)
        ]
        return [
            message("redis_key_type", key=key, type=kind, expected=kind_of(key))
            for key, kind in zip(keys, kinds, strict=True)
            if kind not in ("none", kind_of(key))
        ]

    def _fail(self, call: RedisCall, error: BaseException, wrong: Sequence[Message] = ()) -> None:
        problem = translate(
            error, what=call.what, where=self.where, writes=call.writes, wrong=wrong
        )
        problem.__cause__ = error
        settle(call.answer, problem)

    async def _execute(self, calls: list[RedisCall], deadline: float) -> Sequence[Any]:
        """Returns the reply or the error of each call."""
        left = max(deadline - time.monotonic(), min(_SHORTEST_TRY, self.timeout))
        try:
            async with asyncio.timeout(left):
                if isinstance(self._client, ClusterClient):
                    return await self._client.send(calls)
                async with self._lanes:
                    return await send(self._client, calls)
        except TimeoutError:
            problem = message("redis_no_reply", seconds=self.timeout)
            return [driver.TimeoutError(problem)] * len(calls)
        except LOST as error:
            if isinstance(error, AttributeError | RuntimeError):
                # The driver raises these for a connection that was closed during a call.
                error = driver.ConnectionError(message("redis_connection_lost", problem=error))
            return [error] * len(calls)

    async def _reconnect(self) -> None:
        """Close the idle connections: they may lead to a former master."""
        if isinstance(self._client, Redis):
            with contextlib.suppress(driver.RedisError, OSError):
                await self._client.connection_pool.disconnect(inuse_connections=False)

    async def listener(self) -> Redis:
        """A client to subscribe with, on a cluster to any node."""
        if isinstance(self._client, Redis):
            return self._client
        host, port = random.choice(await self._client.masters())
        return Redis(host=host, port=port, **self._options)

    async def scan(self, pattern: str) -> list[str]:
        """The keys that match, on all nodes. Scans the whole Redis, in small steps."""
        what = message("op_search")
        keys, problem = await self.scan_available(pattern, what=what)
        if problem is not None:
            raise problem
        return keys

    async def scan_available(
        self, pattern: str, *, what: str | Message
    ) -> tuple[list[str], StoreError | None]:
        """The keys that match on the available nodes, and the error of the others."""
        keys: list[str] = []
        try:
            async for key in self._client.scan_iter(pattern, count=1000):
                keys.append(key.decode(errors="surrogateescape"))  # noqa: PERF401 - before an error
        except LOST as error:
            problem = translate(error, what=as_message(what), where=self.where, writes=False)
            problem.__cause__ = error
            return keys, problem
        return keys, None

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._tasks.aclose()
        for client in (self._client, *self._sentinels):
            await client.aclose()


def _split(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    return name.strip("[]"), int(port)


def options_of(settings: RedisConnectionSettings) -> dict[str, Any]:
    """The arguments of a client of the driver."""
    options: dict[str, Any] = {
        "db": settings.database,
        "username": None if settings.password_file else settings.user or None,
        "password": None if settings.password_file else settings.password or None,
        "credential_provider": _PasswordFile(settings) if settings.password_file else None,
        "socket_timeout": settings.timeout,
        "socket_connect_timeout": min(settings.timeout, 2.0),
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),  # `_answer` decides about retries
    }
    if (tls := settings.tls) is not None:
        options |= {
            "ssl": True,
            "ssl_ca_certs": str(tls.ca) if tls.ca else None,
            "ssl_certfile": str(tls.cert) if tls.cert else None,
            "ssl_keyfile": str(tls.key) if tls.key else None,
        }
    return options


class _PasswordFile(CredentialProvider):
    """Reads the password for every new connection: operators rotate it while a hub runs."""

    def __init__(self, settings: RedisConnectionSettings) -> None:
        self._settings = settings

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        file = self._settings.password_file
        assert file is not None
        try:
            password = read_password(file)
        except OSError as error:
            # The driver closes the connection for its own errors only. After any other error it
            # would use the connection without a login, as the default user.
            reason = verbatim(error.strerror or str(error))
            raise driver.AuthenticationError(
                message("password_file_unreadable", file=str(file), reason=reason)
            ) from error
        return (self._settings.user, password) if self._settings.user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()
