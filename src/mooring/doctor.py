"""The checks behind `mooring doctor`: what is healthy and what is wrong with a store or a Redis."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mooring.durations import show
from mooring.errors import StoreError
from mooring.formatting import quoted
from mooring.store import Delete, Member, Put, Status, Store, key

if TYPE_CHECKING:
    from mooring.registry.redis.registry import RedisRegistry
    from mooring.registry.redis.server_info import AccessTrial, Sentinels, ServerInfo, SlotCoverage

__all__ = [
    "Finding",
    "examine",
    "examine_redis",
    "judge_clock",
    "judge_coverage",
    "judge_member",
    "judge_sentinels",
    "judge_server",
    "judge_status",
]


Level = Literal["ok", "warning", "error"]

SLOW = 0.1
"""Seconds of a round trip above which a store is called slow."""

CLOCK_OFF = 1.0
"""Seconds by which a clock may be off before it is worth a word."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    about: str
    text: str


def judge_clock(member: Member) -> Finding | None:
    if member.latency is None:
        return None
    if member.clock_ahead is None:
        return Finding("ok", member.address, "does not tell its clock: difference not measured")
    least, most = member.clock_ahead
    if least <= CLOCK_OFF and most >= -CLOCK_OFF:
        return Finding("ok", member.address, "its clock agrees with ours to about a second")
    way, off = ("ahead of", least) if least > 0 else ("behind", -most)
    return Finding(
        "warning",
        member.address,
        f"clock is at least {show(off)} {way} ours: times that people read will not "
        "match (leases, locks and heartbeats do not depend on it); check NTP",
    )


async def attempt(about: str, work: Awaitable[str]) -> Finding:
    try:
        return Finding("ok", about, await work)
    except StoreError as error:
        return Finding("error", about, str(error))


async def timed(call: Callable[[], Awaitable[object]], count: int = 5) -> str:
    times = []
    for _ in range(count):
        started = time.monotonic()
        await call()
        times.append(time.monotonic() - started)
    return f"allowed, {show(statistics.median(times))}"


def numbers(version: str) -> tuple[int, ...]:
    parts = version.split("-")[0].split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()


SLOTS = 16384
"""Of each cluster."""


async def examine_redis(registry: RedisRegistry) -> AsyncIterator[Finding]:
    """Look at a Redis from all sides. It registers an instance that nobody calls, for a moment."""
    # Not above: it needs the driver, and who has no Redis need not have one.
    from mooring.registry.redis.server_info import AccessTrial, inspect_servers

    kind = registry.connection.settings.kind
    found = await inspect_servers(registry.connection.settings)
    if found.sentinels is not None:
        for finding in judge_sentinels(found.sentinels):
            yield finding
    for server in found.servers:
        for finding in judge_server(server, alone=kind == "single"):
            yield finding
    if found.coverage is not None:
        yield judge_coverage(found.coverage)
    answering = [server for server in found.servers if server.latency is not None]
    if answering and all(server.is_sentinel for server in answering):
        return
    if not answering:
        yield Finding("error", "reachability", "no server answers: nothing more can be looked at")
        return
    masters = [server.address for server in answering if not server.is_replica]
    async for finding in _try_out_redis(AccessTrial(registry, masters)):
        yield finding


def judge_server(server: ServerInfo, *, alone: bool) -> Iterator[Finding]:
    """What to say of one server; `alone`: nobody leads us to another if it is a replica."""
    if server.latency is None:
        yield Finding("error", server.address, server.problem)
        return
    if server.is_sentinel:
        yield Finding(
            "error",
            server.address,
            f"is a sentinel and keeps no registry: write redis+sentinel://{server.address}/NAME, "
            "with the name of the master that it guards",
        )
        return
    yield _judge_version(server)
    clock = judge_clock(
        Member(server.address, latency=server.latency, clock_ahead=server.clock_ahead)
    )
    if clock is not None:
        yield clock
    told = server.info
    if alone and server.is_replica:
        yield Finding(
            "error",
            server.address,
            f"is a replica of {told.get('master_host')}:{told.get('master_port')} and takes no "
            "writes: name its master, or the sentinels with redis+sentinel://",
        )
    if told and not server.is_replica:
        yield _judge_memory(server)
        yield _judge_persistence(server)


