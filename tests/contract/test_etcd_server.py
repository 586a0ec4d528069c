"""The server of the etcd API: logins, TLS, malformed input, draining and maintenance."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from mooring.backends import open_store
from mooring.connection_limit import ConnectionLimit
from mooring.errors import AccessDenied, InvalidRequest, OutOfSpace, StoreError, Unavailable
from mooring.etcd_server import auth
from mooring.etcd_server import connections as sockets
from mooring.etcd_server.connections import SWEEP
from mooring.etcd_server.server import EtcdAPIServer, ServerTLS
from mooring.store import Put, key, prefix
from mooring.store.embedded.durable import durable_runner
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.sqlite_file import Journal
from mooring.store.embedded.store import EngineRunner, MemoryRunner, memory_runner
from mooring.store.etcd import proto
from mooring.store.etcd.proto import Methods
from mooring.testing.etcd import EtcdServer
from tests.contract.side_by_side import (
    Stream,
    methods,
    op_delete,
    op_get,
    op_put,
    op_txn,
    outcome,
    txn,
    version,
)
from tests.silent_connections import connected, still_open
from tests.waiting import PATIENCE, eventually

USERS = {"root": "secret", "mia": "pass"}


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[EtcdAPIServer, Methods]]:
    host = MemoryRunner(Engine())
    async with (
        EtcdAPIServer(host, bind="127.0.0.1:0", **options) as server,
        methods(server.address) as calls,
    ):
        yield server, calls


_FEW_FILES = """
import asyncio, resource, sys
from mooring.connection_limit import ConnectionLimit
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.store import MemoryRunner
from mooring.etcd_server.server import EtcdAPIServer

