"""What is well and what is wrong with a Redis that keeps a registry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from mooring.doctor.findings import SLOW, Finding, attempt, judge_clock, numbers, timed
from mooring.durations import show
from mooring.errors import StoreError
from mooring.formatting import quoted
from mooring.store import Member

if TYPE_CHECKING:
    from mooring.registry.redis.acl_probe import Trial
    from mooring.registry.redis.registry import RedisRegistry
    from mooring.registry.redis.server_info import Coverage, Sentinels, Server

SLOTS = 16384
"""Of each cluster."""


async def examine_redis(registry: RedisRegistry) -> AsyncIterator[Finding]:
    """Look at a Redis from all sides. It registers an instance that nobody calls, for a moment."""
    # Not above: it needs the driver, and who has no Redis need not have one.
    from mooring.registry.redis.acl_probe import Trial
    from mooring.registry.redis.server_info import look

    kind = registry.connection.settings.kind
    found = await look(registry.connection.settings)
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
    async for finding in _try_out_redis(Trial(registry, masters)):
        yield finding


def judge_server(server: Server, *, alone: bool) -> Iterator[Finding]:
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
    told = server.told
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


def _judge_version(server: Server) -> Finding:
    assert server.latency is not None
    told, text = server.told, f"answers in {show(server.latency)}"
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


def _judge_memory(server: Server) -> Finding:
    """Whether it may throw away what is registered."""
    told, about = server.told, f"{server.address} memory"
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


def _judge_persistence(server: Server) -> Finding:
    """What is left of the registry after this server ended."""
    told, about = server.told, f"{server.address} persistence"
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


def judge_coverage(coverage: Coverage) -> Finding:
    masters = f"{coverage.masters} masters"
    if coverage.covered >= SLOTS and coverage.state == "ok":
        return Finding("ok", "cluster", f"all slots are covered, by {masters}")
    return Finding(
        "error",
        "cluster",
        f"{coverage.covered} of {SLOTS} slots are covered, by {masters} (state "
        f"{coverage.state or 'unknown'}): services in the others cannot be read or written",
    )


async def _try_out_redis(trial: Trial) -> AsyncIterator[Finding]:
    """What this user may do, by doing it, and how long it takes."""
    yield await attempt("read", timed(trial.read))
    yield await attempt("list", timed(trial.look, 3))
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


async def _hear(trial: Trial) -> str:
    took = await trial.hear()
    if took is None:
        return "may be listened to; nothing is registered, so that none was made to arrive"
    return f"allowed, one arrives after {show(took)}"


def _size(count: int) -> str:
    return f"{count / 1024**2:.1f} MiB" if count < 1024**3 else f"{count / 1024**3:.1f} GiB"
