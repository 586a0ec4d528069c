"""The live stream over HTTP, and the first page of the console, on every backend."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from mooring.model import Instance
from mooring.server import event_stream
from tests.admin import Admin
from tests.backends import OF_THE_API, usual
from tests.waiting import PATIENCE, eventually

everywhere = pytest.mark.parametrize("backend", ["memory", "etcd-3.5", "redis-7.0"])


@pytest.fixture(params=usual(["memory"], ["etcd-3.5", "redis-7.0"], reason=OF_THE_API))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Events:
    """The events as an EventSource receives them."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.last = ""

    async def next(self, *names: str) -> tuple[str, Any]:
        """The next event of one of these names."""
        async with asyncio.timeout(PATIENCE):
            while True:
                name, data = await self._event()
                if name in names:
                    return name, data

    async def until(self, name: str, holds: Any) -> Any:
        """The data of the next event of a name that satisfies a condition."""
        while not holds(data := (await self.next(name))[1]):
            pass
        return data

    async def _event(self) -> tuple[str, Any]:
        fields: dict[str, str] = {}
        while True:
            line = await anext(self._lines)
            if not line and "event" in fields:
                return fields["event"], msgspec.json.decode(fields["data"])
            if not line:
                fields = {}
            elif not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
                self.last = value if name == "id" else self.last


@contextlib.asynccontextmanager
async def events(
    admin: Admin, query: str = "", *, as_: str = "viewer", last: str = ""
) -> AsyncIterator[Events]:
    async with admin.client(as_) as client:
        headers = {"Last-Event-ID": last} if last else {}
        async with client.stream("GET", f"/admin/events{query}", headers=headers) as answer:
            assert answer.status_code == 200, (await answer.aread()).decode()
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["cache-control"] == "no-store"
            yield Events(answer)


def names(data: Any) -> set[str]:
    return {service["serviceName"] for service in data["changed"]}


@everywhere
async def test_a_listener_sees_an_instance_register_fail_and_leave(admin: Admin):
    async with events(admin, "?service=shop/orders") as listener:
        await listener.next("hello")
        async with admin.hub.register(Instance("shop/orders", "10.0.0.1", 80)) as registration:
            await listener.until("services", lambda data: "shop/orders" in names(data))
            registration.update(healthy=False)
            await listener.until(
                "instances",
                lambda data: [instance["healthy"] for instance in data["changed"]] == [False],
            )
            problems = await listener.until("problems", bool)
            assert problems[0]["service"] == "shop/orders"
        gone = await listener.until("instances", lambda data: data["removed"])
        assert gone["removed"] == ["10.0.0.1:80"]


async def test_a_scoped_listener_gets_only_its_own_groups(admin: Admin):
    token = await admin.token("viewer", groups=["shop"])
    async with events(admin, as_=token) as listener:
        await listener.next("hello")
        async with admin.hub.register(Instance("media/secret", "10.0.0.2", 80)):
            await eventually(lambda: admin.fleet.service("media/secret") is not None)
            async with admin.hub.register(Instance("shop/orders", "10.0.0.1", 80)):
                _, data = await listener.next("services")
                assert names(data) == {"shop/orders"}
                health = await listener.until("health", lambda data: data["totalServices"])
                assert health["totalServices"] == 1


async def test_a_reconnecting_listener_gets_what_it_missed(admin: Admin):
    async with events(admin) as listener:
        await listener.next("problems")
    async with admin.hub.register(Instance("shop/orders", "10.0.0.1", 80)):
        await eventually(lambda: admin.fleet.service("shop/orders") is not None)
        async with events(admin, last=listener.last) as again:
            assert (await again.next("hello"))[1]["resumed"] is True
            await again.until("services", lambda data: "shop/orders" in names(data))
        async with events(admin, last="elsewhere-7") as foreign:
            await foreign.next("reset")


async def test_a_revoked_token_ends_its_stream(admin: Admin):
    token, text = await admin.server.tokens.create("short", "viewer", lasts=3600)
    async with events(admin, as_=text) as listener:
        await listener.next("hello")
        await admin.server.tokens.revoke(token.id)
        with pytest.raises(StopAsyncIteration):
            await listener.next("never")
    stream = admin.server.stream
    await eventually(lambda: stream.clients == 0)


