"""Options of gRPC channels and servers. The first of two options of one name wins."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote

from mooring.addresses import join
from mooring.discovery.last_known_good import Empty
from mooring.discovery.resilience import Resilience
from mooring.grpc import service_config
from mooring.grpc.service_config import Health, Options
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
        (service_config.OPTION, service_config.merged(options, health)),
        *options,
        # What another channel found out of an address says nothing: a new process may be there.
        ("grpc.use_local_subchannel_pool", 1),
        *_OURS,
    )


def route_options(options: Options, health: Health, repeatable: Repeatable, tries: int) -> Options:
    """For a channel to all instances, which gRPC calls in turn, and again if it may."""
    config = service_config.merged(options, health, repeatable, tries)
    return ((service_config.OPTION, config), *options, *_OURS)


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
