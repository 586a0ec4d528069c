"""`mooring serve --xds` and the bootstrap files of its clients, as users create them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import yaml

import mooring
from mooring.hub import Hub, connect
from mooring.testing.servers import free_port
from tests.acceptance.commands import Command
from tests.acceptance.serving import Served
from tests.envoy import EnvoyServer
from tests.features.xds_caller import Caller, answering

SERVICE, HOST = "Common/Echo", "echo.common"


@contextlib.asynccontextmanager
async def offered(hub: Hub, name: str) -> AsyncIterator[mooring.Registration]:
    async with answering(name) as port:
        instance = mooring.Instance(SERVICE, host="127.0.0.1", port=port)
        async with hub.register(instance) as registration:
            yield registration


Bootstrap = Callable[..., Path]


@pytest.fixture
def bootstrap(command: Command, tmp_path: Path) -> Bootstrap:
    """Write the output of `mooring xds bootstrap` into a file."""

    def write(*arguments: str) -> Path:
        done = command("xds", "bootstrap", *arguments)
        assert done.code == 0, done.stderr
        file = tmp_path / "bootstrap"
        file.write_text(done.stdout)
        return file

    return write


class Plane:
    """A control plane over the embedded store, to which instances connect over etcd's API."""

    def __init__(self, folder: Path) -> None:
        etcd = f"127.0.0.1:{free_port()}"
        self.url, self.address = f"etcd://{etcd}", f"127.0.0.1:{free_port()}"
        faces = f"--etcd={etcd}", f"--xds={self.address}"
        self.served = Served(f"sqlite://{folder}/store", *faces)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    plane = Plane(tmp_path_factory.mktemp("plane"))
    with plane.served as served:
        yield plane
        served.signal(signal.SIGTERM)
        assert served.end() == 0


def test_serve_prints_the_address_of_the_control_plane(plane: Plane):
    assert f"xds      {plane.address}" in plane.served.lines


async def test_a_channel_starts_with_the_printed_bootstrap(plane: Plane, bootstrap: Bootstrap):
    file = bootstrap("--grpc", "--server", plane.address)
    async with (
        connect(plane.url) as hub,
        offered(hub, "a"),
        Caller(f"xds:///{SERVICE}", bootstrap=file) as caller,
    ):
        await caller.answers_from("a")


async def test_grpc_for_node_starts_with_the_printed_bootstrap_without_a_zone(
    plane: Plane, bootstrap: Bootstrap
):
    file = bootstrap("--grpc", "--server", plane.address)
    async with (
        connect(plane.url) as hub,
        offered(hub, "a") as first,
        Caller(f"xds:///{SERVICE}", kind="node", bootstrap=file) as caller,
    ):
        await caller.answers_from("a")
        async with offered(hub, "b"):
            await caller.answers_from("a", "b")
            await first.aclose()
            await caller.answers_from("b")
            assert caller.errors == []


def test_the_bootstrap_is_json_and_yaml(bootstrap: Bootstrap):
    printed = json.loads(bootstrap("--grpc", "--node-id", "me", "--zone", "z").read_text())
    assert printed["node"] == {"id": "me", "cluster": "mooring", "locality": {"zone": "z"}}
    printed = yaml.safe_load(bootstrap("--envoy", "--listen", "1234").read_text())
    (listener,) = printed["static_resources"]["listeners"]
    assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 1234}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--grpc or --envoy"),
        (["--grpc", "--envoy"], "--grpc or --envoy"),
        (["--grpc", "--server", "nowhere"], "not an address"),
        (["--envoy", "--listen", "nowhere:x"], "not a listen address"),
        (["--envoy", "--cert", "file"], "go together"),
        (["--grpc", "--service", "echo"], "only valid with --envoy"),
    ],
)
def test_invalid_arguments_are_explained(arguments: list[str], message: str, command: Command):
    done = command("xds", "bootstrap", *arguments)
    assert done.code != 0
    assert message in " ".join(done.stderr.split())


def test_listening_for_other_machines_requires_tls(command: Command):
    done = command("serve", "--store=memory://", "--etcd=off", "--xds=0.0.0.0:0")
    assert done.code == 2
    assert "--xds 0.0.0.0:0 is reachable from other machines: that requires TLS in" in done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["etcd-3.5"])
@pytest.mark.parametrize(
    "client",
    [
        "grpc",
        "envoy",
        pytest.param(
            "envoy-states",
            marks=pytest.mark.extended("gRPC speaks the same variant of the protocol"),
        ),
    ],
)
async def test_calls_continue_while_the_control_plane_is_killed_and_restarted(
    client: str,
    store_url: str,
    bootstrap: Bootstrap,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
):
    """And changes in the meantime are followed after the restart; nothing is rejected."""
    url = store_url
    xds = f"127.0.0.1:{free_port()}"

    def serve() -> Served:
        return Served(url, f"--xds={xds}")

    async with contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(connect(url))
        first = await stack.enter_async_context(offered(hub, "a"))
        await stack.enter_async_context(offered(hub, "b"))
        with serve() as served:
            if client == "grpc":
                file = bootstrap("--grpc", "--server", xds)
                caller = Caller(f"xds:///{SERVICE}", bootstrap=file)
            else:
                envoy = stack.enter_context(
                    EnvoyServer(tmp_path / "envoy", xds, incremental=client == "envoy")
                )
                await asyncio.to_thread(envoy.start)
                caller = Caller(envoy.address, authority=HOST, bootstrap=None)
            await stack.enter_async_context(caller)
            await caller.answers_from("a", "b")
            served.signal(signal.SIGKILL)
            served.end()
            await caller.answers_from("a", "b")
        await first.aclose()
        await stack.enter_async_context(offered(hub, "c"))
        assert len(await caller.counted(50)) == 2, "the crash cannot be known yet"
        with serve() as served:
            await caller.answers_from("b", "c", within=60)
            assert caller.errors == []
            if client != "grpc":
                stats = await asyncio.to_thread(envoy.stats, "update_rejected")
                assert not any(stats.values()), stats
            served.signal(signal.SIGTERM)
            assert served.end() == 0
        assert "refuses" not in capfd.readouterr().err
        await caller.answers_from("b", "c")
        assert caller.errors == []
