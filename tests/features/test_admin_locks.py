"""Locks over HTTP: their holders and waiters, and releasing a lock of another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from mooring.errors import LockLost
from mooring.hub import connect
from mooring.store.contract import Put, key
from mooring.tasks import Tasks
from tests.admin import Admin
from tests.backends import OF_THE_API, usual
from tests.waiting import eventually


@pytest.fixture(params=usual(["memory"], ["etcd-3.5"], reason=OF_THE_API))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


on_stores = pytest.mark.parametrize("backend", ["memory", "etcd-3.5"])


def path(name: str) -> str:
    return f"/admin/locks/{quote(name, safe='')}"


def json_of(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def error(answer: httpx.Response, status: int) -> dict[str, str]:
    assert answer.status_code == status, answer.text
    refusal: dict[str, str] = answer.json()["error"]
    return refusal


async def queued(admin: Admin, name: str, count: int) -> dict[str, Any]:
    """The lock, once this number of waiters queues for it."""

    async def waiting() -> bool:
        answer = await admin.get(path(name))
        return answer.status_code == 200 and len(answer.json()["waiting"]) == count

    await eventually(waiting)
    lock: dict[str, Any] = json_of(await admin.get(path(name)))
    return lock


@on_stores
async def test_a_lock_is_shown_with_its_queue(admin: Admin):
    tasks = Tasks()

    async def wait() -> None:
        async with admin.hub.lock("jobs/nightly"):
            pass

    async with admin.hub.lock("jobs/nightly", ttl=20) as held, admin.hub.lock("jobs/nightly2"):
        tasks.start(wait(), name="a waiter")
        await queued(admin, "jobs/nightly", 1)
        tasks.start(wait(), name="another waiter")
        lock = await queued(admin, "jobs/nightly", 2)
        (holder,) = lock["holders"]
        assert (holder["token"], holder["kind"]) == (held.token, "lock")
        assert ":" in holder["by"]
        assert [place["token"] for place in lock["waiting"]] == sorted(
            place["token"] for place in lock["waiting"]
        )
        life = lock["leases"][holder["lease"]]
        assert 0 < life["remaining"] <= life["ttl"] == 20
        listed = json_of(await admin.get("/admin/locks?prefix=jobs/"))
        assert [lock_["name"] for lock_ in listed] == ["jobs/nightly", "jobs/nightly2"]
        first = await admin.get("/admin/locks?prefix=jobs/&limit=1")
        assert [lock_["name"] for lock_ in first.json()] == ["jobs/nightly"]
        assert first.headers["X-Total-Count"] == "2"
        assert first.links["next"]["url"]
        again = await admin.get(first.links["next"]["url"])
        assert [lock_["name"] for lock_ in again.json()] == ["jobs/nightly2"]
        (hit,) = json_of(await admin.get("/admin/search?q=jobs/nightly2"))
        assert (hit["kind"], hit["match"], hit["path"]) == (
            "lock",
            "exact",
            path("jobs/nightly2"),
        )
    await tasks.aclose()


async def test_the_etag_of_a_lock_changes_with_what_is_shown(admin: Admin):
    store = admin.hub.store
    leases = [(await store.grant(60)).id for _ in range(60)]
    for lease in leases:
        await store.commit(Put(f"jobs/{lease:x}".encode(), b"a candidate", lease))
    first = await admin.get(path("jobs"))
    same = {"If-None-Match": first.headers["ETag"]}
    assert (await admin.get(path("jobs"), headers=same)).status_code == 304
    await store.commit(Put(f"jobs/{leases[0]:x}".encode(), b"another word", leases[0]))
    second = await admin.get(path("jobs"), headers=same)
    assert json_of(second)["holders"][0]["value"] == "another word"
    await store.revoke(leases[-1])
    same = {"If-None-Match": second.headers["ETag"]}
    assert len(json_of(await admin.get(path("jobs"), headers=same))["waiting"]) == 58


@on_stores
async def test_a_released_lock_passes_to_the_next_waiter(admin: Admin):
    lost: asyncio.Future[LockLost] = asyncio.get_running_loop().create_future()
    got, done = asyncio.Event(), asyncio.Event()
    tasks = Tasks()

    async def hold() -> None:
        try:
            async with admin.hub.lock("deploy"):
                await asyncio.Event().wait()
        except LockLost as error:
            lost.set_result(error)

    async def follow() -> None:
        async with admin.hub.lock("deploy"):
            got.set()
            await done.wait()

    tasks.start(hold(), name="the holder")
    await eventually(lambda: _held(admin, "deploy"))
    tasks.start(follow(), name="the next")
    lock = await queued(admin, "deploy", 1)
    lease, token = lock["holders"][0]["lease"], lock["holders"][0]["token"]
    waiter = lock["waiting"][0]["lease"]

    query = {"holder": lease, "reason": "stuck since noon"}
    error(await admin.delete(path("deploy"), query=query, as_="viewer"), 403)
    error(await admin.delete(path("deploy"), query={"holder": lease}), 400)
    error(await admin.delete(path("deploy"), query={"holder": "x", "reason": "y"}), 400)
    wrong = {**query, "holder": waiter}
    assert error(await admin.delete(path("deploy"), query=wrong), 409)["code"] == "not_held"
    stale = {**query, "token": str(token - 1)}
    assert error(await admin.delete(path("deploy"), query=stale), 409)["code"] == "not_held"
    assert not got.is_set()

    released = json_of(await admin.delete(path("deploy"), query={**query, "token": str(token)}))
    assert (released["lease"], released["token"]) == (lease, token)
    (entry,) = admin.server.audit.read(limit=1)
    assert entry.notes["reason"] == "stuck since noon"
    assert entry.notes["holder"] == lease
    async with asyncio.timeout(20):
        assert isinstance(await lost, LockLost)
        await got.wait()
    # A repeated request with an old state releases nothing of the next holder.
    assert error(await admin.delete(path("deploy"), query=query), 409)["code"] == "not_held"
    done.set()
    await eventually(lambda: _free(admin, "deploy"))
    await tasks.aclose()


async def _held(admin: Admin, name: str) -> bool:
    return (await admin.get(path(name))).status_code == 200


async def _free(admin: Admin, name: str) -> bool:
    return (await admin.get(path(name))).status_code == 404


@on_stores
async def test_other_keys_of_the_lease_stay(admin: Admin):
    async with admin.hub.session() as session:
        name = b"etcdctls/%x" % session.lease
        await admin.hub.store.commit(Put(name, b"", session.lease), Put(b"k", b"v", session.lease))
        query = {"holder": f"{session.lease:x}", "reason": "by hand"}
        json_of(await admin.delete(path("etcdctls"), query=query))
        assert (await admin.hub.store.read(key(b"k"))).first is not None
        assert (await admin.hub.store.read(key(name))).first is None


async def test_an_unknown_lock_is_not_found_and_scoped_tokens_see_none(admin: Admin):
    assert error(await admin.get(path("nope")), 404)["code"] == "not_found"
    query = {"holder": "a", "reason": "b"}
    assert error(await admin.delete(path("nope"), query=query), 404)["code"] == "not_found"
    for scope in ({"groups": ["Common"]}, {"tenants": [7]}):
        token = await admin.token("operator", **scope)
        error(await admin.get("/admin/locks", as_=token), 403)
        error(await admin.delete(path("nope"), query=query, as_=token), 403)


class TestWithRedisAlone:
    @pytest.fixture
    def backend(self) -> str:
        return "redis-7.0"

    async def test_the_error_without_a_store_says_what_is_missing(self, admin: Admin):
        query = {"holder": "a", "reason": "b"}
        for answer in (
            await admin.get("/admin/locks"),
            await admin.get(path("a")),
            await admin.delete(path("a"), query=query),
            await admin.get("/admin/tenants"),
            await admin.get("/admin/tenants/1"),
            await admin.put("/admin/tenants/1", {"meta": {"code": "a", "name": "a"}}),
            await admin.get("/admin/tenants/1/history"),
        ):
            refusal = error(answer, 409)
            assert refusal["code"] == "no_store"
            assert "--store" in refusal["message"]
        assert json_of(await admin.get("/admin/search?q=anything")) == []


class TestBesideRedis:
    @pytest.fixture
    def backend(self) -> str:
        return "redis-7.0"

    async def test_a_hub_of_a_store_and_a_redis_has_locks(self, store_url: str, tmp_path: Path):
        async with (
            Admin("memory://beside-redis", registry=store_url, folder=tmp_path) as admin,
            connect("memory://beside-redis") as hub,
            hub.lock("mine"),
        ):
            (lock,) = json_of(await admin.get("/admin/locks"))
            assert lock["name"] == "mine"