async def test_unauthorized_and_invalid_streams_are_refused(admin: Admin):
    token = await admin.token("viewer", groups=["shop"])
    assert (await admin.get("/admin/events?service=media/x", as_=token)).status_code == 403
    assert (await admin.get("/admin/events", as_="service")).status_code == 403
    assert (await admin.get("/admin/events", as_=None)).status_code == 401
    assert (await admin.get("/admin/events?kind=nonsense")).status_code == 400
    assert (await admin.get("/admin/events?service=a/b/c")).status_code == 400
    assert (await admin.request("HEAD", "/admin/events", as_="viewer")).status_code == 200


async def test_the_number_of_listeners_is_limited(admin: Admin, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_stream, "MAX_LISTENERS", 1)
    async with events(admin) as listener:
        await listener.next("hello")
        refused = await admin.get("/admin/events")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "too_many_streams"


async def test_the_listeners_of_one_token_are_limited(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_stream, "MAX_PER_TOKEN", 1)
    async with events(admin) as listener:
        await listener.next("hello")
        refused = await admin.get("/admin/events")
        assert refused.status_code == 429
        assert "a-viewer" in refused.json()["error"]["message"]
        async with events(admin, as_="operator") as other:
            await other.next("hello")


async def test_unchanged_pages_are_not_sent_again(admin: Admin):
    path, fleet = "/admin/overview", admin.fleet
    quiet = Instance("shop/orders", "10.0.0.1", 80)
    await admin.hub.registry.enter(quiet, ttl=600.0)
    await eventually(lambda: fleet.observation("shop/orders", "10.0.0.1:80").silence is not None)
    await fleet._poller.aclose()  # time stands still
    first = await admin.get(path)
    again = await admin.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await admin.get(path, as_="operator")).content == first.content
    token = await admin.token("viewer", groups=["media"])
    assert (await admin.get(path, as_=token)).json()["groups"] == []
    # At another moment it is still the same.
    fleet.sampled += 1
    later = await admin.get(path)
    assert later.json()["health"]["timestamp"] > first.json()["health"]["timestamp"]
    assert later.headers["etag"] == first.headers["etag"]
    await admin.hub.registry.enter(Instance("shop/orders", "10.0.0.2", 80), ttl=600.0)

    async def another() -> bool:
        return (await admin.get(path)).headers["etag"] != first.headers["etag"]

    await eventually(another)


@everywhere
async def test_the_overview_contains_everything_of_the_first_page(admin: Admin):
    hub = admin.hub
    async with (
        hub.register(Instance("shop/orders", "10.0.0.1", 80)),
        hub.register(Instance("shop/orders", "10.0.0.2", 80)) as second,
        hub.register(Instance("gateway", "10.0.0.3", 80)),
    ):
        shown: dict[str, Any] = {}

        async def refresh() -> None:
            shown.update((await admin.get("/admin/overview")).json())

        async def all_are_healthy() -> bool:
            await refresh()
            return bool(shown["health"]["healthyInstances"] == 3)

        async def one_is_unhealthy() -> bool:
            await refresh()
            kinds = [problem["kind"] for problem in shown["problems"]]
            return kinds == ["unhealthy"] and shown["heartbeatDelay"]["count"] == 3

        # An instance that is unhealthy when the server first sees it makes no "health" event.
        await eventually(all_are_healthy)
        second.update(healthy=False)
        await eventually(one_is_unhealthy)
        assert shown["health"]["totalInstances"] == 3
        assert shown["health"]["healthyInstances"] == 2
        assert [group["group"] for group in shown["groups"]] == ["default", "shop"]
        (problem,) = shown["problems"]
        assert problem["id"] == "10.0.0.2:80"
        assert {"added", "health"} <= {event["kind"] for event in shown["events"]}
        times = [event["time"] for event in shown["events"]]
        assert times == sorted(times, reverse=True)
        token = await admin.token("viewer", groups=["default"])
        scoped = (await admin.get("/admin/overview", as_=token)).json()
        assert scoped["health"]["totalInstances"] == 1
        assert scoped["problems"] == []
        assert "shop" not in str(scoped)
