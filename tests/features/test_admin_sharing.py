"""Several servers of one store: what one lets in, all let in, if they have the same key."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from mooring.errors import OutOfSpace
from mooring.hub import open_store
from mooring.server.access import sharing, tokens
from mooring.store import Delete, Put, key, prefix
from mooring.testing.etcd import EtcdServer
from tests.admin import Admin
from tests.waiting import eventually


def given_key(tmp_path: Path, *names: str) -> list[Path]:
    """Folders of servers to come that have one key, as an operator copies it."""
    for name in names:
        (tmp_path / name / "data").mkdir(parents=True, mode=0o700)
        file = tmp_path / name / "data" / "server-key"
        file.write_text("one key for all of them, which is long enough\n")
        file.chmod(0o600)
    return [tmp_path / name for name in names]


async def status(admin: Admin, token: str, path: str = "/admin/whoami") -> int:
    return (await admin.get(path, as_=token)).status_code


async def becomes(wanted: int, admin: Admin, token: str) -> float:
    async def has() -> bool:
        return await status(admin, token) == wanted

    return await eventually(has)


class TestOnAStore:
    @pytest.fixture(params=["sqlite", "etcd-3.5"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    @pytest.mark.deadline
    async def test_a_revoked_token_is_refused_everywhere_within_seconds(
        self, store_url: str, tmp_path: Path
    ):
        a, b = given_key(tmp_path, "a", "b")
        async with Admin(store_url, folder=a) as one, Admin(store_url, folder=b) as other:
            made = (
                await one.post("/admin/tokens", {"name": "ann", "role": "viewer"}, as_="admin")
            ).json()
            assert await becomes(200, other, made["token"]) < 3
            await one.delete(f"/admin/tokens/{made['id']}", as_="admin")
            assert await status(one, made["token"]) == 401
            assert await becomes(401, other, made["token"]) < 3

    async def test_sessions_and_links_are_good_at_all(self, store_url: str, tmp_path: Path):
        a, b = given_key(tmp_path, "a", "b")
        async with Admin(store_url, folder=a) as one, Admin(store_url, folder=b) as other:
            link = (await one.post("/admin/login-codes", as_="admin")).json()["url"]
            code = link.partition("?")[2]

            async def logged_in(browser: httpx.AsyncClient, at: Admin) -> bool:
                return (await browser.get(f"{at.url}/admin/whoami")).status_code == 200

            async with other.client() as browser:
                headers = {"Origin": other.url}

                async def redeemed() -> bool:
                    answer = await browser.post(f"/login?{code}", headers=headers)
                    return answer.status_code == 303

                await eventually(redeemed)
                again = await browser.post(f"{one.url}/login?{code}", headers={"Origin": one.url})
                assert again.status_code == 401, "a link is good once, at whichever server"
                await eventually(lambda: logged_in(browser, one))
                who = (await browser.get(f"{one.url}/admin/whoami")).json()
                assert (who["name"], who["role"], who["session"]) == ("admin", "admin", True)
                cookies = dict(browser.cookies)
                out = await browser.post(f"{one.url}/logout", headers={"Origin": one.url})
                assert out.status_code == 204
                browser.cookies.update(cookies)
                assert not await logged_in(browser, one)

                async def is_over() -> bool:
                    return not await logged_in(browser, other)

                await eventually(is_over)

    async def test_a_restart_logs_nobody_out(self, store_url: str, tmp_path: Path):
        async with Admin(store_url, folder=tmp_path) as admin:
            token = await admin.token("viewer", name="ann")
            async with admin.browser() as browser:
                cookies = dict(browser.cookies)
        async with Admin(store_url, folder=tmp_path) as admin:
            assert await status(admin, token) == 200
            async with admin.client() as browser:
                browser.cookies.update(cookies)
                assert (await browser.get("/admin/whoami")).json()["session"] is True

    async def test_a_server_with_another_key_says_so_and_has_its_own(
        self, store_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        async with (
            Admin(store_url, folder=tmp_path / "a") as one,
            Admin(store_url, folder=tmp_path / "b") as other,
        ):
            assert one.parts.shared is not None
            assert other.parts.shared is not None
            assert (one.parts.shared.shared, other.parts.shared.shared) == (True, False)
            assert "authenticated with another key" in caplog.text
            assert "server-key" in caplog.text
            assert await status(one, other.tokens["viewer"]) == 401
            assert await status(other, one.tokens["viewer"]) == 401
            assert await status(other, one.tokens["admin"]) == 401
            assert await status(other, other.tokens["viewer"]) == 200
            audit = await other.get("/admin/audit", as_="admin")
            assert audit.status_code == 200
            theirs = (tmp_path / "b" / "data" / "server-key").read_text()
        shutil.copy(tmp_path / "a" / "data" / "server-key", tmp_path / "b" / "data" / "server-key")
        assert (tmp_path / "b" / "data" / "server-key").read_text() != theirs
        async with Admin(store_url, folder=tmp_path / "b") as other:
            assert await status(other, one.tokens["viewer"]) == 200

    async def test_a_writer_of_the_store_cannot_become_an_admin(
        self, store_url: str, tmp_path: Path
    ):
        async with Admin(store_url, folder=tmp_path) as admin:
            mine, text = await admin.parts.tokens.create("mallory", "viewer")
            name = f"/mooring/tokens/{mine.id}".encode()
            entry = (await admin.hub.store.read(key(name))).first
            assert entry is not None
            forged = entry.value.replace(b'"viewer"', b'"admin"')
            assert forged != entry.value
            await admin.hub.store.commit(Put(name, forged))
            await becomes(401, admin, text)
            await admin.hub.store.commit(Put(name, entry.value))
            for _ in range(3):
                assert await status(admin, text) == 401


@pytest.mark.parametrize("backend", ["memory", "redis-7.0"])
async def test_without_a_store_that_lasts_they_are_in_a_file_of_the_folder(
    store_url: str, tmp_path: Path
):
    async with Admin(store_url, folder=tmp_path) as admin:
        token = admin.tokens["operator"]
        async with admin.browser() as browser:
            cookies = dict(browser.cookies)
    assert (tmp_path / "data" / sharing.LOCAL).is_file()
    assert (tmp_path / "data" / sharing.LOCAL).stat().st_mode & 0o777 == 0o600
    async with Admin(store_url, folder=tmp_path) as admin:
        assert await status(admin, token) == 200
        async with admin.client() as browser:
            browser.cookies.update(cookies)
            assert (await browser.get("/admin/whoami")).json()["session"] is True
        methods = [each["method"] for each in (await admin.get("/admin/audit", as_="admin")).json()]
        assert methods == ["POST"], "the login"


class TestWhileTheStoreIsAway:
    async def test_tokens_go_on_and_after_an_hour_only_for_reading(
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
    async def test_a_start_waits_for_nothing_and_the_admin_token_is_good(
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


async def test_a_token_that_was_revoked_does_not_come_back_in_an_etcd_made_again(
    fresh_etcd: Callable[..., EtcdServer], tmp_path: Path
):
    """Under the same flags it has the same cluster id, and counts its revisions from the beginning:
    a writer that saved the records can repeat the whole history."""
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
        found = await one.hub.store.read(prefix(b"/mooring/tokens/"))
        saved = {entry.key: entry for entry in found.entries}
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


async def test_tokens_are_valid_again_when_an_etcd_that_was_empty_has_its_data_back(
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


async def test_a_full_etcd_takes_logins_logouts_and_revocations(
    fresh_etcd: Callable[..., EtcdServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It refuses every transaction, also one that only deletes."""
    monkeypatch.setattr(tokens, "_LOOK", 0.0)
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
            while True:  # etcd looks at its size now and then
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
        one.parts.folder.admin_token.unlink()
        await becomes(401, other, one.tokens["admin"])


async def test_a_full_store_does_not_keep_a_token_from_being_revoked(tmp_path: Path):
    url = f"sqlite://{tmp_path / 'store'}?quota=200KiB"
    async with Admin(url, folder=tmp_path) as admin:
        made = (
            await admin.post("/admin/tokens", {"name": "ann", "role": "viewer"}, as_="admin")
        ).json()
        with pytest.raises(OutOfSpace):
            await admin.hub.store.commit(Put(b"big", b"x" * 300_000))
        answer = await admin.delete(f"/admin/tokens/{made['id']}", as_="admin")
        assert (answer.status_code, answer.json()["state"]) == (200, "revoked")
        assert await status(admin, made["token"]) == 401
        written = (tmp_path / "data" / "audit.jsonl").read_text().splitlines()[-1]
        assert "out of space" in written
