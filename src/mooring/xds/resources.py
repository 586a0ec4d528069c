"""Services as xDS resources. Pure: instances in, messages out.

There are two kinds of client. **gRPC** (`xds:///service`) requests a listener by the name of the
service, and then routes, a cluster and endpoints of the same name. Its round robin supports weights
for localities only, so each weight becomes a locality. **Envoy** subscribes to all clusters and to
one route table that maps hosts to services; it supports weighted endpoints, and its localities are
the zones.

Instances that must not be called (disabled, down, weight 0) are omitted, and so are draining ones
unless no others remain. Envoy receives unhealthy instances too and applies its panic threshold,
which is set to Mooring's; gRPC has none, so the threshold is applied here. The client's zone has
the first priority, all other zones the second. A priority without endpoints is never sent, because
gRPC rejects gaps.

If too few instances in the client's zone are healthy, Envoy lets calls spill over from the first
priority to the second. gRPC uses the second priority only if the first is unreachable, so for gRPC
both become one priority and the locality weights split the calls.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from mooring.addresses import is_ip
from mooring.discovery.balance.picker import effective_weight
from mooring.discovery.exclusion import Selector, callable_now, exclusion
from mooring.discovery.resilience import Resilience
from mooring.discovery.zones_and_panic import Contribution, ZoneTallies
from mooring.model import Instance
from mooring.xds import proto
from mooring.xds.proto import packed

ROUTE_TABLE = "//services"
"""The name of Envoy's routes to all services. It is not a valid service name."""

HTTP_SUFFIX = "//http"
"""Appended to the name of a service for the cluster of its HTTP ports."""

_SETTINGS = Resilience()
_MAX_TOTAL_WEIGHT = 2**31  # xDS has 32 bits for the sum of all weights
_WEIGHT_SCALE = 1_000_000  # the largest weight, if the weights are not integers
_UNBOUNDED = 2**31  # more than the requests in flight will ever be
_CACHED = 1000
_HOST = re.compile(r"[^\s*:/?#@\[\]\\]+")


class XdsClient(NamedTuple):
    """The properties of a client that resources depend on."""

    kind: Literal["grpc", "envoy"]
    zone: str = ""


class Resource(NamedTuple):
    version: str
    """A hash of the content, so it survives a restart."""
    body: Any
    """The message, packed in an `Any`."""


def client_of(node: Any) -> XdsClient:
    grpc = node.user_agent_name.casefold().startswith("grpc")
    return XdsClient("grpc" if grpc else "envoy", node.locality.zone)


def _resource(url: str, kind: str, /, **fields: Any) -> Resource:
    body = packed(url, kind, **fields)
    return Resource(blake2b(body.value, digest_size=8).hexdigest(), body)


# No fetch timeout: until the response arrives, a client uses the resources that it has.
_OVER_ADS = {"ads": {}, "initial_fetch_timeout": {}, "resource_api_version": proto.V3}


@functools.lru_cache(_CACHED)
def listener(service: str) -> Resource:
    """The first resource that `xds:///service` requests."""
    manager = packed(
        proto.HTTP_CONNECTION_MANAGER,
        "HttpConnectionManager",
        stat_prefix=service,
        rds={"config_source": _OVER_ADS, "route_config_name": service},
        http_filters=[{"name": "router", "typed_config": packed(proto.ROUTER, "Nothing")}],
    )
    return _resource(
        proto.LISTENER, "Listener", name=service, api_listener={"api_listener": manager}
    )


@functools.lru_cache(_CACHED)
def routes(service: str, *, separate_http: bool) -> Resource:
    """Routes for all calls to a service. `separate_http`: its HTTP and gRPC ports differ."""
    host = {"name": service, "domains": ["*"], "routes": _routes(service, separate_http)}
    return _resource(proto.ROUTES, "RouteConfiguration", name=service, virtual_hosts=[host])


def route_table(services: Mapping[str, bool]) -> Resource:
    """Routes by host for all services, each with its `separate_http` as in `routes`."""
    hosts = [
        {"name": service, "domains": [host], "routes": _routes(service, services[service])}
        for service, host in hosts_by_service(services).items()
    ]
    return _resource(
        proto.ROUTES,
        "RouteConfiguration",
        name=ROUTE_TABLE,
        virtual_hosts=hosts,
        ignore_port_in_host_matching=True,
    )


