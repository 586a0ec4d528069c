"""The migration from version 1.0 of the Redis registry, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest

from mooring.errors import MigrationError
from mooring.hub import connect
from mooring.migrate import verified_file
from mooring.migrate.redis_v1.bridge import Bridge
from mooring.migrate.redis_v1.format import V1Service
from mooring.migrate.redis_v1.migration import (
    FORMAT,
    Migration,
    RedisV1Header,
    VerifiedServices,
)
from mooring.migrate.redis_v1.plan import InstancePlan
from mooring.model import Instance
from mooring.registry.redis.registry import RedisRegistry
from mooring.tasks import Tasks
from mooring.testing.redis import RedisCluster, RedisServer, Reply
from tests.backends import usual
from tests.waiting import eventually

WITHIN = 20.0
"""More than the 5 seconds that a bridge promises by default: many tests run at once."""


class V1:
    """The operations of v1 programs, with plain commands."""

    def __init__(self, server: RedisServer | RedisCluster, prefix: str = "") -> None:
        self.server, self.prefix = server, prefix
        self.root = f"{prefix}:" if prefix else ""

    def command(self, name: str, key: str, *words: str | bytes | int) -> Reply:
        server = self.server
        holder = server.master_of(key) if isinstance(server, RedisCluster) else server
        return holder.command(name, key, *words)

    def now(self) -> int:
        return round(time.time() * 1000)

    def register(self, service: str, id: str, **changed: str) -> None:
        fields = {
            "host": "10.0.0.1",
            "port": "8080",
            "healthy": "true",
            "timestamp": str(self.now()),
            "weight": "1",
            "metadata": '{"k": "v"}',
            **changed,
        }
        words = [word for pair in fields.items() for word in pair]
        self.command("HSET", f"{self.root}services:{service}:{id}", *words)
        self.command("SADD", f"{self.root}service_instances:{service}", id)
        self.beat(service, id)

    def beat(self, service: str, id: str, at: float | None = None) -> None:
        score = repr(self.now() if at is None else at)
        self.command("ZADD", f"{self.root}heartbeat:{service}", score, id)

    def deregister(self, service: str, id: str) -> None:
        self.command("SREM", f"{self.root}service_instances:{service}", id)
        self.command("ZREM", f"{self.root}heartbeat:{service}", id)
        self.command("DEL", f"{self.root}services:{service}:{id}")

    def read(self, service: str) -> dict[str, dict[str, str]]:
        """The instances as readers of v1 see them."""
        records = {}
        ids = cast("list[str]", self.command("SMEMBERS", f"{self.root}service_instances:{service}"))
        for id in ids:
            key = f"{self.root}services:{service}:{id}"
            words = cast("list[str]", self.command("HGETALL", key))
            if words:
                records[id] = dict(zip(words[::2], words[1::2], strict=True))
        return records

    def score(self, service: str, id: str) -> float:
        return float(str(self.command("ZSCORE", f"{self.root}heartbeat:{service}", id) or 0))


class Place:
    """A registry of v2 and one of v1 in the same Redis."""

    def __init__(self, url: str, v1: V1, registry: RedisRegistry) -> None:
        self.url, self.v1, self.registry = url, v1, registry
        self.migration = Migration(registry, prefix=v1.prefix)

    async def plan(self) -> dict[str, str]:
        return {step.id: step.verdict for step in await self.steps()}

    async def steps(self) -> list[InstancePlan]:
        return await self.migration.plan()

    async def copy(self) -> list[tuple[str, str]]:
        return [
            (copied.step.id, copied.outcome)
            async for part in self.migration.copy()
            for copied in part
        ]

    async def verify(self) -> tuple[dict[str, str], VerifiedServices]:
        steps, verified = await self.migration.verify()
        return {step.id: step.verdict for step in steps}, verified

    async def ids(self, service: str) -> list[str]:
        listing = await self.registry.instances(service)
        assert listing.problems == ()
        return [instance.id for instance in listing.instances]

    def keys(self) -> set[str]:
        return set(cast("list[str]", self.v1.command("KEYS", "*")))


def in_service(verified: VerifiedServices, service: str) -> V1Service:
    (v1,) = (v1 for v1 in verified.items if v1.service == service)
    return v1


@contextlib.asynccontextmanager
async def place(
    server: RedisServer | RedisCluster, *, v1: str | None = None, timeout: str = "2m"
) -> AsyncIterator[Place]:
    fresh = uuid.uuid4().hex[:8]
    url = f"{server.url}?prefix={fresh}&expire={timeout}"
    prefix = f"v1-{fresh}" if v1 is None else v1.replace("SAME", fresh)
    async with connect(url) as hub:
        yield Place(url, V1(server, prefix), cast("RedisRegistry", hub.registry))


@contextlib.asynccontextmanager
async def bridging(place: Place) -> AsyncIterator[Bridge]:
    tasks, bridge = Tasks(), Bridge(place.migration)
    running = tasks.start(bridge.run(interval=0.05), name="bridge")
    try:
        yield bridge
        assert not running.done()
    finally:
        await tasks.aclose()


@pytest.fixture(params=usual(["6.2"], ["valkey-9"], reason="it runs the scripts of Redis alike"))
def server(request: pytest.FixtureRequest, redis: Callable[[str], RedisServer]) -> RedisServer:
    return redis(request.param)


@pytest.mark.parametrize("prefix", [None, "SAME"])
async def test_plan_then_copy_then_verify_then_delete(server: RedisServer, prefix: str | None):
    async with place(server, v1=prefix) as here:
        v1 = here.v1
        v1.register("svc", "a", weight="2.5", metadata='{"zone": "x", "n": 123456789012345}')
        v1.register("svc", "10.0.0.1:8080", healthy="false")
        v1.register("other", "b", metadata="a=1,b=2", timestamp=str(v1.now() // 1000))
        assert await here.plan() == dict.fromkeys(("a", "10.0.0.1:8080", "b"), "missing")
        assert await here.ids("svc") == [], "a plan writes nothing"
        assert sorted(await here.copy()) == [
            ("10.0.0.1:8080", "written"),
            ("a", "written"),
            ("b", "written"),
        ]
        listing = await here.registry.instances("svc")
        assert [instance.id for instance in listing.instances] == ["10.0.0.1:8080", "a"]
        sick, well = listing.instances
        assert (well.weight, well.metadata) == (2.5, {"zone": "x", "n": "123456789012345"})
        assert not sick.status.healthy
        assert well.status.registered_at is not None
        ((_, heartbeat),) = await here.registry.heard_between("other", 0)
        assert heartbeat == pytest.approx(v1.score("other", "b") / 1000, abs=0.002)
        verdicts, listed = await here.verify()
        assert set(verdicts.values()) == {"equal"}
        before = here.keys()
        gone, stays = await here.migration.delete(listed)
        assert (gone, stays) == (9, [])
        left = before - here.keys()
        root = v1.root
        assert left == {
            *(f"{root}services:svc:{id}" for id in ("a", "10.0.0.1:8080")),
            *(f"{root}services:other:b", f"{root}service_instances:svc"),
            *(f"{root}service_instances:other", f"{root}heartbeat:svc", f"{root}heartbeat:other"),
        }
        assert await here.ids("svc") == ["10.0.0.1:8080", "a"], "v2 is untouched"


async def test_a_repeated_copy_changes_nothing(server: RedisServer):
    async with place(server) as here:
        here.v1.register("svc", "a")
        assert await here.copy() == [("a", "written")]
        key = here.registry.keys.of("svc").instance("a")
        before = server.command("HGETALL", key)
        assert await here.copy() == []
        assert server.command("HGETALL", key) == before
        records = {"a": (here.migration._record(await here.migration.reader.v1("svc"), "a"), 1)}
        assert await here.migration.write_copies("svc", records) == {"a": "expired"}


async def test_an_interrupted_copy_can_be_continued(server: RedisServer):
    async with place(server) as here:
        for number in range(30):
            for service in ("one", "two", "three"):
                here.v1.register(service, f"i{number}")
        copying = here.migration.copy()
        assert len(await anext(copying)) == 30
        await copying.aclose()  # type: ignore[attr-defined]
        verdicts, _ = await here.verify()
        steps = await here.steps()
        assert sum(step.verdict == "missing" for step in steps) == 60
        assert len(await here.copy()) == 60
        steps = await here.steps()
        assert {step.verdict for step in steps} == {"equal"}
        assert verdicts != {}
        for service in ("one", "two", "three"):
            assert len(await here.ids(service)) == 30


async def test_heartbeats_never_move_backwards_and_never_into_the_future(server: RedisServer):
    async with place(server) as here:
        v1 = here.v1
        v1.register("svc", "a")
        v1.beat("svc", "a", v1.now() + 3_600_000)
        await here.copy()
        heartbeats = here.registry.keys.of("svc").heartbeats
        first = float(str(server.command("ZSCORE", heartbeats, "a")))
        assert first <= v1.now() + 1000
        v1.beat("svc", "a", v1.now() - 60_000)
        server.command("HSET", f"{v1.root}services:svc:a", "weight", "3")
        assert await here.copy() == [("a", "written")]
        assert float(str(server.command("ZSCORE", heartbeats, "a"))) == first


async def test_expired_instances_are_not_copied(server: RedisServer):
    async with place(server) as here:
        here.v1.register("svc", "a")
        here.v1.beat("svc", "a", here.v1.now() - 180_000)
        assert await here.plan() == {"a": "expired"}
        assert await here.copy() == []
        verdicts, listed = await here.verify()
        assert in_service(listed, "svc").ids == ["a"], "and they may go"
        assert verdicts == {"a": "expired"}


async def test_a_process_that_uses_v2_keeps_its_record(server: RedisServer):
    me = Instance("svc", "10.9.9.9", 1, id="a")
    async with place(server) as here, connect(here.url) as hub, hub.register(me):
        here.v1.register("svc", "a")
        assert await here.plan() == {"a": "own"}
        assert await here.copy() == []
        record = here.migration._record(await here.migration.reader.v1("svc"), "a")
        written = await here.migration.write_copies("svc", {"a": (record, here.v1.now())})
        assert written == {"a": "own"}, "also where the plan did not know of it"
        (instance,) = (await here.registry.instances("svc")).instances
        assert instance.host == "10.9.9.9"


async def test_invalid_records_are_reported_and_not_touched(server: RedisServer):
    async with place(server) as here:
        v1 = here.v1
        v1.register("good", "a")
        v1.register("svc", "no-port", port="")
        v1.register("svc", "words", port="many")
        v1.register("svc", "two words")
        v1.register("bad:name", "b")
        v1.register("bad{name", "c")
        server.command("SET", f"{v1.root}services:svc:text", "x")
        server.command("SADD", f"{v1.root}service_instances:svc", "text", b"\xff\xfe")
        server.command("HSET", b"%sservices:svc:\xff" % v1.root.encode(), "host", "h")
        server.command("SET", f"{v1.root}service_instances:string", "x")
        server.command("SET", f"{v1.root}heartbeat:text", "x")
        server.command("SET", f"{v1.root}services:stray", "x")
        server.command("HSET", f"{v1.root}services:svc:remnant", "host", "h", "port", "1")
        server.command("ZADD", f"{v1.root}heartbeat:svc", v1.now(), "alone")
        steps = await here.steps()
        verdicts = {(step.service, step.id): step.verdict for step in steps}
        assert verdicts.pop(("good", "a")) == "missing"
        assert verdicts.pop(("svc", "remnant")) == verdicts.pop(("svc", "alone")) == "remnant"
        alive = [("svc", "two words"), ("bad:name", "b"), ("bad{name", "c")]
        assert [verdicts.pop(place) for place in alive] == ["stranded"] * 3
        assert set(verdicts.values()) == {"unreadable"}
        for service, id in alive:  # their programs were stopped long ago
            v1.beat(service, id, at=1.2e12)
        assert "stranded" not in {step.verdict for step in await here.steps()}
        assert {service for service, _ in verdicts} == {
            *("svc", "bad:name", "bad{name", "string", "text", "")
        }
        assert await here.copy() == [("a", "written")]
        _, listed = await here.verify()
        before = here.keys()
        gone, stays = await here.migration.delete(listed)
        assert (gone, stays) == (3 + 2, [])
        after = here.keys()
        assert before - after == {
            *(f"{v1.root}services:good:a", f"{v1.root}service_instances:good"),
            *(f"{v1.root}heartbeat:good", f"{v1.root}services:svc:remnant"),
        }


async def test_a_key_of_another_type_in_v2_affects_one_instance_and_is_a_difference(
    server: RedisServer,
):
    async with place(server) as here:
        for id in "abc":
            here.v1.register("svc", id)
        keys = here.registry.keys.of("svc")
        server.command("SET", keys.instance("c"), "x")
        assert await here.plan() == {"a": "missing", "b": "missing", "c": "stranded"}
        assert await here.copy() == [("a", "written"), ("b", "written")]
        verdicts, listed = await here.verify()
        assert verdicts == {"a": "equal", "b": "equal", "c": "stranded"}
        assert in_service(listed, "svc").ids == ["a", "b"]
        server.command("DEL", keys.heartbeats)
        server.command("SET", keys.heartbeats, "x")
        verdicts, _ = await here.verify()
        assert verdicts == {"": "unreadable", "a": "stranded", "b": "stranded", "c": "stranded"}
        server.command("DEL", keys.heartbeats)
        async with bridging(here):

            async def brought() -> bool:
                listed = (await here.registry.instances("svc")).instances
                return [instance.id for instance in listed] == ["a", "b"]

            await eventually(brought, within=WITHIN)


async def test_a_record_of_v2_that_is_not_utf_8_does_not_affect_others(server: RedisServer):
    async with place(server) as here:
        here.v1.register("good", "a")
        keys, now = here.registry.keys.of("bad"), here.v1.now()
        server.command("SADD", here.registry.keys.services, "bad")
        server.command("ZADD", keys.heartbeats, now, "x", now, "y", now, b"\xff")
        for id in (b"x", b"y", b"\xff"):
            key = keys.instance("").encode() + id
            server.command("HSET", key, "host", "10.0.0.1", "port", "1", "incarnation", id)
        server.command("HSET", keys.instance("x"), "metadataJson", b'{"a":"\xff"}')
        server.command("HSET", keys.instance("y"), "metadata_a", b"\xff")
        passed = await Bridge(here.migration).run_pass()
        assert await here.ids("good") == ["a"]
        assert here.v1.read("bad")["y"]["metadata"] == '{"a":"\\\\xff"}'
        problems = [problem for problem in passed.problems if problem.startswith("bad ")]
        assert any(problem.startswith("bad x, of v2, has a 'metadataJson'") for problem in problems)
        assert len(problems) == 2
        assert all(problem.encode() for problem in problems), "they are printable"


async def test_with_one_prefix_no_key_of_v2_is_taken_for_v1(server: RedisServer):
    async with place(server, v1="SAME") as here, connect(here.url) as hub:
        await here.registry.configure("svc", set={"weight": 3})
        server.command("SADD", f"{here.v1.root}service_instances:svc", "config", "heartbeats")
        async with hub.register(Instance("svc", "10.9.9.9", 1, id="x")):
            here.v1.register("svc", "a")
            assert await here.plan() == {
                "a": "missing",
                "config": "remnant",
                "heartbeats": "remnant",
            }
            await here.copy()
            _, listed = await here.verify()
            assert in_service(listed, "svc").hashes.keys() == {"a"}
            await here.migration.delete(listed)
            assert await here.ids("svc") == ["a", "x"]
            assert (await here.registry.config("svc"))["weight"] == 3


async def test_every_kind_of_difference_is_found(server: RedisServer):
    async with place(server) as here:
        v1, keys = here.v1, here.registry.keys.of("svc")
        for id in ("fine", "gone", "changed", "late", "halved", "left"):
            v1.register("svc", id)
            v1.beat("svc", id, v1.now() - 60_000)
        await here.copy()
        server.command("ZREM", keys.heartbeats, "gone")
        server.command("DEL", keys.instance("gone"))
        server.command("HSET", keys.instance("changed"), "port", "1")
        v1.beat("svc", "late", v1.now() - 30_000)
        server.command("ZREM", keys.heartbeats, "halved")
        v1.deregister("svc", "left")
        verdicts, listed = await here.verify()
        assert verdicts == {
            "fine": "equal",
            "gone": "missing",
            "changed": "differs",
            "late": "behind",
            "halved": "half",
            "left": "surplus",
        }
        assert in_service(listed, "svc").ids == ["fine"]
        await here.copy()
        verdicts, _ = await here.verify()
        assert {id for id, verdict in verdicts.items() if verdict != "equal"} == {"left"}


@pytest.mark.parametrize("change", ["beat", "register again", "a new one", "a new service"])
async def test_delete_refuses_if_v1_changed(server: RedisServer, change: str):
    async with place(server) as here:
        v1 = here.v1
        v1.register("svc", "a")
        v1.register("svc", "b")
        await here.copy()
        _, listed = await here.verify()
        await asyncio.sleep(0.002)  # so that the next millisecond begins
        if change == "beat":
            v1.beat("svc", "a")
        elif change == "register again":
            v1.register("svc", "a")
        else:
            v1.register("svc" if change == "a new one" else "other", "c")
        before = here.keys()
        with pytest.raises(MigrationError, match=r"v1 changed since it was verified: \w+ [ac] "):
            await here.migration.delete(listed)
        assert here.keys() == before


async def test_instances_that_change_at_the_last_moment_are_kept(server: RedisServer):
    async with place(server) as here:
        v1 = here.v1
        for id in ("a", "b", "c"):
            v1.register("svc", id)
        service = await here.migration.reader.v1("svc")
        await asyncio.sleep(0.002)
        v1.beat("svc", "a")
        server.command("HSET", f"{v1.root}services:svc:b", "weight", "7")
        assert await here.migration.delete_v1(service) == (4, ["a", "b"])
        assert v1.read("svc").keys() == {"a", "b"}
        assert v1.score("svc", "a") > 0


async def test_an_interrupted_deletion_can_be_continued(server: RedisServer, tmp_path: Path):
    async with place(server) as here:
        for service in ("one", "two"):
            here.v1.register(service, "a")
        await here.copy()
        _, listed = await here.verify()
        verified_file.write(tmp_path / "file", listed)
        await here.migration.delete_v1(in_service(listed, "one"))
        gone, stays = await here.migration.delete(
            verified_file.read(tmp_path / "file", RedisV1Header, V1Service, format=FORMAT)
        )
        assert (gone, stays) == (3, [])
        assert await here.migration.delete(listed) == (0, [])


async def test_a_live_writer_of_v1_is_in_v2_while_it_lives(server: RedisServer):
    async with place(server) as here, bridging(here):
        v1 = here.v1
        v1.register("svc", "a", weight="3")

        async def is_registered() -> bool:
            return await here.ids("svc") == ["a"]

        await eventually(is_registered, within=WITHIN)
        heartbeats = here.registry.keys.of("svc").heartbeats
        before = float(str(server.command("ZSCORE", heartbeats, "a")))
        v1.beat("svc", "a", v1.now() - 3_000_000)  # its clock is behind
        await eventually(
            lambda: float(str(server.command("ZSCORE", heartbeats, "a"))) > before, within=WITHIN
        )
        v1.register("svc", "b")
        server.command("HSET", f"{v1.root}services:svc:a", "healthy", "false")

        async def both() -> bool:
            instances = (await here.registry.instances("svc")).instances
            return [(instance.id, instance.status.healthy) for instance in instances] == [
                ("a", False),
                ("b", True),
            ]

        await eventually(both, within=WITHIN)
        v1.deregister("svc", "a")

        async def left() -> bool:
            return await here.ids("svc") == ["b"]

        await eventually(left, within=WITHIN)
        v1.deregister("svc", "b")

        async def empty() -> bool:
            return "svc" not in await here.registry.names()

        await eventually(empty, within=WITHIN)


async def test_an_instance_that_stops_beating_in_v1_expires_in_v2_for_good(server: RedisServer):
    async with place(server) as here:
        here.migration.timeout = 1500
        async with bridging(here):
            v1 = here.v1
            v1.register("svc", "a")
            v1.beat("svc", "a", v1.now() + 3_600_000)  # its clock is an hour ahead
            keys = here.registry.keys.of("svc")
            await eventually(lambda: server.command("EXISTS", keys.instance("a")) == 1)
            first = server.command("ZSCORE", keys.heartbeats, "a")
            deadline = v1.now() + 1600
            await eventually(lambda: v1.now() > deadline)
            assert server.command("ZSCORE", keys.heartbeats, "a") == first
            server.command("ZREM", keys.heartbeats, "a")  # like a cleanup
            server.command("DEL", keys.instance("a"))
            deadline = v1.now() + 500
            await eventually(lambda: v1.now() > deadline)
            assert server.command("EXISTS", keys.instance("a")) == 0
            v1.beat("svc", "a")
            await eventually(lambda: server.command("EXISTS", keys.instance("a")) == 1)


async def test_instances_of_v2_are_in_v1_for_its_readers(server: RedisServer):
    async with place(server) as here, connect(here.url) as hub, bridging(here):
        v1 = here.v1
        v1.register("svc", "old")
        me = Instance("svc", "10.9.9.9", 1, id="new", weight=2, metadata={"k": "数"})
        async with hub.register(me):
            await eventually(lambda: "new" in v1.read("svc"), within=WITHIN)
            mirrored = v1.read("svc")["new"]
            assert (mirrored["host"], mirrored["port"], mirrored["weight"]) == (
                "10.9.9.9",
                "1",
                "2",
            )
            assert (mirrored["healthy"], mirrored["metadata"]) == ("true", '{"k":"数"}')
            assert v1.score("svc", "new") > v1.now() - 60_000
            await here.registry.configure("svc", "new", set={"enabled": False})
            await eventually(lambda: v1.read("svc")["new"]["healthy"] == "false", within=WITHIN)
            for _ in range(20):  # nothing is copied in circles
                await asyncio.sleep(0.02)
                assert await here.ids("svc") == ["new", "old"]
                assert v1.read("svc").keys() == {"new", "old"}
            (own,) = [
                instance
                for instance in (await here.registry.instances("svc")).instances
                if instance.id == "new"
            ]
            assert own.incarnation != "v1"
        await eventually(lambda: v1.read("svc").keys() == {"old"}, within=WITHIN)
        assert v1.score("svc", "new") == 0
        assert await here.ids("svc") == ["old"]


async def test_an_instance_evicted_from_v2_stays_out(server: RedisServer):
    async with place(server) as here, bridging(here):
        v1 = here.v1
        v1.register("svc", "a")

        async def is_registered() -> bool:
            return await here.ids("svc") == ["a"]

        await eventually(is_registered, within=WITHIN)
        assert await here.registry.deregister("svc", "a")
        await eventually(lambda: v1.read("svc") == {}, within=WITHIN)
        for _ in range(10):
            v1.beat("svc", "a")  # it is alive and continues
            await asyncio.sleep(0.05)
            assert await here.ids("svc") == []
        v1.register("svc", "a")  # its process restarts
        later = v1.now() + 2000
        v1.beat("svc", "a", later)
        await eventually(lambda: v1.now() > later)
        v1.beat("svc", "a")
        await eventually(is_registered, within=WITHIN)


async def test_a_process_that_moves_to_v2_and_leaves_is_not_revived(server: RedisServer):
    async with place(server) as here, connect(here.url) as hub, bridging(here):
        v1 = here.v1
        v1.register("svc", "a")

        async def is_registered() -> bool:
            return await here.ids("svc") == ["a"]

        await eventually(is_registered, within=WITHIN)
        # It is killed and restarts with v2; v1 still has its old record.
        async with hub.register(Instance("svc", "10.9.9.9", 1, id="a")):
            await eventually(lambda: v1.read("svc")["a"]["host"] == "10.9.9.9", within=WITHIN)
        await eventually(lambda: v1.read("svc") == {}, within=WITHIN)
        for _ in range(10):
            await asyncio.sleep(0.05)
            assert await here.ids("svc") == []


async def test_a_process_that_returns_to_v1_is_not_taken_for_a_mirror(server: RedisServer):
    async with place(server) as here, connect(here.url) as hub, bridging(here):
        v1 = here.v1
        async with hub.register(Instance("svc", "10.9.9.9", 1, id="a")):
            await eventually(lambda: "a" in v1.read("svc"), within=WITHIN)
            v1.register("svc", "a")

        async def copied() -> bool:
            instances = (await here.registry.instances("svc")).instances
            return [(instance.host, instance.incarnation) for instance in instances] == [
                ("10.0.0.1", "v1")
            ]

        v1.beat("svc", "a")
        await eventually(copied, within=WITHIN)
        assert v1.read("svc")["a"]["host"] == "10.0.0.1"


async def test_two_bridges_agree(server: RedisServer):
    async with place(server) as here, connect(here.url) as hub, bridging(here), bridging(here):
        here.v1.register("svc", "a")
        async with hub.register(Instance("svc", "10.9.9.9", 1, id="b")):

            async def both() -> bool:
                return await here.ids("svc") == ["a", "b"] == sorted(here.v1.read("svc"))

            await eventually(both, within=WITHIN)
            here.v1.deregister("svc", "a")

            async def left() -> bool:
                return await here.ids("svc") == ["b"] == sorted(here.v1.read("svc"))

            await eventually(left, within=WITHIN)
            for _ in range(10):
                await asyncio.sleep(0.05)
                assert await left()


async def test_a_migration_on_a_cluster(redis_cluster: RedisCluster):
    async with place(redis_cluster, v1="SAME") as here, connect(here.url) as hub:
        v1 = here.v1
        for service in ("one", "two", "three"):
            v1.register(service, "a")
            v1.register(service, "10.0.0.1:8080")
        assert len(await here.copy()) == 6
        verdicts, _ = await here.verify()
        assert set(verdicts.values()) == {"equal"}
        assert await here.registry.names() == ["one", "three", "two"]
        async with bridging(here):
            v1.register("two", "b")

            async def brought() -> bool:
                return "b" in await here.ids("two")

            await eventually(brought, within=WITHIN)
            async with hub.register(Instance("two", "10.9.9.9", 1, id="x")):
                await eventually(lambda: "x" in v1.read("two"), within=WITHIN)
            await eventually(lambda: "x" not in v1.read("two"), within=WITHIN)
            v1.deregister("two", "b")

            async def gone() -> bool:
                return await here.ids("two") == ["10.0.0.1:8080", "a"]

            await eventually(gone, within=WITHIN)
            v1.deregister("one", "a")
            v1.deregister("one", "10.0.0.1:8080")

            async def left() -> bool:
                return "one" not in await here.registry.names()

            await eventually(left, within=WITHIN)
        _, listed = await here.verify()
        gone_count, stays = await here.migration.delete(listed)
        assert (gone_count, stays) == (12, [])
        assert v1.read("two") == {}
        assert await here.ids("two") == ["10.0.0.1:8080", "a"]
