"""What a service is in the words of xDS. Pure: instances in, messages out.

There are two kinds of client. **gRPC** (`xds:///service`) asks for a listener by the service's
name, and from there for routes, a cluster and its endpoints of the same name. Its round robin
knows no weights of endpoints, only of localities, so that each weight is a locality of its own.
**Envoy** takes all clusters, and one table of routes that finds the service by the host that is
called; it weighs endpoints, and its localities are the zones.

Who may never be called (disabled, down, without weight) is left out, and so is who drains unless
there is no other. Envoy is told who is unhealthy and decides by its panic threshold, which we set
to our own; gRPC has none, so that it is decided here. The client's own zone is the first priority,
all others are the second; a priority without endpoints is never sent, for gRPC refuses gaps.

If too few instances of the client's zone are healthy, Envoy lets calls spill over from the first
priority to the second. gRPC calls the second only if the first is not reachable at all: for it,
both become one priority, and the weights of the localities split the calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from mooring.addresses import is_ip
from mooring.discovery.balance.picker import effective_weight
from mooring.discovery.eligibility import Wanted, callable_now, objection
from mooring.discovery.resilience import Resilience
from mooring.discovery.zones import Part, Sides
from mooring.model import Instance
from mooring.xds import proto
from mooring.xds.proto import message, written

TABLE = "//services"
"""The name of the routes to all services, for Envoy. No service can be called so: a part of a
service's name is never empty."""

PLAIN = "//http"
"""What is added to a service's name for the cluster of its HTTP ports."""

_SETTINGS = Resilience()
_MOST = 2**31  # what all weights of a service may add up to; xDS has 32 bits for it
_FINE = 1_000_000  # what the largest weight becomes where they are no whole numbers
_UNBOUNDED = 2**31  # more requests than ever are under way
_HOST = re.compile(r"[^\s*:/?#@\[\]\\]+")


class Client(NamedTuple):
    """What resources depend on, of who asks."""

    kind: Literal["grpc", "envoy"]
    zone: str = ""


class Resource(NamedTuple):
    version: str
    """Changes with the content, and with nothing else: it outlives a restart."""
    body: Any
    """The message, in an `Any`."""


def client_of(node: Any) -> Client:
    """Who asks, by what a node says of itself."""
    grpc = node.user_agent_name.casefold().startswith("grpc")
    return Client("grpc" if grpc else "envoy", node.locality.zone)


def _resource(url: str, kind: str, /, **fields: Any) -> Resource:
    body = written(url, kind, **fields)
    return Resource(blake2b(body.value, digest_size=8).hexdigest(), body)


def _over_ads() -> Any:
    # No fetch timeout: without an answer a client waits, and goes on with what it has.
    return message(
        "ConfigSource",
        ads=message("Nothing"),
        initial_fetch_timeout=message("Duration"),
        resource_api_version=proto.V3,
    )


def listener(service: str) -> Resource:
    """What `xds:///service` asks for first."""
    manager = written(
        proto.HTTP_CONNECTION_MANAGER,
        "HttpConnectionManager",
        stat_prefix=service,
        rds=message("Rds", config_source=_over_ads(), route_config_name=service),
        http_filters=[
            message("HttpFilter", name="router", typed_config=written(proto.ROUTER, "Nothing"))
        ],
    )
    return _resource(
        proto.LISTENER,
        "Listener",
        name=service,
        api_listener=message("ApiListener", api_listener=manager),
    )


def routes(service: str, *, plain: bool) -> Resource:
    """All calls to one service. `plain`: it has HTTP ports of its own, for what is no gRPC."""
    host = message("VirtualHost", name=service, domains=["*"], routes=_routes(service, plain=plain))
    return _resource(proto.ROUTES, "RouteConfiguration", name=service, virtual_hosts=[host])


def table(services: Mapping[str, bool]) -> Resource:
    """For each service the calls to its host. `services` says which have HTTP ports of their
    own."""
    hosts = [
        message(
            "VirtualHost",
            name=service,
            domains=[host],
            routes=_routes(service, plain=services[service]),
        )
        for service, host in hosts_of(services).items()
    ]
    return _resource(
        proto.ROUTES,
        "RouteConfiguration",
        name=TABLE,
        virtual_hosts=hosts,
        ignore_port_in_host_matching=True,
    )


