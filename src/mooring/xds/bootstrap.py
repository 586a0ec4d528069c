"""Bootstrap configuration for gRPC and Envoy: the control plane's address and the client's node."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from mooring import addresses
from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.names import join_service, split_service
from mooring.xds.proto import HTTP_CONNECTION_MANAGER, HTTP_PROTOCOL_OPTIONS, ROUTER
from mooring.xds.resources import ROUTE_TABLE

SERVER = "127.0.0.1:18000"
"""Default address of the control plane."""

LISTEN = "127.0.0.1:10000"
"""Default address at which Envoy accepts calls."""

_CONTROL_PLANE = "//mooring"  # not a valid service name
# No fetch timeout: Envoy accepts calls only after it has received its routes.
_OVER_ADS = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"


@dataclass(frozen=True, slots=True)
class Identity:
    """The node of a client, and its credentials for the control plane."""

    node: str = "mooring"
    zone: str = ""
    """The client's zone: it calls instances there first."""
    tls: bool = False
    ca: str = ""
    """A file with CA certificates; empty: the system's CAs."""
    cert: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise InvalidRequest("a client certificate and its key go together: give both")

    def described(self) -> dict[str, Any]:
        # gRPC for Node rejects a file without a locality, though it may be empty.
        locality = {"zone": self.zone} if self.zone else {}
        return {"id": self.node, "cluster": "mooring", "locality": locality}


def for_grpc(server: str, identity: Identity) -> dict[str, Any]:
    """The content of the JSON file that `GRPC_XDS_BOOTSTRAP` points to."""
    addresses.split(server)
    credentials: dict[str, Any] = {"type": "tls" if identity.tls else "insecure"}
    files = {
        "ca_certificate_file": identity.ca,
        "certificate_file": identity.cert,
        "private_key_file": identity.key,
    }
    if config := {name: path for name, path in files.items() if path}:
        credentials["config"] = config
    return {
        "xds_servers": [
            {
                "server_uri": server,
                "channel_creds": [credentials],
                "server_features": ["xds_v3"],
            }
        ],
        "node": identity.described(),
    }


def for_envoy(
    server: str,
    identity: Identity,
    *,
    listen: str = LISTEN,
    admin: str = "",
    service: str = "",
    incremental: bool = True,
) -> dict[str, Any]:
    """A complete configuration for `envoy -c`. Envoy accepts calls at `listen` (`HOST:PORT` or
    `unix:/path`) and routes them by host, or all of them to one `service`. `admin` is the address
    of Envoy's admin interface."""
    routes = join_service(*split_service(service)) if service else ROUTE_TABLE
    manager = {
        "@type": HTTP_CONNECTION_MANAGER,
        "stat_prefix": "services",
        "rds": {"route_config_name": routes, "config_source": _OVER_ADS},
        # Idle streams are never closed.
        "stream_idle_timeout": "0s",
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}}],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    config: dict[str, Any] = {
        "node": identity.described(),
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC" if incremental else "GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [
                    {
                        "envoy_grpc": {
                            "cluster_name": _CONTROL_PLANE,
                            # Reconnect soon after the control plane is back.
                            "retry_policy": {
                                "retry_back_off": {"base_interval": "0.25s", "max_interval": "2s"}
                            },
                        }
                    }
                ],
            },
            "cds_config": _OVER_ADS,
        },
        "static_resources": {
            "clusters": [_control_plane(server, identity)],
            "listeners": [
                {
                    "name": "services",
                    "address": _listener_address(listen),
                    "filter_chains": [{"filters": filters}],
                }
            ],
        },
    }
    if admin:
        config["admin"] = {"address": _listener_address(admin)}
    return config


def _control_plane(server: str, identity: Identity) -> dict[str, Any]:
    http2 = {
        "@type": HTTP_PROTOCOL_OPTIONS,
        "explicit_http_config": {
            "http2_protocol_options": {"connection_keepalive": {"interval": "15s", "timeout": "5s"}}
        },
    }
    cluster: dict[str, Any] = {
        "name": _CONTROL_PLANE,
        "type": "STRICT_DNS",
        "connect_timeout": "2s",
        "typed_extension_protocol_options": {HTTP_PROTOCOL_OPTIONS.partition("/")[2]: http2},
        "load_assignment": {
            "cluster_name": _CONTROL_PLANE,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(server)}}]}],
        },
    }
    if identity.tls:
        cluster["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": _TLS,
                "sni": addresses.split(server)[0],
                "common_tls_context": _tls(identity, addresses.split(server)[0]),
            },
        }
    return cluster


def _tls(identity: Identity, host: str) -> dict[str, Any]:
    kind = "IP_ADDRESS" if addresses.is_ip(host) else "DNS"
    trusted = identity.ca or "/etc/ssl/certs/ca-certificates.crt"
    context: dict[str, Any] = {
        "alpn_protocols": ["h2"],
        "validation_context": {
            "trusted_ca": {"filename": trusted},
            # By default, Envoy accepts any certificate that the CA has issued.
            "match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": host}}],
        },
    }
    if identity.cert:
        context["tls_certificates"] = [
            {
                "certificate_chain": {"filename": identity.cert},
                "private_key": {"filename": identity.key},
            }
        ]
    return context


def _address(text: str) -> dict[str, Any]:
    host, port = addresses.split(text)
    return {"socket_address": {"address": host, "port_value": port}}


def _listener_address(text: str) -> dict[str, Any]:
    """Envoy listens at an IP address, which may be a wildcard, or at a Unix socket."""
    if text.startswith("unix:"):
        return {"pipe": {"path": text.removeprefix("unix:")}}
    host, colon, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        address = None
    if address is None or not colon or not port.isdecimal():
        raise InvalidRequest(
            f"{quoted(text)} is not a listen address: use the form 127.0.0.1:10000, with an IP "
            "address, or unix:/path"
        )
    addresses.check_port(int(port))
    return {"socket_address": {"address": str(address), "port_value": int(port)}}
