"""Options of gRPC channels and servers, and the service config of a channel."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar
from urllib.parse import quote

from mooring.addresses import join
from mooring.discovery.last_known_good import Empty
from mooring.discovery.resilience import Resilience
from mooring.errors import InvalidRequest
from mooring.formatting import describe, quoted
from mooring.grpc.target import Repeatable
from mooring.model import Instance

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


def subchannel_options(options: Options, health: Health) -> Options:
    """For a channel to one instance. The caller's options win."""
    return (
        (OPTION, merged(options, health)),
        *options,
        # What another channel found out of an address says nothing: a new process may be there.
        ("grpc.use_local_subchannel_pool", 1),
        *_OURS,
    )


def route_options(options: Options, health: Health, repeatable: Repeatable, tries: int) -> Options:
    """For a channel to all instances, which gRPC calls in turn, and again if it may."""
    config = merged(options, health, repeatable, tries)
    return ((OPTION, config), *options, *_OURS)


def authority(service: str) -> Options:
    """The `:authority` of calls to a service on a channel to all of its instances. Without it gRPC
    sends all addresses, which servers refuse if they are many. Written as gRPC writes the name in
    `etcdv3:///group/service`."""
    return (("grpc.default_authority", quote(service, safe="!$&'()*+,;=:[]@")),)


def target_of(instance: Instance) -> str:
    """Where gRPC finds an instance: its port `grpc`, or the main one."""
    address = join(instance.host, instance.port_for("grpc"))
    try:
        version = ipaddress.ip_address(instance.host).version
    except ValueError:
        return f"dns:///{address}"
    return f"ipv{version}:{address}"


RESILIENCE = Resilience(retry_least=5.0)
"""What is done about instances that fail, where nothing else is said. The more generous retries are
for a process that dies with some fifty calls, where there were few before."""


class Discovery(TypedDict, total=False):
    """Which instances, and what is done about those that fail: as for `hub.discover`."""

    version: str
    tags: Mapping[str, str]
    zone: str
    zone_only: bool
    where: Callable[[Instance], bool]
    resilience: Resilience
    empty: Empty
    hold: float


M = TypeVar("M")
Coder = Callable[[Any], Any] | None


def method_maker(kind: type[M]) -> Callable[..., M]:
    """A channel's `unary_unary`, `unary_stream` and so on: a method of this kind."""

    def make(
        self: Any,
        method: str,
        request_serializer: Coder = None,
        response_deserializer: Coder = None,
        _registered_method: bool | None = False,
    ) -> M:
        made: M = self._method(
            kind, method, request_serializer, response_deserializer, _registered_method
        )
        return made

    return make


OPTION = "grpc.service_config"

Options: TypeAlias = Sequence[tuple[str, Any]]
Health: TypeAlias = bool | str
Config: TypeAlias = dict[str, Any]

_THROTTLING = {"maxTokens": 100, "tokenRatio": 0.2}
"""Fifty failures, and one for every five successes, as on asyncio."""


def merged(
    options: Options, health: Health, repeatable: Repeatable | None = None, tries: int = 1
) -> str:
    """The JSON of the config: round robin, health checks unless `health` is False, and gRPC's own
    retries of the `repeatable` methods. Raises `InvalidRequest` if the caller's config is invalid,
    or contradicts the arguments."""
    if not isinstance(health, bool | str):
        raise InvalidRequest(f"health is True, False or a service's name, not {quoted(health)}")
    config = _given(options)
    if "loadBalancingPolicy" not in config:
        # gRPC checks health with this policy only, also if there is but one address.
        config.setdefault("loadBalancingConfig", [{"round_robin": {}}])
    if isinstance(health, str) and "healthCheckConfig" in config:
        raise InvalidRequest(
            "health names a service, and the option grpc.service_config has a healthCheckConfig: "
            "leave one of them out"
        )
    if health is not False:
        name = "" if health is True else health
        config.setdefault("healthCheckConfig", {"serviceName": name})
    if repeatable is not None and repeatable.names and tries > 1:
        config["methodConfig"] = _with_retries(config.get("methodConfig", []), repeatable, tries)
        config.setdefault("retryThrottling", _THROTTLING)
    return json.dumps(config)


def _given(options: Options) -> Config:
    """The caller's config. gRPC takes the first of two options of one name."""
    text = next((value for name, value in options if name == OPTION), "{}")
    try:
        config = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the option {OPTION} is not valid JSON: {describe(error)}") from None
    methods = config.get("methodConfig", []) if isinstance(config, dict) else None
    if not isinstance(methods, list) or not all(isinstance(each, dict) for each in methods):
        raise InvalidRequest(
            f"the option {OPTION} must be a JSON object, and its methodConfig a list of objects"
        )
    return dict(config)


Name: TypeAlias = tuple[str, str]
"""Service and method. An empty method stands for all methods, an empty service for all services."""


def _with_retries(methods: Sequence[Config], repeatable: Repeatable, tries: int) -> list[Config]:
    """Add a retry policy for each repeatable method. gRPC applies only the most specific entry to
    a call, so a new entry repeats what the caller set for the method, and an entry of the caller's
    that is more specific than a new one gets the policy too."""
    policy = {
        "maxAttempts": tries,  # gRPC makes five at the most
        "initialBackoff": "0.01s",
        "maxBackoff": "0.1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    entries: dict[Name, Config] = {}
    for entry in methods:
        settings = {key: value for key, value in entry.items() if key != "name"}
        entries |= dict.fromkeys(_names(entry), settings)
    added: dict[Name, Config] = {}
    for service, method in repeatable.names:
        if "retryPolicy" in entries.get((service, method), {}):
            raise InvalidRequest(
                f"retry names {service}{'/' * bool(method)}{method}, for which the option {OPTION} "
                "has a retryPolicy: leave one of them out"
            )
        less_specific = ((service, method), (service, ""), ("", ""))
        inherited: Config = next((entries[name] for name in less_specific if name in entries), {})
        added[service, method] = {**inherited, "retryPolicy": policy}
        for name, settings in entries.items():
            if not method and name[0] == service and name[1] and "retryPolicy" not in settings:
                added.setdefault(name, {**settings, "retryPolicy": policy})
    return [{"name": [_name(*name)], **settings} for name, settings in {**entries, **added}.items()]


def _names(entry: Config) -> Iterator[Name]:
    for name in entry.get("name", []):
        if not isinstance(name, Mapping):
            raise InvalidRequest(f"the option {OPTION}: each name in methodConfig is an object")
        yield str(name.get("service", "")), str(name.get("method", ""))


def _name(service: str, method: str) -> Config:
    return {**({"service": service} if service else {}), **({"method": method} if method else {})}
