"""What the servers of a Redis report, and what the connected user is allowed to do."""

from __future__ import annotations

import asyncio
import ssl
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import exceptions as driver
from redis.asyncio import Redis

from mooring.addresses import join
from mooring.errors import Unavailable
from mooring.model import Instance
from mooring.registry.contract import InstanceRecord
from mooring.registry.redis.connection import Connection, options_of
from mooring.registry.redis.errors import LOST, code_of, in_words, translate
from mooring.registry.redis.registry import RedisRegistry
from mooring.settings.connections import RedisConnectionSettings

SCRATCH = "mooring-doctor"
"""The service that is registered for a moment; each trial has an instance of its own."""

_PATIENCE = 3.0


class AccessTrial:
    """An instance that nobody calls is registered for a moment."""

    def __init__(self, registry: RedisRegistry, masters: Sequence[str]) -> None:
        self._registry, self.masters = registry, masters
        named = Instance(SCRATCH, "doctor.invalid", 1, id=uuid.uuid4().hex, weight=0, enabled=False)
        self.instance, _ = registry.prepare(named)
        self._record: InstanceRecord | None = None
        self._registered = False

    async def read(self) -> None:
        await self._registry.info(service=SCRATCH)

    async def look(self) -> None:
        await self._registry.instances(SCRATCH)
        await self._registry.names()

    async def register(self) -> None:
        record = self._registry.instance_record(self.instance)
        record.open()
        self._record = record
        await record.put(self.instance, fresh=True)
        self._registered = True

    async def beat(self) -> None:
        assert self._record is not None
        await self._record.beat(self.instance, update=False)

    async def hear(self) -> float | None:
        """Listen to the changes, and make one; the seconds until it is heard. None where nothing
        is registered that could change."""
        connection, keys = self._registry.connection, self._registry.keys.of(SCRATCH)
        try:
            async with asyncio.timeout(_PATIENCE), _listening(connection) as listening:
                await listening.subscribe(keys.changes)
                await _heard(listening, "subscribe")
                if self._record is None or not self._registered:
                    return None
                started = time.monotonic()
                await self._record.beat(self.instance, update=True)
                await _heard(listening, "message")
                return time.monotonic() - started
        except TimeoutError as error:
            raise Unavailable(
                f"changes on {keys.changes} are not heard within {_PATIENCE:g} s"
            ) from error
        except FAILURES as error:
            raise translate(
                error, what=f"changes on {keys.changes}", where=connection.where, writes=False
            ) from error

    async def scan(self) -> None:
        """The first step of what cleanup does to find remains."""
        settings, pattern = self._registry.connection.settings, f"{self._registry.keys.services}:*"
        for address in self.masters:
            try:
                async with client_of(settings, address) as client:
                    await client.execute_command("SCAN", "0", "MATCH", pattern, "COUNT", "10")
            except FAILURES as error:
                raise translate(
                    error, what="cleanup (SCAN)", where=address, writes=False
                ) from error

    async def aclose(self) -> None:
        """Raises what a store raises where the instance could not be taken out."""
        if self._record is not None:
            record, self._record = self._record, None
            try:
                if self._registered:
                    await record.withdraw()
            finally:
                await record.aclose(within=1.0)


@asynccontextmanager
async def _listening(connection: Connection) -> AsyncIterator[Any]:
    client: Any = await connection.listener()
    try:
        async with client.pubsub() as listening:
            yield listening
    finally:
        if connection.cluster:
            await client.aclose()


async def _heard(listening: Any, kind: str) -> None:
    while True:
        message = await listening.get_message(timeout=_PATIENCE)
        if message is not None and message["type"] == kind:
            return


