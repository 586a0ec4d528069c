"""What the API shows of the registry: the same on every backend, scoped, paged and correct."""

from __future__ import annotations

import contextlib
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import mooring
from mooring import Instance
from mooring.hub import Hub
from mooring.registry.registration import Registration
from mooring.server.api.registry import STALE
from mooring.server.auth import record_store as sharing
from mooring.settings import parse
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from mooring.testing.redis import RedisServer
from tests.admin import Admin
from tests.backends import usual
from tests.contract.registries import raw_records_of
from tests.waiting import eventually

BASE = "/admin/registry"
TIMES = {
    "timestamp",
    "lastUpdateTime",
    "avgHeartbeatDelay",
    "registrationTime",
    "lastHeartbeat",
    "lastMetadataUpdate",
    "heartbeatDelay",
}

SETTINGS = parse({"registry": {"metrics": {"enabled-metrics": []}}})


def path(*parts: str) -> str:
    return "/".join([BASE, *(urllib.parse.quote(part, safe="") for part in parts)])


SERVICES = {
    "orders": [
        Instance("orders", "10.0.0.1", 80, version="1.0.0", zone="a", metadata={"team": "red"}),
        Instance("orders", "10.0.0.2", 80, version="2.0.0", zone="b", weight=3, protocol="http"),
        Instance("orders", "10.0.0.3", 80, ports={"http": 8080}),
    ],
    "Common/Auth": [Instance("Common/Auth", "auth.example", 50051, protocol="grpc")],
}


@contextlib.asynccontextmanager
async def registered(hub: Hub) -> AsyncIterator[dict[str, list[Registration]]]:
    """The services, with one unhealthy, one drained and one weighed instance."""
    async with contextlib.AsyncExitStack() as stack:
        made = {
            name: [
                await stack.enter_async_context(hub.register(instance, wait=30))
                for instance in some
            ]
            for name, some in SERVICES.items()
        }
        one, two, three = made["orders"]
        one.update(healthy=False)
        await hub.registry.configure("orders", two.instance.id, set={"enabled": False})
        await hub.registry.configure("orders", three.instance.id, set={"weight": 5, "color": "x"})
        yield made


def without_times(value: Any) -> Any:
    """Replace each time by whether it is known."""
    if isinstance(value, dict):
        return {
            name: field is not None if name in TIMES else without_times(field)
            for name, field in value.items()
        }
    return [*map(without_times, value)] if isinstance(value, list) else value


async def read_json(admin: Admin, *parts: str, **named: Any) -> Any:
    answer = await admin.get(path(*parts), **named)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def seven(admin: Admin) -> dict[str, Any]:
    id = "10.0.0.1:80"
    return {
        "health": await read_json(admin, "health"),
        "services": await read_json(admin, "services"),
        "service": await read_json(admin, "services", "orders"),
        "with a group": await read_json(admin, "services", "Common/Auth"),
        "service health": await read_json(admin, "services", "orders", "health"),
        "instances": await read_json(admin, "services", "orders", "instances"),
        "instance": await read_json(admin, "services", "orders", "instances", id),
        "metrics": await read_json(admin, "services", "orders", "instances", id, "metrics"),
    }


async def shows_all(admin: Admin) -> bool:
    """Whether everything that was registered is known, with a heartbeat."""
    fleet = admin.fleet
    if not fleet.loaded or fleet.names() != ["Common/Auth", "orders"]:
        return False
    orders, auth = fleet.service("orders"), fleet.service("Common/Auth")
    assert orders is not None
    assert auth is not None
    silences_known = [
        fleet.observation(known.name, id).silence is not None
        for known in (orders, auth)
        for id in known.instances
    ]
    by_id = orders.instances
    return (
        len(silences_known) == 4
        and all(silences_known)
        and not by_id["10.0.0.1:80"].status.healthy
        and not by_id["10.0.0.2:80"].enabled
        and by_id["10.0.0.3:80"].weight == 5
    )


