"""`channel`: a `grpc.aio` channel whose target is a service, and its methods for stubs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Self, TypeVar, Unpack

import grpc
import grpc.aio

from mooring import hub as hubs
from mooring.discovery import balance
from mooring.discovery.exclusion import Explanation
from mooring.discovery.view import DiscoveryOptions
from mooring.errors import InvalidRequest
from mooring.fork_safety import open_channel
from mooring.formatting import quoted
from mooring.grpc.methods import ConnectionMethod, Repeatable, method_maker
from mooring.grpc.options import (
    RESILIENCE,
    ChannelOptions,
    HealthCheck,
    service_of,
    subchannel_options,
)
from mooring.grpc.retried_calls import (
    CallArguments,
    PendingStreamStream,
    PendingStreamUnary,
    PendingUnaryStream,
    PendingUnaryUnary,
)
from mooring.grpc.subchannels import Subchannel, Subchannels
from mooring.hub import Hub

__all__ = ["Channel", "channel"]


class Method(ConnectionMethod[Subchannel]):
    """A method of a stub. If an instance is connected and the method must not be retried, a call is
    a plain gRPC call to that instance. Otherwise it is one of `retried_calls`, which waits and
    retries. A call with `wait_for_ready` is always a pending call: it can move to another instance
    if the connection breaks before anything was sent, while gRPC knows only one instance.
    """

    pending_call: ClassVar[type[Any]]

    def __init__(
        self,
        subchannels: Subchannels,
        name: str,
        *coders: Any,
        tries: int = 1,
        keyed: bool = False,
    ) -> None:
        super().__init__(name, *coders)
        self.subchannels, self.tries = subchannels, tries
        self._keyed = keyed
        self._loop = asyncio.get_running_loop()
        subchannels.add(self)

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        options = {"metadata": metadata, "credentials": credentials, "compression": compression}
        subchannels = self.subchannels
        if subchannels.closed:
            raise grpc.aio.UsageError("Channel is closed.")
        key = key_in(metadata) if self._keyed else None
        if self.tries == 1 and not wait_for_ready and (choice := subchannels.pick(key)) is not None:
            return subchannels.start_call(*choice, self, request, timeout=timeout, **options)
        deadline = None if timeout is None else self._loop.time() + timeout
        arguments = CallArguments(request, deadline, bool(wait_for_ready), key, self.tries, options)
        return self.pending_call(subchannels, self, arguments)


class _StreamRequestMethod(Method):
    streams_requests = True

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """gRPC names the first parameter differently if requests are a stream."""
        requests = options.pop("request_iterator", None)
        return super().__call__(*(arguments or (requests,)), **options)


class UnaryUnary(Method, grpc.aio.UnaryUnaryMultiCallable):  # type: ignore[misc]
    kind, pending_call = "unary_unary", PendingUnaryUnary


class UnaryStream(Method, grpc.aio.UnaryStreamMultiCallable):  # type: ignore[misc]
    kind, pending_call = "unary_stream", PendingUnaryStream


class StreamUnary(_StreamRequestMethod, grpc.aio.StreamUnaryMultiCallable):  # type: ignore[misc]
    kind, pending_call = "stream_unary", PendingStreamUnary


class StreamStream(_StreamRequestMethod, grpc.aio.StreamStreamMultiCallable):  # type: ignore[misc]
    kind, pending_call = "stream_stream", PendingStreamStream


KEY = "mooring-key"
"""The metadata key whose value consistent hashing uses."""


def key_in(metadata: Any) -> str | None:
    """The key that a call is hashed by; None if it has none."""
    return next((str(value) for name, value in metadata or () if name == KEY), None)


M = TypeVar("M", bound=Method)


def channel(
    target: str,
    *,
    hub: Hub | str,
    policy: str = "p2c",
    retry: Iterable[str] = (),
    tries: int = 3,
    health: HealthCheck = True,
    credentials: grpc.ChannelCredentials | None = None,
    options: ChannelOptions = (),
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
    compression: grpc.Compression | None = None,
    **discovery: Unpack[DiscoveryOptions],
) -> Channel:
    """A channel to the instances of a service: `etcdv3:///service`, `etcdv3:///group/service`.

    `hub` is an entered hub, or a URL to open one for this channel only. `retry` names the methods
    that may be retried, like `package.Service/Method`, or a service for all of its methods; `tries`
    includes the first attempt. `health`: instances that report NOT_SERVING through the gRPC health
    service are not called; a name instead of True is the service that is checked. All other
    arguments are those of `grpc.aio.insecure_channel` and `secure_channel`, for each instance, and
    those of `hub.discover`. Raises `InvalidRequest`. Call it in a running event loop.
    """
    service = service_of(target)
    balance.make(policy)  # raises `InvalidRequest` for an unknown policy
    repeatable = Repeatable(retry, tries)
    all_options = subchannel_options(options, health)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidRequest(f"make the channel to {target} in a running loop") from None
    owns_hub = isinstance(hub, str)
    opened = hubs.connect(hub) if isinstance(hub, str) else hub
    if not isinstance(opened, Hub):
        raise InvalidRequest(f"hub is a hub of mooring.connect, or a URL, not {quoted(hub)}")
    if not owns_hub:
        service = opened.registry.canonical(service)
    discovery.setdefault("resilience", RESILIENCE)
    return Channel(
        Subchannels(
            service,
            opened,
            partial(opened.discover, service, policy=policy, **discovery),
            partial(
                open_channel,
                grpc.aio,
                credentials=credentials,
                options=all_options,
                compression=compression,
                interceptors=interceptors,
            ),
            owns_hub=owns_hub,
        ),
        repeatable,
        keyed=policy == "consistent_hash",
    )


class Channel(grpc.aio.Channel):  # type: ignore[misc]
    """Created by `channel`. Generated stubs accept it like a `grpc.aio.Channel`."""

    def __init__(self, subchannels: Subchannels, repeatable: Repeatable, *, keyed: bool) -> None:
        self._subchannels, self._repeatable, self._keyed = subchannels, repeatable, keyed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Accept no new calls, and cancel those in flight after `grace` seconds. Idempotent."""
        await self._subchannels.aclose(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """The combined state of all instances: READY if one is. Connecting starts automatically."""
        return self._subchannels.state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        while self._subchannels.state is last_observed_state:
            await self._subchannels.change()

    async def channel_ready(self) -> None:
        """Wait until there is an instance to call."""
        while self._subchannels.state is not grpc.ChannelConnectivity.READY:
            if self._subchannels.closed:
                raise grpc.aio.UsageError("Channel is closed.")
            await self._subchannels.change()

    @property
    def subchannels(self) -> list[Subchannel]:
        """The current connections, for inspection."""
        return self._subchannels.present

    def explain(self) -> list[Explanation]:
        """Why each instance is or is not called. Empty until the first list arrives."""
        return [] if self._subchannels.view is None else self._subchannels.view.explain()

    def _method(self, kind: type[M], name: str, *coders: Any) -> M:
        tries = self._repeatable.tries if name in self._repeatable else 1
        if kind.streams_requests:
            self._repeatable.check_unary(name)
            tries = 1
        return kind(self._subchannels, name, *coders, tries=tries, keyed=self._keyed)

    unary_unary = method_maker(UnaryUnary)
    unary_stream = method_maker(UnaryStream)
    stream_unary = method_maker(StreamUnary)
    stream_stream = method_maker(StreamStream)
