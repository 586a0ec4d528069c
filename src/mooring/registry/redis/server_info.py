"""What the servers of a Redis report: version, memory, persistence, replicas, clock."""

from __future__ import annotations

import asyncio
import ssl
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from redis import exceptions as driver
from redis.asyncio import Redis

from mooring.addresses import join
from mooring.registry.redis.connection import options_of
from mooring.registry.redis.errors import LOST, code_of, reason_of
from mooring.settings.connections import RedisConnectionSettings

TIMEOUT = 3.0
FAILURES = (*LOST, TimeoutError)


class ServerInfo(NamedTuple):
    """One server, as seen from this process."""

    address: str
    latency: float | None = None
    """Seconds of one round trip; None if it did not answer."""
    problem: str = ""
    """Why it does not answer."""
    info: Mapping[str, str] = MappingProxyType({})
    """The reply to INFO; empty if this user has no permission."""
    saves: str | None = None
    """The configured snapshot intervals; None if this user has no permission."""
    clock_ahead: tuple[float, float] | None = None
    """The least and the most seconds by which its clock is ahead of the local one."""

    @property
    def is_replica(self) -> bool:
        return self.info.get("role") in ("slave", "replica")

    @property
    def is_sentinel(self) -> bool:
        return self.info.get("redis_mode") == "sentinel"


class Sentinels(NamedTuple):
    """The sentinels of a master."""

    name: str
    servers: tuple[ServerInfo, ...]
    master: str = ""
    """The address of the master; empty if the sentinels do not know it."""
    quorum: str = ""
    """Why a failover is impossible now; empty if it is possible."""


class SlotCoverage(NamedTuple):
    """The slots of a cluster that have a master."""

    state: str
    covered: int
    masters: int


class Topology(NamedTuple):
    servers: tuple[ServerInfo, ...]
    sentinels: Sentinels | None = None
    coverage: SlotCoverage | None = None


async def inspect_servers(settings: RedisConnectionSettings) -> Topology:
    """Inspect the servers of a URL, and those that they refer to. Errors are part of the result."""
    if settings.kind == "sentinel":
        sentinels = await _ask_sentinels(settings)
        masters = [sentinels.master] if sentinels.master else []
        return Topology(await _servers(settings, masters), sentinels)
    if settings.kind == "cluster":
        return await _inspect_cluster(settings)
    return Topology(await _servers(settings, settings.hosts))


async def _servers(
    settings: RedisConnectionSettings, addresses: Sequence[str]
) -> tuple[ServerInfo, ...]:
    return tuple(await asyncio.gather(*(_server(settings, address) for address in addresses)))


async def _server(settings: RedisConnectionSettings, address: str) -> ServerInfo:
    try:
        async with connected(settings, address) as client:
            latency = await _latency(client)
            info = await _ask(client, "INFO") or {}
            saves = await _ask(client, "CONFIG GET", "save")
            return ServerInfo(
                address,
                latency,
                info={str(name): str(value) for name, value in info.items()},
                saves=None if saves is None else str(saves.get("save", "")),
                clock_ahead=await _clock_ahead(client),
            )
    except FAILURES as error:
        return ServerInfo(address, problem=_in_words(address, error, settings))


@asynccontextmanager
async def connected(
    settings: RedisConnectionSettings, address: str, **other: Any
) -> AsyncIterator[Any]:
    """A client of the driver for a few calls to one server."""
    host, _, port = address.rpartition(":")
    options = {**options_of(settings), "decode_responses": True, **other}
    if settings.kind == "cluster":
        options["db"] = 0
    async with (
        asyncio.timeout(TIMEOUT + settings.timeout),
        aclosing(Redis(host=host.strip("[]"), port=int(port), **options)) as client,
    ):
        yield client


async def _latency(client: Any) -> float:
    await _ask(client, "PING")  # connects
    times = []
    for _ in range(5):
        started = time.monotonic()
        await _ask(client, "PING")
        times.append(time.monotonic() - started)
    return statistics.median(times)


async def _ask(client: Any, *command: str) -> Any:
    """The reply to a command; None if this user has no permission."""
    try:
        return await client.execute_command(*command)
    except driver.ResponseError as error:
        if code_of(error) == "NOPERM" or _is_unknown(error):  # forbidden, or renamed
            return None
        raise