def _judge_version(server: ServerInfo) -> Finding:
    assert server.latency is not None
    told, text = server.info, f"answers in {show(server.latency)}"
    if not told:
        return Finding(
            "ok", server.address, f"{text}; what it is, this user may not ask (INFO is refused)"
        )
    name, version = "Redis", told.get("redis_version", "?")
    if "valkey_version" in told:
        name, version = "Valkey", told["valkey_version"]
    text = f"{text}, {name} {version}, {'replica' if server.is_replica else 'master'}"
    if server.latency > SLOW:
        return Finding("warning", server.address, f"{text}: that is slow")
    if (known := numbers(version)) and known < (6, 2):
        return Finding("warning", server.address, f"{text}: older than 6.2 is not supported")
    return Finding("ok", server.address, text)


def _judge_memory(server: ServerInfo) -> Finding:
    """Whether it may throw away what is registered."""
    told, about = server.info, f"{server.address} memory"
    policy, limit = told.get("maxmemory_policy", "noeviction"), int(told.get("maxmemory", "0"))
    used = int(told.get("used_memory", "0"))
    if not limit:
        return Finding("ok", about, f"{_size(used)} used, without a limit: nothing is evicted")
    text = f"{_size(used)} of {_size(limit)} used, {policy}"
    if policy.startswith("allkeys"):
        return Finding(
            "warning",
            about,
            f"{text}: where memory is short, it drops registrations; set maxmemory-policy "
            "noeviction",
        )
    if policy.startswith("volatile"):
        return Finding(
            "warning",
            about,
            f"{text}: where memory is short, it drops brakes, and what an operator took out "
            "comes back; set maxmemory-policy noeviction",
        )
    if used > 0.9 * limit:
        return Finding("warning", about, f"{text}: nearly full, and then writes are refused")
    return Finding("ok", about, f"{text}: nothing is evicted")


def _judge_persistence(server: ServerInfo) -> Finding:
    """What is left of the registry after this server ended."""
    told, about = server.info, f"{server.address} persistence"
    replicas = int(told.get("connected_slaves", "0"))
    beside = {0: "no replica", 1: "1 replica"}.get(replicas, f"{replicas} replicas")
    if told.get("aof_enabled") == "1":
        if told.get("aof_last_write_status", "ok") != "ok":
            return Finding("error", about, f"the append-only file cannot be written; {beside}")
        return Finding("ok", about, f"each write goes to the append-only file; {beside}")
    if server.saves or (server.saves is None and told.get("rdb_changes_since_last_save") == "0"):
        return Finding(
            "ok", about, f"snapshots: a restart forgets what came after the last one; {beside}"
        )
    if server.saves is None:
        return Finding("ok", about, f"how it saves, this user may not ask; {beside}")
    text = (
        f"none, {beside}: after a restart instances are back within a heartbeat, but what "
        "operators said (configuration, descriptions) is lost"
    )
    return Finding("ok" if replicas else "warning", about, text)


def judge_sentinels(sentinels: Sentinels) -> Iterator[Finding]:
    for server in sentinels.servers:
        if server.latency is None:
            yield Finding("warning", f"sentinel {server.address}", server.problem)
    answering = [server for server in sentinels.servers if server.latency is not None]
    of = f"{len(answering)} of the {len(sentinels.servers)} named answer"
    if not answering:
        yield Finding("error", "sentinels", of)
    elif not sentinels.master:
        yield Finding("error", "sentinels", f"{of}, and know no master {quoted(sentinels.name)}")
    elif sentinels.quorum:
        yield Finding(
            "error",
            "sentinels",
            f"{of}; the master is {sentinels.master}; were it to fail, nobody would take over: "
            f"{sentinels.quorum}",
        )
    else:
        yield Finding(
            "ok",
            "sentinels",
            f"{of}; the master is {sentinels.master}; enough agree for a failover",
        )


def judge_coverage(coverage: SlotCoverage) -> Finding:
    masters = f"{coverage.masters} masters"
    if coverage.covered >= SLOTS and coverage.state == "ok":
        return Finding("ok", "cluster", f"all slots are covered, by {masters}")
    return Finding(
        "error",
        "cluster",
        f"{coverage.covered} of {SLOTS} slots are covered, by {masters} (state "
        f"{coverage.state or 'unknown'}): services in the others cannot be read or written",
    )


