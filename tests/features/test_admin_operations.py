"""Operating over HTTP: drain, weigh, configure, evict, and search."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from mooring import Instance
from mooring.hub import connect
from mooring.model import JSON
from mooring.registry.redis.registry import RedisRegistry
from mooring.settings import parse
from tests.admin import Admin
from tests.backends import OF_THE_API, usual
from tests.faults.redis_actors import evictions_of
from tests.waiting import eventually

ECHO = "/admin/registry/services/Common%2Fecho"
ONE = f"{ECHO}/instances/10.0.0.1:80"

everywhere = pytest.mark.parametrize("backend", ["memory", "etcd-3.5", "redis-7.0"])
"""For tests that depend on how a registry stores its records; the rest belongs to the API."""


@pytest.fixture(params=usual(["memory"], ["etcd-3.5", "redis-7.0"], reason=OF_THE_API))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def echo(admin: Admin) -> AsyncIterator[None]:
    metadata = {"rack": "north-7"}
    one = Instance("Common/echo", "10.0.0.1", 80, weight=2, metadata=metadata)
    async with admin.hub.register(one), admin.hub.register(Instance("Common/echo", "10.0.0.2", 80)):
        await eventually(lambda: _known(admin) == 2)
        yield


def _known(admin: Admin) -> int:
    known = admin.fleet.service("Common/echo")
    return 0 if known is None else len(known.instances)


def json_of(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def error(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def noted(admin: Admin) -> dict[str, JSON]:
    """The notes of the last write in the audit log."""
    (entry,) = admin.server.audit.read(limit=1)
    return entry.notes


async def echo_instance(admin: Admin) -> Instance:
    listing = await admin.hub.registry.instances("Common/echo")
    return next(instance for instance in listing.instances if instance.id == "10.0.0.1:80")


@everywhere
async def test_an_instance_is_drained_and_enabled(admin: Admin, echo: None):
    answer = json_of(await admin.post(f"{ONE}/drain?reason=disk+full"))
    assert (answer["enabled"], answer["config"]) == (False, {"enabled": False})
    assert noted(admin) == {
        "before": {"enabled": None},
        "after": {"enabled": False},
        "reason": "disk full",
    }
    assert not (await echo_instance(admin)).enabled
    answer = json_of(await admin.post(f"{ONE}/enable"))
    assert (answer["enabled"], answer["config"]) == (True, {})
    assert noted(admin) == {"before": {"enabled": False}, "after": {"enabled": None}}
    assert (await echo_instance(admin)).enabled


@pytest.mark.parametrize("override", [{}, {"enabled": True}, {"enabled": True, "limit": 5}])
@pytest.mark.parametrize("service", [{}, {"enabled": False}, {"enabled": True}])
async def test_draining_and_enabling_restores_the_configuration(
    admin: Admin, echo: None, override: dict[str, JSON], service: dict[str, JSON]
):
    registry = admin.hub.registry
    await registry.configure("Common/echo", set=service)
    await registry.configure("Common/echo", "10.0.0.1:80", set=override)
    before = await echo_instance(admin)
    for _ in range(2):
        assert json_of(await admin.post(f"{ONE}/drain"))["enabled"] is False
    assert not (await echo_instance(admin)).enabled
    for _ in range(2):
        assert json_of(await admin.post(f"{ONE}/enable"))["enabled"] is True
    after = await echo_instance(admin)
    assert after.enabled
    if before.enabled:
        assert await registry.config("Common/echo", "10.0.0.1:80") == override
        assert after.config == before.config
    else:  # its service disables it: this instance gets its own override
        assert await registry.config("Common/echo", "10.0.0.1:80") == {"enabled": True}


@everywhere
async def test_an_instance_disabled_by_its_service_or_itself_can_be_enabled(admin: Admin):
    out = Instance("Common/echo", "10.0.0.1", 80, enabled=False)
    async with admin.hub.register(out):
        await eventually(lambda: _known(admin) == 1)
        assert json_of(await admin.post(f"{ONE}/enable"))["enabled"] is True
        assert (await echo_instance(admin)).enabled


async def test_operator_actions_are_in_the_timeline(admin: Admin, echo: None):
    json_of(await admin.post(f"{ONE}/drain?reason=disk+full"))
    json_of(await admin.put(f"{ONE}/weight", {"weight": 2.5}))
    json_of(await admin.put(f"{ONE}/weight", {"weight": None}))
    json_of(await admin.post(f"{ONE}/enable"))
    assert (await admin.delete(f"{ONE}?reason=rogue")).status_code == 204
    done = [
        event for event in json_of(await admin.get(f"{ONE}/timeline")) if event["kind"] == "action"
    ]
    assert [event["text"] for event in done] == [
        'disabled by a-operator, reason: "disk full"',
        "weight set to 2.5 by a-operator",
        "weight reset to the registered one by a-operator",
        "enabled by a-operator",
        "deregistered by a-operator, reason: rogue",
    ]


async def test_the_weight_of_an_instance_is_changed(admin: Admin, echo: None):
    answer = json_of(await admin.put(f"{ONE}/weight", {"weight": 2.5}))
    assert (answer["weight"], answer["service"], answer["id"]) == (
        2.5,
        "Common/echo",
        "10.0.0.1:80",
    )
    assert (await echo_instance(admin)).weight == 2.5
    assert json_of(await admin.put(f"{ONE}/weight", {"weight": None}))["weight"] == 2
    assert noted(admin) == {"before": {"weight": 2.5}, "after": {"weight": None}}
    for wrong in (-1, "2", 1e300):
        error(await admin.put(f"{ONE}/weight", {"weight": wrong}), 400)


@everywhere
async def test_an_instance_is_evicted(admin: Admin):
    async with admin.hub.register(Instance("Common/echo", "10.0.0.1", 80)) as registration:
        await eventually(lambda: _known(admin) == 1)
        answer = await admin.delete(f"{ONE}?reason=rogue")
        assert (answer.status_code, answer.content) == (204, b"")
        assert noted(admin)["reason"] == "rogue"
        before = noted(admin)["before"]
        assert isinstance(before, dict)
        assert before["incarnation"] == registration.instance.incarnation
        await eventually(lambda: registration.state == "removed")
        await eventually(lambda: _known(admin) == 0)
        error(await admin.delete(ONE), 404)


@everywhere
async def test_a_service_is_forgotten_once_it_has_no_instances(admin: Admin):
    async with admin.hub.register(Instance("Common/echo", "10.0.0.1", 80)):
        await eventually(lambda: _known(admin) == 1)
        await admin.hub.registry.describe(service="Common/echo", set={"description": "echoes"})
        await admin.hub.registry.configure("Common/echo", set={"limit": 5, "password": "p"})
        message = error(await admin.delete(ECHO), 409)
        assert message.startswith("Common/echo has instances (1): deregister them")
        answer = await admin.delete(ONE)
        assert answer.status_code == 204
        await eventually(lambda: _known(admin) == 0)
        told_of = [event.text for event in admin.fleet.timeline("Common/echo")]
        assert "left: an operator deregistered it" in told_of
        error(await admin.delete(ECHO, as_="viewer"), 403)
        error(await admin.delete(ECHO, as_=await admin.token("operator", groups=["Other"])), 403)
        answer = await admin.delete(f"{ECHO}?reason=no+more")
        assert (answer.status_code, answer.content) == (204, b"")
        notes = noted(admin)
        assert notes["reason"] == "no more"
        assert isinstance(notes["before"], dict)
        assert notes["before"]["lost"] is False
        config = notes["before"]["config"]
        assert isinstance(config, dict)
        assert config["limit"] == 5
        assert config["password"] != "p"
        assert json_of(await admin.get("/admin/registry/services")) == []
        assert "service 'Common/echo' not found" in error(await admin.delete(ECHO), 404)
        assert await admin.hub.registry.services() == []  # also for a server that starts later
        assert await admin.hub.registry.config("Common/echo") == {}


async def test_the_error_for_an_unknown_name_suggests_the_nearest(admin: Admin, echo: None):
    message = error(await admin.post(f"{ECHO}/instances/10.0.0.1:81/drain"), 404)
    assert message == ("Common/echo has no instance '10.0.0.1:81': did you mean '10.0.0.1:80'?")
    missing = "/admin/registry/services/Common%2Fecko"
    wanted = "service 'Common/ecko' not found: did you mean 'Common/echo'?"
    assert error(await admin.post(f"{missing}/instances/a:1/enable"), 404) == wanted
    assert error(await admin.delete(f"{missing}/instances/10.0.0.1:80"), 404) == wanted
    assert error(await admin.get(f"{missing}/config"), 404) == wanted
    assert error(await admin.get(f"{missing}/info"), 404) == wanted
    change = {"set": {"a": 1}}
    assert error(await admin.request("PATCH", f"{missing}/config", change), 404) == wanted
    # A name that the token may not see is never suggested.
    token = await admin.token("viewer", groups=["Commons"])
    elsewhere = "/admin/registry/services/Commons%2Fecho/config"
    assert error(await admin.get(elsewhere, as_=token), 404) == "service 'Commons/echo' not found"


@everywhere
async def test_configuration_is_edited(admin: Admin, echo: None):
    config = f"{ECHO}/config"
    assert json_of(await admin.get(config)) == {}
    change: dict[str, object] = {"set": {"zone": "z1", "limits": {"rps": 10}, "apiToken": "s3"}}
    json_of(await admin.request("PATCH", config, change, as_="operator"))
    change = {"set": {"limits": {"rps": 20}}, "unset": ["zone", "apiToken", "never"]}
    after = json_of(await admin.request("PATCH", config, change, as_="operator"))
    assert after == {"limits": {"rps": 20}} == json_of(await admin.get(config))
    assert noted(admin)["before"] == {
        "limits": {"rps": 10},
        "zone": "z1",
        "apiToken": "••••••",
        "never": None,
    }
    own = json_of(await admin.request("PATCH", f"{ONE}/config", {"set": {"zone": "z2"}}))
    assert own == {"zone": "z2"} == json_of(await admin.get(f"{ONE}/config"))
    assert (await echo_instance(admin)).zone == "z2"
    for wrong in ({}, {"set": {"weight": -1}}, {"set": {"a": 1}, "unset": ["a"]}, {"more": 1}):
        error(await admin.request("PATCH", config, wrong), 400)
    error(await admin.request("PATCH", config, {"unset": ["a"]}, as_="viewer"), 403)


@everywhere
async def test_a_service_is_described(admin: Admin, echo: None):
    info = f"{ECHO}/info"
    assert json_of(await admin.get(info))["displayName"] == ""
    change = {"displayName": "Echo", "description": "says it again"}
    json_of(await admin.request("PATCH", info, change, as_="operator"))
    assert json_of(await admin.request("PATCH", info, {"description": "回声"})) == {
        "name": "Common/echo",
        "displayName": "Echo",
        "description": "回声",
    }
    assert noted(admin)["before"] == {"description": "says it again"}
    error(await admin.request("PATCH", info, {}), 400)


async def test_an_operator_cannot_leave_its_groups(admin: Admin, echo: None):
    theirs, others = (
        await admin.token("operator", groups=["Common"]),
        await admin.token("operator", groups=["Other"]),
    )
    assert (await admin.post(f"{ONE}/drain", as_=theirs)).status_code == 200
    for path in ("drain", "enable"):
        error(await admin.post(f"{ONE}/{path}", as_=others), 403)
        error(await admin.post(f"{ONE}/{path}", as_="viewer"), 403)
    error(await admin.put(f"{ONE}/weight", {"weight": 1}, as_=others), 403)
    error(await admin.delete(ONE, as_=others), 403)
    error(await admin.get(f"{ECHO}/config", as_=others), 403)


@pytest.mark.parametrize("backend", ["memory", "redis-7.0"])
async def test_there_are_no_brakes_unless_one_is_engaged(admin: Admin, echo: None, backend: str):
    assert json_of(await admin.get("/admin/registry/brakes")) == []
    message = error(await admin.delete("/admin/registry/brakes/Common%2Fecho"), 404)
    engaged = "the brake of Common/echo is not engaged"
    assert message.startswith(engaged if "redis" in backend else "this registry has no brakes")


async def test_a_search_finds_names_and_metadata(admin: Admin, echo: None):
    async def search(q: str, as_: str = "viewer") -> list[tuple[str, str, str]]:
        answer = json_of(await admin.get("/admin/search", query={"q": q}, as_=as_))
        return [(hit["kind"], hit["name"], hit["match"]) for hit in answer]

    assert await search("ECHO") == [("service", "Common/echo", "exact")]
    assert ("service", "Common/echo", "prefix") in await search("common/e")
    assert await search("10.0.0.1") == [("instance", "10.0.0.1:80", "exact")]
    assert await search("th-7") == [("instance", "10.0.0.1:80", "substring")]
    assert await search("nothing like it") == []
    assert await search("echo", await admin.token("viewer", groups=["Other"])) == []
    (hit,) = json_of(await admin.get("/admin/search?q=north-7"))
    assert (hit["field"], hit["service"]) == ("metadata.rack", "Common/echo")
    assert hit["path"] == f"{ECHO}/instances/10.0.0.1%3A80"
    assert (await admin.get(hit["path"])).status_code in (200, 405)
    error(await admin.get("/admin/search"), 400)
    error(await admin.get("/admin/search?q="), 400)
    error(await admin.get("/admin/search?q=a&limit=1000"), 400)


class TestBrakes:
    @pytest.fixture
    def backend(self) -> str:
        return "redis-7.0"

    async def test_a_brake_is_listed_and_released(self, admin: Admin, store_url: str):
        cleanup = {"global-timeout": "2s", "interval": "1s"}
        quick = {"heartbeat-interval": "1s"}
        settings = parse({"registry": {"cleanup": cleanup, "heartbeat": quick}})
        async with connect(store_url, settings=settings) as hub:
            registry = hub.registry
            assert isinstance(registry, RedisRegistry)
            for port in (1, 2, 3, 4):
                await registry.enter(Instance("Common/echo", "10.0.0.1", port))
            sweeper = evictions_of(registry)

            async def holds() -> bool:
                return bool((await sweeper.sweep()).brakes)

            await eventually(holds)
            (brake,) = json_of(await admin.get("/admin/registry/brakes"))
            assert (brake["service"], brake["total"]) == ("Common/echo", 4)
            assert brake["silent"] >= 3
            assert brake["since"] < brake["until"]
            assert (
                json_of(
                    await admin.get(
                        "/admin/registry/brakes", as_=await admin.token("viewer", groups=["Other"])
                    )
                )
                == []
            )
            path = "/admin/registry/brakes/Common%2Fecho"
            error(await admin.delete(path, as_="viewer"), 403)
            assert (await admin.delete(f"{path}?reason=they+are+gone")).status_code == 204
            assert noted(admin)["reason"] == "they are gone"
            assert json_of(await admin.get("/admin/registry/brakes")) == []
            error(await admin.delete(path), 404)
