"""`xds:///` channels of gRPC and plain xDS clients follow the registry."""

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
    """The number of refused responses; at the end of the test it must be the expected one."""
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
    """A server that returns its name, and its registration."""
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
        await caller.answers_from("a")
        async with offered(hub, "b"):
            await caller.answers_from("a", "b")
            await first.aclose()
            await caller.answers_from("b")
            assert caller.errors == []


async def test_an_instance_whose_record_vanished_is_still_called(hub: Hub, bootstrap: Path):
    async with answering("a") as port:
        await hub.registry.enter(mooring.Instance(SERVICE, host="127.0.0.1", port=port), ttl=60)
        async with Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller:
            await caller.answers_from("a")
            await hub.store.commit(Delete(everything()))
            await caller.answers_from("a", of=150)
            assert caller.errors == []


async def test_an_operator_disables_and_enables_an_instance(hub: Hub, bootstrap: Path):
    async with (
        offered(hub, "a"),
        offered(hub, "b") as (_, port),
        Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller,
    ):
        await caller.answers_from("a", "b")
        id = f"127.0.0.1:{port}"
        await hub.registry.configure(SERVICE, id, set={"enabled": False})
        await caller.answers_from("a")
        await hub.registry.configure(SERVICE, id, set={}, unset=("enabled",))
        await caller.answers_from("a", "b")
        assert caller.errors == []


async def test_weights_are_respected(hub: Hub, bootstrap: Path):
    async with (
        offered(hub, "a", weight=5),
        offered(hub, "b", weight=3),
        offered(hub, "c", weight=2),
        Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller,
    ):
        await caller.answers_from("a", "b", "c")
        counted = await caller.counted(
            600
        )  # gRPC picks at random: this allows for five standard deviations
    assert counted["a"] / 600 == pytest.approx(0.5, abs=0.1)
    assert counted["b"] / 600 == pytest.approx(0.3, abs=0.1)
    assert counted["c"] / 600 == pytest.approx(0.2, abs=0.1)


async def test_a_changed_weight_is_followed(hub: Hub, bootstrap: Path):
    async with (
        offered(hub, "a"),
        offered(hub, "b") as (_, port),
        Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller,
    ):
        await caller.answers_from("a", "b")
        await hub.registry.configure(SERVICE, f"127.0.0.1:{port}", set={"weight": 0})
        await caller.answers_from("a")


@pytest.mark.deadline
@pytest.mark.parametrize("name", [SERVICE, "no//name"])
async def test_calls_to_an_unknown_service_fail_at_once(bootstrap: Path, name: str):
    """gRPC would wait 15 seconds for a resource without a response."""
    async with Caller(f"xds:///{name}", bootstrap=bootstrap) as caller:
        await eventually(lambda: len(caller.answers) > 0, within=12)
        assert caller.answers[0].startswith("!UNAVAILABLE")


async def test_a_waiting_channel_follows_a_service_that_appears(hub: Hub, bootstrap: Path):
    async with Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller:
        await eventually(lambda: len(caller.answers) > 0, within=20)
        async with offered(hub, "a"):
            await caller.answers_from("a")


async def test_instances_in_the_zone_of_the_client_are_called_first(
    hub: Hub, plane: ControlPlane, tmp_path: Path
):
    bootstrap = written(tmp_path, plane, Identity("test", zone="near"))
    async with (
        offered(hub, "far", zone="far"),
        offered(hub, "near", zone="near") as (near, _),
        Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller,
    ):
        await caller.answers_from("near")
        await near.aclose()
        await caller.answers_from("far")
        assert caller.errors == []


async def test_a_host_name_is_resolved(hub: Hub, bootstrap: Path):
    async with answering("a") as port:
        instance = mooring.Instance(SERVICE, host="localhost", port=port)
        nowhere = mooring.Instance(SERVICE, host="nowhere.invalid", port=port)
        async with (
            hub.register(instance),
            hub.register(nowhere),
            Caller(f"xds:///{SERVICE}", bootstrap=bootstrap) as caller,
        ):
            await caller.answers_from("a")
            assert caller.errors == []


