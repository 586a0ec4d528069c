"""`mooring serve` as users start, use and stop it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

import mooring.sync
from mooring.backends import open_store
from mooring.store import Put, key, prefix
from mooring.store.etcd import proto
from mooring.store.etcd.proto import Methods
from mooring.tenants.keys import TenantKeys
from mooring.tenants.publish.publisher import Publisher
from mooring.testing.etcd import EtcdServer
from tests.acceptance.commands import Command
from tests.acceptance.serving import Served
from tests.waiting import eventually
from tests.wording import PYTHONS


def get(url: str, trust: ssl.SSLContext | None = None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20, context=trust) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_serve_prints_its_addresses_and_keeps_its_data(tmp_path: Path):
    with Served("", folder=tmp_path) as served:
        assert served.lines[0] == f"store    sqlite://{tmp_path}/mooring/store"
        assert served.lines[1] == f"etcd     {served.etcd}"
        assert get(f"http://{served.http}/healthz") == (200, "ok\n")
        assert get(f"http://{served.http}/readyz") == (200, "ok\n")
        assert health_check(served.http).returncode == 0
        async with open_store(served.url) as store:
            await store.commit(Put(b"/a", b"1"))
        served.signal(signal.SIGTERM)
        assert served.end() == 0
    assert served.lines[-1] == "stopped"
    assert (tmp_path / "mooring").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "mooring" / "store").stat().st_mode & 0o777 == 0o600
    with Served("", folder=tmp_path) as served:
        async with open_store(served.url) as store:
            assert (await store.read(key(b"/a"))).first is not None


async def test_serve_deletes_old_histories_of_deleted_tenants(tmp_path: Path):
    keys = TenantKeys("jxt")
    (tmp_path / "mooring").mkdir(mode=0o700)
    async with open_store(f"sqlite://{tmp_path}/mooring/store") as store:
        publisher = Publisher(store, keys)
        for tenant in (1, 2):
            await publisher.put(tenant, "storage", {"uploadQuotaGb": 1})
            await publisher.delete(tenant)
        for entry in (await store.read(keys.histories)).entries:
            if keys.history_number(entry.key):
                aged = json.loads(entry.value) | {"at": "2020-01-01T00:00:00.000Z"}
                await store.commit(Put(entry.key, json.dumps(aged).encode()))
    with Served("", folder=tmp_path) as served:
        async with open_store(served.url) as store:

            async def gone() -> bool:
                return not (await store.read(keys.histories)).entries

            await eventually(gone)


@pytest.mark.deadline
def test_serve_is_ready_in_under_two_seconds(tmp_path: Path):
    """Excluding the time for which other processes used the cores."""
    with Served(f"sqlite://{tmp_path}/store", interpreter=True) as served:
        assert served.ready_after - waited_for_a_core(served.process.pid) < 2


def waited_for_a_core(pid: int) -> float:
    """The seconds for which a process was runnable, but no core was free."""
    _ran, waited, _slices = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(waited) / 1e9


async def test_sigterm_lets_writes_in_progress_finish(tmp_path: Path):
    with Served(f"sqlite://{tmp_path}/store") as served:
        async with open_store(served.url) as store:
            acknowledged: list[int] = []

            async def write(start: int) -> None:
                for n in range(start, start + 100_000):
                    await store.commit(Put(b"/%d" % n, b""))
                    acknowledged.append(n)

            writers = [asyncio.get_running_loop().create_task(write(w * 100_000)) for w in range(8)]
            await eventually(lambda: len(acknowledged) > 100, within=20)
            served.signal(signal.SIGTERM)
            assert await asyncio.to_thread(served.end) == 0
            for writer in writers:
                writer.cancel()
            await asyncio.wait(writers)
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        kept = {entry.key for entry in (await store.read(prefix(b"/"))).entries}
    assert {b"/%d" % n for n in acknowledged} <= kept


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another process holds the write lock of SQLite: a write to the store waits for it, up to 5
    s."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


async def test_probes_are_answered_during_the_stop(tmp_path: Path):
    """A call in progress delays the end: not ready, alive, and new calls are refused."""
    with Served(f"sqlite://{tmp_path}/store") as served:
        async with grpc.aio.insecure_channel(served.etcd) as channel:
            wire = Methods(channel)

            async def begins() -> None:
                """Read: the server has begun everything that was sent before."""
                await wire.range(proto.RangeRequest(key=b"a"), timeout=60)

            async def probe() -> tuple[int, int]:
                base = f"http://{served.http}"
                ready = await asyncio.to_thread(get, f"{base}/readyz")
                return ready[0], (await asyncio.to_thread(get, f"{base}/healthz"))[0]

            async def stops() -> bool:
                statuses = await probe()
                assert statuses in {(200, 200), (503, 200)}
                return statuses == (503, 200)

            async def refuses() -> bool:
                try:
                    await begins()
                except grpc.aio.AioRpcError as error:
                    return error.code() is grpc.StatusCode.UNAVAILABLE
                return False

            await begins()
            with locked(tmp_path / "store"):
                put = wire.put(proto.PutRequest(key=b"a"), timeout=60)
                await begins()
                served.signal(signal.SIGTERM)
                await eventually(stops)
                await eventually(refuses)
                assert await probe() == (503, 200)
                assert not put.done()
            await put
            assert await asyncio.to_thread(served.end) == 0


@pytest.mark.deadline
async def test_an_open_watch_does_not_delay_the_stop(tmp_path: Path):
    with Served("memory://") as served:
        async with open_store(served.url) as store, store.watch(prefix(b"/")):
            served.signal(signal.SIGINT)
            assert await asyncio.to_thread(served.end, 8) == 0  # less than its grace of ten seconds


@pytest.mark.deadline
def test_an_open_stream_does_not_delay_the_stop():
    with Served("memory://", "--etcd=off") as served:
        request = urllib.request.Request(
            f"http://{served.http}/admin/events",
            headers={"Authorization": f"Bearer {served.admin_token}"},
        )
        with urllib.request.urlopen(request, timeout=60) as stream:
            assert stream.readline()
            served.signal(signal.SIGTERM)
            assert served.end(8) == 0  # less than its grace of ten seconds


def test_a_port_in_use_is_named(command: Command):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        address = "{}:{}".format(*held.getsockname())
        for flag in ("--etcd", "--http"):
            other = "--http=off" if flag == "--etcd" else "--etcd=off"
            done = command("serve", "--store=memory://", f"{flag}={address}", other)
            assert done.code == 1
            assert address in done.stderr
            assert not PYTHONS.search(done.stderr)


@pytest.mark.parametrize(
    ("host", "why"),
    [("192.0.2.1", "Cannot assign requested address"), ("nix.invalid", "the host is unknown")],
)
def test_an_unusable_host_is_named(host: str, why: str, command: Command):
    address = f"{host}:7480"
    done = command("serve", "--store=memory://", f"--http={address}", "--etcd=off", "--insecure")
    assert done.code == 1
    expected = f"mooring: cannot listen at {address} ({why}): choose another address with --http"
    assert done.stderr.splitlines()[-1] == expected


@pytest.mark.parametrize(
    ("store", "addresses"), [("", ["127.0.0.1:0", "off"]), ("memory://", ["127.0.0.1:0"] * 2)]
)
def test_a_second_server_on_a_data_folder_names_the_first_and_changes_nothing(
    store: str,
    addresses: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with Served(store, folder=tmp_path) as served:
        files = [served.data / name for name in ("server.json", "admin-token")]
        before = [(file.read_bytes(), file.stat().st_ino) for file in files]
        named = [f"--store={store}"] if store else []
        for http in addresses:  # twice: after the first refusal the folder is still in use
            done = command("serve", *named, f"--http={http}", "--etcd=off")
            assert done.code == 1
            assert done.stdout == ""
            assert "already runs" in done.stderr
            assert f"pid {served.process.pid}" in done.stderr
            assert f"http://{served.http}" in done.stderr
            assert [(file.read_bytes(), file.stat().st_ino) for file in files] == before
            assert command("token", "list").code == 0
        served.signal(signal.SIGKILL)
        served.end()
    with Served(store, folder=tmp_path) as after_a_kill:
        assert get(f"http://{after_a_kill.http}/healthz") == (200, "ok\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--etcd=0.0.0.0:0"], "--insecure"),
        (["--http=0.0.0.0:0"], "--insecure"),
        (["--etcd=nonsense"], "expected an address"),
        (["--store=etcd://127.0.0.1:1", "--etcd=127.0.0.1:0"], "--etcd"),
        (["--store=foo://x"], "unknown URL scheme 'foo'"),
        (["--config=/does/not/exist"], "cannot be read"),
        (["--store=memory://?namespace=/a"], "whole store"),
        ([f"--http={'ü' * 70}:0", "--insecure"], "invalid host name"),
    ],
)
def test_invalid_options_are_refused_before_the_start(
    arguments: list[str], message: str, command: Command
):
    store = (
        [] if any("--store" in a or "--config" in a for a in arguments) else ["--store=memory://"]
    )
    done = command("serve", *store, *arguments)
    assert done.code == 2
    assert message in done.stderr


def test_a_broken_tls_file_is_named(tmp_path: Path, certificates: Path, command: Command):
    (tmp_path / "junk").write_text("this is no certificate")
    (tmp_path / "config").write_text(
        f"store: memory://\netcd: off\ntls:\n  cert: {certificates}/server.pem\n"
        f"  key: {certificates}/server.key\n  client_ca: {tmp_path}/junk\n"
    )
    done = command("serve", f"--config={tmp_path}/config")
    assert done.code == 2
    assert f"{tmp_path}/junk contains no certificate" in done.stderr


def test_an_unknown_setting_is_refused_with_a_suggestion(tmp_path: Path, command: Command):
    (tmp_path / "config").write_text("htpp: 127.0.0.1:1\n")
    done = command("serve", f"--config={tmp_path}/config")
    assert "did you mean 'http'" in done.stderr


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with secrets in its configuration."""
    config = tmp_path_factory.mktemp("configured") / "config"
    config.write_text(
        "store: memory://\nusers:\n  app: s3cret-word\n"
        "alerts:\n  webhook: https://hooks.example:8443/T0/s3cret?key=s3cret\n"
    )
    with Served("", f"--config={config}", "--etcd=127.0.0.1:0") as served:
        yield served


