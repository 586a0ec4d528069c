"""Bootstrap files of xDS clients."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.errors import InvalidRequest
from mooring.xds.bootstrap import Identity, for_envoy, for_grpc

TLS = Identity("me", zone="a", tls=True, ca="/ca", cert="/cert", key="/key")


def test_the_grpc_bootstrap_names_the_server_and_the_node():
    bootstrap = for_grpc("10.0.0.1:18000", Identity("me", zone="a"))
    (server,) = bootstrap["xds_servers"]
    assert server["server_uri"] == "10.0.0.1:18000"
    assert server["channel_creds"] == [{"type": "insecure"}]
    assert bootstrap["node"] == {"id": "me", "cluster": "mooring", "locality": {"zone": "a"}}


def test_the_locality_is_written_also_without_a_zone():
    for bootstrap in (
        for_grpc("10.0.0.1:18000", Identity()),
        for_envoy("10.0.0.1:18000", Identity()),
    ):
        assert bootstrap["node"]["locality"] == {}


def test_grpc_with_tls():
    (server,) = for_grpc("10.0.0.1:18000", TLS)["xds_servers"]
    (credentials,) = server["channel_creds"]
    assert credentials["type"] == "tls"
    assert credentials["config"] == {
        "ca_certificate_file": "/ca",
        "certificate_file": "/cert",
        "private_key_file": "/key",
    }


def test_the_envoy_bootstrap_has_a_listener_and_an_optional_admin_port():
    bootstrap = for_envoy("[::1]:18000", Identity(), listen="127.0.0.1:1", admin="127.0.0.1:2")
    (listener,) = bootstrap["static_resources"]["listeners"]
    assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 1}
    assert bootstrap["admin"]["address"]["socket_address"]["port_value"] == 2
    assert "admin" not in for_envoy("[::1]:18000", Identity())


@pytest.mark.parametrize("address", ["", "nowhere", "a:b", "127.0.0.1:0", "127.0.0.1:70000"])
def test_an_invalid_address_is_refused(address: str):
    with pytest.raises(InvalidRequest):
        for_grpc(address, Identity())
    with pytest.raises(InvalidRequest):
        for_envoy("127.0.0.1:1", Identity(), listen=address)


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("0.0.0.0:1", {"socket_address": {"address": "0.0.0.0", "port_value": 1}}),
        ("[::]:1", {"socket_address": {"address": "::", "port_value": 1}}),
        ("unix:/run/calls", {"pipe": {"path": "/run/calls"}}),
    ],
)
def test_envoy_listens_on_an_address_or_a_socket_file(listen: str, address: object):
    (listener,) = for_envoy("127.0.0.1:1", Identity(), listen=listen)["static_resources"][
        "listeners"
    ]
    assert listener["address"] == address


def test_envoy_does_not_listen_on_a_host_name():
    with pytest.raises(InvalidRequest, match="with an IP address"):
        for_envoy("localhost:1", Identity(), listen="localhost:1")


def _tls_of(bootstrap: dict[str, Any]) -> dict[str, Any]:
    (cluster,) = bootstrap["static_resources"]["clusters"]
    context: dict[str, Any] = cluster["transport_socket"]["typed_config"]["common_tls_context"]
    return context


@pytest.mark.parametrize(
    ("server", "kind", "name"),
    [
        ("127.0.0.1:1", "IP_ADDRESS", "127.0.0.1"),
        ("[::1]:1", "IP_ADDRESS", "::1"),
        ("mooring.example:1", "DNS", "mooring.example"),
    ],
)
def test_envoy_trusts_only_the_certificate_of_the_control_plane(server: str, kind: str, name: str):
    trust = _tls_of(for_envoy(server, Identity(tls=True)))["validation_context"]
    assert trust["match_typed_subject_alt_names"] == [
        {"san_type": kind, "matcher": {"exact": name}}
    ]


def test_the_route_of_a_service_has_its_short_name():
    bootstrap = for_envoy("127.0.0.1:1", Identity(), service="default/orders")
    (listener,) = bootstrap["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["rds"]["route_config_name"] == "orders"
    with pytest.raises(InvalidRequest):
        for_envoy("127.0.0.1:1", Identity(), service="a//b c")
