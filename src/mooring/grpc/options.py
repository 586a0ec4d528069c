"""Targets, options of gRPC channels and servers, and the service config of a channel."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from mooring.addresses import join
from mooring.discovery.resilience import Resilience
from mooring.errors import InvalidName, InvalidRequest
from mooring.formatting import describe, quoted
from mooring.grpc.methods import Repeatable
from mooring.model import Instance
from mooring.names import split_service

ChannelOptions: TypeAlias = Sequence[tuple[str, Any]]
HealthCheck: TypeAlias = bool | str
"""Whether to check the health of instances; a text names the service to check."""
ConfigJSON: TypeAlias = dict[str, Any]
"""A service config, or a part of it."""

CONFIG_KEY = "grpc.service_config"
_NEVER = 2**31 - 1

CHANNEL_OPTIONS: ChannelOptions = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 5_000),  # `grpc.keepalive_timeout_ms` has no effect
)
"""For `options` of a channel: detect within 15 s that a server is gone without closing its
connection, as after a network failure. Only for servers with `SERVER_OPTIONS`: others close the
connection with `too_many_pings`."""

SERVER_OPTIONS: ChannelOptions = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 60_000),  # the server's own pings, which detect dead clients
    ("grpc.http2.ping_timeout_ms", 10_000),
)
"""For `options` of `grpc.server` and `grpc.aio.server`: accept the pings of clients with
`CHANNEL_OPTIONS`, and close connections to dead clients."""

_CONNECTION_OPTIONS: ChannelOptions = (
    # Idle connections are kept: an instance without a connection is not in rotation.
    ("grpc.client_idle_timeout_ms", _NEVER),
    # By default gRPC waits for up to two minutes before it reconnects to a restarted server.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),
)


def subchannel_options(options: ChannelOptions, health: HealthCheck) -> ChannelOptions:
    """For a channel to one instance. The caller's options win."""
    return (
        (CONFIG_KEY, merged(options, health)),
        *options,
        # Do not share the backoff of other channels: there may be a new process at the address.
        ("grpc.use_local_subchannel_pool", 1),
        *_CONNECTION_OPTIONS,
    )


def route_options(
    options: ChannelOptions, health: HealthCheck, repeatable: Repeatable
) -> ChannelOptions:
    """For a channel to all instances: gRPC itself does the round robin and the retries."""
    return ((CONFIG_KEY, merged(options, health, repeatable)), *options, *_CONNECTION_OPTIONS)


def authority(service: str) -> ChannelOptions:
    """The `:authority` on a channel to all instances, encoded as gRPC does it for
    `etcdv3:///group/service`. Without it gRPC sends all addresses, a list too long for servers."""
    return (("grpc.default_authority", quote(service, safe="!$&'()*+,;=:[]@")),)


def target_of(instance: Instance) -> str:
    """The gRPC target of an instance: its port `grpc`, or else its main port."""
    address = join(instance.host, instance.port_for("grpc"))
    try:
        version = ipaddress.ip_address(instance.host).version
    except ValueError:
        return f"dns:///{address}"
    return f"ipv{version}:{address}"


RESILIENCE = Resilience(retry_least=5.0)
"""The default for channels. It allows more retries: a process may die with fifty calls in flight,
after a time with few requests."""


SCHEMES = ("etcdv3", "mooring")
"""Both mean the same, for every kind of store. The first is the customary one."""


def service_of(target: str) -> str:
    """The service of a target like `etcdv3:///group/name`."""
    if not isinstance(target, str):
        raise InvalidRequest(
            f"a target must be text like 'etcdv3:///service', not {quoted(target)}"
        )
    scheme, colon, rest = target.partition(":")
    if not colon or scheme not in SCHEMES:
        raise InvalidRequest(
            f"the target {quoted(target)} must begin with "
            f"{' or '.join(f'{s}:///' for s in SCHEMES)}: "
            "write it like 'etcdv3:///service' or 'etcdv3:///group/service'"
        )
    if not rest.startswith("///"):
        raise InvalidRequest(
            f"the target {quoted(target)} names a host, or lacks a slash: the registry is that of "
            f"the hub. Write '{scheme}:///{rest.lstrip('/') or 'service'}'"
        )
    service = unquote(rest[3:])
    try:
        split_service(service)
    except InvalidName as error:
        raise InvalidName(f"the target {quoted(target)}: {error}") from None
    return service


