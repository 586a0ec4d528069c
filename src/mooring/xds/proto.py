"""The subset of the xDS v3 wire format that the control plane uses.

The messages belong to a private protobuf package and use Envoy's field numbers; the type URL next
to a resource identifies the Envoy message. Fields that are never set or read are omitted.
"""

from __future__ import annotations

from typing import Any

from mooring.protobuf import build

LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
ROUTES = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
ENDPOINTS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

TYPES = (CLUSTER, ENDPOINTS, LISTENER, ROUTES)
"""In the order of sending: a resource is sent before the resources that refer to it."""

COMPLETE_TYPES = (LISTENER, CLUSTER)
"""A state-of-the-world response of these types is complete: it deletes what it leaves out."""

HTTP_CONNECTION_MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
    ".HttpConnectionManager"
)
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
HTTP_PROTOCOL_OPTIONS = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
PREVIOUS_HOSTS = (
    "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
)

SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
STREAM = f"/{SERVICE}/StreamAggregatedResources"
DELTA = f"/{SERVICE}/DeltaAggregatedResources"

# On the wire, a map is a list of entries.
_MESSAGES = {
    "Any": "type_url=1:string value=2:bytes",
    "UInt32": "value=1:uint32",
    "Percent": "value=1:double",
    "Duration": "seconds=1:int64",
    "Nothing": "",
    "Status": "code=1:int32 message=2:string",
    "Locality": "zone=2:string sub_zone=3:string",
    "Node": "id=1:string cluster=2:string locality=4:Locality user_agent_name=6:string",
    "ControlPlane": "identifier=1:string",
    "DiscoveryRequest": """version_info=1:string node=2:Node resource_names=3:*string
        type_url=4:string response_nonce=5:string error_detail=6:Status""",
    "DiscoveryResponse": """version_info=1:string resources=2:*Any type_url=4:string
        nonce=5:string control_plane=6:ControlPlane""",
    "InitialVersion": "key=1:string value=2:string",
    "DeltaDiscoveryRequest": """node=1:Node type_url=2:string
        resource_names_subscribe=3:*string resource_names_unsubscribe=4:*string
        initial_resource_versions=5:*InitialVersion response_nonce=6:string
        error_detail=7:Status""",
    "Resource": "version=1:string resource=2:Any name=3:string",
    "DeltaDiscoveryResponse": """resources=2:*Resource
        type_url=4:string nonce=5:string removed_resources=6:*string
        control_plane=7:ControlPlane""",
    "ConfigSource": "ads=3:Nothing initial_fetch_timeout=4:Duration resource_api_version=6:int32",
    "Listener": "name=1:string api_listener=19:ApiListener",
    "ApiListener": "api_listener=1:Any",
    "HttpConnectionManager": "stat_prefix=2:string rds=3:Rds http_filters=5:*HttpFilter",
    "Rds": "config_source=1:ConfigSource route_config_name=2:string",
    "HttpFilter": "name=1:string typed_config=4:Any",
    "RouteConfiguration": """name=1:string virtual_hosts=2:*VirtualHost
        ignore_port_in_host_matching=14:bool""",
    "VirtualHost": "name=1:string domains=2:*string routes=3:*Route",
    "Route": "match=1:RouteMatch route=2:RouteAction",
    "RouteMatch": "prefix=1:string|path=2:string grpc=8:Nothing",
    "RouteAction": "cluster=1:string timeout=8:Duration retry_policy=9:RetryPolicy",
    "RetryPolicy": """retry_on=1:string num_retries=2:UInt32
        retry_host_predicate=5:*RetryHostPredicate host_selection_retry_max_attempts=6:int64""",
    "RetryHostPredicate": "name=1:string typed_config=3:Any",
    "Cluster": """name=1:string type=2:int32 eds_cluster_config=3:EdsClusterConfig
        connect_timeout=4:Duration circuit_breakers=10:CircuitBreakers
        common_lb_config=27:CommonLbConfig typed_extension_protocol_options=36:*Options""",
    "EdsClusterConfig": "eds_config=1:ConfigSource",
    "CircuitBreakers": "thresholds=1:*Thresholds",
    "Thresholds": """priority=1:int32 max_connections=2:UInt32 max_pending_requests=3:UInt32
        max_requests=4:UInt32 max_retries=5:UInt32""",
    "CommonLbConfig": "healthy_panic_threshold=1:Percent",
    "Options": "key=1:string value=2:Any",
    "HttpProtocolOptions": "use_downstream_protocol_config=4:UseDownstreamHttpConfig",
    "UseDownstreamHttpConfig": "http_protocol_options=1:Nothing http2_protocol_options=2:Nothing",
    "ClusterLoadAssignment": "cluster_name=1:string endpoints=2:*LocalityLbEndpoints",
    "LocalityLbEndpoints": """locality=1:Locality lb_endpoints=2:*LbEndpoint
        load_balancing_weight=3:UInt32 priority=5:uint32""",
    "LbEndpoint": "endpoint=1:Endpoint health_status=2:int32 load_balancing_weight=4:UInt32",
    "Endpoint": "address=1:Address",
    "Address": "socket_address=1:SocketAddress",
    "SocketAddress": "address=2:string port_value=3:uint32",
}

_classes = build("mooring.xds", _MESSAGES)

EDS = 3  # cluster discovery type
V3 = 2  # resource API version
HEALTHY, UNHEALTHY = 1, 2


def message(kind: str, /, **fields: Any) -> Any:
    return _classes[kind](**fields)


def packed(url: str, kind: str, /, **fields: Any) -> Any:
    """A message packed in an `Any` with this type URL."""
    value = _classes[kind](**fields).SerializeToString(deterministic=True)
    return _classes["Any"](type_url=url, value=value)


def parser(kind: str) -> Any:
    return _classes[kind].FromString


def serializer(kind: str) -> Any:
    return _classes[kind].SerializeToString