@pytest.mark.parametrize("encrypted", [False, True])
async def test_connections_above_the_limit_of_an_address_are_refused(
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
            await caller.answers_from("a")


async def test_a_port_in_use_is_reported(hub: Hub, plane: ControlPlane):
    with pytest.raises(StoreError, match=f"cannot listen at {plane.address}"):
        async with ControlPlane(hub, bind=plane.address):
            pass


async def test_an_invalid_certificate_is_reported_before_the_start(hub: Hub, tmp_path: Path):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        async with ControlPlane(
            hub, bind="127.0.0.1:0", tls=ServerTLS(tmp_path / "none", tmp_path / "none")
        ):
            pass


class Subscriber:
    """A client that sends exactly what the test says."""

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

    async def send_request(self, kind: str, *, error: str = "", **fields: Any) -> None:
        if error:
            fields["error_detail"] = proto.message("Status", code=3, message=error)
        request = f"{self._prefix}DiscoveryRequest"
        await self._stream.write(proto.message(request, node=self._node, type_url=kind, **fields))

    async def next_response(self, within: float = 20.0) -> Any:
        async with asyncio.timeout(within):
            return await self._stream.read()


def ports(response: Any) -> list[int]:
    """The endpoints of the only resource of a response."""
    (resource,) = response.resources
    body = resource.resource if hasattr(resource, "resource") else resource
    assignment = proto.parser("ClusterLoadAssignment")(body.value)
    return sorted(
        endpoint.endpoint.address.socket_address.port_value
        for locality in assignment.endpoints
        for endpoint in locality.lb_endpoints
    )


@pytest.mark.parametrize("backend", ["memory", "etcd-3.5", "redis-7.0"])
async def test_every_registry_feeds_the_control_plane(store_url: str):
    async with (
        connect(store_url) as hub,
        ControlPlane(hub, bind="127.0.0.1:0") as plane,
        Subscriber(plane.address) as client,
    ):
        await client.send_request(proto.ENDPOINTS, resource_names=["echo"])
        first = await client.next_response()
        assert ports(first) == []
        await client.send_request(
            proto.ENDPOINTS, resource_names=["echo"], response_nonce=first.nonce
        )
        async with hub.register(mooring.Instance("echo", host="127.0.0.1", port=1)):
            second = await client.next_response()
            assert ports(second) == [1]
            assert second.version_info != first.version_info


async def test_a_slow_client_gets_only_the_latest_state(hub: Hub, plane: ControlPlane):
    all_ports = list(range(1, 30))
    async with Subscriber(plane.address) as client, Subscriber(plane.address) as other:
        await client.send_request(proto.ENDPOINTS, resource_names=["echo"])
        first = await client.next_response()
        async with contextlib.AsyncExitStack() as stack:
            for port in all_ports:
                instance = mooring.Instance("echo", host="127.0.0.1", port=port)
                await stack.enter_async_context(hub.register(instance))
            # A second client acknowledges at once, so that it shows when the server has all
            # instances.
            nonce, received = "", [0]
            while received != all_ports:
                await other.send_request(
                    proto.ENDPOINTS, resource_names=["echo"], response_nonce=nonce
                )
                response = await other.next_response()
                nonce, received = response.nonce, ports(response)
            await client.send_request(
                proto.ENDPOINTS, resource_names=["echo"], response_nonce=first.nonce
            )
            assert ports(await client.next_response()) == all_ports
            with pytest.raises(TimeoutError):
                await client.next_response(within=0.3)


async def test_a_rejection_is_counted_and_logged_and_blocks_nothing(
    hub: Hub,
    plane: ControlPlane,
    caplog: pytest.LogCaptureFixture,
    refused: Callable[[], float],
):
    async with Subscriber(plane.address) as client:
        await client.send_request(proto.ENDPOINTS, resource_names=["echo"])
        first = await client.next_response()
        with caplog.at_level(logging.WARNING, "mooring.xds"):
            await client.send_request(
                proto.ENDPOINTS,
                resource_names=["echo"],
                response_nonce=first.nonce,
                error="it smells",
            )
            await eventually(lambda: "rejects ClusterLoadAssignment: 'it smells'" in caplog.text)
        assert refused() == 1
        async with hub.register(mooring.Instance("echo", host="127.0.0.1", port=1)):
            assert ports(await client.next_response()) == [1]


@pytest.mark.parametrize("incremental", [False, True])
async def test_a_wildcard_includes_current_and_later_services(
    hub: Hub, plane: ControlPlane, incremental: bool
):
    def names(response: Any) -> list[str]:
        bodies = [getattr(resource, "resource", resource) for resource in response.resources]
        return [proto.parser("Cluster")(body.value).name for body in bodies]

    async with (
        hub.register(mooring.Instance("a", host="127.0.0.1", port=1)),
        Subscriber(plane.address, incremental=incremental, agent="envoy") as client,
    ):
        await client.send_request(proto.CLUSTER)
        first = await client.next_response()
        assert names(first) == ["a"]
        await client.send_request(proto.CLUSTER, response_nonce=first.nonce)
        later = mooring.Instance("b", host="127.0.0.1", port=1, ports={"http": 2})
        async with hub.register(later):
            more = ["b", "b//http"]
            second = await client.next_response()
            assert names(second) == (more if incremental else ["a", *more])
            await client.send_request(proto.CLUSTER, response_nonce=second.nonce)
            # A service whose name is no host has no route, but a cluster like any other.
            async with hub.register(mooring.Instance("no host", host="127.0.0.1", port=1)):
                assert "no host" in names(await client.next_response())


@pytest.mark.parametrize("kind", [proto.CLUSTER, proto.ENDPOINTS])
async def test_nothing_is_sent_before_the_registry_is_known(kind: str):
    """Least of all that there are no services: a client keeps what it received before."""
    nowhere = f"etcd://127.0.0.1:{free_port()}?timeout=200ms"
    async with (
        connect(nowhere) as hub,
        ControlPlane(hub, bind="127.0.0.1:0", interval=0.05) as plane,
        Subscriber(plane.address, agent="envoy") as client,
    ):
        await client.send_request(kind, resource_names=[] if kind == proto.CLUSTER else ["echo"])
        with pytest.raises(TimeoutError):
            await client.next_response(within=0.5)


async def test_a_resource_has_the_requested_name(hub: Hub, plane: ControlPlane):
    """`default/echo` is shown as `echo`, but a client waits for the name that it requested."""
    async with (
        hub.register(mooring.Instance("echo", host="127.0.0.1", port=1)),
        Subscriber(plane.address) as client,
    ):
        await client.send_request(proto.ENDPOINTS, resource_names=["default/echo"])
        (resource,) = (await client.next_response()).resources
        assignment = proto.parser("ClusterLoadAssignment")(resource.value)
        assert assignment.cluster_name == "default/echo"
        assert len(assignment.endpoints) == 1


async def test_heartbeats_cause_no_responses(hub: Hub, plane: ControlPlane):
    instance = mooring.Instance("echo", host="127.0.0.1", port=1)
    async with Subscriber(plane.address) as client, hub.register(instance) as registration:
        await client.send_request(proto.ENDPOINTS, resource_names=["echo"])
        first = await client.next_response()
        while not ports(first):
            await client.send_request(
                proto.ENDPOINTS, resource_names=["echo"], response_nonce=first.nonce
            )
            first = await client.next_response()
        await client.send_request(
            proto.ENDPOINTS, resource_names=["echo"], response_nonce=first.nonce
        )
        registration.update(metadata={"some": "thing"})
        registration.update(weight=2)
        second = await client.next_response()
        assert ports(second) == [1]
        assert int(second.nonce) == int(first.nonce) + 1


async def test_unsupported_types_get_no_response_and_are_harmless(plane: ControlPlane):
    async with Subscriber(plane.address) as client:
        await client.send_request("type.googleapis.com/envoy.service.runtime.v3.Runtime")
        await client.send_request(proto.LISTENER, resource_names=["echo"])
        assert (await client.next_response()).type_url == proto.LISTENER


async def test_services_without_subscribers_are_not_followed(hub: Hub, plane: ControlPlane):
    catalogue = plane._catalogue
    async with Subscriber(plane.address, agent="envoy") as client:
        await client.send_request(proto.CLUSTER)
        await client.send_request(proto.ENDPOINTS, resource_names=["echo"])
        await client.next_response()
        await eventually(lambda: "echo" in catalogue._entries)
    await eventually(lambda: not catalogue._entries and catalogue._listing is None)
