"""Changes in a registry after a failed call of an hprose client: the list that the client read
because of the failure does not outlive them. [H5]"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

import mooring
import mooring.hprose
from mooring.hprose import Client
from mooring.hub import Hub
from mooring.model import Instance
from mooring.registry.contract import Listing
from mooring.registry.redis import service_feed as following
from mooring.registry.registration import Registration
from mooring.testing.servers import free_port
from tests.features.hprose_server import HproseServer
from tests.waiting import eventually

DOMAIN = "http.hello"


@pytest.fixture(autouse=True)
def no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Redis, prevent the next complete read from delivering the change."""
    monkeypatch.setattr(following, "POLL", 600.0)


@pytest.fixture(params=["memory", "etcd-3.5", "redis-7.0"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def known(remote: Client) -> set[str]:
    return {server.uuid for server in remote.servers}


def register(hub: Hub, port: int) -> Registration:
    return hub.register(Instance(DOMAIN, "127.0.0.1", port, protocol="http"))


@pytest.fixture
async def dead(other: Hub) -> AsyncIterator[Registration]:
    """A server that does not answer."""
    async with register(other, free_port()) as registration:
        yield registration


@pytest.fixture
async def live(
    hub: Hub, other: Hub, dead: Registration
) -> AsyncIterator[tuple[Client, dict[str, Registration]]]:
    """A client that called the dead server and then one of two others, with those two."""
    with HproseServer() as one, HproseServer() as two:
        ports = [urlsplit(server.url).port or 0 for server in (one, two)]
        async with (
            mooring.hprose.client(hub, DOMAIN, pause=0.1) as client,
            register(other, ports[0]) as first,
            register(other, ports[1]) as second,
        ):
            await eventually(lambda: len(client.servers) == 3)
            assert await client.hello("x") == "hello x"
            yield (
                client,
                {registration.instance.id: registration for registration in (first, second)},
            )


@pytest.fixture
def remote(live: tuple[Client, dict[str, Registration]]) -> Client:
    return live[0]


@pytest.fixture
def primary(live: tuple[Client, dict[str, Registration]]) -> Registration:
    """The server that the client calls now."""
    remote, servers = live
    assert remote.primary is not None
    return servers[remote.primary.uuid]


async def left(remote: Client, server: Registration) -> None:
    """Wait until the client has dropped a server and calls another."""
    await eventually(lambda: server.instance.id not in known(remote))
    assert await remote.hello("x") == "hello x"


async def test_a_server_that_an_operator_disables_is_left(
    remote: Client, other: Hub, primary: Registration
):
    await other.registry.configure(DOMAIN, primary.instance.id, set={"enabled": False})
    await left(remote, primary)


async def test_a_server_that_an_operator_deregisters_is_left(
    remote: Client, other: Hub, dead: Registration
):
    await other.registry.deregister(DOMAIN, dead.instance.id)
    await left(remote, dead)


async def test_a_server_that_closes_is_left(remote: Client, dead: Registration):
    await dead.aclose()
    await left(remote, dead)


async def test_a_server_that_drains_is_left(remote: Client, primary: Registration):
    draining = asyncio.ensure_future(primary.drain(grace=60, linger=30))
    await left(remote, primary)
    assert not draining.done()
    draining.cancel()
    await asyncio.wait([draining])


async def test_a_change_during_the_read_is_newer_than_the_list(
    remote: Client, hub: Hub, other: Hub, dead: Registration, monkeypatch: pytest.MonkeyPatch
):
    plain = hub.registry.instances

    async def overtaken(service: str) -> Listing:
        listing = await plain(service)
        await other.registry.deregister(DOMAIN, dead.instance.id)
        await left(remote, dead)
        return listing

    monkeypatch.setattr(hub.registry, "instances", overtaken)
    await remote._calls._read(time.monotonic())
    assert dead.instance.id not in known(remote)
