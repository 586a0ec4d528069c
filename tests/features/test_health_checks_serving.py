"""Health checks of registered instances: on the live fleet, and under `mooring serve`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import mooring
from mooring import addresses
from mooring.errors import InvalidRequest
from mooring.messages import message
from mooring.model import Instance
from mooring.server.health_checks.scheduler import HealthChecks
from mooring.server.health_checks.target_policy import policy
from mooring.server.live.state import Fleet
from mooring.server.settings import CheckSettings, load
from mooring.testing.proxy import close_server
from mooring.testing.servers import free_port
from tests.acceptance.serving import Served
from tests.waiting import eventually

OFTEN = CheckSettings(enabled=True, interval=0.05)


@asynccontextmanager
async def web() -> AsyncIterator[int]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await close_server(server)
        await server.wait_closed()


async def test_the_fleet_has_the_response_time_and_the_failure():
    async with mooring.connect("memory://") as hub, Fleet(hub.registry) as fleet, web() as port:
        rules = policy([], [("127.0.0.1", free_port())])
        well = Instance("orders", "127.0.0.1", port, "http")
        ill = Instance("orders", "127.0.0.1", free_port(), "http")
        async with HealthChecks(fleet, OFTEN, policy=rules), hub.register(well):
            async with hub.register(ill):
                await eventually(
                    lambda: (fleet.observation("orders", well.id).response_time or 0) > 0
                )
                await eventually(
                    lambda: (
                        fleet.observation("orders", ill.id).check_failure
                        == message("probe_refused")
                    )
                )
                assert fleet.observation("orders", well.id).check_failure is None
            await eventually(lambda: fleet.observation("orders", ill.id).check_failure is None)


async def test_serve_checks_registered_instances_but_never_itself(tmp_path: Path):
    """An instance registered with the address of the server itself, on any port, is an attack."""
    file = tmp_path / "serve.yaml"
    file.write_text("checks: {enabled: true, interval: 200ms, failures: 1}\n")
    etcd = f"127.0.0.1:{free_port()}"
    with Served("memory://", f"--etcd={etcd}", f"--config={file}", folder=tmp_path) as served:
        assert any(line.startswith("checks   every 200ms, at most 100") for line in served.lines)
        async with mooring.connect(f"etcd://{etcd}") as hub, AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=f"http://{served.http}/admin/registry/services",
                    headers={"Authorization": f"Bearer {served.admin_token}"},
                    trust_env=False,
                )
            )
            port = await stack.enter_async_context(web())
            for service, place in (
                ("orders", f"127.0.0.1:{port}"),
                ("trick", etcd),
                ("trick", served.http),
            ):
                instance = Instance(service, *addresses.split(place), "http")
                await stack.enter_async_context(hub.register(instance))

            async def read_service(service: str) -> dict[str, Any]:
                answer = await client.get(f"/{service}")
                return dict(answer.json()) if answer.status_code == 200 else {}

            async def answers() -> bool:
                return (await read_service("orders")).get("avgResponseTime") is not None

            async def refuses() -> bool:
                instances = (await read_service("trick")).get("instances", [])
                checks = [(instance["check"] or {}).get("reason") for instance in instances]
                return checks == ["its address is this server itself"] * 2

            await eventually(answers)
            await eventually(refuses)
            assert (await read_service("trick"))["abnormalInstances"] == []


def test_checks_require_the_http_api(tmp_path: Path):
    (tmp_path / "file").write_text("store: memory://\nhttp: off\nchecks: {enabled: true}\n")
    with pytest.raises(InvalidRequest, match=r"checks\.enabled"):
        load(tmp_path / "file")


def test_an_invalid_setting_is_reported_before_anything_starts(tmp_path: Path):
    (tmp_path / "file").write_text("store: memory://\nchecks: {networks: [10.0.0.1/8]}\n")
    with pytest.raises(InvalidRequest, match=r"checks\.networks"):
        load(tmp_path / "file")
