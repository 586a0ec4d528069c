"""`mooring serve --xds` and the files that its clients start with, as a user does it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import yaml

import mooring
from mooring.hub import Hub, connect
from mooring.testing.envoy import EnvoyServer
from mooring.testing.etcd import EtcdServer
from mooring.testing.servers import free_port
from tests.acceptance.serving import Served
from tests.acceptance.test_cli import mooring_command
from tests.features.xds_caller import Caller, answering

SERVICE, HOST = "Common/Echo", "echo.common"


@contextlib.asynccontextmanager
async def offered(hub: Hub, name: str) -> AsyncIterator[mooring.Registration]:
    async with answering(name) as port:
        instance = mooring.Instance(SERVICE, host="127.0.0.1", port=port)
        async with hub.register(instance) as registration:
            yield registration


def bootstrap(file: Path, *arguments: str) -> Path:
    done = mooring_command("xds", "bootstrap", *arguments)
    assert done.returncode == 0, done.stderr
    file.write_text(done.stdout)
    return file


@pytest.mark.parametrize("store", ["sqlite://{}/store", "memory://"])
async def test_a_channel_starts_from_what_is_printed(tmp_path: Path, store: str):
    """And what was registered over etcd's API is what is told."""
    xds = f"127.0.0.1:{free_port()}"
    faces = [f"--etcd=127.0.0.1:{free_port()}", f"--xds={xds}"]
    with Served(store.format(tmp_path), *faces) as s:
        assert f"xds      {xds}" in s.lines
        etcd = next(line.split()[1] for line in s.lines if line.startswith("etcd"))
        file = bootstrap(tmp_path / "grpc.json", "--grpc", "--server", xds)
        async with (
            connect(f"etcd://{etcd}") as hub,
            offered(hub, "a"),
            Caller(f"xds:///{SERVICE}", bootstrap=file) as caller,
        ):
            await caller.hears("a")
        s.signal(signal.SIGTERM)
        assert s.end() == 0


async def test_grpc_for_node_starts_from_what_is_printed_without_a_zone(tmp_path: Path):
    xds = f"127.0.0.1:{free_port()}"
    with Served("memory://", f"--etcd=127.0.0.1:{free_port()}", f"--xds={xds}") as s:
        etcd = next(line.split()[1] for line in s.lines if line.startswith("etcd"))
        file = bootstrap(tmp_path / "grpc.json", "--grpc", "--server", xds)
        async with (
            connect(f"etcd://{etcd}") as hub,
            offered(hub, "a") as first,
            Caller(f"xds:///{SERVICE}", kind="node", bootstrap=file) as caller,
        ):
            await caller.hears("a")
            async with offered(hub, "b"):
                await caller.hears("a", "b")
                await first.aclose()
                await caller.hears("b")
                assert caller.errors == []


def test_what_is_printed_is_json_and_yaml(tmp_path: Path):
    told = json.loads(
        bootstrap(tmp_path / "a", "--grpc", "--node-id", "me", "--zone", "z").read_text()
    )
    assert told["node"] == {"id": "me", "cluster": "mooring", "locality": {"zone": "z"}}
    told = yaml.safe_load(bootstrap(tmp_path / "b", "--envoy", "--listen", "1234").read_text())
    (listener,) = told["static_resources"]["listeners"]
    assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 1234}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--grpc and --envoy"),
        (["--grpc", "--envoy"], "--grpc and --envoy"),
        (["--grpc", "--server", "nowhere"], "no address"),
        (["--envoy", "--listen", "nowhere:x"], "no address"),
        (["--envoy", "--cert", "file"], "go together"),
        (["--grpc", "--service", "echo"], "only Envoy"),
    ],
)
def test_what_cannot_be_is_told_in_words(arguments: list[str], says: str):
    done = mooring_command("xds", "bootstrap", *arguments)
    assert done.returncode != 0
    assert says in " ".join(done.stderr.split())


def test_it_is_not_reached_from_elsewhere_without_tls():
    done = mooring_command("serve", "--store=memory://", "--etcd=off", "--xds=0.0.0.0:0")
    assert done.returncode == 2
    assert "--xds 0.0.0.0:0 can be reached from other machines: that needs TLS in" in done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", ["grpc", "envoy", "envoy-states"])
async def test_calls_go_on_while_the_control_plane_is_killed_and_comes_back(
    client: str,
    fresh_etcd: Callable[..., EtcdServer],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
):
    """And what changed meanwhile is followed once it is back; nothing is refused."""
    url = fresh_etcd(series="3.5").url
    xds = f"127.0.0.1:{free_port()}"

    def serve() -> Served:
        return Served(url, f"--xds={xds}")

    async with contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(connect(url))
        first = await stack.enter_async_context(offered(hub, "a"))
        await stack.enter_async_context(offered(hub, "b"))
        with serve() as served:
            if client == "grpc":
                file = bootstrap(tmp_path / "grpc.json", "--grpc", "--server", xds)
                caller = Caller(f"xds:///{SERVICE}", bootstrap=file)
            else:
                envoy = stack.enter_context(
                    EnvoyServer(tmp_path / "envoy", xds, incremental=client == "envoy")
                )
                await asyncio.to_thread(envoy.start)
                caller = Caller(envoy.address, authority=HOST, bootstrap=None)
            await stack.enter_async_context(caller)
            await caller.hears("a", "b")
            served.signal(signal.SIGKILL)
            served.end()
            await caller.hears("a", "b")
        await first.aclose()
        await stack.enter_async_context(offered(hub, "c"))
        assert len(await caller.counted(50)) == 2, "nobody can know"
        with serve() as served:
            await caller.hears("b", "c", within=60)
            assert caller.errors == []
            if client != "grpc":
                stats = await asyncio.to_thread(envoy.stats, "update_rejected")
                assert not any(stats.values()), stats
            served.signal(signal.SIGTERM)
            assert served.end() == 0
        assert "refuses" not in capfd.readouterr().err
        await caller.hears("b", "c")
        assert caller.errors == []