FAILURES = (*LOST, TimeoutError)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """One server, as seen from here."""

    address: str
    latency: float | None = None
    """Seconds of one round trip; None where it did not answer."""
    problem: str = ""
    """Why it does not answer, in words."""
    told: Mapping[str, str] = field(default_factory=dict)
    """What it says of itself (INFO); empty where this user may not ask."""
    saves: str | None = None
    """When it writes itself to disk, as it is configured; None where this user may not ask."""
    clock_ahead: tuple[float, float] | None = None
    """By how much its clock is ahead of ours, at least and at most."""

    @property
    def is_replica(self) -> bool:
        return self.told.get("role") in ("slave", "replica")

    @property
    def is_sentinel(self) -> bool:
        return self.told.get("redis_mode") == "sentinel"


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Those who guard a master."""

    name: str
    servers: tuple[ServerInfo, ...]
    master: str = ""
    """Where it is, by their account; empty where they do not know it."""
    quorum: str = ""
    """What they say of a failover, were it needed now; empty where it could be made."""


@dataclass(frozen=True, slots=True)
class SlotCoverage:
    """How much of a cluster's slots somebody answers for."""

    state: str
    covered: int
    masters: int


@dataclass(frozen=True, slots=True)
class Topology:
    servers: tuple[ServerInfo, ...]
    sentinels: Sentinels | None = None
    coverage: SlotCoverage | None = None


async def inspect_servers(settings: RedisConnectionSettings) -> Topology:
    """Ask everybody who is named, and whom they name. Raises nothing: what is wrong is in it."""
    if settings.kind == "sentinel":
        sentinels = await _ask_sentinels(settings)
        masters = [sentinels.master] if sentinels.master else []
        return Topology(await _servers(settings, masters), sentinels)
    if settings.kind == "cluster":
        return await _look_at_cluster(settings)
    return Topology(await _servers(settings, settings.hosts))


async def _servers(
    settings: RedisConnectionSettings, addresses: Sequence[str]
) -> tuple[ServerInfo, ...]:
    return tuple(await asyncio.gather(*(_server(settings, address) for address in addresses)))


async def _server(settings: RedisConnectionSettings, address: str) -> ServerInfo:
    try:
        async with (
            asyncio.timeout(_PATIENCE + settings.timeout),
            client_of(settings, address) as client,
        ):
            latency = await _latency(client)
            return ServerInfo(
                address,
                latency,
                told=await _told(client),
                saves=await _saves(client),
                clock_ahead=await _clock_ahead(client),
            )
    except FAILURES as error:
        return ServerInfo(address, problem=_in_words(address, error, settings))


@asynccontextmanager
async def client_of(
    settings: RedisConnectionSettings, address: str, **other: Any
) -> AsyncIterator[Any]:
    """A client of the driver for one server."""
    host, _, port = address.rpartition(":")
    options = {**options_of(settings), "decode_responses": True, **other}
    if settings.kind == "cluster":
        options["db"] = 0
    async with aclosing(Redis(host=host.strip("[]"), port=int(port), **options)) as client:
        yield client


async def _latency(client: Any) -> float:
    await _asked(client, "PING")  # connects
    times = []
    for _ in range(5):
        started = time.monotonic()
        await _asked(client, "PING")
        times.append(time.monotonic() - started)
    return statistics.median(times)


async def _asked(client: Any, *command: str) -> Any:
    """The answer to a command; None where this user may not give it."""
    try:
        return await client.execute_command(*command)
    except driver.ResponseError as error:
        if code_of(error) == "NOPERM" or _is_unknown(error):  # forbidden, or renamed away
            return None
        raise


def _is_unknown(error: BaseException) -> bool:
    """Whether a server does not know a command. The driver takes Redis' `ERR` off."""
    return "unknown command" in str(error)


async def _told(client: Any) -> dict[str, str]:
    told = await _asked(client, "INFO")
    return {str(name): str(value) for name, value in (told or {}).items()}


async def _saves(client: Any) -> str | None:
    told = await _asked(client, "CONFIG GET", "save")
    return None if told is None else str(told.get("save", ""))


async def _clock_ahead(client: Any) -> tuple[float, float] | None:
    sent = time.time()
    told = await _asked(client, "TIME")
    if told is None:
        return None
    theirs = int(told[0]) + int(told[1]) / 1_000_000
    return theirs - time.time(), theirs - sent