def hosts_of(services: Iterable[str]) -> dict[str, str]:
    """The host by which each service is called: `name`, or `name.group`. One that cannot be a host,
    or is already that of a service before it, has none: Envoy would refuse the whole table."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for service in sorted(services):
        group, _, name = service.rpartition("/")
        host = (f"{name}.{group}" if group else name).lower()
        if _HOST.fullmatch(host) and host not in taken:
            taken.add(host)
            found[service] = host
    return found


def is_name(service: str) -> bool:
    """Whether a service can be asked for by its name: some mean something else in xDS."""
    return service != "*" and not service.startswith("xdstp:")


def _routes(service: str, *, plain: bool) -> list[Any]:
    everything = message("RouteMatch", prefix="")
    if not plain:
        return [message("Route", match=everything, route=_action(service))]
    grpc = message("RouteMatch", prefix="", grpc=message("Nothing"))
    return [
        message("Route", match=grpc, route=_action(service)),
        message("Route", match=everything, route=_action(service + PLAIN)),
    ]


def _action(cluster: str) -> Any:
    """How long a call may take is the caller's to say. What never reached an instance is tried on
    another."""
    elsewhere = message(
        "RetryHostPredicate",
        name="elsewhere",
        typed_config=written(proto.PREVIOUS_HOSTS, "Nothing"),
    )
    return message(
        "RouteAction",
        cluster=cluster,
        timeout=message("Duration"),
        retry_policy=message(
            "RetryPolicy",
            retry_on="connect-failure,refused-stream,reset-before-request",
            num_retries=message("UInt32", value=2),
            retry_host_predicate=[elsewhere],
            host_selection_retry_max_attempts=5,
        ),
    )


def cluster(name: str, client: Client) -> Resource:
    """A service as something to be called. Bounds on what may be under way are lifted: clients
    would refuse the 1025th call."""
    unbounded = message("UInt32", value=_UNBOUNDED)
    bounds = message(
        "Thresholds",
        max_connections=unbounded,
        max_pending_requests=unbounded,
        max_requests=unbounded,
        max_retries=unbounded,
    )
    fields: dict[str, Any] = {}
    if client.kind == "envoy":
        # Speak to instances as callers speak to Envoy: gRPC in HTTP/2, and the rest as it comes.
        same = written(
            proto.HTTP_PROTOCOL_OPTIONS,
            "HttpProtocolOptions",
            use_downstream_protocol_config=message(
                "UseDownstreamHttpConfig",
                http_protocol_options=message("Nothing"),
                http2_protocol_options=message("Nothing"),
            ),
        )
        key = proto.HTTP_PROTOCOL_OPTIONS.partition("/")[2]
        fields = {
            "typed_extension_protocol_options": [message("Options", key=key, value=same)],
            "common_lb_config": message(
                "CommonLbConfig",
                healthy_panic_threshold=message("Percent", value=_SETTINGS.panic_threshold * 100),
            ),
            "connect_timeout": message("Duration", seconds=2),
        }
    return _resource(
        proto.CLUSTER,
        "Cluster",
        name=name,
        type=proto.EDS,
        eds_cluster_config=message("EdsClusterConfig", eds_config=_over_ads()),
        circuit_breakers=message("CircuitBreakers", thresholds=[bounds]),
        **fields,
    )


def essence(instance: Instance) -> tuple[object, ...]:
    """What resources are made of; all else may change without a word to anybody."""
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


def has_plain(instances: Iterable[Instance]) -> bool:
    """Whether there are ports for HTTP beside those for gRPC."""
    return any(each.port_for("http") != each.port_for("grpc") for each in instances)


def endpoints(name: str, instances: Sequence[Instance], client: Client) -> Resource:
    """Whom to call for a cluster. Their hosts are IP addresses."""
    port = "http" if name.endswith(PLAIN) else "grpc"
    admissible = _by_address(callable_now(instances), port)
    callable, mode, stay = admissible, "zone", 1.0  # Envoy decides for itself
    if client.kind == "grpc":
        mode, stay = _sides(admissible, instances, port, client).choose(_SETTINGS)
        if mode != "panic":
            callable = {name: each for name, each in admissible.items() if each.status.healthy}
    near = {address for address, each in callable.items() if client.zone == each.zone}
    shares = [each.weight for each in callable.values()]
    if mode == "spill-over":
        shares = _split(callable, near, stay)
    weights = dict(zip(callable, whole(shares), strict=True))
    apart = mode == "zone" and bool(near and client.zone)
    groups: dict[tuple[int, str, int], list[str]] = {}
    for address, each in callable.items():
        weight = weights[address] if client.kind == "grpc" else 0
        priority = int(apart and address not in near)
        groups.setdefault((priority, each.zone, weight), []).append(address)
    localities = [
        message(
            "LocalityLbEndpoints",
            locality=message("Locality", zone=zone, sub_zone=f"weight-{weight}" if weight else ""),
            lb_endpoints=[
                _endpoint(callable[each], port, weights[each], client) for each in addresses
            ],
            load_balancing_weight=message("UInt32", value=sum(weights[each] for each in addresses)),
            priority=priority,
        )
        for (priority, zone, weight), addresses in sorted(groups.items())
    ]
    return _resource(
        proto.ENDPOINTS, "ClusterLoadAssignment", cluster_name=name, endpoints=localities
    )


def _by_address(instances: Iterable[Instance], port: str) -> dict[str, Instance]:
    """In order. Two at one address are one, and rather the one that is well: gRPC refuses to hear
    of an address twice."""
    found: dict[str, Instance] = {}
    for each in sorted(instances, key=lambda each: (not each.status.healthy, each.id)):
        if is_ip(each.host):
            found.setdefault(each.address_for(port), each)
    return dict(sorted(found.items()))


def _sides(
    admissible: Mapping[str, Instance], instances: Iterable[Instance], port: str, client: Client
) -> Sides:
    """The client's zone and all others. Those that drain are still a part of their zone."""
    sides = Sides.empty()
    draining = [each for each in instances if not objection(each, Wanted(), last_resort=True)]
    for address, each in {**_by_address(draining, port), **admissible}.items():
        weight = effective_weight(each.weight, each.id)
        part = Part(weight)
        if address in admissible:
            well = each.status.healthy
            part = Part(weight, True, True, well, weight if well else 0.0)
        sides[bool(client.zone) and each.zone == client.zone].count(part, +1)
    return sides