def hosts_by_service(services: Iterable[str]) -> dict[str, str]:
    """The host by which Envoy's callers reach each service: `name` or `name.group`. Omits services
    whose host is invalid or already used, because Envoy would reject the whole table."""
    hosts: dict[str, str] = {}
    taken: set[str] = set()
    for service in sorted(services):
        group, _, name = service.rpartition("/")
        host = (f"{name}.{group}" if group else name).lower()
        if _HOST.fullmatch(host) and host not in taken:
            taken.add(host)
            hosts[service] = host
    return hosts


def is_addressable(service: str) -> bool:
    """Whether xDS clients can request a service by name: some names have a meaning in xDS."""
    return service != "*" and not service.startswith("xdstp:")


def _routes(service: str, separate_http: bool) -> list[Any]:
    everything = {"prefix": ""}
    if not separate_http:
        return [{"match": everything, "route": _action(service)}]
    return [
        {"match": {"prefix": "", "grpc": {}}, "route": _action(service)},
        {"match": everything, "route": _action(service + HTTP_SUFFIX)},
    ]


def _action(cluster: str) -> Any:
    """Without a timeout, which is the caller's. Retries calls that did not reach an instance."""
    previous_hosts = packed(proto.PREVIOUS_HOSTS, "Nothing")
    retries = {
        "retry_on": "connect-failure,refused-stream,reset-before-request",
        "num_retries": {"value": 2},
        "retry_host_predicate": [{"name": "elsewhere", "typed_config": previous_hosts}],
        "host_selection_retry_max_attempts": 5,
    }
    return {"cluster": cluster, "timeout": {}, "retry_policy": retries}


@functools.lru_cache(4 * _CACHED)
def cluster(name: str, client: XdsClient) -> Resource:
    """Without limits on concurrent requests: by default, clients reject the 1025th."""
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    unbounded = {limit: {"value": _UNBOUNDED} for limit in limits}
    fields: dict[str, Any] = {}
    if client.kind == "envoy":
        # Envoy calls instances with the protocol of its caller: HTTP/2 for gRPC, else either.
        same_protocol = packed(
            proto.HTTP_PROTOCOL_OPTIONS,
            "HttpProtocolOptions",
            use_downstream_protocol_config={
                "http_protocol_options": {},
                "http2_protocol_options": {},
            },
        )
        key = proto.HTTP_PROTOCOL_OPTIONS.partition("/")[2]
        fields = {
            "typed_extension_protocol_options": [{"key": key, "value": same_protocol}],
            "common_lb_config": {
                "healthy_panic_threshold": {"value": _SETTINGS.panic_threshold * 100}
            },
            "connect_timeout": {"seconds": 2},
        }
    return _resource(
        proto.CLUSTER,
        "Cluster",
        name=name,
        type=proto.EDS,
        eds_cluster_config={"eds_config": _OVER_ADS},
        circuit_breakers={"thresholds": [unbounded]},
        **fields,
    )


def resource_inputs(instance: Instance) -> tuple[object, ...]:
    """The fields that resources depend on. Other changes need no update."""
    return (
        instance.id,
        instance.host,
        instance.port,
        instance.ports,
        instance.weight,
        instance.zone,
        instance.enabled,
        instance.status.state,
        instance.status.healthy,
    )


def has_separate_http(instances: Iterable[Instance]) -> bool:
    return any(instance.port_for("http") != instance.port_for("grpc") for instance in instances)


def endpoints(name: str, instances: Sequence[Instance], client: XdsClient) -> Resource:
    """The endpoints of a cluster. Instances whose host is not an IP address are omitted."""
    port = "http" if name.endswith(HTTP_SUFFIX) else "grpc"
    callable = _by_address(callable_now(instances), port)
    mode, stay = "zone", 1.0  # Envoy decides itself
    if client.kind == "grpc":
        mode, stay = _sides(callable, instances, port, client).choose(_SETTINGS)
        if mode != "panic":
            callable = {key: item for key, item in callable.items() if item.status.healthy}
    near = {address for address, instance in callable.items() if client.zone == instance.zone}
    shares = {address: instance.weight for address, instance in callable.items()}
    if mode == "spill-over":
        shares = _split(shares, near, stay)
    weights = dict(zip(shares, integer_weights([*shares.values()]), strict=True))
    first = near if mode == "zone" and near and client.zone else callable.keys()
    localities = _localities(callable, weights, first, port, client)
    return _resource(
        proto.ENDPOINTS, "ClusterLoadAssignment", cluster_name=name, endpoints=localities
    )


