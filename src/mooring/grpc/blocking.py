"""`channel`: a `grpc.Channel` whose target is a service, and its methods for stubs."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar, Unpack

import grpc

import mooring.sync
from mooring.discovery import balance
from mooring.discovery.resilience import Resilience
from mooring.discovery.view import DiscoveryOptions
from mooring.errors import Closed, InvalidRequest
from mooring.fork_safety import kept_in_children, open_channel
from mooring.formatting import quoted
from mooring.grpc.methods import (
    NOTICED_WITHIN,
    ConnectionMethod,
    Repeatable,
    method_maker,
    was_not_sent,
)
from mooring.grpc.options import (
    ChannelOptions,
    HealthCheck,
    authority,
    route_options,
    service_of,
)
from mooring.grpc.resolver import TargetResolver
from mooring.grpc.swappable_channel import FailedCall, Route, SwappableChannel
from mooring.hub import Hub
from mooring.sync.proxy import Blocking, behind

__all__ = ["Channel", "channel"]


CallOptions = Mapping[str, Any]
"""The arguments of a call except for its timeout, by the names that gRPC gives them."""


class Method(ConnectionMethod[Route]):
    """A method of a stub. A call starts on the current route, and finishes there."""

    def __init__(self, swappable: SwappableChannel, name: str, *coders: Any) -> None:
        super().__init__(name, *coders)
        self._swappable = swappable
        swappable.add(self)

    def _call(
        self, attribute: str, request: Any, deadline: float | None, options: CallOptions
    ) -> Any:
        """Make a call and wait for its end. Waiting for a connection happens here, because the
        instances may change: gRPC would wait for those of its route only."""
        wait_for_ready = bool(options["wait_for_ready"])
        waits = wait_for_ready and not self.streams_requests
        if waits:
            options = {**options, "wait_for_ready": False}
        while True:
            route = self._swappable.acquire(deadline, wait_for_ready=wait_for_ready)
            try:
                method = getattr(self.at(route), attribute)
                return method(request, timeout=_time_until(deadline), **options)
            except grpc.RpcError as error:
                if not waits or not was_not_sent(error):
                    raise
            finally:
                self._swappable.release(route)
            time.sleep(NOTICED_WITHIN)

    def _start_call(
        self, attribute: str, request: Any, deadline: float | None, options: CallOptions
    ) -> Any:
        """Start a call that continues after this returns."""
        wait_for_ready = bool(options["wait_for_ready"])
        try:
            route = self._swappable.acquire(deadline, wait_for_ready=wait_for_ready)
        except FailedCall as failed:
            return failed
        try:
            method = getattr(self.at(route), attribute)
            call = method(request, timeout=_time_until(deadline), **options)
            if not hasattr(call, "add_callback"):  # an iterator of an interceptor
                return kept_in_children(
                    _TrackedIterator(call, lambda: self._swappable.release(route))
                )
            kept_in_children(call)
            if call.add_callback(lambda: self._swappable.release(route)):
                return call
        except BaseException:
            self._swappable.release(route)
            raise
        self._swappable.release(route)
        return call


def _time_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


class _TrackedIterator:
    """An iterator that calls back when it ends, or is discarded."""

    def __init__(self, messages: Any, on_end: Callable[[], None]) -> None:
        self._messages = messages
        self._on_end = weakref.finalize(self, on_end)
        self._on_end.atexit = False

    def __iter__(self) -> _TrackedIterator:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._messages)
        except BaseException:
            self._on_end()
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)


def _invocation(run: Callable[..., Any], attribute: str) -> Callable[..., Any]:
    """A method with the arguments of a gRPC call."""

    def call(
        self: Method,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        options = {
            "metadata": metadata,
            "credentials": credentials,
            "wait_for_ready": wait_for_ready,
            "compression": compression,
        }
        deadline = None if timeout is None else time.monotonic() + timeout
        return run(self, attribute, request, deadline, options)

    return call


class _UnaryResponseMethod(Method):
    __call__ = _invocation(Method._call, "__call__")
    with_call = _invocation(Method._call, "with_call")
    future = _invocation(Method._start_call, "future")


class _StreamResponseMethod(Method):
    __call__ = _invocation(Method._start_call, "__call__")


class UnaryUnary(_UnaryResponseMethod, grpc.UnaryUnaryMultiCallable):  # type: ignore[misc]
    kind = "unary_unary"


class UnaryStream(_StreamResponseMethod, grpc.UnaryStreamMultiCallable):  # type: ignore[misc]
    kind = "unary_stream"


class StreamUnary(_UnaryResponseMethod, grpc.StreamUnaryMultiCallable):  # type: ignore[misc]
    kind, streams_requests = "stream_unary", True


class StreamStream(_StreamResponseMethod, grpc.StreamStreamMultiCallable):  # type: ignore[misc]
    kind, streams_requests = "stream_stream", True


M = TypeVar("M", bound=Method)

_NAME_OPTIONS = ("grpc.ssl_target_name_override", "grpc.default_authority")


def channel(
    target: str,
    *,
    hub: mooring.sync.Hub | str,
    retry: Iterable[str] = (),
    tries: int = 3,
    health: HealthCheck = True,
    credentials: grpc.ChannelCredentials | None = None,
    options: ChannelOptions = (),
    interceptors: Sequence[Any] = (),
    compression: grpc.Compression | None = None,
    policy: str = "round_robin",
    **discovery: Unpack[DiscoveryOptions],
) -> Channel:
    """A channel to the instances of a service: `etcdv3:///service`, `etcdv3:///group/service`.

    `hub` is an open hub of `mooring.sync.connect`, or a URL to open one for this channel only.
    Instances are called in turn, regardless of weight, by gRPC's own round robin, which also
    retries. Everything else is as for `mooring.grpc.aio.channel`. Over TLS all instances must have
    one name in their certificates, given by the option `grpc.ssl_target_name_override`. Raises
    `InvalidRequest`.
    """
    service = service_of(target)
    balance.make(policy)  # raises `InvalidRequest` for an unknown policy
    if policy != "round_robin":
        raise InvalidRequest(
            f"a blocking channel supports only the policy round_robin, not {quoted(policy)}: the "
            "others are for mooring.grpc.aio.channel"
        )
    repeatable = Repeatable(retry, tries)
    all_options = route_options(options, health, repeatable)
    if credentials is None:
        all_options = (*all_options, *authority(service))
    elif not any(name in _NAME_OPTIONS for name, _ in options):
        raise InvalidRequest(
            "over TLS all instances need the same name in their certificates: "
            "pass options=[('grpc.ssl_target_name_override', 'that name')]"
        )
    connect = partial(_connect, credentials, all_options, interceptors, compression)
    opened = mooring.sync.connect(hub) if isinstance(hub, str) else hub
    if not isinstance(opened, Blocking):
        raise InvalidRequest(f"hub is a hub of mooring.sync.connect, or a URL, not {quoted(hub)}")
    return Channel(opened, service, connect, discovery, repeatable, owns_hub=isinstance(hub, str))


def _connect(
    credentials: grpc.ChannelCredentials | None,
    options: ChannelOptions,
    interceptors: Sequence[Any],
    compression: grpc.Compression | None,
    target: str,
) -> Route:
    bare = open_channel(grpc, target, credentials, options=options, compression=compression)
    return Route(bare, grpc.intercept_channel(bare, *interceptors) if interceptors else bare)


class Channel(grpc.Channel):  # type: ignore[misc]
    """Created by `channel`. Stubs and `grpc.intercept_channel` accept it like a `grpc.Channel`."""

    def __init__(
        self,
        hub: Any,
        service: str,
        connect: Any,
        discovery: DiscoveryOptions,
        repeatable: Repeatable,
        *,
        owns_hub: bool,
    ) -> None:
        self._hub, self._owns_hub, self._repeatable = hub, owns_hub, repeatable
        if owns_hub:
            hub.open()
        self._portal, async_hub = behind(hub)
        self._swappable = SwappableChannel(service, connect)
        try:
            self._portal.call(partial(self._start, async_hub, service, discovery))
        except BaseException:
            self.close()
            raise

    async def _start(self, hub: Hub, service: str, discovery: DiscoveryOptions) -> None:
        service = hub.registry.canonical(service)
        # gRPC's own round robin has no weights, so that a slow start has no effect.
        resilience = replace(discovery.get("resilience") or Resilience(), slow_start=0.0)
        discovery = {**discovery, "resilience": resilience}
        self._resolver = TargetResolver(
            service,
            partial(hub.discover, service, policy="round_robin", **discovery),
            self._swappable.switch_to,
            self._swappable.set_unavailable,
        )

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
            if hasattr(self, "_resolver"):
                self._portal.call(self._resolver.aclose, outlives=True)
        except Closed:
            pass  # the hub is closed, or the interpreter ends
        finally:
            if self._owns_hub:
                self._hub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
