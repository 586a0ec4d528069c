"""`channel`: a `grpc.Channel` whose target is a service of the registry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc

import mooring.sync
from mooring.discovery.resilience import Resilience
from mooring.errors import Closed, InvalidRequest
from mooring.fork_safety import check_process, tracked
from mooring.formatting import quoted
from mooring.grpc import target as targets
from mooring.grpc.blocking.addresses import Addresses
from mooring.grpc.blocking.methods import Method, StreamStream, StreamUnary, UnaryStream, UnaryUnary
from mooring.grpc.blocking.swappable_channel import Route, SwappableChannel
from mooring.grpc.options import Discovery, authority, method_maker, route_options
from mooring.grpc.service_config import Health, Options
from mooring.grpc.target import Repeatable
from mooring.sync.proxy import Blocking, behind

if TYPE_CHECKING:
    from mooring.hub import Hub

M = TypeVar("M", bound=Method)

_NAMED = ("grpc.ssl_target_name_override", "grpc.default_authority")


def channel(
    target: str,
    *,
    hub: mooring.sync.Hub | str,
    retry: Iterable[str] = (),
    tries: int = 3,
    health: Health = True,
    credentials: grpc.ChannelCredentials | None = None,
    options: Options = (),
    interceptors: Sequence[Any] = (),
    compression: grpc.Compression | None = None,
    policy: str = "round_robin",
    **discovery: Unpack[Discovery],
) -> Channel:
    """A channel to the instances of a service: `etcdv3:///service`, `etcdv3:///group/service`.

    `hub` is an open hub of `mooring.sync.connect`, or a URL to open one for this channel only.
    Instances are called in turn, regardless of weight, by gRPC's own round robin, which also
    retries. Everything else is as for `mooring.grpc.aio.channel`. Over TLS all instances must have
    one name in their certificates, given by the option `grpc.ssl_target_name_override`. Raises
    `InvalidRequest`.
    """
    service = targets.service_of(target)
    targets.check_policy(policy)
    if policy != "round_robin":
        raise InvalidRequest(
            f"a blocking channel calls in turn (round_robin), not by {quoted(policy)}: the other "
            "policies are for mooring.grpc.aio.channel"
        )
    targets.check_tries(tries)
    repeatable = Repeatable(retry)
    all_options = route_options(options, health, repeatable, tries)
    if credentials is None:
        all_options = (*all_options, *authority(service))
    elif not any(name in _NAMED for name, _ in options):
        raise InvalidRequest(
            "over TLS all instances of a blocking channel must be known by one name: say it with "
            "options=[('grpc.ssl_target_name_override', 'the name in their certificates')]"
        )
    connect = partial(_connect, credentials, all_options, interceptors, compression)
    opened = mooring.sync.connect(hub) if isinstance(hub, str) else hub
    if not isinstance(opened, Blocking):
        raise InvalidRequest(
            f"hub is one that mooring.sync.connect gives, or a URL, not {quoted(hub)}"
        )
    return Channel(opened, service, connect, discovery, repeatable, owns_hub=isinstance(hub, str))


def _connect(
    credentials: grpc.ChannelCredentials | None,
    options: Options,
    interceptors: Sequence[Any],
    compression: grpc.Compression | None,
    target: str,
) -> Route:
    check_process()
    if credentials is None:
        made = grpc.insecure_channel(target, options=options, compression=compression)
    else:
        made = grpc.secure_channel(target, credentials, options=options, compression=compression)
    tracked(made)
    return Route(made, grpc.intercept_channel(made, *interceptors) if interceptors else made)


class Channel(grpc.Channel):  # type: ignore[misc]
    """Made by `channel`. Everything that takes a `grpc.Channel` takes it: generated stubs,
    `grpc.intercept_channel`."""

    def __init__(
        self,
        hub: Any,
        service: str,
        connect: Any,
        discovery: Discovery,
        repeatable: Repeatable,
        *,
        owns_hub: bool,
    ) -> None:
        self._hub, self._owns_hub, self._repeatable = hub, owns_hub, repeatable
        if owns_hub:
            hub.open()
        self._portal, inner = behind(hub)
        self._swappable = SwappableChannel(service, connect)
        try:
            self._portal.call(partial(self._start, inner, service, discovery))
        except BaseException:
            self.close()
            raise

    async def _start(self, hub: Hub, service: str, discovery: Discovery) -> None:
        service = hub.registry.canonical(service)
        # gRPC's own round robin has no slow start, and this channel does not learn when one ends.
        resilience = replace(discovery.get("resilience") or Resilience(), slow_start=0.0)
        discovery = {**discovery, "resilience": resilience}
        self._addresses = Addresses(
            service,
            partial(hub.discover, service, policy="round_robin", **discovery),
            self._swappable.turn_to,
            self._swappable.doubt,
        )
        self._addresses.start()

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        """Call back with the combined connectivity of all instances, now and at each change."""
        self._swappable.subscribe(callback)

    def unsubscribe(self, callback: Any) -> None:
        self._swappable.unsubscribe(callback)

    def _method(self, kind: type[M], name: str, *coders: Any) -> M:
        if kind.streams_requests:
            self._repeatable.check_unary(name)
        return kind(self._swappable, name, *coders)

    unary_unary = method_maker(UnaryUnary)
    unary_stream = method_maker(UnaryStream)
    stream_unary = method_maker(StreamUnary)
    stream_stream = method_maker(StreamStream)

    def close(self) -> None:
        """Cancel calls in flight and close. Idempotent. Does nothing in a forked child."""
        if self._swappable.closed or self._swappable.inherited:
            return
        self._swappable.close()
        try:
            if hasattr(self, "_addresses"):
                self._portal.call(self._addresses.aclose, outlives=True)
        except Closed:
            pass  # the hub is closed, or the interpreter ends
        finally:
            if self._owns_hub:
                self._hub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