async def _try_out_redis(trial: AccessTrial) -> AsyncIterator[Finding]:
    """What this user may do, by doing it, and how long it takes."""
    yield await attempt("read", timed(trial.read))
    yield await attempt("list", timed(trial.list, 3))
    registering = await attempt("register", timed(trial.register, 1))
    yield registering
    if registering.level == "ok":
        yield await attempt("heartbeat", timed(trial.beat))
    yield await attempt("changes", _hear(trial))
    if trial.masters:
        yield await attempt("cleanup", timed(trial.scan, 1))
    else:
        yield Finding("warning", "cleanup", "not tried: no master answers")
    try:
        await trial.aclose()
    except StoreError as error:
        yield Finding("error", "deregister", f"{trial.instance.id} stays until cleanup: {error}")


async def _hear(trial: AccessTrial) -> str:
    took = await trial.hear()
    if took is None:
        return "may be listened to; nothing is registered, so that none was made to arrive"
    return f"allowed, one arrives after {show(took)}"


def _size(count: int) -> str:
    return f"{count / 1024**2:.1f} MiB" if count < 1024**3 else f"{count / 1024**3:.1f} GiB"


async def examine(store: Store) -> AsyncIterator[Finding]:
    """Look at a store from all sides. It writes and removes one key below `/mooring/doctor/`."""
    status = await store.status()
    for member in status.members:
        yield judge_member(member)
        if (clock := judge_clock(member)) is not None:
            yield clock
    for finding in judge_status(status):
        yield finding
    if not any(member.latency is not None for member in status.members):
        yield Finding("error", "reachability", "no server answers: nothing more can be looked at")
        return
    async for finding in try_out(store):
        yield finding


def judge_member(member: Member) -> Finding:
    if member.latency is None:
        return Finding("error", member.address, member.problem)
    if not member.version:
        return Finding("ok", member.address, "holds the store itself")
    leader = ", leader" if member.leader else ""
    text = f"answers in {show(member.latency)}, version {member.version}{leader}"
    if member.latency > SLOW:
        return Finding("warning", member.address, f"{text}: that is slow")
    if (version := numbers(member.version)) and version < (3, 4):
        return Finding("warning", member.address, f"{text}: older than 3.4 is not supported")
    if version and (3, 5, 0) <= version <= (3, 5, 2):
        return Finding(
            "warning",
            member.address,
            f"{text}: 3.5.0 to 3.5.2 can lose consistency when killed; upgrade to 3.5.3 or later",
        )
    return Finding("ok", member.address, text)


def judge_status(status: Status) -> Iterator[Finding]:
    answering = [member for member in status.members if member.latency is not None]
    if answering and not any(member.leader for member in answering):
        yield Finding("warning", "leader", "none of the servers named in the URL is the leader")
    if len({member.version for member in answering}) > 1:
        versions = ", ".join(sorted({member.version for member in answering}))
        yield Finding("warning", "versions", f"the members differ: {versions}")
    for alarm in status.alarms:
        yield Finding("error", "alarm", alarm)
    if answering and not status.alarms:
        yield Finding("ok", "alarms", "none")


async def try_out(store: Store) -> AsyncIterator[Finding]:
    """What this user may do, by doing it, and how long it takes."""
    scratch = f"/mooring/doctor/{uuid.uuid4().hex}".encode()
    yield await attempt("read", timed(lambda: store.read(key(scratch))))
    writing = await attempt("write", timed(lambda: store.commit(Put(scratch, b"")), 3))
    yield writing
    yield await attempt("watch", _watch(store, scratch))
    yield await attempt("lease", _lease(store))
    if writing.level != "ok":
        return
    try:
        await store.commit(Delete(key(scratch)))
    except StoreError as error:
        yield Finding("error", "write", f"the scratch key {scratch.decode()} stays: {error}")


async def _watch(store: Store, name: bytes) -> str:
    async with store.watch(key(name)) as watch:
        started = time.monotonic()
        await store.commit(Put(name, b"watched"))
        await anext(watch)
    return f"allowed, a change arrives after {show(time.monotonic() - started)}"


async def _lease(store: Store) -> str:
    lease = await store.grant(5)
    await store.renew(lease.id)
    await store.revoke(lease.id)
    return f"granted for {show(lease.ttl)}, renewed, revoked"