def _split(callable: Mapping[str, Instance], near: Collection[str], stay: float) -> list[float]:
    """Weights of which the share `stay` is that of the near ones."""
    most = max(each.weight for each in callable.values())
    relative = {address: each.weight / most for address, each in callable.items()}
    local = sum(weight for address, weight in relative.items() if address in near)
    remote = sum(relative.values()) - local
    return [
        weight / local * stay if address in near else weight / remote * (1.0 - stay)
        for address, weight in relative.items()
    ]


def _endpoint(instance: Instance, port: str, weight: int, client: Client) -> Any:
    # Who is left for gRPC is to be called, whatever it says of itself.
    well = client.kind == "grpc" or instance.status.healthy
    where = message("SocketAddress", address=instance.host, port_value=instance.port_for(port))
    return message(
        "LbEndpoint",
        endpoint=message("Endpoint", address=message("Address", socket_address=where)),
        health_status=proto.HEALTHY if well else proto.UNHEALTHY,
        load_balancing_weight=message("UInt32", value=weight),
    )


def whole(weights: Sequence[float]) -> list[int]:
    """Weights as whole numbers of at least 1 in the same proportions: as they are where they can
    be, else so fine that nobody's share is off by more than a millionth of the largest."""
    total = sum(weights)
    if total <= _MOST and all(weight >= 1 and weight == int(weight) for weight in weights):
        return [int(weight) for weight in weights]
    largest = max(weights)
    # Each is divided before anything is multiplied: the sum of huge weights is no number.
    share = sum(weight / largest for weight in weights)
    scale = min(_FINE, _MOST / share)
    return [max(round(weight / largest * scale), 1) for weight in weights]
