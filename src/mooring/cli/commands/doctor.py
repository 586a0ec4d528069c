"""`mooring doctor`: checks of a store or a Redis registry. The `judge_…` functions are pure."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from mooring.backends import open_redis, open_store
from mooring.cli.io.connect import url_or_local
from mooring.cli.io.options import JSONOption
from mooring.cli.io.tables import show_json
from mooring.durations import format_duration
from mooring.errors import StoreError
from mooring.formatting import quoted
from mooring.settings import parse as parse_settings
from mooring.store import Delete, Member, Put, Store, StoreStatus, key
from mooring.store.url import REDIS, parse

if TYPE_CHECKING:
    from mooring.registry.redis.acl_probe import AccessProbe
    from mooring.registry.redis.registry import RedisRegistry
    from mooring.registry.redis.server_info import (
        Sentinels,
        ServerInfo,
        SlotCoverage,
        Topology,
    )

SLOW = 0.1
"""Seconds of a round trip above which a store is called slow."""
CLOCK_TOLERANCE = 1.0
"""Seconds by which a clock may differ without a warning."""
SLOTS = 16384
"""The number of slots of a Redis cluster."""

_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    level: Literal["ok", "warning", "error"]
    about: str
    text: str


_ok = partial(DoctorFinding, "ok")
_warning = partial(DoctorFinding, "warning")
_error = partial(DoctorFinding, "error")


async def doctor(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            envvar="MOORING_STORE",
            help="URL of the store or Redis (default: the local `mooring serve`)",
        ),
    ] = "",
    as_json: JSONOption = False,
) -> None:
    """Check a store or a Redis registry: latency, clock, permissions, alarms.

    Exits with 1 if a check fails.
    """
    console = Console(soft_wrap=True, highlight=False)
    healthy = True
    with url_or_local(url) as target:
        async with _open(target) as (name, findings):
            if not as_json:
                console.print(Text(name, style="bold"))
            async for finding in findings:
                healthy = healthy and finding.level != "error"
                if as_json:
                    show_json(dataclasses.asdict(finding))
                else:
                    console.print(_line(finding))
    if not healthy:
        raise typer.Exit(1)


@contextlib.asynccontextmanager
async def _open(url: str) -> AsyncIterator[tuple[str, AsyncIterator[DoctorFinding]]]:
    """The URL without its password, and the findings."""
    if parse(url).scheme in REDIS:
        async with contextlib.aclosing(open_redis(parse(url), parse_settings({}))) as registry:
            yield registry.url, check_redis(registry)
    else:
        async with open_store(url) as store:
            yield store.url, check_store(store)


def _line(finding: DoctorFinding) -> Text:
    sign, colour = _SIGNS[finding.level]
    return Text.assemble((sign, colour), " ", (finding.about, "bold"), f": {finding.text}")


async def check_store(store: Store) -> AsyncIterator[DoctorFinding]:
    """Check a store. Writes and removes one key below `/mooring/doctor/`."""
    status = await store.status()
    for member in status.members:
        yield judge_member(member)
        if (clock := judge_clock(member)) is not None:
            yield clock
    for finding in judge_status(status):
        yield finding
    if not any(member.latency is not None for member in status.members):
        yield _error("reachability", "no server answers: the other checks are skipped")
        return
    async for finding in _try_store(store):
        yield finding


def judge_member(member: Member) -> DoctorFinding:
    if member.latency is None:
        return _error(member.address, str(member.problem))
    if not member.version:
        return _ok(member.address, "contains the store itself")
    leader = ", leader" if member.leader else ""
    text = f"answers in {format_duration(member.latency)}, version {member.version}{leader}"
    if (3, 5, 0) <= _numbers(member.version) <= (3, 5, 2):
        return _warning(
            member.address,
            f"{text}: 3.5.0 to 3.5.2 can lose consistency when killed; upgrade to 3.5.3 or later",
        )
    return _judge_answer(member.address, member.latency, text, member.version, (3, 4))


def _judge_answer(
    address: str, latency: float, text: str, version: str, oldest: tuple[int, int]
) -> DoctorFinding:
    """Judge the latency and the version of a server. `oldest` is the oldest supported version."""
    if latency > SLOW:
        return _warning(address, f"{text}: that is slow")
    if () < _numbers(version) < oldest:
        return _warning(address, f"{text}: older than {oldest[0]}.{oldest[1]} is not supported")
    return _ok(address, text)


def judge_clock(member: Member | ServerInfo) -> DoctorFinding | None:
    if member.latency is None:
        return None
    if member.clock_ahead is None:
        return _ok(member.address, "clock difference not measured: the server does not report it")
    least, most = member.clock_ahead
    if least <= CLOCK_TOLERANCE and most >= -CLOCK_TOLERANCE:
        return _ok(member.address, "clock agrees with ours to about a second")
    direction, difference = ("ahead of", least) if least > 0 else ("behind", -most)
    return _warning(
        member.address,
        f"clock is at least {format_duration(difference)} {direction} ours: displayed times will "
        "not match (leases, locks and heartbeats do not depend on it); check NTP",
    )


def judge_status(status: StoreStatus) -> Iterator[DoctorFinding]:
    answering = [member for member in status.members if member.latency is not None]
    if answering and not any(member.leader for member in answering):
        yield _warning("leader", "none of the servers in the URL is the leader")
    versions = sorted({member.version for member in answering})
    if len(versions) > 1:
        yield _warning("versions", f"the members differ: {', '.join(versions)}")
    for alarm in status.alarms:
        yield _error("alarm", str(alarm))
    if answering and not status.alarms:
        yield _ok("alarms", "none")


async def _try_store(store: Store) -> AsyncIterator[DoctorFinding]:
    """Try what this user is allowed to do, and measure how long it takes."""
    scratch = f"/mooring/doctor/{uuid.uuid4().hex}".encode()
    yield await _try("read", _timed(lambda: store.read(key(scratch))))
    writing = await _try("write", _timed(lambda: store.commit(Put(scratch, b"")), 3))
    yield writing
    yield await _try("watch", _watch(store, scratch))
    yield await _try("lease", _lease(store))
    if writing.level != "ok":
        return
    try:
        await store.commit(Delete(key(scratch)))
    except StoreError as error:
        yield _error("write", f"the scratch key {scratch.decode()} remains: {error}")


async def _try(about: str, work: Awaitable[str]) -> DoctorFinding:
    try:
        return _ok(about, await work)
    except StoreError as error:
        return _error(about, str(error))


async def _timed(call: Callable[[], Awaitable[object]], count: int = 5) -> str:
    times = []
    for _ in range(count):
        started = time.monotonic()
        await call()
        times.append(time.monotonic() - started)
    return f"allowed, {format_duration(statistics.median(times))}"


async def _watch(store: Store, name: bytes) -> str:
    async with store.watch(key(name)) as watch:
        started = time.monotonic()
        await store.commit(Put(name, b"watched"))
        await anext(watch)
    return f"allowed, a change arrives after {format_duration(time.monotonic() - started)}"


async def _lease(store: Store) -> str:
    lease = await store.grant(5)
    await store.renew(lease.id)
    await store.revoke(lease.id)
    return f"granted for {format_duration(lease.ttl)}, renewed, revoked"


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("-")[0].split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()


async def check_redis(registry: RedisRegistry) -> AsyncIterator[DoctorFinding]:
    """Check a Redis. Registers an instance for a moment, which no client calls."""
    from mooring.registry.redis.acl_probe import AccessProbe
    from mooring.registry.redis.server_info import inspect_servers

    settings = registry.connection.settings
    topology = await inspect_servers(settings)
    for finding in judge_topology(topology, alone=settings.kind == "single"):
        yield finding
    answering = [server for server in topology.servers if server.latency is not None]
    if answering and all(server.is_sentinel for server in answering):
        return
    if not answering:
        yield _error("reachability", "no server answers: the other checks are skipped")
        return
    masters = [server.address for server in answering if not server.is_replica]
    async for finding in _try_redis(AccessProbe(registry, masters)):
        yield finding


def judge_topology(topology: Topology, *, alone: bool) -> Iterator[DoctorFinding]:
    if topology.sentinels is not None:
        yield from judge_sentinels(topology.sentinels)
    for server in topology.servers:
        yield from judge_server(server, alone=alone)
    if topology.coverage is not None:
        yield judge_coverage(topology.coverage)


def judge_server(server: ServerInfo, *, alone: bool) -> Iterator[DoctorFinding]:
    """Judge one server. `alone` means that no sentinel or cluster leads to another one, so that a
    replica is an error."""
    if server.latency is None:
        yield _error(server.address, server.problem)
        return
    if server.is_sentinel:
        yield _error(
            server.address,
            f"is a sentinel and keeps no registry: write redis+sentinel://{server.address}/NAME, "
            "with the name of its master",
        )
        return
    yield _judge_version(server)
    if (clock := judge_clock(server)) is not None:
        yield clock
    info = server.info
    if alone and server.is_replica:
        yield _error(
            server.address,
            f"is a replica of {info.get('master_host')}:{info.get('master_port')} and takes no "
            "writes: name its master, or the sentinels with redis+sentinel://",
        )
    if info and not server.is_replica:
        yield _judge_memory(server)
        yield _judge_persistence(server)


def _judge_version(server: ServerInfo) -> DoctorFinding:
    assert server.latency is not None
    info, text = server.info, f"answers in {format_duration(server.latency)}"
    if not info:
        return _ok(
            server.address, f"{text}; version unknown: this user may not ask (INFO is refused)"
        )
    name, version = "Redis", info.get("redis_version", "?")
    if "valkey_version" in info:
        name, version = "Valkey", info["valkey_version"]
    text = f"{text}, {name} {version}, {'replica' if server.is_replica else 'master'}"
    return _judge_answer(server.address, server.latency, text, version, (6, 2))


def _judge_memory(server: ServerInfo) -> DoctorFinding:
    """Whether the server may evict registrations."""
    info, about = server.info, f"{server.address} memory"
    policy, limit = info.get("maxmemory_policy", "noeviction"), int(info.get("maxmemory", "0"))
    used = int(info.get("used_memory", "0"))
    if not limit:
        return _ok(about, f"{_size(used)} used, without a limit: nothing is evicted")
    text = f"{_size(used)} of {_size(limit)} used, {policy}"
    if policy != "noeviction":
        volatile = policy.startswith("volatile")
        lost = "brakes, and deregistered instances come back" if volatile else "registrations"
        return _warning(
            about, f"{text}: when memory is short, it drops {lost}; set maxmemory-policy noeviction"
        )
    if used > 0.9 * limit:
        return _warning(about, f"{text}: nearly full; a full server refuses writes")
    return _ok(about, f"{text}: nothing is evicted")


def _judge_persistence(server: ServerInfo) -> DoctorFinding:
    """What remains of the registry after a restart of the server."""
    info, about = server.info, f"{server.address} persistence"
    count = int(info.get("connected_slaves", "0"))
    replicas = {0: "no replica", 1: "1 replica"}.get(count, f"{count} replicas")
    if info.get("aof_enabled") == "1":
        if info.get("aof_last_write_status", "ok") != "ok":
            return _error(about, f"the append-only file cannot be written; {replicas}")
        return _ok(about, f"each write goes to the append-only file; {replicas}")
    if server.saves or (server.saves is None and info.get("rdb_changes_since_last_save") == "0"):
        return _ok(about, f"snapshots: a restart loses the changes since the last one; {replicas}")
    if server.saves is None:
        return _ok(about, f"unknown: this user may not read the configuration; {replicas}")
    text = (
        f"none, {replicas}: after a restart instances are back within a heartbeat, but operator "
        "overrides and descriptions are lost"
    )
    return _ok(about, text) if count else _warning(about, text)


def judge_sentinels(sentinels: Sentinels) -> Iterator[DoctorFinding]:
    for server in sentinels.servers:
        if server.latency is None:
            yield _warning(f"sentinel {server.address}", server.problem)
    answering = [server for server in sentinels.servers if server.latency is not None]
    text = f"{len(answering)} of the {len(sentinels.servers)} in the URL answer"
    if not answering:
        yield _error("sentinels", text)
    elif not sentinels.master:
        yield _error("sentinels", f"{text}, and know no master {quoted(sentinels.name)}")
    elif sentinels.quorum:
        yield _error(
            "sentinels",
            f"{text}; the master is {sentinels.master}; a failover is impossible: "
            f"{sentinels.quorum}",
        )
    else:
        yield _ok(
            "sentinels", f"{text}; the master is {sentinels.master}; enough agree for a failover"
        )


def judge_coverage(coverage: SlotCoverage) -> DoctorFinding:
    masters = f"{coverage.masters} masters"
    if coverage.covered >= SLOTS and coverage.state == "ok":
        return _ok("cluster", f"all slots are covered, by {masters}")
    return _error(
        "cluster",
        f"{coverage.covered} of {SLOTS} slots are covered, by {masters} (state "
        f"{coverage.state or 'unknown'}): services in the others cannot be read or written",
    )


async def _try_redis(probe: AccessProbe) -> AsyncIterator[DoctorFinding]:
    """Try what this user is allowed to do, and measure how long it takes."""
    yield await _try("read", _timed(probe.read))
    yield await _try("list", _timed(probe.list, 3))
    registering = await _try("register", _timed(probe.register, 1))
    yield registering
    if registering.level == "ok":
        yield await _try("heartbeat", _timed(probe.beat))
    yield await _try("changes", _subscribe(probe))
    if probe.masters:
        yield await _try("cleanup", _timed(probe.scan, 1))
    else:
        yield _warning("cleanup", "not tried: no master answers")
    try:
        await probe.aclose()
    except StoreError as error:
        yield _error("deregister", f"{probe.instance.id} remains until cleanup: {error}")


async def _subscribe(probe: AccessProbe) -> str:
    seconds = await probe.hear()
    if seconds is None:
        return "subscribing is allowed; no change was sent, because registering failed"
    return f"allowed, one arrives after {format_duration(seconds)}"


def _size(count: int) -> str:
    return f"{count / 1024**2:.1f} MiB" if count < 1024**3 else f"{count / 1024**3:.1f} GiB"
