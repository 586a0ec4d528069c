"""The servers of the admin API while their store is unavailable, was replaced or is full."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.backends import open_store
from mooring.errors import OutOfSpace
from mooring.server.auth import record_store as sharing
from mooring.server.auth import tokens
from mooring.store import Delete, Put, key, prefix
from mooring.testing.etcd import EtcdServer
from tests.admin import Admin
from tests.contract.test_server_records import Right, reading, rights
from tests.features.test_admin_record_store import becomes, given_key, status
from tests.features.test_admin_webhook import SettableProblems, alerting, problem, receiving, sent
from tests.waiting import eventually


class TestUnavailableStore:
    async def test_tokens_stay_valid_and_after_an_hour_only_for_reading(
        self,
        fresh_etcd: Callable[..., EtcdServer],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ):
        server = fresh_etcd()
        async with Admin(f"{server.url}?timeout=1s", folder=tmp_path) as admin:
            assert await status(admin, admin.tokens["viewer"]) == 200
            server.kill()
            for role in ("viewer", "operator", "admin", "service"):
                assert await status(admin, admin.tokens[role]) == 200
            assert (await admin.post("/admin/login-codes", as_="operator")).status_code == 201
            monkeypatch.setattr(tokens, "TRUSTED", 0.0)
            assert await status(admin, admin.tokens["operator"]) == 200
            refused = await admin.post("/admin/login-codes", as_="operator")
            assert (refused.status_code, "store" in refused.text) == (503, True)
            assert (await admin.post("/admin/login-codes", as_="admin")).status_code == 201
            audit = await admin.get("/admin/audit", as_="admin")
            assert audit.status_code == 200
            assert audit.headers["X-Audit-Of"] == "this server"
            assert len(audit.json()) == 3

    @pytest.mark.deadline
    async def test_a_start_does_not_wait_and_the_admin_token_is_valid(
        self,
        fresh_etcd: Callable[..., EtcdServer],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ):
        monkeypatch.setattr(sharing, "_WAIT", 0.2)
        server = fresh_etcd()
        async with Admin(server.url, folder=tmp_path) as admin:
            viewer = admin.tokens["viewer"]
        server.kill()
        started = time.monotonic()
        async with Admin(server.url, folder=tmp_path, roles=()) as admin:
            assert time.monotonic() - started < 5
            assert await status(admin, admin.tokens["admin"]) == 200
            unknown = await admin.get("/admin/whoami", as_=viewer)
            assert (unknown.status_code, "store" in unknown.text) == (503, True)
            assert (await admin.get("/admin/whoami", as_=None)).status_code == 401
            server.start()
            await becomes(200, admin, viewer)


async def test_the_last_server_on_duty_reports_that_the_store_is_unavailable(
    fresh_etcd: Callable[..., EtcdServer],
):
    server = fresh_etcd()
    wrong, before = SettableProblems(), sent()
    with receiving() as receiver:
        hook = f"http://127.0.0.1:{receiver.server_port}/"
        async with alerting(server.url, wrong, hook, ttl=2.0) as first:
            await eventually(lambda: first.elected)
            async with alerting(server.url, wrong, hook, ttl=2.0) as second:
                # A busy machine can pass the duty to the other server: either may have it.
                await eventually(lambda: {first._elected, second._elected} == {True, False})
                on_duty, other = (first, second) if first.elected else (second, first)
                server.kill()
                wrong.now = [problem("store")]
                await eventually(lambda: len(receiver.notices) == 1)
                await asyncio.sleep(2.5)  # longer than the TTL
                assert (on_duty.elected, other.elected, len(receiver.notices)) == (True, False, 1)
                server.start()
                wrong.now = []
                await eventually(lambda: sent() - before == 2)
                await eventually(lambda: first.elected is not second.elected)
    assert receiver.problems == [
        ("firing", "no_instances:store"),
        ("resolved", "no_instances:store"),
    ]


async def test_a_revoked_token_stays_revoked_in_a_recreated_etcd(
    fresh_etcd: Callable[..., EtcdServer], tmp_path: Path
):
    """With the same flags it has the same cluster id, and counts its revisions from the beginning:
    a writer that saved the records can repeat the complete history."""
    server = fresh_etcd()
    a, b = given_key(tmp_path, "a", "b")
    async with Admin(server.url, folder=a) as one, Admin(server.url, folder=b) as other:
        before = one.hub.store.identity
        made = [
            (await one.post("/admin/tokens", {"name": name, "role": "admin"}, as_="admin")).json()
            for name in ("revoked", "deleted", "valid")
        ]
        for token in made:
            await becomes(200, other, token["token"])
        snapshot = await one.hub.store.read(prefix(b"/mooring/tokens/"))
        saved = {entry.key: entry for entry in snapshot.entries}
        await one.delete(f"/admin/tokens/{made[0]['id']}", as_="admin")
        await one.hub.store.commit(Delete(key(f"/mooring/tokens/{made[1]['id']}".encode())))
        for token in made[:2]:
            await becomes(401, other, token["token"])
    server.kill()
    shutil.rmtree(server.folder / "data")
    server.start()
    async with open_store(server.url) as store:
        reserved = {entry.created: entry for entry in saved.values()}
        last = max(reserved) + 1
        while (now := (await store.read(key(b"/pad"))).revision) < last:
            entry = reserved.get(now + 1)
            await store.commit(Put(b"/pad" if entry is None else entry.key, b"{}"))
        for entry in saved.values():
            await store.commit(Put(entry.key, entry.value))
        assert store.identity == before
        for entry in (await store.read(prefix(b"/mooring/tokens/"))).entries:
            known = saved[entry.key]
            assert (entry.created, entry.version) == (known.created, known.version)
    async with Admin(server.url, folder=b, roles=()) as other:
        found_now = [await status(other, token["token"]) for token in made]
        assert found_now == [401, 401, 200]


async def test_tokens_are_valid_again_when_an_emptied_etcd_has_its_data_back(
    fresh_etcd: Callable[..., EtcdServer], tmp_path: Path
):
    server = fresh_etcd()
    data, kept = server.folder / "data", server.folder / "kept"
    async with Admin(server.url, folder=tmp_path, roles=["viewer"]) as admin:
        viewer = admin.tokens["viewer"]
    async with Admin(server.url, folder=tmp_path, roles=[]) as admin:
        assert await status(admin, viewer) == 200
        server.kill()
        data.rename(kept)
        server.start()
        await becomes(401, admin, viewer)
    async with Admin(server.url, folder=tmp_path, roles=[]) as admin:
        assert await status(admin, viewer) == 401
        server.kill()
        shutil.rmtree(data)
        kept.rename(data)
        server.start()
        await becomes(200, admin, viewer)


async def test_a_full_etcd_accepts_logins_logouts_and_revocations(
    fresh_etcd: Callable[..., EtcdServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It refuses every transaction, even one that only deletes."""
    monkeypatch.setattr(tokens, "_REFRESH", 0.0)
    server = fresh_etcd(flags=["--quota-backend-bytes=2000000", "--unsafe-no-fsync"])
    a, b = given_key(tmp_path, "a", "b")
    async with Admin(server.url, folder=a) as one, Admin(server.url, folder=b) as other:
        made = (
            await one.post("/admin/tokens", {"name": "ann", "role": "viewer"}, as_="admin")
        ).json()
        first, second = [
            (await one.post("/admin/login-codes", as_="admin")).json()["url"].partition("?")[2]
            for _ in range(2)
        ]
        await becomes(200, other, one.tokens["admin"])

        async def fill() -> None:
            while True:  # etcd checks its size now and then
                await one.hub.store.commit(Put(b"/fill", b"x" * 100_000))

        async with one.client() as browser:
            headers = {"Origin": one.url}
            assert (await browser.post(f"/login?{first}", headers=headers)).status_code == 303
            cookies = dict(browser.cookies)
            with pytest.raises(OutOfSpace):
                await fill()
            assert (await browser.post("/logout", headers=headers)).status_code == 204
            browser.cookies.update(cookies)
            assert (await browser.get("/admin/whoami")).status_code == 401
            browser.cookies.clear()
            assert (await browser.post(f"/login?{second}", headers=headers)).status_code == 303
            assert (await browser.get("/admin/whoami")).status_code == 200
            again = await browser.post(f"{other.url}/login?{second}", headers={"Origin": other.url})
            assert again.status_code == 401, "a link is good once, at whichever server"
        answer = await one.delete(f"/admin/tokens/{made['id']}", as_="admin")
        assert answer.status_code == 200
        await becomes(401, other, made["token"])
        one.server.data_dir.admin_token.unlink()
        await becomes(401, other, one.tokens["admin"])


async def test_only_one_of_several_servers_removes_a_record_from_a_full_etcd(
    fresh_etcd: Callable[..., EtcdServer],
):
    """Otherwise a login link could be used twice. A full etcd 3.5 refuses every transaction."""
    server = fresh_etcd(flags=["--quota-backend-bytes=2000000", "--unsafe-no-fsync"])
    ids = [f"link-{number}" for number in range(20)]
    async with (
        open_store(server.url) as store,
        reading(store) as one,
        reading(store) as other,
    ):
        for id in ids:
            await one.create(id, Right("viewer"), ttl=60)
        await eventually(lambda: len(other) == len(ids))
        with contextlib.suppress(OutOfSpace):
            while True:
                await store.commit(Put(b"/fill", b"x" * 100_000))
        for id in ids:
            removed = await asyncio.gather(one.remove(id), other.remove(id))
            assert sorted(removed) == [False, True]
    async with open_store(server.url) as store:
        assert await rights(store) == {}
