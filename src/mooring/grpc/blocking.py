"""`channel`: a `grpc.Channel` whose target is a service, and its methods for stubs."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, Unpack

import grpc

import mooring.sync
from mooring.discovery.resilience import Resilience
from mooring.errors import Closed, InvalidRequest
from mooring.fork_safety import check_process, tracked
from mooring.formatting import quoted
from mooring.grpc import target as targets
from mooring.grpc.options import Discovery, Health, Options, authority, method_maker, route_options
from mooring.grpc.resolver import Addresses
from mooring.grpc.swappable_channel import (
    FailedCall,
    Route,
    SwappableChannel,
    kept_in_children,
)
from mooring.grpc.target import NOTICED, Repeatable, never_left
from mooring.sync.proxy import Blocking, behind

if TYPE_CHECKING:
    from mooring.hub import Hub

__all__ = ["Channel", "channel"]


class Method:
    """One method. A call starts on the current route, and finishes there."""

    kind: ClassVar[str]
    streams_requests: ClassVar[bool] = False
    """Whether its requests are a stream, which can be sent only once."""

    def __init__(self, swappable: SwappableChannel, *given: Any) -> None:
        self._swappable, self._given = swappable, given
        self.made: dict[Route, Any] = {}
        """The method on each route that was used."""
        swappable.add(self)

    def _at(self, route: Route) -> Any:
        made = self.made.get(route)
        if made is None:
            made = self.made[route] = getattr(route.channel, self.kind)(*self._given)
        return made

    def _take(
        self, timeout: float | None, wait_for_ready: bool | None
    ) -> tuple[Route, float | None]:
        """The route, and the remaining time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        route = self._swappable.take(deadline, wait_for_ready=bool(wait_for_ready))
        return route, None if deadline is None else max(deadline - time.monotonic(), 0.0)

    def _wait(
        self,
        way: str,
        request: Any,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> Any:
        """Make a call and wait for its end. Waiting for a connection happens here, since the
        instances may change meanwhile: gRPC would wait for those of the route it was given."""
        deadline = None if timeout is None else time.monotonic() + timeout
        waits = bool(wait_for_ready) and not self.streams_requests
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            route, left = self._take(left, wait_for_ready)
            try:
                return getattr(self._at(route), way)(
                    request, left, metadata, credentials, not waits and wait_for_ready, compression
                )
            except grpc.RpcError as error:
                if not waits or not never_left(error):
                    raise
            finally:
                self._swappable.over(route)
            time.sleep(NOTICED)

    def _begin(
        self,
        way: str,
        request: Any,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> Any:
        """Start a call that continues after this returns."""
        try:
            route, left = self._take(timeout, wait_for_ready)
        except FailedCall as failed:
            return failed
        try:
            call = getattr(self._at(route), way)(
                request, left, metadata, credentials, wait_for_ready, compression
            )
            if not hasattr(call, "add_callback"):  # an interceptor's own iterator
                return kept_in_children(_Followed(call, lambda: self._swappable.over(route)))
            kept_in_children(call)
            if call.add_callback(lambda: self._swappable.over(route)):
                return call
        except BaseException:
            self._swappable.over(route)
            raise
        self._swappable.over(route)
        return call


class _Followed:
    """An iterator whose end is reported once, even if it is never read to its end."""

    def __init__(self, messages: Any, over: Callable[[], None]) -> None:
        self._messages = messages
        self._over = weakref.finalize(self, over)
        self._over.atexit = False

    def __iter__(self) -> _Followed:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._messages)
        except BaseException:
            self._over()
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)


def _invocation(run: Callable[..., Any], way: str) -> Callable[..., Any]:
    """A method with the arguments that every call of gRPC takes."""

    def call(
        self: Method,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return run(self, way, request, timeout, metadata, credentials, wait_for_ready, compression)

    return call


class _UnaryResponse(Method):
    __call__ = _invocation(Method._wait, "__call__")
    with_call = _invocation(Method._wait, "with_call")
    future = _invocation(Method._begin, "future")


class _StreamResponse(Method):
    __call__ = _invocation(Method._begin, "__call__")


class UnaryUnary(_UnaryResponse, grpc.UnaryUnaryMultiCallable):  # type: ignore[misc]
    kind = "unary_unary"


class UnaryStream(_StreamResponse, grpc.UnaryStreamMultiCallable):  # type: ignore[misc]
    kind = "unary_stream"


class StreamUnary(_UnaryResponse, grpc.StreamUnaryMultiCallable):  # type: ignore[misc]
    kind, streams_requests = "stream_unary", True


class StreamStream(_StreamResponse, grpc.StreamStreamMultiCallable):  # type: ignore[misc]
    kind, streams_requests = "stream_stream", True


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
