"""A real Envoy follows the registry, with the incremental and the state-of-the-world protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import mooring
from mooring.hub import Hub, connect
from mooring.testing.servers import free_port
from mooring.xds import ControlPlane, ServerTLS
from mooring.xds.bootstrap import Identity
from tests.envoy import EnvoyServer
from tests.features.xds_caller import Caller, answering
from tests.waiting import eventually

SERVICE, HOST = "Common/Echo", "echo.common"


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with connect("memory://") as opened:
        yield opened


@pytest.fixture
async def plane(hub: Hub) -> AsyncIterator[ControlPlane]:
    async with ControlPlane(hub, bind="127.0.0.1:0", interval=0.05) as entered:
        yield entered


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[EnvoyServer]]:
    """An Envoy that must not reject any response."""
    count = iter(range(10))

    @contextlib.asynccontextmanager
    async def started(plane: str, *args: Identity, **options: object) -> AsyncIterator[EnvoyServer]:
        with EnvoyServer(tmp_path / f"envoy{next(count)}", plane, *args, **options) as envoy:  # type: ignore[arg-type]
            await asyncio.to_thread(envoy.start)
            yield envoy
            counters = await asyncio.to_thread(envoy.stats, "update_rejected|update_success")
            assert any(count for name, count in counters.items() if name.endswith("success"))
            assert not any(count for name, count in counters.items() if name.endswith("rejected"))

    return started


@contextlib.asynccontextmanager
async def offered(hub: Hub, name: str, **fields: object) -> AsyncIterator[mooring.Registration]:
    async with answering(name) as port:
        instance = mooring.Instance(SERVICE, host="127.0.0.1", port=port, **fields)  # type: ignore[arg-type]
        async with hub.register(instance) as registration:
            yield registration


def calling(envoy: EnvoyServer, host: str = HOST) -> Caller:
    return Caller(envoy.address, authority=host, bootstrap=None)


@pytest.mark.parametrize("incremental", [True, False])
async def test_instances_come_and_go(hub: Hub, plane: ControlPlane, start, incremental: bool):
    async with (
        offered(hub, "a") as first,
        start(plane.address, incremental=incremental) as envoy,
        calling(envoy) as caller,
    ):
        await caller.answers_from("a")
        async with offered(hub, "b"):
            await caller.answers_from("a", "b")
            await first.aclose()
            await caller.answers_from("b")
            assert caller.errors == []


@pytest.mark.parametrize("incremental", [True, False])
async def test_a_new_service_appears(hub: Hub, plane: ControlPlane, start, incremental: bool):
    async with start(plane.address, incremental=incremental) as envoy, calling(envoy) as caller:
        await eventually(lambda: len(caller.answers) > 0, within=20)
        assert caller.answers[0].startswith("!UNIMPLEMENTED"), "there is no such host: 404"
        async with offered(hub, "a"):
            await caller.answers_from("a")
            first = caller.answers.index("a")
            assert set(caller.answers[first:]) == {"a"}


async def test_weights_are_exact(hub: Hub, plane: ControlPlane, start):
    async with (
        offered(hub, "a", weight=5),
        offered(hub, "b", weight=3),
        offered(hub, "c", weight=2),
        start(plane.address) as envoy,
        calling(envoy) as caller,
    ):
        await caller.answers_from("a", "b", "c")
        counted = await caller.counted(100)
    assert counted["a"] == pytest.approx(50, abs=2)
    assert counted["b"] == pytest.approx(30, abs=2)


async def test_a_draining_instance_is_no_longer_called(hub: Hub, plane: ControlPlane, start):
    async with (
        offered(hub, "a") as draining,
        offered(hub, "b"),
        start(plane.address) as envoy,
        calling(envoy) as caller,
    ):
        await caller.answers_from("a", "b")
        await draining.drain()
        await caller.answers_from("b")
        assert caller.errors == []


async def test_the_own_zone_is_preferred(hub: Hub, plane: ControlPlane, start):
    async with (
        offered(hub, "far", zone="far"),
        offered(hub, "near", zone="near") as near,
        start(plane.address, Identity(zone="near")) as envoy,
        calling(envoy) as caller,
    ):
        await caller.answers_from("near")
        await near.aclose()
        await caller.answers_from("far")
        assert caller.errors == []


async def test_a_dead_instance_is_skipped(hub: Hub, plane: ControlPlane, start):
    """Its lease has not expired yet, and its port is closed."""
    dead = mooring.Instance(SERVICE, host="127.0.0.1", port=free_port())
    async with (
        offered(hub, "a"),
        hub.register(dead),
        start(plane.address) as envoy,
        calling(envoy) as caller,
    ):
        await caller.answers_from("a")
        assert caller.errors == []


async def test_all_calls_can_go_to_one_service(hub: Hub, plane: ControlPlane, start):
    async with (
        offered(hub, "a"),
        start(plane.address, service=SERVICE) as envoy,
        calling(envoy, "whatever") as caller,
    ):
        await caller.answers_from("a")


async def test_envoy_listens_at_a_socket_file(hub: Hub, plane: ControlPlane, start, tmp_path: Path):
    async with (
        offered(hub, "a"),
        start(plane.address, listen=f"unix:{tmp_path}/calls") as envoy,
        calling(envoy) as caller,
    ):
        await caller.answers_from("a")


async def _say_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhttp")
    writer.close()


async def _get(address: str, host: str) -> str:
    target_host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(target_host, int(port))
    writer.write(f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_http_and_grpc_use_their_own_ports(hub: Hub, plane: ControlPlane, start):
    async with (
        await asyncio.start_server(_say_http, "127.0.0.1", 0) as web,
        offered(hub, "grpc", ports={"http": web.sockets[0].getsockname()[1]}),
        start(plane.address) as envoy,
        calling(envoy) as caller,
    ):
        await caller.answers_from("grpc")
        assert (await _get(envoy.address, f"{HOST}:1234")).endswith("\r\n\r\nhttp")
        assert (await _get(envoy.address, "nobody")).startswith("HTTP/1.1 404")


async def test_names_that_are_not_hosts_do_not_break_the_routes(
    hub: Hub, plane: ControlPlane, start
):
    """Envoy rejects a complete table because of one bad name, and `*` means all hosts."""
    names = [
        "xdstp:",
        "认证",
        "with space",
        "*",
        "x*",
        "ECHO.common",
        "a:b",
        "ä/ö",
        "[::1]",
        "%41",
        "a,b",
    ]
    async with contextlib.AsyncExitStack() as stack:
        for port, name in enumerate(names, start=1):
            instance = mooring.Instance(name, host="127.0.0.1", port=port)
            await stack.enter_async_context(hub.register(instance))
        await stack.enter_async_context(offered(hub, "a"))
        envoy = await stack.enter_async_context(start(plane.address))
        caller = await stack.enter_async_context(calling(envoy))
        await caller.answers_from("a")

        async def all_there() -> bool:
            """Whether all but the first and `*` are known, beside the called service and our
            own."""
            active = "cluster_manager.active_clusters"
            return bool((await asyncio.to_thread(envoy.stats, active))[active] == len(names))

        await eventually(all_there)


async def test_a_control_plane_with_tls(hub: Hub, certificates: Path, start):
    tls = ServerTLS(
        certificates / "server.pem", certificates / "server.key", certificates / "ca.pem"
    )
    files = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}
    identity = Identity(
        tls=True, **{name: str(certificates / file) for name, file in files.items()}
    )
    async with (
        ControlPlane(hub, bind="127.0.0.1:0", tls=tls) as plane,
        offered(hub, "a"),
        start(plane.address, identity) as envoy,
        calling(envoy) as caller,
    ):
        await caller.answers_from("a")