async def _ask_sentinels(settings: RedisConnectionSettings) -> Sentinels:
    asked = await asyncio.gather(*(_sentinel(settings, address) for address in settings.hosts))
    servers = tuple(server for server, _, _ in asked)
    answered = [(master, quorum) for server, master, quorum in asked if server.latency is not None]
    known = [master for master, _ in answered if master]
    # They differ while they agree on a new master: the first that can speak for all is taken.
    quorum = min((quorum for _, quorum in answered), key=len, default="")
    return Sentinels(settings.master, servers, known[0] if known else "", quorum)


async def _sentinel(settings: RedisConnectionSettings, address: str) -> tuple[ServerInfo, str, str]:
    """A sentinel, the master by its account, and why there could be no failover."""
    login = {
        "db": 0,
        "username": None,
        "password": settings.sentinel_password or None,
        "credential_provider": None,
    }
    try:
        async with (
            asyncio.timeout(_PATIENCE + settings.timeout),
            client_of(settings, address, **login) as client,
        ):
            server = ServerInfo(address, await _latency(client))
            place = await client.execute_command(
                "SENTINEL GET-MASTER-ADDR-BY-NAME", settings.master
            )
            quorum = ""
            try:
                await client.execute_command("SENTINEL CKQUORUM", settings.master)
            except driver.ResponseError as error:
                quorum = str(error)
            return server, join(place[0], int(place[1])) if place else "", quorum
    except FAILURES as error:
        return ServerInfo(address, problem=_in_words(address, error, settings)), "", ""


async def _look_at_cluster(settings: RedisConnectionSettings) -> Topology:
    for address in settings.hosts:
        try:
            async with (
                asyncio.timeout(_PATIENCE + settings.timeout),
                client_of(settings, address) as client,
            ):
                told = await client.execute_command("CLUSTER INFO")
                members = await client.execute_command("CLUSTER NODES")
        except FAILURES:
            continue
        masters = [place for place, node in members.items() if "master" in node["flags"]]
        coverage = SlotCoverage(
            str(told.get("cluster_state", "")),
            int(told.get("cluster_slots_ok", 0)),
            sum(1 for place in masters if members[place]["slots"]),
        )
        places = [place for place in members if not place.startswith(":")]
        return Topology(await _servers(settings, sorted(places)), coverage=coverage)
    return Topology(await _servers(settings, settings.hosts))


def _in_words(address: str, error: BaseException, settings: RedisConnectionSettings) -> str:
    """What is wrong with a server that was not reached."""
    text = f"{error} {error.__cause__ or error.__context__ or ''}"
    if "(connection refused)" in (told := in_words(error)):
        return told
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            f"the certificate of {address} is not trusted: name its authority with ?ca=FILE "
            f"({in_words(error)})"
        )
    if isinstance(error.__cause__ or error, ssl.SSLError) or "SSL" in text:
        return f"{address} does not speak TLS as we do: redis:// is without it ({in_words(error)})"
    if code_of(error) in ("NOAUTH", "WRONGPASS") or isinstance(error, driver.AuthenticationError):
        return (
            f"{address} refuses the login: give a user and a password in the URL "
            f"({in_words(error)})"
        )
    if isinstance(error, TimeoutError | driver.TimeoutError):
        tls = ", does it speak TLS at all" if settings.tls else ""
        return (
            f"{address} does not answer: is the address right, is a firewall in between, is the "
            f"server paused{tls}?"
        )
    if _is_unknown(error) and "SENTINEL" in text:
        return f"{address} is no sentinel: is the port right? A server alone is named with redis://"
    if isinstance(error, driver.ConnectionError) and "closed" in text and settings.tls is None:
        return f"{address} closes the connection: does it speak TLS? Then use rediss://, or tls=on"
    return told if "cannot be reached" in told else f"{address} cannot be asked: {told}"
