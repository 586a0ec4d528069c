"""`mooring demo` registers a fleet, and leaves nothing behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import mooring.sync
from mooring.demo import (
    INSTANCES,
    LOCK,
    ROUND,
    SCRIPT,
    SETTINGS,
    DemoFleet,
    DemoMetrics,
    next_version,
)
from mooring.hub import Hub, connect
from mooring.registry.contract import ServiceCount
from mooring.settings import parse
from mooring.store import everything
from tests.acceptance.commands import Command, running
from tests.waiting import eventually

SERVICES = sorted({spec.service for spec in INSTANCES})


async def counted(hub: Hub) -> list[ServiceCount]:
    return [service for service in await hub.registry.services() if service.instances]


async def left(hub: Hub) -> list[bytes]:
    return [entry.key for entry in (await hub.store.read(everything())).entries]


@pytest.mark.parametrize("backend", ["served", "etcd-3.5"], indirect=True)
async def test_the_demo_shows_everything_until_it_is_interrupted(store_url: str, tmp_path: Path):
    async with connect(store_url) as hub:
        with running(tmp_path, "demo", "--store", store_url) as (process, shown, errors):
            await eventually(lambda: "Ctrl-C stops the demo" in shown.read_text(), within=60)
            services = await counted(hub)
            assert [service.name for service in services] == SERVICES
            assert sum(service.instances for service in services) == len(INSTANCES)
            (instance, *_) = (await hub.registry.instances("shop/orders")).instances
            assert "processCpuLoad" in instance.status.metrics["cpu"]  # type: ignore[operator]

            async def queued() -> bool:
                locks = await hub.locks(LOCK)
                return bool(locks) and len(locks[0].holders) == 1 and len(locks[0].waiting) == 3

            await eventually(queued)
            assert await hub.publisher().read(9001)
            await eventually(lambda: "unhealthy" in shown.read_text(), within=60)
            process.send_signal(signal.SIGINT)
            await eventually(lambda: process.poll() is not None, within=60)
            assert process.returncode == 0, errors.read_text()
        assert "removed everything that the demo created" in shown.read_text()
        assert await left(hub) == []


@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_on_redis_the_demo_has_only_instances(store_url: str, command: Command):
    done = command("demo", "--registry", store_url, "--for", "2s")
    assert done.code == 0, done.stderr
    assert "12 instances of 5 services are registered" in done.stdout
    assert "no lock and no tenants" in done.stdout
    with mooring.sync.connect(store_url) as hub:
        assert not [service for service in hub.registry.services() if service.instances]


def test_the_error_without_a_server_explains_how_to_start_one(command: Command):
    done = command("demo", "--store", "etcd://127.0.0.1:9?timeout=1s")
    assert done.code == 1
    assert "127.0.0.1:9" in done.stderr


async def test_a_round_of_the_demo_ends_as_it_began():
    printed: list[str] = []
    async with connect("memory://", settings=parse(SETTINGS)) as hub:
        async with DemoFleet(hub, printed.append, acceleration=ROUND) as fleet:
            await hub.registry.deregister("gateway", (await ids(hub, "gateway"))[0])
            await fleet.play(rounds=1)
            assert sum(service.instances for service in await counted(hub)) == len(INSTANCES)
            versions = {i.version for i in (await hub.registry.instances("shop/cart")).instances}
            assert versions == {"1.9.0", "1.9.1"}
        assert await left(hub) == [] or all(b"tombstone" in key for key in await left(hub))
    for step in SCRIPT:
        assert any(step.text in line for line in printed), step
    assert any("it was deregistered" in line for line in printed)


async def ids(hub: Hub, service: str) -> list[str]:
    return [instance.id for instance in (await hub.registry.instances(service)).instances]


async def test_a_tenant_of_another_user_is_not_touched():
    async with connect("memory://") as hub:
        await hub.publisher().put(9001, "meta", {"code": "theirs", "name": "Theirs"})
        before = await hub.publisher().read(9001)
        printed: list[str] = []
        async with DemoFleet(hub, printed.append):
            assert "published tenants: 9002" in printed
        assert await hub.publisher().read(9001) == before
        assert not await hub.publisher().read(9002)


def test_the_script_restores_all_instances():
    assert [step.at for step in SCRIPT] == sorted(step.at for step in SCRIPT)
    assert SCRIPT[-1].at < ROUND
    away: set[tuple[str, int]] = set()
    for step in SCRIPT:
        instance = (step.service, step.number)
        if step.action in ("fail", "drain", "stop"):
            assert instance not in away
            away.add(instance)
        else:
            away.remove(instance)
    assert away == set()
    assert next_version("1.9.0") == "1.9.1"


def test_metrics_look_realistic():
    gauges = DemoMetrics(1)
    seen = [gauges.collect() for _ in range(200)]
    loads = [metrics["cpu"]["processCpuLoad"] for metrics in seen]  # type: ignore[call-overload,index]
    assert len(set(map(str, loads))) > 50
    assert all(0 <= float(load) <= 100 for load in loads)  # type: ignore[arg-type]
    assert DemoMetrics(1).collect() == DemoMetrics(1).collect()