EXPECTED_SERVICE = {
    "serviceName": "orders",
    "totalInstances": 3,
    "healthyInstances": 2,
    "enabledInstances": 2,
    "aggregatedMetrics": {},
    "lastUpdateTime": True,
    "healthyRate": 0.6667,
    "enabledRate": 0.6667,
    "avgHeartbeatDelay": True,
    "avgResponseTime": None,
    "abnormalInstances": [
        {
            "instanceId": "10.0.0.1:80",
            "reason": "it reports itself unhealthy",
            "reasons": [{"kind": "unhealthy", "params": {}, "text": "it reports itself unhealthy"}],
        },
        {
            "instanceId": "10.0.0.2:80",
            "reason": "disabled by an operator",
            "reasons": [
                {"kind": "disabled_by_operator", "params": {}, "text": "disabled by an operator"}
            ],
        },
    ],
}


@pytest.mark.parametrize("backend", usual(["memory", "etcd-3.5", "redis-7.0"]))
async def test_all_views_are_the_same_on_every_backend_except_for_times(
    admin: Admin, store_url: str
):
    async with mooring.connect(store_url, settings=SETTINGS) as hub, registered(hub):
        await eventually(lambda: shows_all(admin))
        shown = without_times(await seven(admin))
    assert shown["health"] == {
        "totalServices": 2,
        "totalInstances": 4,
        "healthyInstances": 3,
        "activeInstances": 2,
        "healthyRate": 0.75,
        "timestamp": True,
    }
    assert shown["service health"] == {
        "totalServices": 1,
        "totalInstances": 3,
        "healthyInstances": 2,
        "activeInstances": 1,
        "healthyRate": 0.6667,
        "timestamp": True,
    }
    assert [service["serviceName"] for service in shown["services"]] == ["Common/Auth", "orders"]
    assert shown["services"][1] == EXPECTED_SERVICE
    assert shown["service"] == {**EXPECTED_SERVICE, "instances": shown["instances"]}
    assert shown["instance"] == shown["instances"][0]
    plain = {
        "serviceName": "orders",
        "port": 80,
        "protocol": "tcp",
        "version": "0.0.0",
        "zone": "",
        "weight": 1.0,
        "enabled": True,
        "healthy": True,
        "state": "up",
        "check": None,
        "ephemeral": True,
        "metadata": {},
        "ports": {},
        "config": {},
        "registrationTime": True,
        "lastHeartbeat": True,
        "lastMetadataUpdate": True,
        "metrics": {},
        "heartbeatDelay": True,
    }
    assert shown["instances"] == [
        {
            **plain,
            "instanceId": "10.0.0.1:80",
            "host": "10.0.0.1",
            "version": "1.0.0",
            "zone": "a",
            "healthy": False,
            "metadata": {"team": "red"},
        },
        {
            **plain,
            "instanceId": "10.0.0.2:80",
            "host": "10.0.0.2",
            "version": "2.0.0",
            "zone": "b",
            "weight": 3.0,
            "protocol": "http",
            "enabled": False,
            "config": {"enabled": False},
        },
        {
            **plain,
            "instanceId": "10.0.0.3:80",
            "host": "10.0.0.3",
            "weight": 5.0,
            "ports": {"http": 8080},
            "config": {"color": "x", "weight": 5.0},
        },
    ]
    assert shown["metrics"] == {
        "instanceId": "10.0.0.1:80",
        "serviceName": "orders",
        "metrics": {},
        "lastMetadataUpdate": True,
        "lastHeartbeat": True,
        "heartbeatDelay": True,
    }
    assert [instance["instanceId"] for instance in shown["with a group"]["instances"]] == [
        "auth.example:50051"
    ]


@pytest.fixture
def backend() -> str:
    return "memory"


