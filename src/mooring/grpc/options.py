"""Options of gRPC channels and servers. The first of two options of one name wins."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mooring.addresses import join
from mooring.errors import InvalidRequest
from mooring.grpc.target import Repeatable
from mooring.model import Instance

Options: TypeAlias = Sequence[tuple[str, Any]]

_NEVER = 2**31 - 1

CHANNEL_OPTIONS: Options = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 5_000),  # `grpc.keepalive_timeout_ms` has no effect
)
"""For `options` of a channel: find out within 15 s that a server is gone without a word, as where
a cable is cut. Only for servers with `SERVER_OPTIONS`: any other takes it for an attack, and hangs
up with `too_many_pings`."""

SERVER_OPTIONS: Options = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 60_000),  # of the server's own pings, for clients that are gone
    ("grpc.http2.ping_timeout_ms", 10_000),
)
"""For `options` of `grpc.server` and `grpc.aio.server`: bear with clients that have
`CHANNEL_OPTIONS`, and let go of those that are gone."""

_OURS: Options = (
    # A connection that rests is kept, since it is why an instance is in rotation.
    ("grpc.client_idle_timeout_ms", _NEVER),
    # By default somebody who comes back after a while is left alone for two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),
)

Health: TypeAlias = bool | str


def link_options(options: Options, health: Health) -> Options:
    """For a channel to one instance. The caller's options win."""
    return (
        *options,
        # What another channel found out of an address says nothing: a new process may be there.
        ("grpc.use_local_subchannel_pool", 1),
        *_OURS,
        *_service_config(options, _checked(health)),
    )


def route_options(options: Options, health: Health, repeatable: Repeatable, tries: int) -> Options:
    """For a channel to all instances, which gRPC calls in turn, and again where it may."""
    config = {**_IN_TURN, **_checked(health), **_retried(repeatable, tries)}
    if "methodConfig" in config and _has_config(options):
        raise InvalidRequest(
            "retry and the option grpc.service_config exclude each other: put a retryPolicy into "
            "the service config"
        )
    return (*options, *_OURS, *_service_config(options, config))


def check_health(options: Options, health: Health) -> None:
    if not isinstance(health, bool | str):
        raise InvalidRequest(f"health is True, False or a service's name, not {health!r}")
    if _has_config(options) and isinstance(health, str):
        raise InvalidRequest(
            "health and the option grpc.service_config exclude each other: put a healthCheckConfig "
            "into the service config"
        )


_IN_TURN: Mapping[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}


def _checked(health: Health) -> Mapping[str, Any]:
    if health is False:
        return {}
    # gRPC asks for health with this policy and not otherwise.
    return {**_IN_TURN, "healthCheckConfig": {"serviceName": "" if health is True else health}}


def _retried(repeatable: Repeatable, tries: int) -> Mapping[str, Any]:
    if tries == 1 or not repeatable.names:
        return {}
    policy = {
        "maxAttempts": tries,  # of which gRPC makes five at the most
        "initialBackoff": "0.01s",
        "maxBackoff": "0.1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    named = [
        {"service": service, "method": method} if method else {"service": service}
        for service, method in repeatable.names
    ]
    return {
        "methodConfig": [{"name": named, "retryPolicy": policy}],
        # Fifty failures, and one for every five successes, as on asyncio.
        "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.2},
    }


def _has_config(options: Options) -> bool:
    return any(name == "grpc.service_config" for name, _ in options)


def _service_config(options: Options, config: Mapping[str, Any]) -> Options:
    if not config or _has_config(options):
        return ()
    return (("grpc.service_config", json.dumps(config)),)


def target_of(instance: Instance) -> str:
    """Where gRPC finds an instance: its port `grpc`, or the main one."""
    address = join(instance.host, instance.port_for("grpc"))
    try:
        version = ipaddress.ip_address(instance.host).version
    except ValueError:
        return f"dns:///{address}"
    return f"ipv{version}:{address}"
