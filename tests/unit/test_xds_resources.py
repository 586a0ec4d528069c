"""Services as xDS resources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.model import Config, Instance, Status, applied
from mooring.xds import proto, resources
from mooring.xds.resources import HTTP_SUFFIX, XdsClient

GRPC, ENVOY = XdsClient("grpc"), XdsClient("envoy")


def instance(last: int, **fields: Any) -> Instance:
    return Instance("echo", **{"host": f"10.0.0.{last}", "port": 80, **fields})


def read(resource: resources.Resource, kind: str) -> Any:
    return proto.parser(kind)(resource.body.value)


def localities(
    instances: Sequence[Instance], client: XdsClient, name: str = "echo"
) -> list[tuple[int, str, int, list[tuple[str, int]]]]:
    """Priority, zone, weight, and the endpoints with their weights."""
    assignment = read(resources.endpoints(name, instances, client), "ClusterLoadAssignment")
    assert assignment.cluster_name == name
    return [
        (
            locality.priority,
            locality.locality.zone,
            locality.load_balancing_weight.value,
            [(_address(one), one.load_balancing_weight.value) for one in locality.lb_endpoints],
        )
        for locality in assignment.endpoints
    ]


def _address(endpoint: Any) -> str:
    where = endpoint.endpoint.address.socket_address
    return f"{where.address}:{where.port_value}"


def addresses(instances: Sequence[Instance], client: XdsClient, name: str = "echo") -> list[str]:
    assigned = localities(instances, client, name)
    return sorted(address for *_, endpoints in assigned for address, _ in endpoints)


def test_grpc_gets_a_locality_for_every_weight():
    assigned = localities(
        [instance(1, weight=5), instance(2, weight=3), instance(3, weight=3)], GRPC
    )
    assert assigned == [
        (0, "", 6, [("10.0.0.2:80", 3), ("10.0.0.3:80", 3)]),
        (0, "", 5, [("10.0.0.1:80", 5)]),
    ]


def test_envoy_gets_a_locality_for_every_zone():
    assigned = localities(
        [instance(1, weight=5, zone="a"), instance(2, zone="a"), instance(3, zone="b")], ENVOY
    )
    assert assigned == [
        (0, "a", 6, [("10.0.0.1:80", 5), ("10.0.0.2:80", 1)]),
        (0, "b", 1, [("10.0.0.3:80", 1)]),
    ]


@pytest.mark.parametrize("kind", ["grpc", "envoy"])
@pytest.mark.parametrize(
    ("zone", "priorities"),
    [("a", {"a": 0, "b": 1, "": 1}), ("c", {"a": 0, "b": 0, "": 0}), ("", {"a": 0, "b": 0, "": 0})],
)
def test_the_clients_own_zone_comes_first(kind: Any, zone: str, priorities: dict[str, int]):
    instances = [instance(1, zone="a"), instance(2, zone="b"), instance(3)]
    assigned = localities(instances, XdsClient(kind, zone))
    assert {zone: priority for priority, zone, *_ in assigned} == priorities


@pytest.mark.parametrize("client", [GRPC, ENVOY])
@pytest.mark.parametrize(
    "out",
    [
        instance(2, weight=0),
        instance(2, enabled=False),
        instance(2, status=Status("draining")),
        instance(2, status=Status("down")),
        applied(instance(2, config=Config(enabled=False))),
        instance(2, host="a-name.nobody-looked-up"),
    ],
    ids=["no weight", "disabled", "draining", "down", "disabled by an operator", "a name"],
)
def test_excluded_instances_are_omitted(client: XdsClient, out: Instance):
    assert addresses([instance(1), out], client) == ["10.0.0.1:80"]


def unhealthy(last: int, **fields: Any) -> Instance:
    return instance(last, status=Status(healthy=False), **fields)


def test_envoy_gets_unhealthy_instances_marked_as_such():
    resource = resources.endpoints("echo", [instance(1), unhealthy(2)], ENVOY)
    (locality,) = read(resource, "ClusterLoadAssignment").endpoints
    states = {_address(endpoint): endpoint.health_status for endpoint in locality.lb_endpoints}
    assert states == {"10.0.0.1:80": proto.HEALTHY, "10.0.0.2:80": proto.UNHEALTHY}


def test_grpc_gets_no_unhealthy_instances_while_half_are_healthy():
    assert addresses([instance(1), unhealthy(2)], GRPC) == ["10.0.0.1:80"]
    instances = [instance(1), unhealthy(2), unhealthy(3)]
    assert len(addresses(instances, GRPC)) == 3
    assignment = read(resources.endpoints("echo", instances, GRPC), "ClusterLoadAssignment")
    assert {
        endpoint.health_status
        for locality in assignment.endpoints
        for endpoint in locality.lb_endpoints
    } == {proto.HEALTHY}


@pytest.mark.parametrize("client", [GRPC, ENVOY])
def test_draining_instances_are_sent_if_there_is_no_other(client: XdsClient):
    leaving = instance(2, status=Status("draining"))
    assert addresses([instance(1, enabled=False), leaving], client) == ["10.0.0.2:80"]


def test_grpc_gets_a_share_of_other_zones_if_few_of_its_own_are_healthy():
    near = [instance(1, zone="a"), *(unhealthy(last, zone="a") for last in range(2, 11))]
    far = [instance(last, zone="b") for last in range(11, 31)]
    assert shares(near + far, "a")["a"] == pytest.approx(1 / 7, rel=0.01)


def shares(instances: list[Instance], zone: str) -> dict[str, float]:
    """The share of calls that a gRPC client sends to each zone; all have the same priority."""
    weights: dict[str, int] = {}
    for priority, of, weight, _ in localities(instances, XdsClient("grpc", zone)):
        assert priority == 0
        weights[of] = weights.get(of, 0) + weight
    return {of: weight / sum(weights.values()) for of, weight in weights.items()}


def test_grpc_gets_no_unhealthy_instances_while_another_zone_is_healthy():
    near = [instance(1, zone="a"), *(unhealthy(last, zone="a") for last in range(2, 11))]
    far = [instance(last, zone="b") for last in range(11, 18)]
    assert len(addresses(near + far, XdsClient("grpc", "a"))) == 8
    assert shares(near + far, "a")["a"] == pytest.approx(1 / 7, rel=0.01)


def test_grpc_gets_all_zones_equally_if_none_has_enough():
    instances = [unhealthy(1, zone="a"), unhealthy(2, zone="b")]
    assert shares(instances, "a") == {"a": 0.5, "b": 0.5}


def test_grpc_gets_a_share_of_other_zones_while_most_of_its_own_drain():
    draining = (instance(last, zone="a", status=Status("draining")) for last in range(2, 11))
    far = [instance(last, zone="b") for last in range(11, 21)]
    instances = [instance(1, zone="a"), *draining, *far]
    assert len(addresses(instances, XdsClient("grpc", "a"))) == 11
    assert shares(instances, "a")["a"] == pytest.approx(1 / 7, rel=0.01)


def test_envoy_gets_other_zones_at_the_second_priority():
    near = [instance(1, zone="a"), *(unhealthy(last, zone="a") for last in range(2, 5))]
    far = [instance(last, zone="b") for last in range(5, 10)]
    assigned = localities(near + far, XdsClient("envoy", "a"))
    assert {zone: priority for priority, zone, *_ in assigned} == {"a": 0, "b": 1}


def test_an_unhealthy_zone_leaves_no_gap_in_the_priorities():
    instances = [unhealthy(1, zone="a"), instance(2, zone="b"), instance(3, zone="b")]
    assert [priority for priority, *_ in localities(instances, XdsClient("grpc", "a"))] == [0]


def test_of_two_instances_at_one_address_the_healthy_one_is_sent():
    instances = [
        instance(1, id="first", status=Status(healthy=False)),
        instance(1, id="second", weight=3),
    ]
    assert localities(instances, GRPC) == [(0, "", 3, [("10.0.0.1:80", 3)])]


def test_http_and_grpc_go_to_their_own_ports():
    instances = [instance(1, ports={"http": 8080}), instance(2)]
    assert resources.has_separate_http(instances)
    assert not resources.has_separate_http([instance(2)])
    assert addresses(instances, ENVOY) == ["10.0.0.1:80", "10.0.0.2:80"]
    assert addresses(instances, ENVOY, "echo" + HTTP_SUFFIX) == ["10.0.0.1:8080", "10.0.0.2:80"]
    (host,) = read(resources.route_table({"echo": True}), "RouteConfiguration").virtual_hosts
    assert [(route.match.HasField("grpc"), route.route.cluster) for route in host.routes] == [
        (True, "echo"),
        (False, "echo" + HTTP_SUFFIX),
    ]


def test_no_instances_are_an_empty_list():
    assert localities([], GRPC) == []


WEIGHTS = st.lists(st.floats(min_value=1e-300, max_value=1e300), min_size=1, max_size=50)


@given(WEIGHTS)
def test_weights_become_whole_numbers_in_proportion(weights: list[float]):
    made = resources.integer_weights(weights)
    assert all(weight >= 1 for weight in made)
    assert sum(made) < 2**32
    largest = max(weights)
    for before, after in zip(weights, made, strict=True):
        assert after / max(made) == pytest.approx(before / largest, abs=2e-6)


def test_whole_weights_stay_as_they_are():
    assert resources.integer_weights([5, 3.0, 2]) == [5, 3, 2]
    assert resources.integer_weights([]) == []


INSTANCES = st.lists(
    st.builds(
        lambda last, port, zone, weight, healthy, state: instance(
            last,
            port=port,
            zone=zone,
            weight=weight,
            status=Status(state, healthy),
        ),
        st.integers(1, 9),
        st.integers(1, 3),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from([0, 0.5, 1, 2, 2**40]),
        st.booleans(),
        st.sampled_from(["up", "draining"]),
    ),
    max_size=12,
)


@given(INSTANCES, st.sampled_from(["grpc", "envoy"]), st.sampled_from(["", "a", "c"]))
def test_the_resources_satisfy_the_rules_of_grpc_and_envoy(instances: Any, kind: Any, zone: str):
    """No gaps in the priorities, no duplicate localities or addresses, and weights between 1 and
    2**32."""
    assignment = read(
        resources.endpoints("echo", instances, XdsClient(kind, zone)), "ClusterLoadAssignment"
    )
    priorities = {locality.priority for locality in assignment.endpoints}
    assert priorities == set(range(len(priorities)))
    places = [
        (locality.priority, locality.locality.zone, locality.locality.sub_zone)
        for locality in assignment.endpoints
    ]
    assert len(places) == len(set(places))
    endpoints = [
        _address(endpoint)
        for locality in assignment.endpoints
        for endpoint in locality.lb_endpoints
    ]
    assert len(endpoints) == len(set(endpoints))
    assert sum(locality.load_balancing_weight.value for locality in assignment.endpoints) < 2**32
    for locality in assignment.endpoints:
        assert locality.lb_endpoints
        weights = [endpoint.load_balancing_weight.value for endpoint in locality.lb_endpoints]
        assert min(weights) > 0
        assert locality.load_balancing_weight.value == sum(weights)


@given(st.permutations([instance(n, weight=n, zone="ab"[n % 2]) for n in range(1, 6)]))
def test_the_order_of_instances_does_not_change_the_version(instances: list[Instance]):
    again = sorted(instances, key=lambda instance: instance.id)
    for client in (GRPC, ENVOY):
        one, other = (resources.endpoints("echo", order, client) for order in (instances, again))
        assert one.version == other.version


def test_hosts_of_services():
    assert resources.hosts_by_service(["echo", "Common/Auth", "a b", "*", "x:y"]) == {
        "echo": "echo",
        "Common/Auth": "auth.common",
    }


def test_a_host_belongs_to_one_service():
    """Envoy would refuse the complete table."""
    assert list(resources.hosts_by_service(["echo", "ECHO", "b/a", "a.b"]).values()) == [
        "echo",
        "a.b",
    ]


@given(st.lists(st.text(min_size=1), unique=True))
def test_hosts_are_never_twice(names: list[str]):
    hosts = list(resources.hosts_by_service(names).values())
    assert len({host.lower() for host in hosts}) == len(hosts)


def test_a_client_is_identified_by_its_user_agent():
    def node(agent: str) -> Any:
        return proto.message(
            "Node", user_agent_name=agent, locality=proto.message("Locality", zone="a")
        )

    assert resources.client_of(node("gRPC C-core linux")) == XdsClient("grpc", "a")
    assert resources.client_of(node("gRPC Go")).kind == "grpc"
    assert resources.client_of(node("envoy")) == XdsClient("envoy", "a")


def test_the_limits_of_concurrent_calls_are_lifted():
    for client in (GRPC, ENVOY):
        cluster = read(resources.cluster("echo", client), "Cluster")
        (bounds,) = cluster.circuit_breakers.thresholds
        assert bounds.max_requests.value > 1_000_000
        assert cluster.eds_cluster_config.eds_config.HasField("ads")