_THROTTLING = {"maxTokens": 100, "tokenRatio": 0.2}
"""Fifty retries, and one more for every five successes, like the retry budget on asyncio."""


def merged(
    options: ChannelOptions, health: HealthCheck, repeatable: Repeatable | None = None
) -> str:
    """The JSON of the config: round robin, health checks unless `health` is False, and retries of
    the `repeatable` methods. Raises `InvalidRequest` for an invalid or contradictory config."""
    if not isinstance(health, bool | str):
        raise InvalidRequest(
            f"health is True, False or the name of a service, not {quoted(health)}"
        )
    config = _callers_config(options)
    if "loadBalancingPolicy" not in config:
        # gRPC checks health only under this policy, even with a single address.
        config.setdefault("loadBalancingConfig", [{"round_robin": {}}])
    if isinstance(health, str) and "healthCheckConfig" in config:
        raise InvalidRequest(
            "health names a service, and the option grpc.service_config has a healthCheckConfig: "
            "remove one of them"
        )
    if health is not False:
        name = "" if health is True else health
        config.setdefault("healthCheckConfig", {"serviceName": name})
    if repeatable is not None and repeatable.names and repeatable.tries > 1:
        config["methodConfig"] = _with_retries(config.get("methodConfig", []), repeatable)
        config.setdefault("retryThrottling", _THROTTLING)
    return json.dumps(config)


def _callers_config(options: ChannelOptions) -> ConfigJSON:
    """The caller's config. Of several options with the same name, gRPC takes the first."""
    text = next((value for name, value in options if name == CONFIG_KEY), "{}")
    try:
        config = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"the option {CONFIG_KEY} is not valid JSON: {describe(error)}"
        ) from None
    methods = config.get("methodConfig", []) if isinstance(config, dict) else None
    if not isinstance(methods, list) or not all(isinstance(entry, dict) for entry in methods):
        raise InvalidRequest(
            f"the option {CONFIG_KEY} must be a JSON object, and its methodConfig a list of objects"
        )
    return dict(config)


MethodName: TypeAlias = tuple[str, str]
"""Service and method. An empty method stands for all methods, an empty service for all services."""


def _with_retries(methods: Sequence[ConfigJSON], repeatable: Repeatable) -> list[ConfigJSON]:
    """Add a retry policy for each repeatable method. gRPC applies only the most specific entry to
    a call, so a new entry repeats what the caller set for the method, and an entry of the caller's
    that is more specific than a new one gets the policy too."""
    policy = {
        "maxAttempts": repeatable.tries,  # gRPC makes at most five
        "initialBackoff": "0.01s",
        "maxBackoff": "0.1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    entries = {
        name: {key: value for key, value in entry.items() if key != "name"}
        for entry in methods
        for name in _names(entry)
    }
    added: dict[MethodName, ConfigJSON] = {}
    for service, method in repeatable.names:
        if "retryPolicy" in entries.get((service, method), {}):
            raise InvalidRequest(
                f"retry names {service}{'/' * bool(method)}{method}, for which the option "
                f"{CONFIG_KEY} has a retryPolicy: remove one of them"
            )
        less_specific = ((service, method), (service, ""), ("", ""))
        inherited: ConfigJSON = next(
            (entries[name] for name in less_specific if name in entries), {}
        )
        added[service, method] = {**inherited, "retryPolicy": policy}
        for name, settings in entries.items():
            if not method and name[0] == service and name[1] and "retryPolicy" not in settings:
                added.setdefault(name, {**settings, "retryPolicy": policy})
    return [{"name": [_name(*name)], **settings} for name, settings in {**entries, **added}.items()]


def _names(entry: ConfigJSON) -> Iterator[MethodName]:
    for name in entry.get("name", []):
        if not isinstance(name, Mapping):
            raise InvalidRequest(f"the option {CONFIG_KEY}: each name in methodConfig is an object")
        yield str(name.get("service", "")), str(name.get("method", ""))


def _name(service: str, method: str) -> ConfigJSON:
    return {**({"service": service} if service else {}), **({"method": method} if method else {})}