async def main():
    limit = ConnectionLimit(3, exempt=())
    runner = MemoryRunner(Engine())
    async with EtcdAPIServer(runner, bind="127.0.0.1:0", connections=limit) as server:
        # In a thread: asyncio imports these modules at first use, and later no file may be free.
        await asyncio.to_thread(print, server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
asyncio.run(main())
"""


class TestLogins:
    async def test_refusals_are_those_of_etcd(self, fresh_etcd: Callable[..., EtcdServer]):
        real = fresh_etcd(flags=["--unsafe-no-fsync", "--bcrypt-cost=4"])
        for command in ("user add root:secret", "user grant-role root root", "auth enable"):
            if command.startswith("user grant"):
                real.ctl("role", "add", "root")
            real.ctl(*command.split())
        async with serving(users=USERS) as (_, wire), methods(real.address) as etcd:
            by_server = []
            for server in (etcd, wire):
                answers = [
                    await outcome(server.authenticate, proto.AuthenticateRequest(**credentials))
                    for credentials in (
                        {},
                        {"name": "root"},
                        {"name": "root", "password": "wrong"},
                        {"name": "nobody", "password": "secret"},
                    )
                ]
                put, get = proto.PutRequest(key=b"a"), proto.RangeRequest(key=b"a")
                for call, request in ((server.put, put), (server.range, get)):
                    answers.append(await outcome(call, request))
                    bad = grpc.aio.Metadata(("token", "made.up"))
                    answers.append(await outcome(call, request, metadata=bad))
                by_server.append(answers)
            assert by_server[0] == by_server[1]
            assert (
                by_server[1][0][1]
                == "etcdserver: authentication failed, invalid user ID or password"
            )
            assert by_server[1][4] == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "etcdserver: user name is empty",
            )
            assert by_server[1][5] == (
                grpc.StatusCode.UNAUTHENTICATED,
                "etcdserver: invalid auth token",
            )

    async def test_without_users_there_is_no_authentication(self):
        async with serving() as (_, wire):
            request = proto.AuthenticateRequest(name="root", password="secret")
            assert await outcome(wire.authenticate, request) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "etcdserver: authentication is not enabled",
            )
            assert not (await wire.auth_status(proto.AuthStatusRequest())).enabled

    async def test_every_call_but_login_and_status_needs_a_token(self):
        async with serving(users=USERS) as (_, wire):
            for call, request in (
                (wire.put, proto.PutRequest(key=b"a")),
                (wire.delete_range, proto.DeleteRangeRequest(key=b"a")),
                (wire.txn, proto.TxnRequest()),
                (wire.compact, proto.CompactionRequest(revision=1)),
                (wire.grant, proto.LeaseGrantRequest(TTL=5)),
                (wire.revoke, proto.LeaseRevokeRequest(ID=5)),
                (wire.time_to_live, proto.LeaseTimeToLiveRequest(ID=5)),
                (wire.leases, proto.LeaseLeasesRequest()),
                (wire.hash_kv, proto.HashKVRequest()),
                (wire.member_list, proto.MemberListRequest()),
            ):
                code, text = await outcome(call, request)
                assert text == "etcdserver: user name is empty"
                assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert (await wire.status(proto.StatusRequest())).version
            async with Stream(wire.keepalive()) as stream:
                assert await stream.call.code() is grpc.StatusCode.INVALID_ARGUMENT
            async with Stream(wire.watch()) as stream:
                await stream.create(b"a")
                (message,) = await stream.take(1)
            assert message.canceled
            assert "user name is empty" in message.cancel_reason

    async def test_our_client_logs_in_and_again_when_its_token_expired(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(auth, "TOKEN_TTL", 1.0)
        async with serving(users=USERS) as (server, _):
            url = f"etcd://mia:pass@{server.address}"
            async with open_store(url) as store, store.watch(prefix(b"a")) as watch:
                await store.commit(Put(b"a", b"1"))
                assert (await anext(watch)).events[0].key == b"a"
                await asyncio.sleep(1.2)
                await store.commit(Put(b"a", b"2"))
                assert (await anext(watch)).events[0].key == b"a"
                lease = await store.grant(60)
                assert await store.renew(lease.id) == 60
            with pytest.raises(AccessDenied):
                async with open_store(f"etcd://mia:wrong@{server.address}") as store:
                    await store.read(key(b"a"))
            with pytest.raises(AccessDenied):
                async with open_store(f"etcd://{server.address}") as store:
                    await store.read(key(b"a"))


class TestTLS:
    async def test_encrypted_connections(self, certificates: Path):
        tls = ServerTLS(certificates / "server.pem", certificates / "server.key")
        async with serving(tls=tls) as (server, _):
            assert server.url.startswith("https://")
            async with open_store(f"etcds://{server.address}?ca={certificates}/ca.pem") as store:
                await store.commit(Put(b"a", b"1"))
                assert (await store.read(key(b"a"))).first is not None
            with pytest.raises(Unavailable):
                async with open_store(f"etcd://{server.address}?timeout=1s") as store:
                    await store.read(key(b"a"))

    async def test_client_certificates(self, certificates: Path):
        tls = ServerTLS(
            certificates / "server.pem",
            certificates / "server.key",
            client_ca=certificates / "ca.pem",
        )
        async with serving(tls=tls) as (server, _):
            url = f"etcds://{server.address}?ca={certificates}/ca.pem"
            shown = f"{url}&cert={certificates}/client.pem&key={certificates}/client.key"
            async with open_store(shown) as store:
                await store.commit(Put(b"a", b"1"))
            with pytest.raises(Unavailable):
                async with open_store(f"{url}&timeout=1s") as store:
                    await store.read(key(b"a"))

    async def test_a_missing_file_is_named(self, certificates: Path):
        tls = ServerTLS(certificates / "none.pem", certificates / "server.key")
        with pytest.raises(InvalidRequest, match=r"none\.pem"):
            async with serving(tls=tls):
                pass

    @pytest.mark.parametrize("broken", ["cert", "key", "client_ca"])
    async def test_a_malformed_tls_file_is_named(
        self, certificates: Path, tmp_path: Path, broken: str
    ):
        (tmp_path / "junk").write_text("this is no certificate")
        files = {
            "cert": certificates / "server.pem",
            "key": certificates / "server.key",
            "client_ca": certificates / "ca.pem",
        }
        tls = ServerTLS(**{**files, broken: tmp_path / "junk"})
        with pytest.raises(InvalidRequest, match=r"junk .* PEM"):
            async with serving(tls=tls):
                pass

    async def test_a_key_that_does_not_match_its_certificate_is_refused(self, certificates: Path):
        tls = ServerTLS(certificates / "server.pem", certificates / "client.key")
        with pytest.raises(InvalidRequest, match=r"client\.key is not the key of .*server\.pem"):
            async with serving(tls=tls):
                pass

    async def test_a_key_with_a_password_is_refused_without_a_prompt(
        self, certificates: Path, tmp_path: Path
    ):
        key = load_pem_private_key((certificates / "server.key").read_bytes(), None)
        (tmp_path / "locked").write_bytes(
            key.private_bytes(
                Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"secret")
            )
        )
        with pytest.raises(InvalidRequest, match="locked is encrypted with a password"):
            async with serving(tls=ServerTLS(certificates / "server.pem", tmp_path / "locked")):
                pass


class TestMalformedInput:
    @pytest.mark.parametrize(
        "data",
        [
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500,
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + b"\0" * 300,
            random.Random(1).randbytes(100_000),
            b"",
        ],
        ids=["http/1", "broken http/2", "tls", "noise", "nothing"],
    )
    async def test_bytes_that_are_not_grpc(self, data: bytes):
        async with serving() as (server, wire):
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                try:
                    writer.write(data)
                    await writer.drain()
                    writer.write_eof()
                    async with asyncio.timeout(PATIENCE):
                        await reader.read()
                except TimeoutError:
                    raise
                except OSError:
                    pass  # the server may close the connection
                finally:
                    writer.transport.abort()
            assert (await wire.put(proto.PutRequest(key=b"a"))).header.revision == 2

    async def test_a_malformed_message(self):
        async with serving() as (server, wire):
            async with grpc.aio.insecure_channel(server.address) as channel:
                put = channel.unary_unary("/etcdserverpb.KV/Put")
                code, text = await outcome(put, b"\xff\xff\xff")
                assert code is grpc.StatusCode.INTERNAL
                assert text.startswith("grpc: error unmarshalling request: ")
                for method in ("Watch/Watch", "Lease/LeaseKeepAlive"):
                    stream = channel.stream_stream(f"/etcdserverpb.{method}")()
                    await stream.write(b"\xff\xff\xff")
                    assert await stream.code() is grpc.StatusCode.INTERNAL
                    text = await stream.details()
                    assert text.startswith("grpc: failed to unmarshal the received message ")
            assert (await wire.put(proto.PutRequest(key=b"a"))).header.revision == 2

    async def test_unknown_methods_are_refused_with_the_messages_of_etcd(
        self, etcd: Callable[[str], EtcdServer]
    ):
        async with serving() as (server, _):
            by_server: list[list[Any]] = [[], []]
            for answers, address in zip(
                by_server, (etcd("3.5").address, server.address), strict=True
            ):
                async with grpc.aio.insecure_channel(address) as channel:
                    for path in ("/etcdserverpb.KV/No", "/no.Service/Range", "/a/b/c", "/no"):
                        answers.append(await outcome(channel.unary_unary(path), b""))
                    stream = channel.stream_stream("/etcdserverpb.KV/No")()
                    answers.append((await stream.code(), await stream.details()))
            assert by_server[1] == by_server[0]
            assert by_server[1][0] == (
                grpc.StatusCode.UNIMPLEMENTED,
                "unknown method No for service etcdserverpb.KV",
            )

    async def test_a_message_of_many_megabytes(self):
        async with serving() as (_, wire):
            request = proto.PutRequest(key=b"a", value=b"x" * 50_000_000)
            code, _ = await outcome(wire.put, request)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await wire.put(proto.PutRequest(key=b"a"))).header.revision == 2

    async def test_clients_that_disconnect_leave_nothing(self):
        host = MemoryRunner(Engine())
        async with EtcdAPIServer(host, bind="127.0.0.1:0") as server:
            for _ in range(5):
                async with methods(server.address) as wire:
                    stream = Stream(wire.watch())
                    await stream.create(b"a")
                    await stream.take(1)
                    keepalive = Stream(wire.keepalive())
                    await keepalive.send(proto.LeaseKeepAliveRequest(ID=5))
                    await keepalive.take(1)
            await eventually(lambda: host.read(lambda engine: engine._watchers._groups) == {})

    @pytest.mark.timeout(180)
    @pytest.mark.parametrize(
        "count",
        [1_000, pytest.param(10_000, marks=pytest.mark.extended("1,000 take the same way"))],
    )
    async def test_many_concurrent_calls_are_all_answered(self, count: int):
        async with serving() as (_, wire):
            calls = (wire.put(proto.PutRequest(key=b"%d" % n), timeout=150) for n in range(count))
            answers = await asyncio.gather(*calls)
            assert {answer.header.revision for answer in answers} == set(range(2, count + 2))


class TestLifetime:
    async def test_the_server_stops_without_permission_for_socket_filters(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        """Some kernels allow socket filters only to root."""
        monkeypatch.setattr(sockets, "_SO_ATTACH_FILTER", 9999)
        async with serving() as (server, wire):
            await wire.put(proto.PutRequest(key=b"a"))
            await server.drain(0)
            with pytest.raises(grpc.aio.AioRpcError):
                await wire.put(proto.PutRequest(key=b"a"))

    async def test_a_port_in_use_is_reported(self):
        async with serving() as (server, _):
            with pytest.raises(StoreError, match=server.address):
                async with EtcdAPIServer(MemoryRunner(Engine()), bind=server.address):
                    pass

    async def test_draining_finishes_calls_and_ends_streams(self):
        finish = asyncio.Event()
        begun: list[Any] = []

        class Slow(MemoryRunner):
            async def write(self, operation: Any) -> Any:
                begun.append(operation)
                await finish.wait()
                return await super().write(operation)

        async with EtcdAPIServer(Slow(Engine()), bind="127.0.0.1:0") as server:
            async with methods(server.address) as wire:
                watch, keepalive = Stream(wire.watch()), Stream(wire.keepalive())
                await watch.create(b"a")
                await watch.take(1)
                await keepalive.send(proto.LeaseKeepAliveRequest(ID=5))
                loop = asyncio.get_running_loop()
                put = loop.create_task(outcome(wire.put, proto.PutRequest(key=b"a")))
                await eventually(lambda: len(begun) == 2)
                draining = loop.create_task(server.drain(60))
                async with asyncio.timeout(20):
                    for stream in (watch, keepalive):
                        assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
                        assert await stream.call.details() == "etcdserver: server stopped"
                assert not draining.done()
                for _ in range(3):
                    assert await outcome(wire.put, proto.PutRequest(key=b"b")) == (
                        grpc.StatusCode.UNAVAILABLE,
                        "etcdserver: server stopped",
                    )
                late = Stream(wire.watch())
                assert await late.call.code() is grpc.StatusCode.UNAVAILABLE
                finish.set()
                assert (await put).header.revision == 2
                async with asyncio.timeout(20):
                    await draining
            async with methods(server.address) as wire:
                code, _ = await outcome(wire.put, proto.PutRequest(key=b"a"))
                assert code is grpc.StatusCode.UNAVAILABLE

    @pytest.mark.parametrize("grace", [5.0, 0.0])
    async def test_watches_reopened_during_the_stop_are_never_cancelled(self, grace: float):
        """etcd's Go client resumes a watch that ends with UNAVAILABLE, and gives up one that ends
        with CANCELLED."""
        ends: Counter[tuple[grpc.StatusCode, str]] = Counter()
        opened: set[int] = set()
        stopped = asyncio.Event()

        async def reopen(number: int) -> None:
            async with methods(server.address) as wire:
                while not stopped.is_set():
                    stream = Stream(wire.watch())
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await stream.create(b"a")
                        while await stream.call.read() is not grpc.aio.EOF:
                            opened.add(number)
                    ends[await stream.call.code(), await stream.call.details()] += 1

        async with EtcdAPIServer(MemoryRunner(Engine()), bind="127.0.0.1:0") as server:
            loop = asyncio.get_running_loop()
            watchers = [loop.create_task(reopen(number)) for number in range(30)]
            await eventually(lambda: len(opened) == 30)
            await server.drain(grace)
        stopped.set()
        await asyncio.gather(*watchers)
        # The client itself reports this if the connection ends while it starts a call.
        ends.pop((grpc.StatusCode.INTERNAL, "Internal error from Core"), None)
        assert {code for code, _ in ends} == {grpc.StatusCode.UNAVAILABLE}, ends

    @pytest.mark.parametrize("encrypted", [False, True])
    async def test_connections_above_the_limit_of_an_address_are_refused(
        self, encrypted: bool, certificates: Path, caplog: pytest.LogCaptureFixture
    ):
        files = ServerTLS(certificates / "server.pem", certificates / "server.key")
        limit = ConnectionLimit(3, exempt=())
        async with serving(tls=files if encrypted else None, connections=limit) as (server, _):
            with connected(server.port, 10) as many:
                await eventually(lambda: still_open(many) == 3)
                with connected(server.port, 1, source="127.0.0.2") as other:
                    await asyncio.sleep(2 * SWEEP)
                    assert still_open(other) == 1
                assert still_open(many) == 3
            assert caplog.text.count("127.0.0.1 has 3 open connections") == 1
            await eventually(lambda: limit.accept(("127.0.0.1", 1)) is not None)

    async def test_an_address_that_takes_all_open_files_keeps_only_its_share(self):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _FEW_FILES, stdin=PIPE, stdout=PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        with connected(port, 300) as many:
            await eventually(lambda: still_open(many) == 3)
        process.stdin.close()
        assert await process.wait() == 0

    async def test_an_incomplete_call_does_not_delay_the_stop(self):
        async with (
            serving() as (server, _),
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            half = channel.stream_unary("/etcdserverpb.KV/Put")()
            await asyncio.sleep(0.1)
            async with asyncio.timeout(20):
                await server.drain(60)
            assert await half.code() is not grpc.StatusCode.OK

    async def test_leases_expire_without_any_call(self):
        async with serving() as (_, wire), Stream(wire.watch()) as stream:
            await stream.create(b"a")
            lease = await wire.grant(proto.LeaseGrantRequest(TTL=1))
            await wire.put(proto.PutRequest(key=b"a", lease=lease.ID))
            *_, gone = await stream.take(3)
        assert gone.events[0].type == proto.DELETE


class TestAFullDisk:
    async def test_calls_that_change_nothing_are_answered_when_the_disk_is_full(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        def fail(*_: object) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        host = durable_runner(tmp_path / "store")
        async with (
            EtcdAPIServer(host, bind="127.0.0.1:0") as server,
            methods(server.address) as wire,
        ):
            lease = (await wire.grant(proto.LeaseGrantRequest(TTL=60))).ID
            await wire.put(proto.PutRequest(key=b"a", lease=lease))
            monkeypatch.setattr(Journal, "write", fail)
            refused = (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "etcdserver: mvcc: database space exceeded",
            )
            assert await outcome(wire.put, proto.PutRequest(key=b"b")) == refused
            looked = await wire.time_to_live(proto.LeaseTimeToLiveRequest(ID=lease, keys=True))
            assert (looked.grantedTTL, list(looked.keys)) == (60, [b"a"])
            assert looked.TTL > 50
            absent = version(b"a", proto.EQUAL, 0)
            for request in (
                txn([absent], [op_put(b"a")], [op_get(b"a")]),
                txn([], [op_txn([], [op_get(b"a")])]),
                txn([], [op_delete(b"none"), op_get(b"a")]),
            ):
                assert "a" in str(await wire.txn(request))
            assert await outcome(wire.txn, txn([], [op_put(b"a")])) == refused
            async with Stream(wire.keepalive()) as stream:
                await stream.send(proto.LeaseKeepAliveRequest(ID=lease))
                assert await stream.call.code() is refused[0]
            monkeypatch.undo()
            assert (await wire.put(proto.PutRequest(key=b"b"))).header.revision == 3
        host.release()


REFUSED = (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")


class TestTheQuota:
    @pytest.mark.parametrize("kind", ["memory", "file"])
    async def test_writes_over_the_quota_raise_the_alarm_until_it_is_disarmed(
        self, tmp_path: Path, kind: str
    ):
        make = partial(Engine, quota=100_000)
        host: EngineRunner = memory_runner("", make)
        if kind == "file":
            host = durable_runner(tmp_path / "store", make)
        async with (
            EtcdAPIServer(host, bind="127.0.0.1:0") as server,
            methods(server.address) as wire,
            open_store(f"etcd://{server.address}") as client,
        ):
            lease = (await wire.grant(proto.LeaseGrantRequest(TTL=60))).ID
            for n in range(8):
                await wire.put(proto.PutRequest(key=b"/%d" % n, value=b"x" * 10_000, lease=lease))
            big = proto.PutRequest(key=b"/big", value=b"x" * 30_000)
            assert await outcome(wire.put, big) == REFUSED
            # Small writes are refused too, until the alarm is disarmed.
            assert await outcome(wire.put, proto.PutRequest(key=b"/a")) == REFUSED
            assert await outcome(wire.grant, proto.LeaseGrantRequest(TTL=60)) == REFUSED
            absent = version(b"/0", proto.EQUAL, 0)
            for growing in (txn([], [op_put(b"/a")]), txn([absent], [op_txn([], [op_put(b"/a")])])):
                assert await outcome(wire.txn, growing) == REFUSED
            with pytest.raises(OutOfSpace):
                await client.commit(Put(b"/a", b""))
            (alarm,) = (await client.status()).alarms
            assert "NOSPACE" in str(alarm)
            (alarm,) = (await wire.alarm(proto.AlarmRequest())).alarms
            assert alarm.alarm == proto.NOSPACE
            # Reads, renewals, deletions and compactions still work.
            assert (await wire.range(proto.RangeRequest(key=b"/0"))).count == 1
            assert await client.renew(lease) == 60
            await wire.txn(txn([], [op_delete(b"/0")]))
            gone = await wire.delete_range(proto.DeleteRangeRequest(key=b"/1", range_end=b"/9"))
            assert gone.deleted == 7
            await wire.compact(proto.CompactionRequest(revision=gone.header.revision))
            assert await outcome(wire.put, big) == REFUSED
            disarm = proto.AlarmRequest(
                action=proto.ALARM_DEACTIVATE, memberID=alarm.memberID, alarm=proto.NOSPACE
            )
            await eventually(lambda: host.read(lambda engine: engine.size) < 10_000)
            assert list((await wire.alarm(disarm)).alarms) == [alarm]
            assert not (await wire.alarm(proto.AlarmRequest())).alarms
            await wire.put(big)
            assert not (await client.status()).alarms
        host.release()

    async def test_without_a_quota_there_is_no_alarm(self):
        async with open_store("memory://?quota=off") as store:
            await store.commit(Put(b"/a", b"x" * 100_000))
        async with open_store("memory://?quota=50KiB") as store:
            with pytest.raises(OutOfSpace, match="quota of 51200"):
                await store.commit(Put(b"/a", b"x" * 100_000))
            assert "NOSPACE" in str((await store.status()).alarms[0])


class TestMaintenance:
    async def test_the_status_of_the_server(self):
        class OnDisk(MemoryRunner):
            def space(self) -> tuple[int, int]:
                return 8192, 4096

        async with (
            EtcdAPIServer(OnDisk(Engine()), bind="127.0.0.1:0") as server,
            methods(server.address) as wire,
        ):
            await wire.put(proto.PutRequest(key=b"a"))
            status = await wire.status(proto.StatusRequest())
            assert status.leader == status.header.member_id
            assert (status.dbSize, status.dbSizeInUse) == (8192, 4096)
            (member,) = (await wire.member_list(proto.MemberListRequest())).members
            assert status.leader == member.ID
            assert list(member.clientURLs) == [f"http://{server.address}"]
            assert not (await wire.alarm(proto.AlarmRequest())).alarms

    async def test_every_answer_names_the_cluster(self, tmp_path: Path):
        host = durable_runner(tmp_path / "store")
        clusters = []
        for _ in range(2):  # a restart
            async with (
                EtcdAPIServer(host, bind="127.0.0.1:0") as server,
                methods(server.address) as calls,
            ):
                answers = [
                    await calls.put(proto.PutRequest(key=b"a")),
                    await calls.range(proto.RangeRequest(key=b"a")),
                    await calls.txn(txn(success=[op_get(b"a")])),
                    await calls.grant(proto.LeaseGrantRequest(TTL=10)),
                    await calls.status(proto.StatusRequest()),
                ]
                async with Stream(calls.watch()) as watch:
                    await watch.create(b"a")
                    answers += await watch.take(1)
            clusters += [answer.header.cluster_id for answer in answers]
            host.release()
            host = durable_runner(tmp_path / "store")
        assert {*clusters} == {host.cluster_id}
        host.release()
        async with serving() as (_, other):
            assert (await other.status(proto.StatusRequest())).header.cluster_id not in clusters

    async def test_equal_contents_have_equal_hashes(self):
        async with serving() as (_, one), serving() as (_, other):
            hashes = []
            for server in (one, other):
                for number in range(3):
                    await server.put(proto.PutRequest(key=b"%d" % number, value=b"x"))
                answers = [
                    await server.hash_kv(proto.HashKVRequest(revision=number))
                    for number in (0, 4, 3)
                ]
                hashes.append([answer.hash for answer in answers])
                hashes[-1].append((await server.hash(proto.HashRequest())).hash)
            assert hashes[0] == hashes[1]
            assert hashes[0][0] == hashes[0][1] == hashes[0][3] != hashes[0][2]
            future = await outcome(one.hash_kv, proto.HashKVRequest(revision=99))
            assert future[0] is grpc.StatusCode.OUT_OF_RANGE

    async def test_maintenance_of_files_is_refused_with_an_alternative(self):
        async with serving() as (_, wire):
            code, text = await outcome(wire.defragment, proto.DefragmentRequest())
            assert code is grpc.StatusCode.UNIMPLEMENTED
            assert "mooring store backup" in text
            call = wire.snapshot(proto.SnapshotRequest())
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "mooring store backup" in await call.details()
