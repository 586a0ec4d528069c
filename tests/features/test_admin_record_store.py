"""Several servers of one store: with the same key they share tokens and sessions."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from mooring.errors import OutOfSpace
from mooring.server.auth import record_store as sharing
from mooring.store import Put, key
from tests.admin import Admin
from tests.waiting import eventually


def given_key(tmp_path: Path, *names: str) -> list[Path]:
    """Folders of future servers with the same key, as an operator copies it."""
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

            async def known() -> bool:
                listed = (await other.get("/admin/tokens", as_="admin")).json()
                return made["id"] in [token["id"] for token in listed]

            # Wrong tokens are limited, so the token is used only once it is known.
            assert await eventually(known) < 3
            assert await status(other, made["token"]) == 200
            await one.delete(f"/admin/tokens/{made['id']}", as_="admin")
            assert await status(one, made["token"]) == 401
            assert await becomes(401, other, made["token"]) < 3

    async def test_sessions_and_links_are_valid_on_all_servers(
        self, store_url: str, tmp_path: Path
    ):
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
                principal = (await browser.get(f"{one.url}/admin/whoami")).json()
                assert (principal["name"], principal["role"], principal["session"]) == (
                    "admin",
                    "admin",
                    True,
                )
                cookies = dict(browser.cookies)
                out = await browser.post(f"{one.url}/logout", headers={"Origin": one.url})
                assert out.status_code == 204
                browser.cookies.update(cookies)
                assert not await logged_in(browser, one)

                async def is_over() -> bool:
                    return not await logged_in(browser, other)

                await eventually(is_over)

    async def test_a_restart_ends_no_session(self, store_url: str, tmp_path: Path):
        async with Admin(store_url, folder=tmp_path) as admin:
            token = await admin.token("viewer", name="ann")
            async with admin.browser() as browser:
                cookies = dict(browser.cookies)
        async with Admin(store_url, folder=tmp_path) as admin:
            assert await status(admin, token) == 200
            async with admin.client() as browser:
                browser.cookies.update(cookies)
                assert (await browser.get("/admin/whoami")).json()["session"] is True

    async def test_a_server_with_another_key_reports_that_and_has_separate_tokens(
        self, store_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        async with (
            Admin(store_url, folder=tmp_path / "a") as one,
            Admin(store_url, folder=tmp_path / "b") as other,
        ):
            assert one.server.shared is not None
            assert other.server.shared is not None
            assert (one.server.shared.shared, other.server.shared.shared) == (True, False)
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
            mine, text = await admin.server.tokens.create("mallory", "viewer")
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
async def test_without_a_durable_store_tokens_are_in_a_file_of_the_folder(
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
        methods = [
            entry["method"] for entry in (await admin.get("/admin/audit", as_="admin")).json()
        ]
        assert methods == ["POST"], "the login"


async def test_a_token_can_be_revoked_if_the_store_is_full(tmp_path: Path):
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
        assert '"deleted":"out_of_space"' in written
