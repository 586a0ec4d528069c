"""What etcd refuses: users, passwords, permissions, certificates, space. The errors are clear."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mooring.backends import open_store
from mooring.errors import AccessDenied, OutcomeUnknown, OutOfSpace, Unavailable
from mooring.hub import connect
from mooring.mirror import Mirror, RangeFeed
from mooring.session import Session
from mooring.store import Delete, Put, Query, key, prefix
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.waiting import eventually

SECRET = "s3cret-word"
SAME_LOGIN = "the client logs in again by the same code; the quicker tests of users run on 3.4 too"
OLDER = pytest.param("3.4", marks=pytest.mark.extended(SAME_LOGIN))


@pytest.fixture(scope="module", params=["3.5", "3.4"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EtcdServer]:
    """An etcd with authentication, short-lived tokens, and the least sufficient role."""
    folder = tmp_path_factory.mktemp("etcd")
    with EtcdServer(
        folder, series=request.param, flags=["--auth-token-ttl=1", "--bcrypt-cost=4"]
    ) as server:
        server.start()
        server.ctl("user", "add", "root:root")
        server.ctl("user", "grant-role", "root", "root")
        server.ctl("role", "add", "mooring")
        server.ctl("role", "grant-permission", "mooring", "--prefix=true", "readwrite", "/team/")
        server.ctl("user", "add", f"app:{SECRET}")
        server.ctl("user", "grant-role", "app", "mooring")
        server.ctl("auth", "enable")
        yield server


def encrypted_server(folder: Path, certificates: Path, *flags: str) -> EtcdServer:
    server = EtcdServer(
        folder,
        scheme="https",
        flags=[
            f"--cert-file={certificates}/server.pem",
            f"--key-file={certificates}/server.key",
            *flags,
        ],
    )
    server.start()
    return server


@pytest.fixture(scope="module")
def encrypted(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with encrypted_server(tmp_path_factory.mktemp("etcd"), certificates) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    flags = ["--client-cert-auth", f"--trusted-ca-file={certificates}/ca.pem"]
    with encrypted_server(tmp_path_factory.mktemp("etcd"), certificates, *flags) as server:
        yield server


class TestUsers:
    def url(self, server: EtcdServer, password: str = SECRET) -> str:
        return f"etcd://app:{password}@{server.address}?timeout=3s"

    async def test_the_least_role_suffices(self, guarded: EtcdServer):
        async with connect(self.url(guarded) + "&namespace=/team/") as hub:
            async with hub.session(ttl=5) as session, hub.mirror(prefix(b"a")) as mirror:
                await hub.store.commit(Put(b"a", b"1", session.lease))
                await eventually(lambda: len(mirror.items) == 1)
                await hub.store.renew(session.lease)
                await hub.store.commit(Delete(key(b"a")))
                await eventually(lambda: len(mirror.items) == 0)
            assert (await hub.store.status()).members[0].problem is None

    @pytest.mark.parametrize("guarded", ["3.5", OLDER], indirect=True)
    async def test_a_rotated_password_file_is_read_at_the_next_login(
        self, guarded: EtcdServer, tmp_path: Path
    ):
        """Between the rotation and the new file no login works; the lease survives meanwhile."""
        root = ["--user=root:root"]
        guarded.ctl("user", "add", "rotating:first", flags=root)
        guarded.ctl("user", "grant-role", "rotating", "mooring", flags=root)
        file = tmp_path / "password"
        file.write_text("first\n")
        url = f"etcd://rotating@{guarded.address}?timeout=3s&password_file={file}"
        try:
            async with open_store(url) as store, Session(store, ttl=5) as session:
                await store.commit(Put(b"/team/rotating", b"1", session.lease))
                change = ("user", "passwd", "rotating", "--interactive=false")
                await asyncio.to_thread(guarded.ctl, *change, flags=root, stdin="second")
                with pytest.raises(AccessDenied):
                    await store.commit(Put(b"/team/rotating", b"2", session.lease))
                file.write_bytes(b"\xff")
                with pytest.raises(AccessDenied, match="cannot be read"):
                    await store.read(key(b"/team/rotating"))
                file.unlink()
                with pytest.raises(AccessDenied, match="cannot be read"):
                    await store.read(key(b"/team/rotating"))
                await asyncio.sleep(session.ttl + 1)  # real time is what is tested
                await eventually(lambda: session.state == "alive")  # it was never lost
                file.write_text("second\n")
                await store.commit(Put(b"/team/rotating", b"2", session.lease))
        finally:
            guarded.ctl("user", "delete", "rotating", flags=root)

    @pytest.mark.parametrize("guarded", ["3.5", OLDER], indirect=True)
    async def test_an_expired_token_is_renewed(self, guarded: EtcdServer):
        async with open_store(self.url(guarded)) as store, Session(store, ttl=5) as session:
            await store.commit(Put(b"/team/m/1", b""))
            await asyncio.sleep(3)  # more than the life of the token and any delay of etcd
            await store.commit(Put(b"/team/m/2", b""))
            assert len((await store.read(prefix(b"/team/m/"))).entries) == 2
            await asyncio.sleep(3)  # nothing uses the token: a watch would keep it alive
            async with store.watch(prefix(b"/team/")) as watch:
                await store.commit(Delete(prefix(b"/team/m/")))
                async with asyncio.timeout(20):
                    await anext(watch)
            await eventually(lambda: session.state == "alive")  # it was never lost

    @pytest.mark.parametrize("guarded", ["3.5", OLDER], indirect=True)
    async def test_a_mirror_survives_an_expired_token(self, guarded: EtcdServer):
        async with (
            open_store(self.url(guarded)) as store,
            Mirror(RangeFeed(store, prefix(b"/team/m/"))) as mirror,
        ):
            await asyncio.sleep(3)
            await store.commit(Put(b"/team/m/1", b""))
            await eventually(lambda: len(mirror.items) == 1)
            await store.commit(Delete(prefix(b"/team/m/")))
            await eventually(lambda: len(mirror.items) == 0)

    @pytest.mark.deadline
    async def test_concurrent_calls_share_the_deadline_of_a_login(self, guarded: EtcdServer):
        async with FaultProxy(guarded.address) as proxy:
            proxy.blackhole()
            url = self.url(guarded).replace(guarded.address, proxy.address)
            async with open_store(url.replace("3s", "1s")) as store:
                started = time.monotonic()
                calls = (store.read(key(b"/team/a")) for _ in range(5))
                results = await asyncio.gather(*calls, return_exceptions=True)
                assert all(isinstance(result, Unavailable) for result in results)
                assert time.monotonic() - started < 2.5

    async def test_a_changed_role_does_not_invalidate_the_client(self, guarded: EtcdServer):
        async with open_store(self.url(guarded)) as store:
            await store.commit(Put(b"/team/a", b""))
            root = ["--user=root:root"]
            guarded.ctl("role", "add", f"r{time.monotonic_ns()}", flags=root)
            await store.commit(Put(b"/team/a", b"2"))
            assert (await store.read(key(b"/team/a"))).first is not None

    async def test_a_missing_permission_names_the_key(self, guarded: EtcdServer):
        async with open_store(self.url(guarded)) as store:
            for call in (
                store.read(key(b"/secret")),
                store.commit(Put(b"/secret", b"")),
                store.watch(key(b"/secret")).__aenter__(),
            ):
                with pytest.raises(AccessDenied, match=r"/secret.*permission"):
                    await call

    async def test_a_wrong_password_is_reported_and_never_shown(
        self, guarded: EtcdServer, caplog: pytest.LogCaptureFixture
    ):
        caplog.set_level(logging.DEBUG)
        store = open_store(self.url(guarded, "wr0ng-word"))
        async with store:
            with pytest.raises(AccessDenied, match="password"):
                await store.watch(key(b"/team/a")).__aenter__()
            with pytest.raises(AccessDenied, match="password") as caught:
                await store.read(key(b"/team/a"))
        chain: BaseException | None = caught.value
        while chain is not None:
            assert "wr0ng-word" not in f"{chain!r}{chain}"
            chain = chain.__cause__ or chain.__context__
        assert "wr0ng-word" not in f"{store!r}{store.url}{caplog.text}"

    async def test_the_error_without_a_user_says_what_to_add(self, guarded: EtcdServer):
        async with open_store(f"etcd://{guarded.address}") as store:
            with pytest.raises(AccessDenied, match="user="):
                await store.read(key(b"/team/a"))

    async def test_a_user_is_accepted_if_authentication_is_off(
        self, etcd: Callable[[str], EtcdServer], caplog: pytest.LogCaptureFixture
    ):
        async with open_store(f"etcd://app:x@{etcd('3.5').address}?namespace=/auth-off") as store:
            await store.commit(Put(b"/a", b""))
        assert "authentication off" in caplog.text

    async def test_authentication_can_be_enabled_later(self, fresh_etcd: Callable[..., EtcdServer]):
        server = fresh_etcd()
        async with open_store(f"etcd://root:r00t@{server.address}") as store:
            await store.commit(Put(b"/a", b""))
            server.ctl("user", "add", "root:r00t")
            server.ctl("user", "grant-role", "root", "root")
            server.ctl("auth", "enable")
            await store.commit(Put(b"/a", b""))
            async with store.watch(key(b"/a")):
                pass


class TestTLS:
    async def test_a_trusted_server_is_used(self, encrypted: EtcdServer, certificates: Path):
        async with open_store(f"{encrypted.url}?ca={certificates}/ca.pem") as store:
            await store.commit(Put(b"/a", b""))
            member = (await store.status()).members[0]
            assert member.problem is None
            assert member.clock_ahead is not None

    async def test_another_server_name_can_be_expected(
        self, encrypted: EtcdServer, certificates: Path
    ):
        url = f"{encrypted.url}?ca={certificates}/ca.pem&server_name="
        async with open_store(url + "etcd.test") as store:
            await store.commit(Put(b"/a", b""))
        async with open_store(url + "wrong.test&timeout=2s") as store:
            with pytest.raises(Unavailable, match="certificate"):
                await store.read(key(b"/a"))

    async def test_a_client_certificate_is_accepted(self, mutual: EtcdServer, certificates: Path):
        mine = f"&cert={certificates}/client.pem&key={certificates}/client.key"
        async with open_store(f"{mutual.url}?ca={certificates}/ca.pem{mine}") as store:
            await store.commit(Put(b"/a", b""))

    async def test_a_missing_client_certificate_is_reported(
        self, mutual: EtcdServer, certificates: Path
    ):
        async with open_store(f"{mutual.url}?ca={certificates}/ca.pem&timeout=2s") as store:
            with pytest.raises(Unavailable, match="client certificate"):
                await store.read(key(b"/a"))

    async def test_the_error_for_plain_text_against_tls_says_which_scheme_to_use(
        self, encrypted: EtcdServer
    ):
        async with open_store(f"etcd://{encrypted.address}?timeout=2s") as store:
            with pytest.raises(Unavailable, match="use etcds://"):
                await store.read(key(b"/a"))

    async def test_the_error_for_tls_against_plain_text_says_which_scheme_to_use(
        self, etcd: Callable[[str], EtcdServer]
    ):
        async with open_store(f"etcds://{etcd('3.5').address}?timeout=2s") as store:
            with pytest.raises(Unavailable, match="use etcd://"):
                await store.read(key(b"/a"))

    async def test_an_untrusted_authority_is_reported(
        self, encrypted: EtcdServer, certificates: Path
    ):
        async with open_store(
            f"{encrypted.url}?ca={certificates}/other-ca.pem&timeout=2s"
        ) as store:
            with pytest.raises(Unavailable, match="not trusted"):
                await store.read(key(b"/a"))


class TestWrongAddress:
    async def test_a_closed_port(self):
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{held.getsockname()[1]}"
            async with open_store(f"etcd://{address}?timeout=1s") as store:
                with pytest.raises(Unavailable, match=f"{address}.*refused"):
                    await store.read(key(b"/a"))
                with pytest.raises(Unavailable, match=address):
                    await store.commit(Put(b"/a", b""))

    async def test_an_unknown_host(self):
        async with open_store("etcd://nowhere.invalid:2379?timeout=1s") as store:
            with pytest.raises(Unavailable, match=r"nowhere\.invalid"):
                await store.read(key(b"/a"))

    async def test_a_port_of_another_protocol(self):
        async def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(16)
            writer.write(b"-ERR unknown command 'PRI'\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(chat, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with open_store(f"etcd://127.0.0.1:{port}?timeout=2s") as store:
                with pytest.raises(Unavailable, match="is not etcd"):
                    await store.read(key(b"/a"))

    async def test_a_dead_endpoint_among_several_is_skipped(
        self, etcd: Callable[[str], EtcdServer]
    ):
        live = etcd("3.5").address
        async with open_store(f"etcd://127.0.0.1:1,{live}?namespace=/passed-over") as store:
            for n in range(5):
                await store.commit(Put(b"/%d" % n, b""))
            async with store.watch(prefix(b"/")), Session(store, ttl=10) as session:
                assert await store.renew(session.lease) == 10
            problems = {m.address: bool(m.problem) for m in (await store.status()).members}
            assert problems == {"127.0.0.1:1": True, live: False}

    async def test_watches_and_renewals_state_the_reason_too(
        self, etcd: Callable[[str], EtcdServer]
    ):
        async with open_store(f"etcds://{etcd('3.5').address}?timeout=1s") as store:
            with pytest.raises(Unavailable, match="use etcd://"):
                await store.watch(key(b"/a")).__aenter__()
            with pytest.raises(Unavailable, match="use etcd://"):
                await store.renew(1)


class TestOversizedResponses:
    async def test_a_commit_whose_reads_are_too_large_has_an_unknown_outcome(
        self, fresh_etcd: Callable[..., EtcdServer]
    ):
        server = fresh_etcd()
        async with open_store(server.url + "?timeout=15s") as store:
            for n in range(70):
                await store.commit(Put(b"/big/%02d" % n, b"x" * 1_000_000))
            with pytest.raises(OutcomeUnknown, match="larger"):
                await store.commit(Put(b"/small", b""), read=[Query(prefix(b"/big/"))])
            assert (await store.read(key(b"/small"))).first is not None
            snapshot = await store.read(prefix(b"/big/"))
            assert len(snapshot.entries) == 70
            oldest = await store.read(prefix(b"/big/"), order="created", limit=69)
            assert len(oldest.entries) == 69
            assert oldest.more


class TestSpace:
    async def test_a_full_etcd_refuses_writes_but_reads_work_and_recovery_is_noticed(
        self, fresh_etcd: Callable[..., EtcdServer]
    ):
        server = fresh_etcd(flags=["--quota-backend-bytes=2000000"])
        async with open_store(server.url) as store:
            await store.commit(Put(b"/small", b""))

            async def fill() -> None:
                while True:  # etcd checks its size now and then
                    await store.commit(Put(b"/fill", b"x" * 100_000))

            with pytest.raises(OutOfSpace, match="NOSPACE"):
                await fill()
            snapshot = await store.read(key(b"/fill"))
            assert snapshot.first is not None
            await store.commit(Delete(key(b"/small")))
            assert (await store.read(key(b"/small"))).first is None
            assert "NOSPACE" in str((await store.status()).alarms[0])
            await store.compact(snapshot.revision)
            server.ctl("defrag")
            server.ctl("alarm", "disarm")
            await store.commit(Put(b"/fill", b"small"))
            assert (await store.status()).alarms == ()