async def test_an_unknown_name_is_404_with_a_suggestion(admin: Admin):
    async with registered(admin.hub):
        await eventually(lambda: shows_all(admin))
        for parts, suggestion in (
            (("services", "order"), "orders"),
            (("services", "Common/Aut", "health"), "Common/Auth"),
            (("services", "orders", "instances", "10.0.0.1:81"), "10.0.0.1:80"),
            (("services", "orders", "instances", "10.0.0.1:81", "metrics"), "10.0.0.1:80"),
            (("services", "orders", "instances", "10.0.0.1:81", "timeline"), "10.0.0.1:80"),
            (("services", "orders", "instances", "10.0.0.1:81", "history"), "10.0.0.1:80"),
        ):
            answer = await admin.get(path(*parts))
            assert answer.status_code == 404, parts
            error = answer.json()["error"]
            assert error["code"] == "not_found"
            assert f"did you mean {suggestion!r}" in error["message"]
        strange = await admin.get(path("services", "a/b/c"))
        assert (strange.status_code, strange.json()["error"]["code"]) == (404, "not_found")
        # A service with a group is one segment: two segments are another path.
        assert (await admin.get(f"{BASE}/services/Common/Auth")).status_code == 404


async def test_a_scoped_token_sees_only_its_group(admin: Admin):
    mine = await admin.token("viewer", groups=["Common"])
    async with registered(admin.hub):
        await eventually(lambda: shows_all(admin))
        assert [
            service["serviceName"] for service in await read_json(admin, "services", as_=mine)
        ] == ["Common/Auth"]
        assert (await read_json(admin, "health", as_=mine))["totalInstances"] == 1
        for parts in (("services", "orders"), ("services", "orders", "instances")):
            assert (await admin.get(path(*parts), as_=mine)).status_code == 403
        missing = await admin.get(path("services", "Common/order"), as_=mine)
        assert missing.status_code == 404
        assert "orders" not in missing.text


async def test_a_service_token_can_only_read_instances(admin: Admin):
    service = await admin.token("service", groups=["Common"])
    async with registered(admin.hub):
        await eventually(lambda: shows_all(admin))
        (one,) = await read_json(admin, "services", "Common/Auth", "instances", as_=service)
        assert one["host"] == "auth.example"
        for parts in (("services",), ("health",), ("services", "Common/Auth", "timeline")):
            assert (await admin.get(path(*parts), as_=service)).status_code == 403
        foreign = await admin.get(path("services", "orders", "instances"), as_=service)
        assert foreign.status_code == 403


async def test_lists_are_paged_and_filtered(admin: Admin):
    async with registered(admin.hub):
        await eventually(lambda: shows_all(admin))

        async def ids(**query: str) -> list[str]:
            instances = await read_json(admin, "services", "orders", "instances", query=query)
            return [instance["instanceId"].removeprefix("10.0.0.") for instance in instances]

        assert await ids(healthy="false") == ["1:80"]
        assert await ids(enabled="true") == ["1:80", "3:80"]
        assert await ids(zone="b") == ["2:80"]
        assert await ids(zone="") == ["3:80"]
        assert await ids(version="1.0.0") == ["1:80"]
        assert await ids(name=".3:") == ["3:80"]
        assert await ids(state="draining") == []

        async def names(**query: str) -> list[str]:
            return [
                service["serviceName"]
                for service in await read_json(admin, "services", query=query)
            ]

        assert await names(group="Common") == ["Common/Auth"]
        assert await names(name="AUTH") == ["Common/Auth"]
        assert await names(healthy="false") == ["orders"]

        seen, where = [], f"{path('services', 'orders', 'instances')}?limit=2"
        while where:
            answer = await admin.get(where)
            assert answer.headers["X-Total-Count"] == "3"
            seen.append([instance["instanceId"] for instance in answer.json()])
            where = answer.links.get("next", {}).get("url", "")
        assert seen == [["10.0.0.1:80", "10.0.0.2:80"], ["10.0.0.3:80"]]
        wrong = await admin.get(path("services"), query={"healthy": "maybe"})
        assert wrong.status_code == 400