def _is_unknown(error: BaseException) -> bool:
    """Whether a server does not know a command. The driver strips the `ERR` of Redis."""
    return "unknown command" in str(error)


async def _clock_ahead(client: Any) -> tuple[float, float] | None:
    sent = time.time()
    reply = await _ask(client, "TIME")
    if reply is None:
        return None
    theirs = int(reply[0]) + int(reply[1]) / 1_000_000
    return theirs - time.time(), theirs - sent


async def _ask_sentinels(settings: RedisConnectionSettings) -> Sentinels:
    replies = await asyncio.gather(*(_sentinel(settings, address) for address in settings.hosts))
    servers = tuple(server for server, _, _ in replies)
    answered = [
        (master, quorum) for server, master, quorum in replies if server.latency is not None
    ]
    known = [master for master, _ in answered if master]
    # Sentinels may disagree during a failover: prefer the answer of one with a quorum.
    quorum = min((quorum for _, quorum in answered), key=len, default="")
    return Sentinels(settings.master, servers, known[0] if known else "", quorum)


async def _sentinel(settings: RedisConnectionSettings, address: str) -> tuple[ServerInfo, str, str]:
    """A sentinel, the master that it reports, and why a failover is impossible."""
    login = {
        "db": 0,
        "username": None,
        "password": settings.sentinel_password or None,
        "credential_provider": None,
    }
    try:
        async with connected(settings, address, **login) as client:
            server = ServerInfo(address, await _latency(client))
            master = await client.execute_command(
                "SENTINEL GET-MASTER-ADDR-BY-NAME", settings.master
            )
            quorum = ""
            try:
                await client.execute_command("SENTINEL CKQUORUM", settings.master)
            except driver.ResponseError as error:
                quorum = str(error)
            return server, join(master[0], int(master[1])) if master else "", quorum
    except FAILURES as error:
        return ServerInfo(address, problem=_in_words(address, error, settings)), "", ""


async def _inspect_cluster(settings: RedisConnectionSettings) -> Topology:
    for address in settings.hosts:
        try:
            async with connected(settings, address) as client:
                info = await client.execute_command("CLUSTER INFO")
                members = await client.execute_command("CLUSTER NODES")
        except FAILURES:
            continue
        masters = [name for name, node in members.items() if "master" in node["flags"]]
        coverage = SlotCoverage(
            str(info.get("cluster_state", "")),
            int(info.get("cluster_slots_ok", 0)),
            sum(1 for name in masters if members[name]["slots"]),
        )
        addresses = [name for name in members if not name.startswith(":")]
        return Topology(await _servers(settings, sorted(addresses)), coverage=coverage)
    return Topology(await _servers(settings, settings.hosts))


def _in_words(address: str, error: BaseException, settings: RedisConnectionSettings) -> str:
    """Why a server cannot be reached, and what to do."""
    words = str(reason_of(error))
    if "(connection refused)" in words:
        return words
    if problem := _tls_problem(address, error, words):
        return problem
    if code_of(error) in ("NOAUTH", "WRONGPASS") or isinstance(error, driver.AuthenticationError):
        return f"{address} rejects the login: set a user and a password in the URL ({words})"
    if isinstance(error, TimeoutError | driver.TimeoutError):
        tls = ", does it support TLS" if settings.tls else ""
        return (
            f"{address} does not answer: is the address correct, does a firewall block it, is the "
            f"server paused{tls}?"
        )
    text = _with_cause(error)
    if _is_unknown(error) and "SENTINEL" in text:
        return f"{address} is not a sentinel: check the port, or use redis:// for a single server"
    if isinstance(error, driver.ConnectionError) and "closed" in text and settings.tls is None:
        return f"{address} closes the connection: if it requires TLS, use rediss:// or tls=on"
    return words if "cannot be reached" in words else f"{address} failed: {words}"


def _tls_problem(address: str, error: BaseException, words: str) -> str:
    """Why TLS failed; empty if another error occurred."""
    text = _with_cause(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"the certificate of {address} is not trusted: set its CA with ?ca=FILE ({words})"
    if isinstance(error.__cause__ or error, ssl.SSLError) or "SSL" in text:
        return f"TLS with {address} failed: use redis:// if it has no TLS ({words})"
    return ""


def _with_cause(error: BaseException) -> str:
    return f"{error} {error.__cause__ or error.__context__ or ''}"
