"""Registration over HTTP, for services in other languages than Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from mooring import Instance
from tests.admin import Admin
from tests.backends import OF_THE_API, usual
from tests.waiting import eventually

ECHO = "/registry/services/echo/instances"
WHERE = {"host": "10.0.0.1", "port": 80}

INVALID: list[dict[str, Any]] = [
    {"host": "0.0.0.0"},
    {"host": ""},
    {"host": "a b"},
    {"port": 0},
    {"port": "80"},
    {"weight": -1},
    {"ttl": "soon"},
    {"ttl": "2h"},
    {"ttl": 0},
    {"ttl": True},
    {"metadata": {"a": 1}},
    {"ports": {"http": 70000}},
    {"unknown": 1},
    {"id": "a b"},
]

everywhere = pytest.mark.parametrize("backend", ["memory", "etcd-3.5", "redis-7.0"])
"""For tests that depend on how a registry stores its records; the rest belongs to the API."""


@pytest.fixture(params=usual(["memory"], ["etcd-3.5", "redis-7.0"], reason=OF_THE_API))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def register(admin: Admin, **more: Any) -> dict[str, Any]:
    answer = await admin.post(ECHO, {**WHERE, **more}, as_="service")
    assert answer.status_code == 201, answer.text
    registration: dict[str, Any] = answer.json()
    return registration


async def beat(admin: Admin, made: dict[str, Any], **status: Any) -> httpx.Response:
    path = f"{ECHO}/{made['id']}/beat"
    return await admin.put(path, {"incarnation": made["incarnation"], **status}, as_="service")


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@everywhere
async def test_a_service_registers_beats_is_listed_and_leaves(admin: Admin):
    made = await register(admin, ttl="30s", version="1.2.0", metadata={"rack": "r1"})
    assert (made["service"], made["id"]) == ("echo", "10.0.0.1:80")
    assert 0 < made["beatEvery"] < made["ttl"]
    assert made["notKept"] == []
    assert (await beat(admin, made)).status_code == 200

    async def listed() -> bool:
        answer = await admin.get(ECHO, as_="service")
        return [instance["id"] for instance in answer.json()] == ["10.0.0.1:80"]

    await eventually(listed)
    (instance,) = (await admin.get(ECHO, as_="service")).json()
    assert (instance["host"], instance["port"], instance["version"]) == ("10.0.0.1", 80, "1.2.0")
    assert instance["metadata"] == {"rack": "r1"}
    assert "incarnation" not in instance
    gone = f"{ECHO}/{made['id']}?incarnation={made['incarnation']}"
    assert (await admin.delete(gone, as_="service")).status_code == 204
    events = [event.text for event in admin.fleet.timeline("echo", made["id"])]
    assert "it deregistered over HTTP" in events
    assert code(await admin.delete(gone, as_="service")) == (404, "not_registered")
    assert code(await beat(admin, made)) == (404, "not_registered")


async def test_more_than_64_kib_of_metadata_is_refused(admin: Admin):
    large = {"note": "x" * 70_000}
    answer = await admin.post(ECHO, {**WHERE, "metadata": large}, as_="service")
    assert code(answer) == (400, "bad_request")
    assert "the metadata of echo has 70004 bytes" in answer.json()["error"]["message"]
    assert not (await admin.hub.registry.instances("echo")).instances


@everywhere
async def test_a_heartbeat_can_be_sent_to_another_server(
    admin: Admin, store_url: str, tmp_path: Path
):
    made = await register(admin)
    async with Admin(store_url, folder=tmp_path / "other") as other:
        answer = await beat(other, made, healthy=False, metrics={"queue": {"length": 3}})
        assert answer.status_code == 200
        (instance,) = (await admin.hub.registry.instances("echo")).instances
        assert not instance.status.healthy
        assert instance.status.metrics == {"queue": {"length": 3}}
        gone = f"{ECHO}/{made['id']}?incarnation={made['incarnation']}"
        assert (await other.delete(gone, as_="service")).status_code == 204
    assert code(await beat(admin, made)) == (404, "not_registered")


@everywhere
async def test_the_newest_incarnation_wins_and_the_older_gets_an_error(admin: Admin):
    first = await register(admin)
    second = await register(admin)
    assert code(await beat(admin, first)) == (409, "superseded")
    again = await admin.post(ECHO, {**WHERE, "incarnation": first["incarnation"]}, as_="service")
    assert code(again) == (409, "superseded")
    gone = f"{ECHO}/{first['id']}?incarnation={first['incarnation']}"
    assert (await admin.delete(gone, as_="service")).status_code == 404
    assert (await beat(admin, second)).status_code == 200


async def test_python_and_http_registrations_supersede_one_another(admin: Admin):
    made = await register(admin)
    async with admin.hub.register(Instance("echo", "10.0.0.1", 80)) as registration:
        assert code(await beat(admin, made)) == (409, "superseded")
        later = await register(admin)
        await eventually(lambda: registration.state == "superseded")
        assert (await beat(admin, later)).status_code == 200


@everywhere
async def test_an_evicted_service_stays_out_until_it_restarts(admin: Admin):
    made = await register(admin)
    path = f"/admin/registry/services/echo/instances/{made['id']}"
    assert (await admin.delete(path)).status_code == 204
    assert code(await beat(admin, made)) == (410, "removed")
    again = {**WHERE, "incarnation": made["incarnation"]}
    assert code(await admin.post(ECHO, again, as_="service")) == (410, "removed")
    assert (await beat(admin, await register(admin))).status_code == 200


@everywhere
async def test_the_response_to_a_heartbeat_contains_the_operator_override(admin: Admin):
    made = await register(admin)
    path = f"/admin/registry/services/echo/instances/{made['id']}"

    async def known() -> bool:
        await admin.hub.registry.configure("echo", set={"level": "debug"})
        answer = await admin.post(f"{path}/drain")
        return answer.status_code == 200

    await eventually(known)

    async def received() -> bool:
        response = (await beat(admin, made)).json()
        return bool(response == {"enabled": False, "weight": None, "config": {"level": "debug"}})

    await eventually(received)
    assert (await admin.get(ECHO, as_="service")).json() == []


async def test_a_service_cannot_leave_its_groups(admin: Admin):
    token = await admin.token("service", groups=["Common"])
    theirs = "/registry/services/Common%2FAuth/instances"
    assert (await admin.post(theirs, WHERE, as_=token)).status_code == 201
    assert (await admin.get(theirs, as_=token)).status_code == 200
    assert code(await admin.post(ECHO, WHERE, as_=token)) == (403, "forbidden")
    assert code(await admin.get(ECHO, as_=token)) == (403, "forbidden")
    assert code(await admin.post(ECHO, WHERE, as_="viewer")) == (403, "forbidden")
    for path in ("/admin/tenants", "/admin/locks", "/admin/search?q=a", "/admin/registry/brakes"):
        assert code(await admin.get(path, as_="service")) == (403, "forbidden")


async def test_invalid_registrations_are_refused(admin: Admin):
    for wrong in INVALID:
        answer = await admin.post(ECHO, {**WHERE, **wrong}, as_="service")
        assert answer.status_code == 400, (wrong, answer.text)
        assert answer.json()["error"]["message"]
