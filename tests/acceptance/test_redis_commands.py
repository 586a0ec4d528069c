"""The commands on Redis, as users type them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mooring
from mooring import Instance
from mooring.hub import Hub
from mooring.registry.redis.registry import RedisRegistry
from mooring.settings import parse
from mooring.testing.redis import RedisCluster, RedisServer, SentinelGroup
from tests.acceptance.commands import mooring_command
from tests.acceptance.serving import Served
from tests.acceptance.test_registry_commands import Running, objects, ok, refused, rows
from tests.acceptance.test_serve import get
from tests.waiting import eventually, until

QUICK = {"MOORING_REGISTRY_HEARTBEAT_HEARTBEAT_INTERVAL": "1ms"}
"""Instances that are to expire soon must be expected to beat this often."""

QUIET = parse({"registry": {"metrics": {"enabled-metrics": []}}}, {})


@pytest.fixture
def url(redis: Callable[[str], RedisServer]) -> str:
    return f"{redis('7.0').url}?namespace={uuid.uuid4().hex}"


@pytest.fixture
async def hub(url: str) -> AsyncIterator[Hub]:
    async with mooring.connect(url, settings=QUIET) as opened:
        yield opened


@pytest.fixture
def run(url: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command on the registry of the test, to its end."""

    def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return mooring_command(
            *arguments, **{"MOORING_STORE": "", "MOORING_REGISTRY": url, **environment}
        )

    return command


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start a command on the registry of the test."""
    started: list[Running] = []

    def command(*arguments: str) -> Running:
        started.append(Running(tmp_path / f"command{len(started)}", url, *arguments))
        return started[-1]

    yield command
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()


Start = Callable[..., Running]


async def swept(run: Run, what: str) -> dict[str, Any]:
    """The report of the first cleanup that did this: all instances must have been silent for a
    while."""
    await asyncio.sleep(0.7)  # longer than that for all of them, not only for some
    report: dict[str, Any] = {}

    def done() -> bool:
        nonlocal report
        command = ("cleanup", "--once", "--json", "--timeout=500ms", "--interval=1s")
        report = json.loads(run(*command, **QUICK).stdout)
        return bool(report[what])

    await eventually(done, within=60, what=what)
    return report


async def left_behind(hub: Hub, *ids: str, service: str = "orders", **fields: object) -> None:
    """Instances whose processes were killed: they send no more heartbeats."""
    for id in ids:
        name = Instance(service, "10.0.0.1", 80, id=id, **fields)  # type: ignore[arg-type]
        instance, _ = hub.registry.prepare(name)
        record = hub.registry.instance_record(instance)
        record.open(lambda: None)
        await record.put(instance, fresh=True)
        await record.aclose(within=1)


class TestRegistry:
    async def test_a_command_is_registered_while_it_runs(
        self, run: Run, start: Start, tmp_path: Path
    ):
        go = tmp_path / "go"
        register = start(
            *("register", "shop/orders", "10.0.0.7:80", "--version=1.4", "--"),
            *("sh", "-c", f"until test -e {go}; do sleep 0.05; done"),
        )
        await eventually(lambda: register.logged("registered (was registering)"), within=40)
        (row,) = rows(run("instances", "shop/orders"))
        assert row[:7] == ["10.0.0.7:80", "up", "yes", "yes", "1", "-", "1.4"]
        go.touch()
        assert await register.end() == 0
        assert rows(run("services")) == []

    async def test_services_and_instances_are_listed_and_resolved(self, hub: Hub, run: Run):
        async with hub.register(Instance("shop/orders", "10.0.0.7", 80)):
            assert rows(run("services", "shop")) == [["shop/orders", "1"]]
            assert rows(run("groups")) == [["shop"]]
            assert ok(run("resolve", "shop/orders")) == "10.0.0.7:80\n"
            assert ok(run("wait", "shop/orders", "--timeout=40s")) == "10.0.0.7:80\n"
            assert rows(run("explain", "shop/orders")) == [["10.0.0.7:80", "yes", "in rotation"]]

    async def test_redis_can_be_the_store_or_beside_one(self, hub: Hub, url: str):
        async with hub.register(Instance("orders", "10.0.0.7", 80)):
            for arguments in (
                [f"--registry={url}"],
                [f"--store={url}"],
                [f"--registry={url}", "--store=etcd://127.0.0.1:1"],
            ):
                done = mooring_command(
                    "services", *arguments, MOORING_STORE="", MOORING_REGISTRY=""
                )
                assert rows(done) == [["orders", "1"]]

    async def test_a_store_of_another_process_is_not_opened(self, run: Run, tmp_path: Path):
        store = f"sqlite://{tmp_path}/store"
        async with mooring.connect(store):
            assert rows(run("services", f"--store={store}")) == []

    async def test_the_registry_can_be_in_another_store(self, served: Callable[[], str]):
        where = f"{served()}?namespace=/{uuid.uuid4().hex}"
        async with (
            mooring.connect(where) as hub,
            hub.register(Instance("orders", "10.0.0.7", 80), ttl=60),
        ):
            done = mooring_command("services", f"--registry={where}", MOORING_STORE="memory://")
            assert rows(done) == [["orders", "1"]]

    async def test_the_operator_override(self, hub: Hub, run: Run):
        async with (
            hub.register(Instance("orders", "10.0.0.7", 80)),
            hub.discover("orders") as view,
        ):
            ok(run("config", "set", "orders", "weight=3", "greeting=hello"))
            assert ok(run("config", "get", "orders", "greeting")) == "hello\n"
            await eventually(lambda: view.instances[0].weight == 3)
            ok(run("config", "unset", "orders", "weight"))
            ok(run("info", "set", "orders", "displayName=Orders"))
            assert objects(run("info", "get", "orders", "--json"))[0]["displayName"] == "Orders"

    def test_a_described_service_is_known_before_it_has_instances(self, run: Run):
        ok(run("info", "set", "orders", "displayName=Orders"))
        assert objects(run("info", "get", "orders", "--json"))[0]["displayName"] == "Orders"
        assert rows(run("services")) == [["orders", "0"]]
        ok(run("info", "set", "--group=shop", "department=Sales"))
        assert objects(run("info", "get", "--group=shop", "--json"))[0]["department"] == "Sales"
        ok(run("config", "set", "users", "enabled=false", "--instance=10.0.0.7:1"))
        for service in ("orders", "users"):
            done = run("instances", service)
            assert ok(done) == ""
            assert f"{service} has no instances" in done.stderr
        assert "did you mean 'orders'?" in refused(run("instances", "oders"))

    async def test_an_unreadable_service_hides_no_other(self, hub: Hub, run: Run):
        assert isinstance(hub.registry, RedisRegistry)
        call, keys = hub.registry.connection.call, hub.registry.keys
        await call("SADD", keys.services, "bad", what="the test")
        await call("SET", keys.of("bad").heartbeats, "x", what="the test")
        await call("SET", keys.of("bad").brake, "x", what="the test")
        async with hub.register(Instance("orders", "10.0.0.7", 80)):
            for command in ("services", "brake list"):
                done = run(*command.split())
                assert rows(done) == ([["orders", "1"]] if command == "services" else [])
                assert "mooring: bad cannot be read and is left out" in done.stderr
                assert done.stderr.count("WRONGTYPE") == 1
            assert "did you mean 'orders'?" in refused(run("instances", "oders"))
            await call("SET", keys.info, "x", what="the test")
            assert rows(run("services")) == [["orders", "1"]]
        assert "WRONGTYPE" in refused(run("services"))

    async def test_deregister(self, hub: Hub, run: Run):
        async with hub.register(Instance("orders", "10.0.0.7", 80)) as registration:
            assert "no instance 'h:1'" in refused(run("deregister", "orders", "h:1"))
            assert "is not valid UTF-8" in refused(run("deregister", "orders", "\udcff:1"))
            ok(run("deregister", "orders", "10.0.0.7:80"))
            await eventually(lambda: registration.state == "removed")

    async def test_watch(self, hub: Hub, start: Start):
        watching = start("watch", "orders")
        await eventually(lambda: watching.logged("no instances yet"), within=40)
        async with hub.register(Instance("orders", "10.0.0.7", 80)):
            await eventually(lambda: "+ 10.0.0.7:80 state up" in "".join(watching.out))
        await eventually(lambda: "- 10.0.0.7:80" in watching.out)

    def test_an_unavailable_registry_is_reported_once_and_without_the_password(self):
        where = "redis://app:hunter2@127.0.0.1:1?timeout=1s"
        done = mooring_command("services", f"--registry={where}", MOORING_STORE="")
        assert refused(done).count("nothing listens at 127.0.0.1:1") == 1
        assert "hunter2" not in done.stderr

    def test_the_settings_of_the_registry_do_not_contain_its_url(self, run: Run):
        done = run("services", MOORING_REGISTRY_CLEANUP_INTERVAL="nonsense")
        assert "registry.cleanup.interval" in refused(done)
        assert rows(run("services", MOORING_REGISTRY_CLEANUP_INTERVAL="10s")) == []

    def test_the_store_beside_a_registry_is_not_redis(self, url: str):
        done = mooring_command("services", f"--store={url}", MOORING_REGISTRY=url)
        assert "contains only a registry" in refused(done)

    def test_a_store_command_explains_what_redis_lacks(self, url: str):
        done = mooring_command("store", "export", f"--store={url}")
        assert "contains only a registry" in refused(done)


class TestCleanup:
    async def test_cleanup_once_evicts_silent_instances_and_reports_them(self, hub: Hub, run: Run):
        await left_behind(hub, "a", "b")
        assert ok(run("cleanup", "--once")) == "1 service checked; 0 instances evicted\n"
        report = await swept(run, "removed")
        assert [evicted["id"] for evicted in report["removed"]] == ["a", "b"]
        assert (report["services"], report["brakes"], report["problems"]) == (1, [], [])
        assert ok(run("cleanup", "--once")) == "0 services checked; 0 instances evicted\n"

    async def test_cleanup_once_reports_heartbeats_ahead_of_the_clock(self, hub: Hub, run: Run):
        """As after the clock of Redis stepped back by an hour."""
        await left_behind(hub, "a", "b")
        redis = hub.registry
        assert isinstance(redis, RedisRegistry)
        ahead = int(time.time() * 1000) + 3_600_000
        heartbeats = redis.keys.of("orders").heartbeats
        for command in ((), ("--json",)):
            await redis.connection.call(
                "ZADD", heartbeats, ahead, "a", ahead, "b", what="the test", writes=True
            )
            done = ok(run("cleanup", "--once", *command))
            if command:
                report = json.loads(done)
                assert [lowered["id"] for lowered in report["lowered"]] == ["a", "b"]
            else:
                assert done.endswith("; 2 heartbeats ahead of Redis' clock lowered\n")

    async def test_cleanup_runs_until_it_is_stopped(self, hub: Hub, start: Start, tmp_path: Path):
        (tmp_path / "settings.yaml").write_text(
            "registry:\n  heartbeat: {heartbeat-interval: 10ms}\n"
            "  cleanup: {global-timeout: 2s, interval: 200ms}\n"
        )
        await left_behind(hub, "a")
        sweeping = start("cleanup", f"--config={tmp_path}/settings.yaml", "--json")
        await eventually(lambda: sweeping.logged("orders a: evicted"), within=40)
        assert sweeping.logged("every 200ms, evicts")
        await eventually(lambda: '"id": "a"' in "".join(sweeping.out))
        sweeping.process.send_signal(signal.SIGTERM)
        assert await sweeping.end() == 0
        assert sweeping.err[-1] == "mooring: stopped"
        passes = [json.loads(line) for line in sweeping.out]
        assert [p["removed"] for p in passes if p["removed"]] == [
            [{"service": "orders", "id": "a"}]
        ]

    async def test_a_persistent_instance_stays_and_is_unhealthy(self, run: Run, start: Start):
        holding = start("register", "orders", "h:1", "--persistent")
        await eventually(lambda: holding.logged("registered (was"), within=40)
        holding.process.kill()
        await holding.end()
        report = await swept(run, "unhealthy")
        assert report["unhealthy"] == [{"service": "orders", "id": "h:1"}]
        (instance,) = objects(run("instances", "orders", "--json"))
        assert (instance["healthy"], instance["ephemeral"]) == (False, False)

    def test_on_a_store_persistence_is_reported_as_lost(self):
        done = mooring_command(
            *("register", "orders", "h:1", "--persistent", "--store=memory://", "--", "true"),
            MOORING_REGISTRY="",
        )
        assert "--persistent has no effect here" in done.stderr

    def test_on_a_store_there_is_no_cleanup_and_no_brake(self):
        for arguments, message in (
            (["cleanup"], "nothing to clean up"),
            (["cleanup", "--once"], "nothing to clean up"),
            (["brake", "list"], "no brakes"),
            (["brake", "release", "orders"], "no brakes"),
        ):
            done = mooring_command(*arguments, "--store=memory://", MOORING_REGISTRY="")
            assert message in done.stderr
            assert ok(done) == ""

    @pytest.mark.parametrize("call", ["cleanup", "brake list", "migrate redis-v1 plan"])
    def test_without_the_url_of_a_redis_the_error_says_how_to_pass_it(self, call: str):
        done = mooring_command(*call.split(), MOORING_STORE="", MOORING_REGISTRY="")
        assert done.returncode == 2
        assert "name the Redis registry with --registry URL or MOORING_REGISTRY" in done.stderr

    def test_an_invalid_timeout_is_refused(self, run: Run):
        assert "longer than" in refused(run("cleanup", "--timeout=5s"))
        assert run("cleanup", "--interval=soon").returncode == 2


class TestBrake:
    @pytest.fixture
    async def braked(self, hub: Hub, run: Run) -> None:
        """Four silent instances, and a sweeper that engaged the brake."""
        await left_behind(hub, "a", "b", "c", "d")
        assert (await swept(run, "brakes"))["brakes"] == ["orders"]

    @pytest.mark.usefixtures("braked")
    async def test_a_brake_is_listed_and_released(self, run: Run):
        (row,) = rows(run("brake", "list"))
        assert row[:2] == ["orders", "4 of 4"]
        assert row[2].endswith(" ago")
        assert row[3].startswith("in 9m") or row[3].startswith("in 10m")
        assert "silent at once" in row[4]
        (brake,) = objects(run("brake", "list", "--json"))
        assert (brake["service"], brake["silent"], brake["total"]) == ("orders", 4, 4)
        assert brake["until"] > brake["since"]
        for command in ("instances", "resolve", "explain"):
            done = run(command, "orders")
            assert "warning" in done.stderr, command
            assert "4 of 4 instances are silent at once" in done.stderr, command
        done = run("services")
        assert rows(done) == [["orders", "4"]]
        assert "orders: the brake is engaged: 4 of 4" in done.stderr
        assert "released" in run("brake", "release", "orders").stderr
        assert "no brake is engaged" in run("brake", "list").stderr
        assert len((await swept(run, "removed"))["removed"]) == 4

    async def test_releasing_a_brake_that_is_not_engaged_is_reported(self, hub: Hub, run: Run):
        assert "service 'nobody' not found" in refused(run("brake", "release", "nobody"))
        async with hub.register(Instance("orders", "10.0.0.7", 80)):
            done = run("brake", "release", "orders", "--json")
            assert objects(done) == [{"service": "orders", "released": False}]


class TestServe:
    async def test_redis_as_the_store(self, hub: Hub, url: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("MOORING_REGISTRY_HEARTBEAT_HEARTBEAT_INTERVAL", "10ms")
        monkeypatch.setenv("MOORING_REGISTRY_CLEANUP_INTERVAL", "200ms")
        monkeypatch.setenv("MOORING_REGISTRY_CLEANUP_GLOBAL_TIMEOUT", "2s")
        await left_behind(hub, "a")
        with Served(url, "--insecure") as served:
            assert served.lines[:2] == [
                f"registry {url}",
                "cleanup  every 200ms, after 2s without a heartbeat",
            ]
            assert get(f"http://{served.http}/readyz") == (200, "ok\n")

            async def gone() -> bool:
                return await hub.registry.services() == []

            await eventually(gone)
            served.signal(signal.SIGTERM)
            assert served.end() == 0
        assert served.lines[-1] == "stopped"

    def test_a_registry_beside_the_store(self, url: str, tmp_path: Path):
        (tmp_path / "config").write_text(f"registry: {url}\ncleanup: off\n")
        with Served("memory://", f"--config={tmp_path}/config", "--etcd=127.0.0.1:0") as served:
            assert served.lines[:2] == ["store    memory://served", f"registry {url}"]
            assert not any(line.startswith("cleanup") for line in served.lines)
            assert get(f"http://{served.http}/readyz") == (200, "ok\n")

    def test_the_settings_of_cleanup_are_in_the_configuration_file(self, url: str, tmp_path: Path):
        (tmp_path / "config").write_text("registry:\n  cleanup: {interval: 7s}\n")
        flags = (f"--registry={url}", f"--config={tmp_path}/config", "--etcd=off")
        with Served("memory://", *flags) as served:
            assert "cleanup  every 7s, after 2m without a heartbeat" in served.lines

    def test_serve_is_not_ready_without_its_registry(self, fresh_redis: Callable[..., RedisServer]):
        server = fresh_redis()
        with Served("memory://", "--etcd=off", f"--registry={server.url}") as served:
            assert get(f"http://{served.http}/readyz")[0] == 200
            server.kill()
            status, text = get(f"http://{served.http}/readyz")
            assert (status, text) == (503, "the registry does not answer\n")
            assert get(f"http://{served.http}/healthz")[0] == 200
            server.start()
            until(lambda: get(f"http://{served.http}/readyz")[0] == 200)

    def test_the_api_of_etcd_is_refused_with_the_reason(self, url: str):
        done = mooring_command("serve", f"--store={url}", "--etcd=127.0.0.1:0", MOORING_REGISTRY="")
        assert "no keys for etcd's API" in refused(done)


class TestDoctor:
    def test_a_healthy_redis(self, url: str, redis: Callable[[str], RedisServer]):
        done = mooring_command("doctor", url)
        for words in (
            "Redis 7.0.15, master",
            "clock agrees",
            "nothing is evicted",
            "persistence: none, no replica",
            "register: allowed",
            "heartbeat: allowed",
            "changes: allowed",
            "cleanup: allowed",
        ):
            assert words in ok(done), words
        namespace = url.partition("=")[2]
        left = redis("7.0").command("KEYS", f"{namespace}:registry*")
        assert isinstance(left, list)
        for key in left:  # the departure is remembered for a while
            assert isinstance(key, str)
            assert key.endswith(":mooring-doctor:removed")
            assert redis("7.0").command("TTL", key) != -1

    def test_valkey_and_json(self, redis: Callable[[str], RedisServer]):
        findings = objects(mooring_command("doctor", redis("valkey-9").url, "--json"))
        assert "Valkey 9" in findings[0]["text"]

    def test_a_cluster(self, redis_cluster: RedisCluster):
        printed = ok(mooring_command("doctor", redis_cluster.url))
        assert "all slots are covered, by 3 masters" in printed
        assert printed.count("Redis 7.0.15, master") == 3
        assert "changes: allowed" in printed

    def test_sentinels(self, redis_sentinel: SentinelGroup):
        printed = ok(mooring_command("doctor", redis_sentinel.url))
        assert "3 of the 3 in the URL answer; the master is 127.0.0.1:" in printed
        assert "enough agree for a failover" in printed
        assert "1 replica" in printed

    def test_a_replica_and_evictions(self, fresh_redis: Callable[..., RedisServer]):
        master = fresh_redis(
            flags=["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"], persistent=True
        )
        printed = ok(mooring_command("doctor", master.url))
        assert "it drops registrations" in printed
        assert "each write goes to the append-only file" in printed
        replica = fresh_redis(flags=["--replicaof", "127.0.0.1", str(master.port)])
        done = mooring_command("doctor", f"{replica.url}?timeout=1s")
        assert done.returncode == 1
        assert f"is a replica of 127.0.0.1:{master.port}" in done.stdout
        assert "because registering failed" in done.stdout
        assert "! cleanup: not tried" in done.stdout

    def test_a_sentinel_is_distinguished_from_a_server(
        self, redis: Callable[[str], RedisServer], redis_sentinel: SentinelGroup
    ):
        sentinel = redis_sentinel.url.removeprefix("redis+sentinel://").partition(",")[0]
        done = mooring_command("doctor", f"redis://{sentinel}")
        assert done.returncode == 1
        assert f"is a sentinel and keeps no registry: write redis+sentinel://{sentinel}/NAME" in (
            done.stdout
        )
        server = redis("7.0").address
        done = mooring_command("doctor", f"redis+sentinel://{server}/main")
        assert f"{server} is not a sentinel" in done.stdout

    def test_missing_permissions_are_found_by_trying(self, fresh_redis: Callable[..., RedisServer]):
        server = fresh_redis()
        server.command(
            *("ACL", "SETUSER", "app", "on", ">word", "~registry:*", "+@all"),
            *("-info", "-config", "-subscribe", "-scan", "-time"),
        )
        done = mooring_command("doctor", f"redis://app:word@{server.address}")
        assert done.returncode == 1
        assert "INFO is refused" in done.stdout
        assert "✗ changes" in done.stdout
        assert "✗ cleanup" in done.stdout
        assert "word" not in done.stdout.replace("password", "")

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("redis://127.0.0.1:1?timeout=1s", "nothing listens at 127.0.0.1:1"),
            ("redis+sentinel://127.0.0.1:1/main?timeout=1s", "0 of the 1 in the URL answer"),
            ("redis+cluster://127.0.0.1:1?timeout=1s", "nothing listens at 127.0.0.1:1"),
        ],
    )
    def test_a_server_that_does_not_answer(self, url: str, message: str):
        done = mooring_command("doctor", url)
        assert done.returncode == 1
        assert message in done.stdout
        assert "Traceback" not in done.stderr