async def test_unchanged_lists_are_not_sent_again(admin: Admin):
    async with registered(admin.hub):
        await eventually(lambda: shows_all(admin))
        where = path("services", "orders", "instances")

        async def unchanged() -> bool:
            first = await admin.get(where)
            tag = {"If-None-Match": first.headers["ETag"]}
            again = await admin.get(where, headers=tag)
            return again.status_code == 304

        await eventually(unchanged)
        first = await admin.get(where)
        await admin.hub.registry.configure("orders", "10.0.0.1:80", set={"weight": 9})
        weighed = {"If-None-Match": first.headers["ETag"]}

        async def changed() -> bool:
            answer = await admin.get(where, headers=weighed)
            return answer.status_code == 200 and answer.json()[0]["weight"] == 9

        await eventually(changed)


async def test_an_etag_does_not_reveal_changes_outside_the_scope(admin: Admin):
    mine = await admin.token("viewer", groups=["Common"])
    async with registered(admin.hub):
        await eventually(lambda: shows_all(admin))
        known = admin.fleet.service("orders")
        assert known is not None

        async def tags() -> list[str]:
            paths = (path("services"), path("health"))
            return [(await admin.get(page, as_=mine)).headers["ETag"] for page in paths]

        async def unmoved() -> bool:
            before, version = await tags(), known.version
            weight = 10 + version % 80
            await admin.hub.registry.configure("orders", "10.0.0.1:80", set={"weight": weight})
            await eventually(lambda: known.version > version)
            return await tags() == before  # unless their own status changed meanwhile

        await eventually(unmoved)
        before = await tags()
        async with admin.hub.register(Instance("Common/New", "10.0.0.9", 80)):
            await eventually(lambda: admin.fleet.service("Common/New") is not None)
            assert not {*before} & {*await tags()}


async def test_metrics_are_aggregated_charted_and_shown(admin: Admin, store_url: str):
    async with (
        mooring.connect(store_url, settings=SETTINGS) as hub,
        hub.register(Instance("a", "h", 1)) as one,
    ):
        one.update(metrics={"load": {"now": 1.5, "kind": "x"}}, weight=2)  # which is sent at once

        async def arrived() -> bool:
            service = await admin.get(path("services", "a"))
            return service.status_code == 200 and bool(service.json()["aggregatedMetrics"])

        await eventually(arrived)
        service = await read_json(admin, "services", "a")
        assert service["aggregatedMetrics"]["load.now"]["p99"] == 1.5
        shown = await read_json(admin, "services", "a", "instances", "h:1", "metrics")
        assert shown["metrics"] == {"load": {"now": 1.5, "kind": "x"}}
        (sample,) = await read_json(admin, "services", "a", "instances", "h:1", "history")
        assert sample["metrics"] == {"load.now": 1.5}


async def test_the_timeline_includes_removed_instances(admin: Admin):
    await eventually(lambda: admin.fleet.loaded)
    async with admin.hub.register(Instance("a", "h", 1)) as one:
        await eventually(lambda: admin.fleet.service("a") is not None)
        one.update(healthy=False)

        async def unwell() -> bool:
            return not (await read_json(admin, "services", "a"))["instances"][0]["healthy"]

        await eventually(unwell)
    await eventually(lambda: admin.fleet.service("a").emptied is not None)  # type: ignore[union-attr]
    events = await read_json(admin, "services", "a", "timeline")
    assert [event["kind"] for event in events] == ["added", "health", "state", "removed", "emptied"]
    own = await read_json(admin, "services", "a", "instances", "h:1", "timeline")
    assert [event["kind"] for event in own] == ["added", "health", "state", "removed"]
    empty = await read_json(admin, "services", "a")
    assert (empty["totalInstances"], empty["healthyRate"], empty["instances"]) == (0, 0, [])


async def test_explain_states_why_an_instance_is_called_or_not(admin: Admin):
    async with registered(admin.hub):
        await eventually(lambda: shows_all(admin))
        candidates = await read_json(
            admin, "services", "orders", "explain", query={"version": "2.0.0"}
        )
        assert [candidate["called"] for candidate in candidates] == [False, False, False]
        assert candidates[1]["reasons"] == ["disabled by an operator"]
        assert candidates[2]["reasons"] == ["its version is 0.0.0, not 2.0.0"]
        (reason,) = candidates[2]["messages"]
        assert reason["kind"] == "other_version"
        assert reason["params"] == {"version": "0.0.0", "wanted": "2.0.0"}