def test_users_of_the_configuration_must_log_in(configured: Served, command: Command):
    address = configured.lines[1].split()[1]
    with mooring.sync.connect(f"etcd://app:s3cret-word@{address}") as hub:
        hub.store.commit(Put(b"/a", b""))
    done = command("doctor", f"etcd://app:wrong@{address}?timeout=2s")
    assert done.code == 1
    assert "rejects the user name or password" in done.stdout


def test_the_host_of_the_webhook_is_printed(configured: Served):
    assert "alerts   → hooks.example:8443" in configured.lines


def test_no_secret_of_the_configuration_is_printed(configured: Served):
    assert "s3cret" not in "\n".join(configured.lines)


def test_tls_and_client_certificates_from_the_configuration(
    tmp_path: Path, certificates: Path, command: Command
):
    files = certificates
    (tmp_path / "config").write_text(
        f"store: memory://\nusers: {{app: word}}\ntls:\n  cert: {files}/server.pem\n"
        f"  key: {files}/server.key\n  client_ca: {files}/ca.pem\n"
    )
    with Served("", f"--config={tmp_path}/config", "--etcd=0.0.0.0:0") as served:
        port = served.lines[1].split()[1].rpartition(":")[2]
        where = f"etcds://app:word@127.0.0.1:{port}?ca={files}/ca.pem&timeout=5s"
        client = f"&cert={files}/client.pem&key={files}/client.key"
        with mooring.sync.connect(where + client) as hub:
            hub.store.commit(Put(b"/a", b""))
        assert command("doctor", where).code == 1
        trust = ssl.create_default_context(cafile=f"{files}/ca.pem")
        trust.load_cert_chain(files / "client.pem", files / "client.key")
        assert get(f"https://{served.http}/readyz", trust) == (200, "ok\n")
        assert health_check(served.http).returncode == 1
        shown = {
            "MOORING_PROBE_CERT": f"{files}/client.pem",
            "MOORING_PROBE_KEY": f"{files}/client.key",
        }
        assert health_check(served.http, **shown).returncode == 0


def health_check(address: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The health check of the container."""
    return subprocess.run(
        [sys.executable, Path(__file__).parents[2] / "deploy" / "ready.py"],
        env={**os.environ, "MOORING_PROBE": address, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_on_an_etcd_serve_has_only_health_probes(etcd: Callable[[str], EtcdServer]):
    with Served(etcd("3.5").url, "--insecure") as served:
        assert not any(line.startswith("etcd ") for line in served.lines)
        assert get(f"http://{served.http}/readyz") == (200, "ok\n")


def test_readyz_states_the_problem_but_not_the_address():
    with Served("etcd://127.0.0.1:1?timeout=1s", "--insecure") as served:
        assert get(f"http://{served.http}/healthz")[0] == 200
        status, text = get(f"http://{served.http}/readyz")
        assert (status, text) == (503, "the store does not answer\n")
        checked = health_check(served.http)
        assert checked.returncode == 1
        assert "503" in checked.stderr
