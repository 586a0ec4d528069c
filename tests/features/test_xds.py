"""`xds:///` channels of gRPC and plain clients of xDS follow the registry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import mooring
from mooring.connection_limit import ConnectionLimit
from mooring.errors import InvalidRequest, StoreError
from mooring.hub import Hub, connect
from mooring.store import Delete, everything
from mooring.store.etcd.grpc_shutdown import settled
from mooring.testing.servers import free_port
from mooring.xds import ControlPlane, ServerTLS, proto
from mooring.xds.bootstrap import Identity, for_grpc
from mooring.xds.server import REFUSED
from tests.features.xds_caller import Caller, answering
from tests.silent_connections import connected, still_open
from tests.waiting import eventually

SERVICE = "Common/Echo"


def refusals() -> float:
    return sum(
        sample.value
        for family in REFUSED.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    )


@pytest.fixture(autouse=True)
def refused() -> Iterator[Callable[[], float]]:
    """How many responses were refused; a test that wants none need not ask."""
    before = refusals()
    expected = [0.0]

    def count() -> float:
        expected[0] = refusals() - before
        return expected[0]

    yield count
    assert refusals() - before == expected[0]


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with connect("memory://") as opened:
        yield opened


@pytest.fixture
async def plane(hub: Hub) -> AsyncIterator[ControlPlane]:
    async with ControlPlane(hub, bind="127.0.0.1:0", interval=0.05) as entered:
        yield entered


@pytest.fixture
def bootstrap(tmp_path: Path, plane: ControlPlane) -> Path:
    return written(tmp_path, plane, Identity("test"))


def written(folder: Path, plane: ControlPlane, identity: Identity) -> Path:
    path = folder / "bootstrap.json"
    path.write_text(json.dumps(for_grpc(plane.address, identity)))
    return path


@contextlib.asynccontextmanager
async def offered(
    hub: Hub, name: str, **fields: Any
) -> AsyncIterator[tuple[mooring.Registration, int]]:
    """A server that says its name, and its registration."""
    async with answering(name) as port:
        instance = mooring.Instance(SERVICE, host="127.0.0.1", port=port, **fields)
        async with hub.register(instance) as registration:
            yield registration, port


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
async def test_a_channel_follows_instances_that_come_and_go(hub: Hub, bootstrap: Path, kind: str):
    async with (
        offered(hub, "a") as (first, _),
        Caller(f"xds:///{SERVICE}", kind=kind, bootstrap=bootstrap) as caller,
    ):
        await caller.hears("a")
        async with offered(hub, "b"):
            await caller.hears("a", "b")
            await first.aclose()
            await caller.hears("b")
            assert caller.errors == []


async def test_an_instance_whose_record_vanished_is_still_called(hub: Hub, bootstrap: Path):
    async with answering("a") as port:
        await hub.registry.enter(mooring.Instance(SERVICE, host="127.0.0.1", port=port), ttl=60)
        async with Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller:
            await caller.hears("a")
            await hub.store.commit(Delete(everything()))
            await caller.hears("a", of=150)
            assert caller.errors == []


async def test_an_operator_takes_an_instance_out_and_back_in(hub: Hub, bootstrap: Path):
    async with (
        offered(hub, "a"),
        offered(hub, "b") as (_, port),
        Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller,
    ):
        await caller.hears("a", "b")
        id = f"127.0.0.1:{port}"
        await hub.registry.configure(SERVICE, id, set={"enabled": False})
        await caller.hears("a")
        await hub.registry.configure(SERVICE, id, set={}, unset=("enabled",))
        await caller.hears("a", "b")
        assert caller.errors == []


async def test_weights_are_kept(hub: Hub, bootstrap: Path):
    async with (
        offered(hub, "a", weight=5),
        offered(hub, "b", weight=3),
        offered(hub, "c", weight=2),
        Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller,
    ):
        await caller.hears("a", "b", "c")
        counted = await caller.counted(600)  # gRPC draws lots: this allows for five deviations
    assert counted["a"] / 600 == pytest.approx(0.5, abs=0.1)
    assert counted["b"] / 600 == pytest.approx(0.3, abs=0.1)
    assert counted["c"] / 600 == pytest.approx(0.2, abs=0.1)


async def test_a_weight_that_changes_is_followed(hub: Hub, bootstrap: Path):
    async with (
        offered(hub, "a"),
        offered(hub, "b") as (_, port),
        Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller,
    ):
        await caller.hears("a", "b")
        await hub.registry.configure(SERVICE, f"127.0.0.1:{port}", set={"weight": 0})
        await caller.hears("a")


@pytest.mark.deadline
@pytest.mark.parametrize("name", [SERVICE, "no//name"])
async def test_calls_to_nobody_fail_at_once(bootstrap: Path, name: str):
    """gRPC would wait for 15 seconds for what it hears nothing of."""
    async with Caller(f"xds:///{name}", bootstrap=bootstrap) as caller:
        await eventually(lambda: len(caller.answers) > 0, within=12)
        assert caller.answers[0].startswith("!UNAVAILABLE")


async def test_a_service_appears_under_a_channel_that_waits_for_it(hub: Hub, bootstrap: Path):
    async with Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller:
        await eventually(lambda: len(caller.answers) > 0, within=20)
        async with offered(hub, "a"):
            await caller.hears("a")


async def test_instances_in_the_clients_own_zone_are_called_first(
    hub: Hub, plane: ControlPlane, tmp_path: Path
):
    bootstrap = written(tmp_path, plane, Identity("test", zone="near"))
    async with (
        offered(hub, "far", zone="far"),
        offered(hub, "near", zone="near") as (near, _),
        Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller,
    ):
        await caller.hears("near")
        await near.aclose()
        await caller.hears("far")
        assert caller.errors == []


async def test_a_host_name_is_looked_up(hub: Hub, bootstrap: Path):
    async with answering("a") as port:
        instance = mooring.Instance(SERVICE, host="localhost", port=port)
        nowhere = mooring.Instance(SERVICE, host="nowhere.invalid", port=port)
        async with (
            hub.register(instance),
            hub.register(nowhere),
            Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller,
        ):
            await caller.hears("a")
            assert caller.errors == []


@pytest.mark.parametrize("encrypted", [False, True])
async def test_an_address_with_too_many_connections_is_refused_more(
    hub: Hub, encrypted: bool, certificates: Path
):
    files = ServerTLS(certificates / "server.pem", certificates / "server.key")
    limit = ConnectionLimit(3, exempt=())
    async with ControlPlane(
        hub, bind="127.0.0.1:0", tls=files if encrypted else None, connections=limit
    ) as plane:
        with connected(plane.port, 10) as many:
            await eventually(lambda: still_open(many) == 3)
        await eventually(lambda: limit.accept(("127.0.0.1", 1)) is not None)


async def test_a_control_plane_with_tls(hub: Hub, certificates: Path, tmp_path: Path):
    tls = ServerTLS(
        certificates / "server.pem", certificates / "server.key", certificates / "ca.pem"
    )
    identity = Identity(
        "test",
        tls=True,
        ca=str(certificates / "ca.pem"),
        cert=str(certificates / "client.pem"),
        key=str(certificates / "client.key"),
    )
    async with ControlPlane(hub, bind="127.0.0.1:0", tls=tls) as plane, offered(hub, "a"):
        bootstrap = written(tmp_path, plane, identity)
        async with Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller:
            await caller.hears("a")


async def test_an_address_that_is_taken_is_told_in_words(hub: Hub, plane: ControlPlane):
    with pytest.raises(StoreError, match=f"cannot listen at {plane.address}"):
        async with ControlPlane(hub, bind=plane.address):
            pass


async def test_a_bad_certificate_is_told_before_it_starts(hub: Hub, tmp_path: Path):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        async with ControlPlane(
            hub, bind="127.0.0.1:0", tls=ServerTLS(tmp_path / "none", tmp_path / "none")
        ):
            pass


class Subscriber:
    """A client that says exactly what it is told to."""

    def __init__(self, address: str, *, incremental: bool = False, agent: str = "gRPC") -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._prefix = "Delta" if incremental else ""
        self._node = proto.message("Node", id="test", user_agent_name=agent)
        self._method = proto.DELTA if incremental else proto.STREAM

    async def __aenter__(self) -> Subscriber:
        self._stream = self._channel.stream_stream(
            self._method,
            request_serializer=proto.serializer(f"{self._prefix}DiscoveryRequest"),
            response_deserializer=proto.parser(f"{self._prefix}DiscoveryResponse"),
        )()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stream.cancel()
        await self._channel.close()
        await settled()

    async def ask(self, kind: str, *, error: str = "", **fields: Any) -> None:
        if error:
            fields["error_detail"] = proto.message("Status", code=3, message=error)
        request = f"{self._prefix}DiscoveryRequest"
        await self._stream.write(proto.message(request, node=self._node, type_url=kind, **fields))

    async def hear(self, within: float = 20.0) -> Any:
        async with asyncio.timeout(within):
            return await self._stream.read()


def ports(response: Any) -> list[int]:
    """The endpoints of the only resource of a response."""
    (found,) = response.resources
    body = found.resource if hasattr(found, "resource") else found
    told = proto.parser("ClusterLoadAssignment")(body.value)
    return sorted(
        each.endpoint.address.socket_address.port_value
        for locality in told.endpoints
        for each in locality.lb_endpoints
    )


@pytest.mark.parametrize("backend", ["memory", "etcd-3.5", "redis-7.0"])
async def test_every_registry_feeds_it(store_url: str):
    async with (
        connect(store_url) as hub,
        ControlPlane(hub, bind="127.0.0.1:0") as plane,
        Subscriber(plane.address) as client,
    ):
        await client.ask(proto.ENDPOINTS, resource_names=["echo"])
        first = await client.hear()
        assert ports(first) == []
        await client.ask(proto.ENDPOINTS, resource_names=["echo"], response_nonce=first.nonce)
        async with hub.register(mooring.Instance("echo", host="127.0.0.1", port=1)):
            second = await client.hear()
            assert ports(second) == [1]
            assert second.version_info != first.version_info


async def test_a_client_that_does_not_answer_is_told_the_latest_alone(
    hub: Hub, plane: ControlPlane
):
    all_ports = list(range(1, 30))
    async with Subscriber(plane.address) as client, Subscriber(plane.address) as other:
        await client.ask(proto.ENDPOINTS, resource_names=["echo"])
        first = await client.hear()
        async with contextlib.AsyncExitStack() as stack:
            for port in all_ports:
                instance = mooring.Instance("echo", host="127.0.0.1", port=port)
                await stack.enter_async_context(hub.register(instance))
            # A second client acknowledges at once, so it shows when the server has all instances.
            nonce, heard = "", [0]
            while heard != all_ports:
                await other.ask(proto.ENDPOINTS, resource_names=["echo"], response_nonce=nonce)
                response = await other.hear()
                nonce, heard = response.nonce, ports(response)
            await client.ask(proto.ENDPOINTS, resource_names=["echo"], response_nonce=first.nonce)
            assert ports(await client.hear()) == all_ports
            with pytest.raises(TimeoutError):
                await client.hear(within=0.3)


async def test_a_refusal_is_counted_and_told_and_holds_nothing_up(
    hub: Hub,
    plane: ControlPlane,
    caplog: pytest.LogCaptureFixture,
    refused: Callable[[], float],
):
    async with Subscriber(plane.address) as client:
        await client.ask(proto.ENDPOINTS, resource_names=["echo"])
        first = await client.hear()
        with caplog.at_level(logging.WARNING, "mooring.xds"):
            await client.ask(
                proto.ENDPOINTS,
                resource_names=["echo"],
                response_nonce=first.nonce,
                error="it smells",
            )
            await eventually(lambda: "rejects ClusterLoadAssignment: 'it smells'" in caplog.text)
        assert refused() == 1
        async with hub.register(mooring.Instance("echo", host="127.0.0.1", port=1)):
            assert ports(await client.hear()) == [1]


@pytest.mark.parametrize("incremental", [False, True])
async def test_all_services_and_those_that_come_later(
    hub: Hub, plane: ControlPlane, incremental: bool
):
    def names(response: Any) -> list[str]:
        bodies = [getattr(each, "resource", each) for each in response.resources]
        return [proto.parser("Cluster")(body.value).name for body in bodies]

    async with (
        hub.register(mooring.Instance("a", host="127.0.0.1", port=1)),
        Subscriber(plane.address, incremental=incremental, agent="envoy") as client,
    ):
        await client.ask(proto.CLUSTER)
        first = await client.hear()
        assert names(first) == ["a"]
        await client.ask(proto.CLUSTER, response_nonce=first.nonce)
        later = mooring.Instance("b", host="127.0.0.1", port=1, ports={"http": 2})
        async with hub.register(later):
            more = ["b", "b//http"]
            second = await client.hear()
            assert names(second) == (more if incremental else ["a", *more])
            await client.ask(proto.CLUSTER, response_nonce=second.nonce)
            # One whose name is no host has no route, but is there like any other.
            async with hub.register(mooring.Instance("no host", host="127.0.0.1", port=1)):
                assert "no host" in names(await client.hear())


@pytest.mark.parametrize("kind", [proto.CLUSTER, proto.ENDPOINTS])
async def test_nothing_is_told_before_the_registry_was_heard(kind: str):
    """Least of all that there are no services: a client has what it was told before."""
    nowhere = f"etcd://127.0.0.1:{free_port()}?timeout=200ms"
    async with (
        connect(nowhere) as hub,
        ControlPlane(hub, bind="127.0.0.1:0", interval=0.05) as plane,
        Subscriber(plane.address, agent="envoy") as client,
    ):
        await client.ask(kind, resource_names=[] if kind == proto.CLUSTER else ["echo"])
        with pytest.raises(TimeoutError):
            await client.hear(within=0.5)


async def test_a_name_is_answered_as_it_was_asked(hub: Hub, plane: ControlPlane):
    """`default/echo` is shown as `echo`, but who asks for the one waits for the one."""
    async with (
        hub.register(mooring.Instance("echo", host="127.0.0.1", port=1)),
        Subscriber(plane.address) as client,
    ):
        await client.ask(proto.ENDPOINTS, resource_names=["default/echo"])
        (found,) = (await client.hear()).resources
        told = proto.parser("ClusterLoadAssignment")(found.value)
        assert told.cluster_name == "default/echo"
        assert len(told.endpoints) == 1


async def test_signs_of_life_are_told_to_nobody(hub: Hub, plane: ControlPlane):
    instance = mooring.Instance("echo", host="127.0.0.1", port=1)
    async with Subscriber(plane.address) as client, hub.register(instance) as registration:
        await client.ask(proto.ENDPOINTS, resource_names=["echo"])
        first = await client.hear()
        while not ports(first):
            await client.ask(proto.ENDPOINTS, resource_names=["echo"], response_nonce=first.nonce)
            first = await client.hear()
        await client.ask(proto.ENDPOINTS, resource_names=["echo"], response_nonce=first.nonce)
        registration.update(metadata={"some": "thing"})
        registration.update(weight=2)
        second = await client.hear()
        assert ports(second) == [1]
        assert int(second.nonce) == int(first.nonce) + 1


async def test_what_is_not_served_is_not_answered_and_does_no_harm(plane: ControlPlane):
    async with Subscriber(plane.address) as client:
        await client.ask("type.googleapis.com/envoy.service.runtime.v3.Runtime")
        await client.ask(proto.LISTENER, resource_names=["echo"])
        assert (await client.hear()).type_url == proto.LISTENER


async def test_nothing_is_followed_for_clients_that_went(hub: Hub, plane: ControlPlane):
    catalogue = plane._catalogue
    async with Subscriber(plane.address, agent="envoy") as client:
        await client.ask(proto.CLUSTER)
        await client.ask(proto.ENDPOINTS, resource_names=["echo"])
        await client.hear()
        await eventually(lambda: "echo" in catalogue._entries)
    await eventually(lambda: not catalogue._entries and catalogue._listing is None)