async def test_described_services_without_instances_are_listed(
    admin: Admin,
):
    await admin.hub.registry.describe(service="idle", set={"description": "sleeps"})
    admin.fleet.update_names([service.name for service in await admin.hub.registry.services()])
    await eventually(lambda: admin.fleet.loaded)
    assert [service["serviceName"] for service in await read_json(admin, "services")] == ["idle"]


@pytest.mark.parametrize("kind", ["etcd", "redis"])
async def test_during_an_outage_of_the_store_the_last_state_stays_and_is_flagged_as_stale(
    kind: str,
    etcd: Callable[[str], EtcdServer],
    redis: Callable[[str], RedisServer],
    tmp_path: Path,
):
    """The store is behind a proxy, which can simulate an outage."""
    server = etcd("3.5") if kind == "etcd" else redis("7.0")
    namespace = f"namespace=/{uuid.uuid4().hex}" if kind == "etcd" else f"prefix={uuid.uuid4().hex}"
    async with FaultProxy(server.address) as proxy:
        direct, url = (
            f"{server.url}?{namespace}",
            f"{kind}://{proxy.address}?{namespace}",
        )
        async with (
            mooring.connect(direct, settings=SETTINGS) as hub,
            registered(hub),
            Admin(url, folder=tmp_path) as admin,
        ):
            await eventually(lambda: shows_all(admin))
            assert STALE not in (await admin.get(path("services"))).headers
            proxy.refuse()
            await eventually(lambda: admin.fleet.stale)
            answer = await admin.get(path("services"))
            assert answer.headers[STALE] == "true"
            assert [answer_["totalInstances"] for answer_ in answer.json()] == [1, 3]
            await eventually(lambda: bool(admin.fleet.timeline()))
            assert admin.fleet.timeline()[-1].kind == "stale"
            proxy.heal()
            await eventually(lambda: not admin.fleet.stale)
            assert (await read_json(admin, "health"))["totalInstances"] == 4
            await hub.registry.configure("orders", "10.0.0.1:80", set={"weight": 8})

            async def followed() -> bool:
                one = await read_json(admin, "services", "orders", "instances", "10.0.0.1:80")
                return bool(one["weight"] == 8)

            await eventually(followed)


@pytest.mark.parametrize("backend", ["redis-7.0"])
async def test_instances_missing_in_redis_are_flagged_and_not_counted(admin: Admin):
    """As after FLUSHALL: all records are gone, and live instances return with the next
    heartbeat."""
    entered = await admin.hub.registry.enter(Instance("orders", "10.0.0.1", 80))
    await eventually(lambda: admin.fleet.observation("orders", "10.0.0.1:80").silence is not None)
    await raw_records_of(admin.hub).delete_all()
    await eventually(lambda: admin.fleet.observation("orders", "10.0.0.1:80").missing)
    service = await read_json(admin, "services", "orders")
    assert (service["totalInstances"], service["healthyInstances"]) == (1, 0)
    (abnormal,) = service["abnormalInstances"]
    assert abnormal["reason"] == "missing from the registry"
    assert (await read_json(admin, "health"))["activeInstances"] == 0
    wrong = (await admin.get("/admin/overview")).json()["problems"]
    assert {problem["service"] for problem in wrong} == {"orders"}
    await admin.hub.registry.enter(entered.instance)
    await eventually(lambda: not admin.fleet.observation("orders", "10.0.0.1:80").missing)
    assert (await read_json(admin, "services", "orders"))["healthyInstances"] == 1


async def test_before_the_first_answer_of_the_store_requests_are_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sharing, "_WAIT", 0.1)
    async with Admin("etcd://127.0.0.1:1", folder=tmp_path, roles=()) as admin:
        for parts in (("services",), ("health",), ("services", "a")):
            answer = await admin.get(path(*parts), as_="admin")
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "unavailable"
        overview = (await admin.get("/admin/overview", as_="admin")).json()
        assert overview["error"] == overview["message"]["text"] != ""
