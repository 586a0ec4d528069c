"""Heartbeats on Redis: against redis-py calling the same script, and `redis-benchmark`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median

from redis.asyncio import Redis

from bench.bare_redis import (
    Member,
    Sent,
    benchmark,
    driver,
    fresh_redis,
    number_in,
    register,
    registry_at,
)
from bench.load import in_flight
from bench.measure import Line, Plan, Section, Target, interleaved, per_second, ratio
from bench.population import SERVICE, instance
from mooring.registry.redis import layout as fields
from mooring.registry.redis.live_service import Beat, HeartbeatBatches, ServiceWriter, message_head
from mooring.registry.redis.pipeline import HEARTBEAT
from mooring.registry.redis.registry import RedisRegistry
from mooring.testing.redis import RedisServer

IN_FLIGHT = 64
INSTANCES = 1_000
TOGETHER = 100
_CALLS = 4  # in flight at once

Call = Callable[[int], Awaitable[object]]
Measure = Callable[[], Awaitable[float]]

_show = partial(per_second, unit=" beats")


async def run(plan: Plan) -> list[Section]:
    with fresh_redis() as server:
        async with registry_at(server.address) as registry, driver(server) as bare:
            members = await register(registry, range(INSTANCES))
            beats = [await _beat(registry, member) for member in members]
            assert set(await _sending(registry)(beats[:TOGETHER])) == {"ok"}
            lines = [
                *await _in_flight(plan.finer(4), server, registry, bare, beats),
                *await _one_at_a_time(plan.finer(4), registry, bare, beats),
                *await _together(plan.finer(4), server, registry, beats),
            ]
            bytes_ = await _bytes(server, registry, beats)
    text = (
        "Heartbeats from one uvloop process, for instances registered with realistic metadata "
        "and metrics. A heartbeat in its own call is one `EVALSHA`, compared with redis-py's "
        "`evalsha`, which takes one connection per call in flight. `redis-benchmark` sends the "
        "same command continuously, with as many requests in flight on one connection, and "
        "ignores the replies: it shows the limit of the server. Batched is what the registry "
        "itself does: it puts all waiting heartbeats into one call. 0.95 and above counts as "
        "equal."
    )
    wire = (
        "Bytes that Redis receives for one heartbeat, including keys. Without metadata it is "
        "the heartbeat alone; with metadata it includes all fields of the instance, which are "
        "sent once a minute or on a significant change."
    )
    return [
        Section("Heartbeats on Redis", text, lines),
        Section("Heartbeats on Redis, size on the wire", wire, bytes_),
    ]


async def _beat(registry: RedisRegistry, member: Member) -> Beat:
    registered, id = member.instance, member.instance.id
    key = registry.keys.of(SERVICE).instance(id)
    when = await registry.connection.call("HGET", key, "registrationTime", what="bench")
    return Beat(
        id, registered.incarnation, when.decode(), True, message_head(SERVICE, id, registered)
    )


def _sending(registry: RedisRegistry) -> Callable[[list[Beat]], Awaitable[list[str]]]:
    return ServiceWriter(registry.connection, registry.keys.of(SERVICE)).send


async def _in_flight(
    plan: Plan, server: RedisServer, registry: RedisRegistry, bare: Redis, beats: list[Beat]
) -> list[Line]:
    beating = HeartbeatBatches(ServiceWriter(registry.connection, registry.keys.of(SERVICE)))
    calls: dict[str, Call] = {
        "ours": await _ours(registry, beats),
        "redis-py": await _theirs(registry, bare, beats),
        "ours, by the registry": lambda n: beating.beat(beats[n % INSTANCES]),
    }
    sides: dict[str, Measure] = {
        name: partial(_rate, call, IN_FLIGHT, plan.seconds) for name, call in calls.items()
    }
    sides["redis-benchmark"] = await _limit(server, registry, beats[:1], IN_FLIGHT, plan.seconds)
    taken = await interleaved(plan, f"{IN_FLIGHT} beats in flight", sides, _show)
    await beating.aclose()
    what, ours = f"{IN_FLIGHT} in flight, one call each", taken["ours"]
    waiting = taken["ours, by the registry"]
    return [
        _line(what, ours, "redis-py", taken["redis-py"], Target("≥", 2.5)),
        _line(what, ours, "redis-benchmark", taken["redis-benchmark"]),
        _line(f"{IN_FLIGHT} in flight, batched", waiting, "redis-py", taken["redis-py"]),
    ]


async def _one_at_a_time(
    plan: Plan, registry: RedisRegistry, bare: Redis, beats: list[Beat]
) -> list[Line]:
    calls = {"ours": await _ours(registry, beats), "redis-py": await _theirs(registry, bare, beats)}
    sides = {name: partial(_rate, call, 1, plan.seconds) for name, call in calls.items()}
    taken = await interleaved(plan, "one beat at a time", sides, _show)
    level = Target("≥", 0.95)
    return [_line("one at a time", taken["ours"], "redis-py", taken["redis-py"], level)]


async def _together(
    plan: Plan, server: RedisServer, registry: RedisRegistry, beats: list[Beat]
) -> list[Line]:
    chunks = [beats[first : first + TOGETHER] for first in range(0, INSTANCES, TOGETHER)]

    send_beats = _sending(registry)

    async def ours() -> float:
        call: Call = lambda n: send_beats(chunks[n % len(chunks)])  # noqa: E731
        return TOGETHER * await _rate(call, _CALLS, plan.seconds)

    limit = await _limit(server, registry, chunks[0], _CALLS, plan.seconds)

    async def theirs() -> float:
        return TOGETHER * await limit()

    sides = {"ours": ours, "redis-benchmark": theirs}
    taken = await interleaved(plan, f"{TOGETHER} beats in a call", sides, _show)
    mine, what = median(taken["ours"]), f"{TOGETHER} in a call, {_CALLS} calls in flight"
    target = Target("≥", 60_000, _show)
    return [
        Line(what, _show(mine), target=target, value=mine),
        _line(what, taken["ours"], "redis-benchmark", taken["redis-benchmark"]),
    ]


async def _ours(registry: RedisRegistry, beats: list[Beat]) -> Call:
    chunks, send_beats = [[beat] for beat in beats], _sending(registry)
    return lambda n: send_beats(chunks[n % len(chunks)])


async def _theirs(registry: RedisRegistry, bare: Redis, beats: list[Beat]) -> Call:
    commands = [await _command(registry, [beat]) for beat in beats]
    return lambda n: bare.evalsha(*commands[n % len(commands)])


async def _command(registry: RedisRegistry, beats: list[Beat]) -> tuple[str, int, *tuple[str, ...]]:
    sent = Sent()
    await ServiceWriter(sent, registry.keys.of(SERVICE)).send(beats)
    digest, count, *rest = sent.command
    assert digest == HEARTBEAT.digest
    return HEARTBEAT.digest, int(count), *map(str, rest)


async def _rate(call: Call, workers: int, seconds: float) -> float:
    return (await in_flight(call, workers, seconds)).ops_per_s


async def _limit(
    server: RedisServer, registry: RedisRegistry, beats: list[Beat], together: int, seconds: float
) -> Measure:
    """Calls per second of redis-benchmark, in runs of about the requested length."""
    command = ("EVALSHA", *await _command(registry, beats))
    requests = 20 * together
    rate = await benchmark(server, command, together=together, requests=requests)
    requests = max(requests, round(rate * seconds))
    return partial(benchmark, server, command, together=together, requests=requests)


def _line(
    what: str, ours: list[float], name: str, theirs: list[float], target: Target | None = None
) -> Line:
    against = f"{name} {_show(median(theirs))}"
    return Line(what, _show(median(ours)), against, ratio(ours, theirs), target)


async def _bytes(server: RedisServer, registry: RedisRegistry, beats: list[Beat]) -> list[Line]:
    all_fields = fields.encode(instance(0))
    lines = []
    for count in (1, TOGETHER):
        chunk = beats[:count]
        bare = await _received(server, registry, chunk)
        full = await _received(
            server, registry, [beat._replace(fields=all_fields) for beat in chunk]
        )
        what = "one heartbeat" if count == 1 else f"one of {count} in a call"
        against = f"with metadata {full:,.0f} bytes, {full / bare:.1f} × as much"
        lines.append(Line(what, f"{bare:,.0f} bytes", against))
    return lines


async def _received(server: RedisServer, registry: RedisRegistry, beats: list[Beat]) -> float:
    """Bytes that Redis receives for one heartbeat."""
    calls, name = 50, ("stats", "total_net_input_bytes")
    asking = -number_in(server, *name) + number_in(server, *name)
    before = number_in(server, *name)
    for _ in range(calls):
        await _sending(registry)(beats)
    return (number_in(server, *name) - before - asking) / calls / len(beats)
