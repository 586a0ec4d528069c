"""The metrics and the targets that the server offers to Prometheus."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from mooring.messages import message
from mooring.model import Instance, Status
from mooring.server.api.monitoring import label_name, labels, state_of
from mooring.server.live.summary import Observation
from tests.admin import Admin
from tests.waiting import eventually

on_memory = pytest.mark.parametrize("backend", ["memory"], indirect=True)

REFUSED = message("probe_refused")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
"""A valid name of a label: see the data model of Prometheus."""


async def samples(admin: Admin, as_: str = "viewer") -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    answer = await admin.get("/metrics", as_=as_)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in plain(answer.text)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("instance", "observed", "state"),
    [
        ({}, Observation(), "up"),
        ({"status": Status(healthy=False)}, Observation(late=True), "unhealthy"),
        ({}, Observation(late=True, check_failure=REFUSED), "silent"),
        ({"status": Status(state="draining")}, Observation(check_failure=REFUSED), "failing"),
        ({"status": Status(state="draining")}, Observation(), "draining"),
        ({"enabled": False}, Observation(), "disabled"),
    ],
)
def test_the_state_of_an_instance_is_the_worst_known_one(
    instance: dict[str, Any], observed: Observation, state: str
):
    assert state_of(Instance("orders", "10.0.0.1", 80, **instance), observed) == state


@on_memory
async def test_instances_are_counted_by_service_and_state(admin: Admin):
    async with (
        admin.hub.register(Instance("shop/orders", "10.0.0.1", 80)),
        admin.hub.register(Instance("shop/orders", "10.0.0.2", 80)) as second,
    ):
        await admin.sees("shop/orders", "10.0.0.1:80")
        second.update(healthy=False)

        async def both_reported() -> bool:
            metrics = await samples(admin)
            unhealthy = metrics.get(("mooring_instances", "shop/orders", "unhealthy"))
            return (unhealthy, metrics.get(("mooring_problems", "warning"))) == (1.0, 1.0)

        await eventually(both_reported)
        metrics = await samples(admin)
        assert metrics["mooring_instances", "shop/orders", "up"] == 1
        assert metrics["mooring_instances", "shop/orders", "silent"] == 0
        assert metrics["mooring_services",] == 1
        assert metrics["mooring_brake_engaged", "shop/orders"] == 0
        assert metrics["mooring_fleet_stale",] == 0
        assert metrics["mooring_problems", "warning"] == 1
        assert metrics["mooring_audit_failures_total",] == 0
        assert metrics["mooring_http_requests_total", "GET", "/metrics", "200"] >= 1
        of_instances = [key for key in metrics if key[0] == "mooring_instances"]
        assert not any("10.0.0" in part for key in of_instances for part in key)
        token = await admin.token("viewer", groups=["media"])
        scoped = await samples(admin, token)
        assert scoped["mooring_services",] == 0
        assert not any("shop/orders" in key for key in scoped)


@on_memory
async def test_a_service_without_instances_is_counted_only_if_it_lost_them(admin: Admin):
    async with admin.hub.register(Instance("left", "10.0.0.1", 80)):
        wanted = {"host": "10.0.0.2", "port": 80, "ttl": 2.0}
        answer = await admin.post("/registry/services/lost/instances", wanted, as_="service")
        assert answer.status_code == 201
        await eventually(lambda: admin.fleet.names() == ["left", "lost"])
    known = [admin.fleet.service(name) for name in ("left", "lost")]
    await eventually(lambda: all(service and service.emptied for service in known))
    metrics = await samples(admin)
    assert metrics["mooring_services",] == 2
    assert metrics["mooring_instances", "lost", "up"] == 0
    assert ("mooring_instances", "left", "up") not in metrics


@on_memory
@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;q=0.5",
        "application/openmetrics-text; version=nonsense; escaping=nonsense",
    ],
)
async def test_openmetrics_is_sent_on_request(admin: Admin, accept: str):
    answer = await admin.get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    names = {family.name for family in openmetrics(answer.text)}  # type: ignore[no-untyped-call]
    assert "mooring_instances" in names


@on_memory
async def test_a_route_is_counted_by_its_template(admin: Admin):
    for number in range(3):
        await admin.get(f"/nowhere/{number}")
    metrics = await samples(admin)
    routes = {key[2] for key in metrics if key[0] == "mooring_http_requests_total"}
    assert "none" in routes
    assert not any("nowhere" in route for route in routes)


@on_memory
async def test_targets_have_the_documented_form(admin: Admin):
    here = {"a.b/c": "x", "a b c": "y", "__address__": "evil:1", "long": "x" * 5000, "名": "z"}
    one = Instance("shop/orders", "10.0.0.1", 80, zone="east", version="2", metadata=here)
    two = Instance("shop/orders", "::1", 81, ports={"metrics": 9100})
    three = Instance("gateway", "10.0.0.3", 80)
    async with (
        admin.hub.register(one),
        admin.hub.register(two),
        admin.hub.register(three),
    ):

        async def all_there() -> bool:
            return len((await admin.get("/prometheus/targets")).json()) == 3

        await eventually(all_there)
        answer = await admin.get("/prometheus/targets")
        assert answer.headers["content-type"] == "application/json"
        targets_ = answer.json()
        assert [target["targets"] for target in targets_] == [
            ["10.0.0.3:80"],
            ["10.0.0.1:80"],
            ["[::1]:81"],
        ]
        for target in targets_:
            assert set(target) == {"targets", "labels"}
            assert all(LABEL.fullmatch(name) for name in target["labels"])
            assert all(name.startswith("__meta_mooring_") for name in target["labels"])
            assert all(isinstance(value, str) for value in target["labels"].values())
        first = targets_[1]["labels"]
        assert first["__meta_mooring_service"] == "shop/orders"
        assert first["__meta_mooring_group"] == "shop"
        assert first["__meta_mooring_zone"] == "east"
        assert first["__meta_mooring_version"] == "2"
        assert first["__meta_mooring_id"] == "10.0.0.1:80"
        assert first["__meta_mooring_metadata___address__"] == "evil:1"
        assert first["__meta_mooring_metadata_a_b_c"] == "y"  # the first in the order of the keys
        assert "__meta_mooring_metadata_long" not in first

        async def targets(query: str, as_: str = "viewer") -> list[str]:
            got = await admin.get(f"/prometheus/targets?{query}", as_=as_)
            return [target["targets"][0] for target in got.json()]

        assert await targets("group=shop") == ["10.0.0.1:80", "[::1]:81"]
        assert await targets("group=default") == ["10.0.0.3:80"]
        assert await targets("service=gateway") == ["10.0.0.3:80"]
        assert await targets("port=metrics") == ["[::1]:9100"]
        assert await targets("service=gateway&port=9090") == ["10.0.0.3:9090"]
        assert await targets("", await admin.token("viewer", groups=["default"])) == ["10.0.0.3:80"]
        assert (await admin.get("/prometheus/targets?port=0")).status_code == 400
        assert (await admin.get("/prometheus/targets", as_="service")).status_code == 403


def test_every_text_becomes_a_label():
    assert label_name("a-b.c/d e名") == "a_b_c_d_e_"
    label_values = labels(Instance("x", "h", 1, metadata={"k": "v"}))
    assert label_values["__meta_mooring_metadata_k"] == "v"
