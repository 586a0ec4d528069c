"""Access control: roles, scopes, tokens, sessions and the data folder."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from mooring.backends import open_store
from mooring.errors import AccessDenied, InvalidRequest, OutcomeUnknown, OutOfSpace, Unavailable
from mooring.server.auth import data_dir as folder_module
from mooring.server.auth import record_store as sharing_module
from mooring.server.auth import sessions as sessions_module
from mooring.server.auth import tokens as tokens_module
from mooring.server.auth.authorization import (
    DISCOVERING,
    OPEN,
    READING,
    ROLES,
    Principal,
    Role,
    need,
    objection,
    scope,
)
from mooring.server.auth.data_dir import DataDir, is_trusted
from mooring.server.auth.sessions import CODE_LASTS, COOKIE, SESSION_LASTS, Login, Sessions
from mooring.server.auth.signed_records import ServerKey, SignedRecords
from mooring.server.auth.tokens import ADMIN, Token, Tokens, digest
from mooring.store import Delete, Put, Store, everything, key
from tests.waiting import eventually

KEY = ServerKey(b"k" * 32)
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def wall(self) -> datetime.datetime:
        return START + datetime.timedelta(seconds=self.seconds)


@pytest.fixture
def folder(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "data")
    made.prepare()
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store("memory://") as opened:
        yield opened


@contextlib.asynccontextmanager
async def opened(folder: DataDir, store: Store, clock: Clock) -> AsyncIterator[Tokens]:
    tokens = Tokens(folder, clock=clock.wall)
    async with SignedRecords(store, KEY, "tokens", Token, changed=tokens.changed) as records:
        await records.mirror.ready()
        tokens.attach(records)
        yield tokens


@pytest.fixture
async def tokens(
    folder: DataDir, clock: Clock, store: Store, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Tokens]:
    monkeypatch.setattr(tokens_module, "_REFRESH", 0.0)
    async with opened(folder, store, clock) as made:
        yield made


def request(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": pairs})


def ids(tokens: Tokens) -> set[str]:
    return {token.id for token in tokens.listed()}


class Unanswered(SignedRecords[Login]):
    """A store of records whose writes arrive, but whose replies are lost."""

    async def create(self, id: str, content: Login, *, ttl: float | None = None) -> None:
        await super().create(id, content, ttl=ttl)
        raise OutcomeUnknown("the reply was lost")


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


class TestPrincipals:
    @pytest.mark.parametrize(
        ("wanted", "may"),
        [
            (need("viewer"), {"viewer", "operator", "admin"}),
            (need("operator"), {"operator", "admin"}),
            (need("admin"), {"admin"}),
            (need("service"), {"service", "operator", "admin"}),
            (READING, {"viewer", "operator", "admin"}),
            (OPEN, set(ROLES)),
        ],
    )
    def test_which_roles_suffice(self, wanted, may: set[str]):
        assert {r for r in ROLES if not objection(Principal("p", r), wanted)} == may

    def test_a_refusal_names_the_role(self):
        refusal = objection(Principal("p", "operator"), need("admin"))
        assert str(refusal) == "p has the role operator: this requires the role admin"

    @given(st.sampled_from(ROLES), st.sets(st.sampled_from("abc")), st.sampled_from("abcd"))
    def test_a_group_outside_the_scope_is_out_of_reach(
        self, role: Role, groups: set[str], group: str
    ):
        principal = Principal("p", role, *scope(groups, ()))
        refused = bool(objection(principal, DISCOVERING, service=f"{group}/s"))
        assert refused == bool(groups and group not in groups)

    def test_a_bare_name_is_in_the_default_group(self):
        principal = Principal("p", "viewer", *scope(["default"], ()))
        assert not objection(principal, DISCOVERING, service="s")
        assert objection(principal, DISCOVERING, service="Common/s")

    def test_without_a_service_there_is_no_group(self):
        assert objection(Principal("p", "admin"), need("viewer", "group"))

    @pytest.mark.parametrize("tenant", [None, 2])
    def test_a_tenant_outside_the_scope_is_out_of_reach(self, tenant: int | None):
        principal = Principal("p", "admin", *scope((), [1]))
        assert objection(principal, need("viewer", "tenant"), tenant=tenant)
        assert not objection(principal, need("viewer", "tenant"), tenant=1)

    @pytest.mark.parametrize(("groups", "tenants"), [(["a"], []), ([], [1]), (["a"], [1])])
    def test_a_scoped_principal_cannot_do_what_concerns_everything(self, groups, tenants):
        principal = Principal("p", "admin", *scope(groups, tenants))
        assert objection(principal, need("admin", "everything"))
        assert not objection(Principal("p", "admin"), need("admin", "everything"))

    def test_scoped_to_groups_means_no_tenants(self):
        principal = Principal("p", "admin", *scope(["a"], ()))
        assert not principal.sees_tenant(1)
        assert objection(principal, need("viewer", "tenant"), tenant=1)


class TestFolder:
    def test_the_folder_and_its_files_are_private(self, folder: DataDir):
        folder.server_key()
        folder.server_id()
        folder.announce("http://127.0.0.1:1")
        assert mode(folder.path) == 0o700
        assert {file.name: mode(file) for file in folder.path.iterdir()} == {
            ".lock": 0o600,
            "admin-token": 0o600,
            "server-id": 0o600,
            "server-key": 0o600,
            "server.json": 0o600,
        }

    def test_the_admin_token_is_created_once(self, folder: DataDir):
        token = folder.read_admin_token()
        folder.prepare()
        assert folder.read_admin_token() == token
        assert len(token) > 40

    def test_concurrent_servers_agree_on_the_admin_token(self, tmp_path: Path):
        tokens: list[str] = []

        def start() -> None:
            folder = DataDir(tmp_path / "shared")
            folder.prepare()
            tokens.append(folder.read_admin_token())

        threads = [threading.Thread(target=start) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tokens) == 16
        assert len(set(tokens)) == 1

    @pytest.mark.parametrize("writable", [0o777, 0o770, 0o720, 0o702, 0o2775, 0o1777])
    def test_a_folder_that_others_can_write_to_is_refused(self, folder: DataDir, writable: int):
        folder.path.chmod(writable)
        with pytest.raises(InvalidRequest, match="chmod 700"):
            folder.prepare()
        with pytest.raises(InvalidRequest, match="chmod 700"):
            folder.read_admin_token()
        folder.path.chmod(0o755)
        folder.prepare()

    @pytest.mark.parametrize(
        ("owner", "me", "of_folder", "trusted"),
        [
            (1000, 1000, 1000, True),
            (0, 1000, 1000, True),
            (0, 1000, 0, True),
            (1001, 1000, 1000, False),
            (1001, 1000, 1001, False),
            (0, 0, 0, True),
            (1000, 0, 1000, True),
            (1001, 0, 1000, False),
            (1001, 0, 0, False),
        ],
    )
    def test_whose_files_are_trusted(self, owner: int, me: int, of_folder: int, trusted: bool):
        assert is_trusted(owner, me=me, of_folder=of_folder) is trusted

    def test_files_of_another_user_are_refused(
        self, folder: DataDir, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(folder_module, "is_trusted", lambda owner, **_: False)
        with pytest.raises(InvalidRequest, match="belongs to another user"):
            folder.prepare()
        for file in (folder.admin_token, folder.path / "server.json"):
            file.touch(mode=0o600)
            monkeypatch.setattr(folder, "check", folder.path.stat)
            with pytest.raises(InvalidRequest, match=f"{file.name} belongs to another user"):
                folder.read(file, closed=0o022)

    def test_links_and_special_files_are_refused(self, folder: DataDir):
        file, elsewhere = folder.admin_token, folder.path / "elsewhere"
        file.rename(elsewhere)
        file.symlink_to(elsewhere)
        with pytest.raises(InvalidRequest, match="symbolic link"):
            Tokens(folder)
        file.unlink()
        os.mkfifo(file, 0o600)
        with pytest.raises(InvalidRequest, match="not a regular file"):
            Tokens(folder)

    @pytest.mark.parametrize("writable", [0o620, 0o602, 0o666])
    def test_an_announcement_that_others_can_write_is_refused(self, folder: DataDir, writable: int):
        folder.announce("http://127.0.0.1:7480")
        file = folder.path / "server.json"
        file.chmod(0o644)  # as a copy has it
        assert folder.running() is not None
        file.chmod(writable)
        with pytest.raises(InvalidRequest, match=r"server.json is not private"):
            folder.running()

    def test_the_server_key_is_created_once_and_private(
        self, folder: DataDir, monkeypatch: pytest.MonkeyPatch
    ):
        made = folder.server_key()
        assert len(made) >= 43
        assert folder.server_key() == made
        assert folder.server_id() == folder.server_id()
        monkeypatch.setenv("MOORING_SERVER_KEY", "x" * 40)
        assert folder.server_key() == b"x" * 40
        monkeypatch.setenv("MOORING_SERVER_KEY", "too short")
        with pytest.raises(InvalidRequest, match="MOORING_SERVER_KEY is not a server key"):
            folder.server_key()
        monkeypatch.delenv("MOORING_SERVER_KEY")
        (folder.path / "server-key").chmod(0o640)
        with pytest.raises(InvalidRequest, match="other users can read"):
            folder.server_key()

    @pytest.mark.parametrize("readable", [0o644, 0o640, 0o604])
    def test_an_admin_token_that_others_can_read_is_refused(
        self, folder: DataDir, tokens: Tokens, readable: int
    ):
        text = folder.read_admin_token()
        assert tokens.bearer(text) is not None
        folder.admin_token.chmod(readable)
        with pytest.raises(InvalidRequest, match="other users can read"):
            folder.prepare()
        assert tokens.bearer(text) is None

    @pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 40, b"two words " * 10])
    def test_an_invalid_admin_token_is_refused(self, folder: DataDir, content: bytes):
        folder.admin_token.write_bytes(content)
        with pytest.raises(InvalidRequest, match="remove it"):
            folder.prepare()

    def test_the_error_for_a_folder_that_cannot_be_created_says_what_to_do(self, tmp_path: Path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidRequest, match="--data"):
            DataDir(tmp_path / "file" / "data").prepare()

    def test_an_announcement_that_others_could_forge_is_refused(self, folder: DataDir):
        folder.announce("http://127.0.0.1:1")
        (folder.path / "server.json").chmod(0o666)
        with pytest.raises(InvalidRequest, match="other users can write to it"):
            folder.running()

    def test_a_server_retracts_only_its_own_announcement(self, folder: DataDir):
        folder.announce("http://127.0.0.1:1")
        folder.retract("http://127.0.0.1:2")
        running = folder.running()
        assert running is not None
        assert (running.url, running.pid) == ("http://127.0.0.1:1", os.getpid())
        folder.retract("http://127.0.0.1:1")
        assert folder.running() is None


class TestTokens:
    async def test_a_token_authenticates_its_principal(self, tokens: Tokens):
        made, text = await tokens.create("ann", "operator", groups=["b", "a", "a"], tenants=[7])
        assert tokens.bearer(text) == Principal(
            "ann", "operator", frozenset("ab"), frozenset([7]), token=made.id
        )
        for wrong in ("", text[:-1], text + "x", made.id, made.sha256, "ü", "\ud800"):
            assert tokens.bearer(wrong) is None

    def test_the_admin_token_is_the_file(self, tokens: Tokens, folder: DataDir):
        text = folder.read_admin_token()
        assert tokens.bearer(text) == Principal("admin", "admin", token=ADMIN)
        folder.admin_token.unlink()
        assert tokens.bearer(text) is None
        folder.prepare()
        assert tokens.bearer(text) is None
        assert tokens.bearer(folder.read_admin_token()) is not None

    async def test_no_usable_secret_is_stored_or_shown(self, tokens: Tokens, store: Store):
        made, text = await tokens.create("ann", "viewer")
        kept = repr([entry.value for entry in (await store.read(everything())).entries])
        assert made.sha256 in kept
        assert text not in kept
        assert text.removeprefix("moor_") not in kept
        assert made.sha256 not in repr(made)
        assert text not in repr(tokens.listed())

    async def test_a_token_expires(self, tokens: Tokens, clock: Clock):
        _, text = await tokens.create("ann", "viewer", lasts=60)
        clock.seconds = 59.9
        assert tokens.bearer(text) is not None
        clock.seconds = 60
        assert tokens.bearer(text) is None

    async def test_a_token_is_revoked_at_once_and_stays_listed_for_a_while(
        self, tokens: Tokens, clock: Clock
    ):
        made, text = await tokens.create("ann", "viewer")
        assert tokens.bearer(text) is not None
        assert await tokens.revoke(made.id) is not None
        assert tokens.bearer(text) is None
        assert [token.id for token in tokens.listed()] == [ADMIN, made.id]
        clock.seconds = 91 * 86400
        await tokens.create("bob", "viewer")
        assert made.id not in [token.id for token in tokens.listed()]

    async def test_an_unknown_token_and_the_admin_token_cannot_be_revoked(self, tokens: Tokens):
        assert await tokens.revoke("nothing") is None
        with pytest.raises(InvalidRequest, match="admin-token"):
            await tokens.revoke(ADMIN)

    async def test_another_server_of_the_store_knows_a_token_and_its_revocation(
        self, tokens: Tokens, folder: DataDir, store: Store, clock: Clock
    ):
        async with opened(folder, store, clock) as other:
            made, text = await other.create("ann", "viewer")
            await eventually(lambda: tokens.bearer(text) is not None)
            await tokens.revoke(made.id)
            assert tokens.bearer(text) is None
            await eventually(lambda: other.bearer(text) is None)

    async def test_concurrent_writes_of_two_servers_are_all_kept(
        self, tokens: Tokens, folder: DataDir, store: Store, clock: Clock
    ):
        async with opened(folder, store, clock) as other:
            made = await asyncio.gather(
                *(one.create("ann", "viewer") for one in (tokens, other) * 15)
            )
            ids = [token.id for token, _ in made]
            await asyncio.gather(*(one.revoke(id) for one in (tokens, other) for id in ids))
            await eventually(lambda: len(other.listed()) == len(tokens.listed()) == 31)
            assert all(tokens.bearer(text) is None for _, text in made)

    async def test_the_admin_token_of_a_server_is_known_to_the_others(
        self, tokens: Tokens, folder: DataDir, store: Store, clock: Clock, tmp_path: Path
    ):
        elsewhere = DataDir(tmp_path / "elsewhere")
        elsewhere.prepare()
        async with opened(elsewhere, store, clock) as other:
            text = folder.read_admin_token()
            assert other.bearer(text) is None
            await tokens.share_admin("one")
            await eventually(lambda: other.bearer(text) is not None)
            assert other.listed()[-1].id == "admin-one"
            assert [token.id for token in tokens.listed()] == [ADMIN]
            with pytest.raises(InvalidRequest, match="admin-token"):
                await tokens.revoke("admin-one")
            folder.admin_token.unlink()
            folder.prepare()
            await tokens.share_admin("one")
            await eventually(lambda: other.bearer(folder.read_admin_token()) is not None)
            assert other.bearer(text) is None
            await other.revoke("admin-one")
            await tokens.share_admin("one")
            assert other.bearer(folder.read_admin_token()) is None
            folder.admin_token.unlink()

            async def is_gone() -> bool:
                await tokens.share_admin("one")
                return len(other.listed()) == 1

            await eventually(is_gone)

    async def test_a_writer_cannot_undo_the_revocation_of_a_shared_admin_token(
        self,
        folder: DataDir,
        store: Store,
        clock: Clock,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        monkeypatch.setattr(tokens_module, "_REFRESH", 0.0)
        elsewhere = DataDir(tmp_path / "elsewhere")
        elsewhere.prepare()
        async with opened(elsewhere, store, clock) as other:
            async with opened(folder, store, clock) as tokens:
                await tokens.share_admin("one")
                await eventually(lambda: "admin-one" in ids(other))
                await other.revoke("admin-one")
                await store.commit(Delete(key(b"/mooring/tokens/admin-one")))
                await eventually(lambda: "admin-one" not in ids(other))
                for _ in range(3):
                    await tokens.share_admin("one")
            async with opened(folder, store, clock) as restarted:
                await restarted.share_admin("one")
                assert (await store.read(key(b"/mooring/tokens/admin-one"))).first is None
                assert other.bearer(folder.read_admin_token()) is None
                assert "was deleted" in caplog.text
                assert str(folder.admin_token) in caplog.text
                folder.admin_token.unlink()
                folder.prepare()
                await restarted.share_admin("one")
                await eventually(lambda: other.bearer(folder.read_admin_token()) is not None)

    async def test_an_admin_token_that_was_out_of_use_is_shared_again(
        self, tokens: Tokens, folder: DataDir, store: Store, clock: Clock, tmp_path: Path
    ):
        elsewhere = DataDir(tmp_path / "elsewhere")
        elsewhere.prepare()
        async with opened(elsewhere, store, clock) as other:
            text = folder.read_admin_token()
            await tokens.share_admin("one")
            await eventually(lambda: other.bearer(text) is not None)
            folder.admin_token.chmod(0o644)
            await tokens.share_admin("one")
            await eventually(lambda: other.bearer(text) is None)
            folder.admin_token.chmod(0o600)
            await tokens.share_admin("one")
            await eventually(lambda: other.bearer(text) is not None)

    async def test_the_revocation_of_an_admin_token_is_kept_forever(
        self, tokens: Tokens, folder: DataDir, store: Store, clock: Clock, tmp_path: Path
    ):
        elsewhere = DataDir(tmp_path / "elsewhere")
        elsewhere.prepare()
        async with opened(elsewhere, store, clock) as other:
            await tokens.share_admin("one")
            await eventually(lambda: "admin-one" in ids(other))
            await other.revoke("admin-one")
            made, _ = await other.create("ann", "viewer")
            await other.revoke(made.id)
            await eventually(lambda: all(token.revoked for token in other.listed()[1:]))
            clock.seconds = 100 * 86400.0
            await other.create("bob", "viewer")
            await eventually(lambda: made.id not in ids(other))
            assert "admin-one" in ids(other)

    @pytest.mark.parametrize("value", [b"{}", b"junk"])
    async def test_a_forged_record_does_not_keep_an_admin_token_from_being_shared(
        self, tokens: Tokens, store: Store, value: bytes, caplog: pytest.LogCaptureFixture
    ):
        """`{}` is left by a server that was killed while it shared its token."""
        name = b"/mooring/tokens/admin-one"
        await store.commit(Put(name, value))
        await tokens.share_admin("one")
        entry = (await store.read(key(name))).first
        assert entry is not None
        assert b"sha256" in entry.value
        assert "deleted /mooring/tokens/admin-one" in caplog.text

    async def test_a_token_can_be_revoked_if_the_store_is_full(
        self, folder: DataDir, clock: Clock, caplog: pytest.LogCaptureFixture
    ):
        async with (
            open_store("memory://?quota=50KiB") as store,
            opened(folder, store, clock) as all,
        ):
            made, text = await all.create("ann", "viewer")
            with pytest.raises(OutOfSpace):
                await store.commit(Put(b"big", b"x" * 100_000))
            with pytest.raises(OutOfSpace):
                await all.create("bob", "viewer")
            revoked = await all.revoke(made.id)
            assert revoked is not None
            assert revoked.revoked == clock.wall()
            assert all.bearer(text) is None
            name = f"/mooring/tokens/{made.id}"
            assert (await store.read(key(name.encode()))).first is None
            assert "was deleted instead" in caplog.text
            assert await all.revoke(made.id) is None

    @pytest.mark.parametrize("lasts", [0.0, -1.0, 1e300])
    async def test_an_invalid_lifetime_is_refused(self, tokens: Tokens, lasts: float):
        with pytest.raises(InvalidRequest):
            await tokens.create("ann", "viewer", lasts=lasts)

    async def test_an_invalid_group_is_refused(self, tokens: Tokens):
        with pytest.raises(InvalidRequest):
            await tokens.create("ann", "viewer", groups=["a/b"])


class TestPatience:
    async def test_a_call_is_retried_while_the_store_is_unavailable(
        self, caplog: pytest.LogCaptureFixture
    ):
        answers: list[Exception | str] = [Unavailable("gone"), Unavailable("still gone"), "back"]

        async def ask() -> str:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        assert await sharing_module._retried(ask) == "back"
        (line,) = caplog.messages
        assert "only the admin token is accepted until the store answers: gone" in line

    async def test_a_refusal_is_final(self):
        async def ask() -> str:
            raise AccessDenied("no")

        with pytest.raises(AccessDenied):
            await sharing_module._retried(ask)


class TestSessions:
    @pytest.fixture(params=["in the store", "here alone"])
    async def sessions(
        self, request: pytest.FixtureRequest, tokens: Tokens, clock: Clock, store: Store
    ) -> AsyncIterator[Sessions]:
        made = Sessions(tokens, secure=True, clock=clock)
        async with (
            SignedRecords(store, KEY, "sessions", Login) as sessions,
            SignedRecords(store, KEY, "login-links", Login) as codes,
        ):
            if request.param == "in the store":
                await sessions.mirror.ready()
                await codes.mirror.ready()
                made.attach(sessions, codes)
            yield made

    async def cookie(self, sessions: Sessions, token: str = ADMIN) -> str:
        begun = await sessions.redeem(await sessions.issue(token))
        assert begun is not None
        return begun[1].partition(";")[0]

    async def test_a_code_is_valid_once(self, sessions: Sessions):
        code = await sessions.issue(ADMIN)
        begun = await sessions.redeem(code)
        assert begun is not None
        assert begun[0].token == ADMIN
        assert begun[0].session
        assert await sessions.redeem(code) is None
        assert await sessions.redeem("") is None

    async def test_a_code_is_valid_for_ten_minutes(self, sessions: Sessions, clock: Clock):
        code, later = await sessions.issue(ADMIN), await sessions.issue(ADMIN)
        clock.seconds = CODE_LASTS - 1
        assert await sessions.redeem(code) is not None
        clock.seconds = CODE_LASTS
        assert await sessions.redeem(later) is None

    async def test_the_cookie_identifies_the_session(self, sessions: Sessions, clock: Clock):
        cookie = await self.cookie(sessions)
        principal = sessions.principal(request(cookie=cookie))
        assert principal is not None
        assert (principal.role, bool(principal.session)) == ("admin", True)
        name = sessions.cookie
        for other in ("", f"{name}=", f"{name}=x", f"x{cookie}", cookie.upper()):
            assert sessions.principal(request(cookie=other)) is None
        assert sessions.principal(request(cookie=f"{name}=other; a=b; {cookie}")) == principal
        clock.seconds = SESSION_LASTS
        assert sessions.principal(request(cookie=cookie)) is None

    async def test_the_cookie_has_flags_that_protect_it(self, sessions: Sessions, tokens: Tokens):
        begun = await sessions.redeem(await sessions.issue(ADMIN))
        assert begun is not None
        flags = begun[1].split("; ")[1:]
        assert set(flags) == {
            "Max-Age=43200",
            "Path=/",
            "HttpOnly",
            "SameSite=Strict",
            "Secure",
        }
        assert "Secure" not in Sessions(tokens, secure=False).removal_cookie

    async def test_with_tls_no_other_host_can_set_the_cookie(
        self, sessions: Sessions, tokens: Tokens
    ):
        assert sessions.cookie == f"__Host-{COOKIE}"
        assert sessions.removal_cookie.startswith(f"__Host-{COOKIE}=;")
        cookie = await self.cookie(sessions)
        assert sessions.principal(request(cookie=cookie)) is not None
        assert sessions.principal(request(cookie=cookie.removeprefix("__Host-"))) is None
        assert Sessions(tokens, secure=False).cookie == COOKIE

    async def test_two_sessions_in_one_request_are_both_ignored(
        self, sessions: Sessions, tokens: Tokens
    ):
        mine = await self.cookie(sessions)
        theirs = await self.cookie(sessions, (await tokens.create("eve", "admin"))[0].id)
        for both in (f"{theirs}; {mine}", f"{mine}; {theirs}"):
            assert sessions.principal(request(cookie=both)) is None
        again = sessions.principal(request(cookie=f"{mine}; {mine}"))
        assert again is not None
        assert again.token == ADMIN
        await sessions.end(request(cookie=theirs))
        assert sessions.principal(request(cookie=f"{theirs}; {mine}")) == again

    async def test_junk_cookies_are_ignored(self, sessions: Sessions):
        mine, name = await self.cookie(sessions), sessions.cookie
        junk = [f"{name}={'j' * length}" for length in range(1, 150)] + [f"{name}={'x' * 43}"] * 150
        assert sessions.principal(request(cookie="; ".join([*junk, mine]))) is not None
        endless = [f"{name}={n:043d}" for n in range(10_000)]
        assert sessions.principal(request(cookie="; ".join([*endless, mine]))) is None

    async def test_a_session_ends_with_its_token(
        self, sessions: Sessions, tokens: Tokens, clock: Clock
    ):
        made, text = await tokens.create("ann", "viewer", lasts=60)
        expiring = await self.cookie(sessions, made.id)
        other, _ = await tokens.create("bob", "viewer")
        revoked = await self.cookie(sessions, other.id)
        code = await sessions.issue(other.id)
        assert sessions.principal(request(cookie=revoked)) is not None
        await tokens.revoke(other.id)
        assert sessions.principal(request(cookie=revoked)) is None
        assert await sessions.redeem(code) is None
        assert await sessions.issue(other.id) == ""
        assert sessions.principal(request(cookie=expiring)) is not None
        clock.seconds = 60
        assert sessions.principal(request(cookie=expiring)) is None
        assert await sessions.start(text) is None

    async def test_a_session_ends_when_the_admin_token_changes(
        self, sessions: Sessions, folder: DataDir
    ):
        cookie = await self.cookie(sessions)
        folder.admin_token.unlink()
        folder.prepare()
        assert sessions.principal(request(cookie=cookie)) is None

    async def test_logging_out_ends_the_session(self, sessions: Sessions):
        cookie = await self.cookie(sessions)
        await sessions.end(request(cookie=cookie))
        assert sessions.principal(request(cookie=cookie)) is None
        assert "Max-Age=0" in sessions.removal_cookie

    async def test_memory_is_bounded(self, sessions: Sessions, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sessions_module, "MOST", 3)
        cookies = [await self.cookie(sessions) for _ in range(5)]
        assert len(sessions._sessions) == 3
        assert sessions.principal(request(cookie=cookies[0])) is None
        assert sessions.principal(request(cookie=cookies[-1])) is not None

    async def test_neither_codes_nor_cookies_are_stored(self, sessions: Sessions, store: Store):
        code = await sessions.issue(ADMIN)
        cookie = (await self.cookie(sessions)).partition("=")[2]
        kept = repr([vars(sessions), vars(sessions._codes), vars(sessions._sessions)])
        kept += repr((await store.read(everything())).entries)
        kept += repr([entry.value for entry in (await store.read(everything())).entries])
        assert code not in kept
        assert cookie not in kept
        assert digest(code) in kept

    async def test_a_code_is_valid_once_and_a_logout_counts_even_if_the_reply_was_lost(
        self, tokens: Tokens, clock: Clock, store: Store
    ):
        made = Sessions(tokens, secure=True, clock=clock)
        async with (
            Unanswered(store, KEY, "sessions", Login) as sessions,
            Unanswered(store, KEY, "login-links", Login) as codes,
        ):
            await sessions.mirror.ready()
            await codes.mirror.ready()
            made.attach(sessions, codes)
            code = await made.issue(ADMIN)
            begun = await made.redeem(code)
            assert begun is not None
            assert await made.redeem(code) is None
            cookie = begun[1].partition(";")[0]
            assert made.principal(request(cookie=cookie)) is not None
            await made.end(request(cookie=cookie))
            assert made.principal(request(cookie=cookie)) is None
            for shared in (sessions, codes):
                assert shared.get(digest(code)) is None
                assert shared.get(digest(cookie.partition("=")[2])) is None