def _localities(
    callable: Mapping[str, Instance],
    weights: Mapping[str, int],
    first: Collection[str],
    port: str,
    client: XdsClient,
) -> list[Any]:
    """The addresses in `first` have the first priority, all others the second."""
    groups: dict[tuple[int, str, int], list[str]] = {}
    for address, instance in callable.items():
        weight = weights[address] if client.kind == "grpc" else 0
        priority = int(address not in first)
        groups.setdefault((priority, instance.zone, weight), []).append(address)
    return [
        {
            "locality": {"zone": zone, "sub_zone": f"weight-{weight}" if weight else ""},
            "lb_endpoints": [
                _endpoint(callable[address], port, weights[address], client)
                for address in addresses
            ],
            "load_balancing_weight": {"value": sum(weights[address] for address in addresses)},
            "priority": priority,
        }
        for (priority, zone, weight), addresses in sorted(groups.items())
    ]


def _by_address(instances: Iterable[Instance], port: str) -> dict[str, Instance]:
    """One instance for each address, healthy ones first: gRPC rejects duplicates."""
    by_address: dict[str, Instance] = {}
    for instance in sorted(instances, key=lambda one: (not one.status.healthy, one.id)):
        if is_ip(instance.host):
            by_address.setdefault(instance.address_for(port), instance)
    return dict(sorted(by_address.items()))


def _sides(
    admissible: Mapping[str, Instance], instances: Iterable[Instance], port: str, client: XdsClient
) -> ZoneTallies:
    """The client's zone and all others. Draining instances still count for their zone."""
    sides = ZoneTallies.empty()
    draining = [one for one in instances if not exclusion(one, Selector(), last_resort=True)]
    for address, instance in {**_by_address(draining, port), **admissible}.items():
        weight = effective_weight(instance.weight, instance.id)
        part = Contribution(weight)
        if address in admissible:
            healthy = instance.status.healthy
            part = Contribution(weight, True, True, healthy, weight if healthy else 0.0)
        sides[bool(client.zone) and instance.zone == client.zone].count(part, +1)
    return sides


def _split(weights: Mapping[str, float], near: Collection[str], stay: float) -> dict[str, float]:
    """Weights that give the near addresses the share `stay` of all calls."""
    largest = max(weights.values())
    relative = {address: weight / largest for address, weight in weights.items()}
    local = sum(weight for address, weight in relative.items() if address in near)
    remote = sum(relative.values()) - local
    return {
        address: weight / local * stay if address in near else weight / remote * (1.0 - stay)
        for address, weight in relative.items()
    }


def _endpoint(instance: Instance, port: str, weight: int, client: XdsClient) -> Any:
    # gRPC calls all instances that it receives, even if they are unhealthy (panic).
    healthy = client.kind == "grpc" or instance.status.healthy
    address = {"address": instance.host, "port_value": instance.port_for(port)}
    return {
        "endpoint": {"address": {"socket_address": address}},
        "health_status": proto.HEALTHY if healthy else proto.UNHEALTHY,
        "load_balancing_weight": {"value": weight},
    }


def integer_weights(weights: Sequence[float]) -> list[int]:
    """Weights as integers of at least 1 in the same proportions: unchanged if they are integers,
    else scaled with an error of at most a millionth of the largest weight."""
    total = sum(weights)
    if total <= _MAX_TOTAL_WEIGHT and all(
        weight >= 1 and weight == int(weight) for weight in weights
    ):
        return [int(weight) for weight in weights]
    largest = max(weights)
    # Divide before adding: the sum of huge weights may overflow.
    share = sum(weight / largest for weight in weights)
    scale = min(_WEIGHT_SCALE, _MAX_TOTAL_WEIGHT / share)
    return [max(round(weight / largest * scale), 1) for weight in weights]
