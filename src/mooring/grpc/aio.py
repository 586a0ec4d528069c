"""`channel`: a `grpc.aio` channel whose target is a service, and its methods for stubs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar, Unpack

import grpc
import grpc.aio

from mooring import hub as hubs
from mooring.discovery.eligibility import Explanation
from mooring.errors import InvalidRequest
from mooring.fork_safety import check_process, tracked
from mooring.formatting import quoted
from mooring.grpc import target as targets
from mooring.grpc.options import (
    RESILIENCE,
    Coder,
    Discovery,
    Health,
    Options,
    method_maker,
    subchannel_options,
)
from mooring.grpc.pending_calls import (
    CallArguments,
    PendingStreamStream,
    PendingStreamUnary,
    PendingUnaryStream,
    PendingUnaryUnary,
)
from mooring.grpc.subchannels import Subchannel, Subchannels
from mooring.grpc.target import Repeatable
from mooring.hub import Hub

__all__ = ["Channel", "channel"]


class Method:
    """One method. If an instance is connected and the method must not be retried, a call is a plain
    gRPC call to that instance. Otherwise it is one of `calls`, which waits and retries. A call with
    `wait_for_ready` is always such a pending call: it can move to another instance if the
    connection breaks before anything was sent, while gRPC knows only one instance.
    """

    kind: ClassVar[str]
    pending_call: ClassVar[type[Any]]
    streams: ClassVar[bool] = True
    """Whether requests or responses are a stream: the length of a call says nothing then."""
    streams_requests: ClassVar[bool] = False

    def __init__(
        self,
        subchannels: Subchannels,
        name: str,
        serializer: Coder,
        deserializer: Coder,
        registered: bool | None,
        *,
        tries: int = 1,
        keyed: bool = False,
    ) -> None:
        self.subchannels, self.name = subchannels, name
        self.tries = tries
        self._given = (name, serializer, deserializer, registered)
        self._keyed = keyed
        self.made: dict[Subchannel, Any] = {}
        """The same method of each instance that was called."""
        self._dispatch = subchannels.dispatch if tries == 1 and not keyed else _dispatch_nothing
        self._loop = asyncio.get_running_loop()
        subchannels.add(self)

    def at(self, subchannel: Subchannel) -> Any:
        """The method of one instance."""
        made = self.made.get(subchannel)
        if made is None:
            made = self.made[subchannel] = getattr(subchannel.channel, self.kind)(*self._given)
        return made

    def _pending(
        self,
        request: Any,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> Any:
        """A call that could not be dispatched at once."""
        subchannels = self.subchannels
        if subchannels.closed:
            raise grpc.aio.UsageError("Channel is closed.")
        key = key_in(metadata) if self._keyed else None
        if self.tries == 1 and not wait_for_ready and (choice := subchannels.next(key)) is not None:
            node, subchannel = choice
            call = self.at(subchannel)(
                request,
                timeout=timeout,
                metadata=metadata,
                credentials=credentials,
                compression=compression,
            )
            subchannels.begun(node, subchannel, call, stream=self.streams)
            return call
        deadline = None if timeout is None else self._loop.time() + timeout
        arguments = CallArguments(
            request, deadline, metadata, credentials, bool(wait_for_ready), compression, key
        )
        return self.pending_call(self, arguments)


class _UnaryRequest(Method):
    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        if not wait_for_ready:
            call = self._dispatch(self, request, timeout, metadata, credentials, compression)
            if call is not None:
                return call
        return self._pending(request, timeout, metadata, credentials, wait_for_ready, compression)


class _StreamRequest(Method):
    streams_requests = True

    def __call__(
        self,
        request_iterator: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        if not wait_for_ready:
            call = self._dispatch(
                self, request_iterator, timeout, metadata, credentials, compression
            )
            if call is not None:
                return call
        return self._pending(
            request_iterator, timeout, metadata, credentials, wait_for_ready, compression
        )


class UnaryUnary(_UnaryRequest, grpc.aio.UnaryUnaryMultiCallable):  # type: ignore[misc]
    kind, pending_call, streams = "unary_unary", PendingUnaryUnary, False


class UnaryStream(_UnaryRequest, grpc.aio.UnaryStreamMultiCallable):  # type: ignore[misc]
    kind, pending_call = "unary_stream", PendingUnaryStream


class StreamUnary(_StreamRequest, grpc.aio.StreamUnaryMultiCallable):  # type: ignore[misc]
    kind, pending_call = "stream_unary", PendingStreamUnary


class StreamStream(_StreamRequest, grpc.aio.StreamStreamMultiCallable):  # type: ignore[misc]
    kind, pending_call = "stream_stream", PendingStreamStream


def _dispatch_nothing(*_: Any, **__: Any) -> None:
    """For methods whose calls are never dispatched at once."""


KEY = "mooring-key"
"""The metadata key whose value consistent hashing uses."""


def key_in(metadata: Any) -> str | None:
    """The key that a call is hashed by; None if it has none."""
    for name, value in metadata or ():
        if name == KEY:
            return str(value)
    return None


M = TypeVar("M", bound=Method)


def channel(
    target: str,
    *,
    hub: Hub | str,
    policy: str = "p2c",
    retry: Iterable[str] = (),
    tries: int = 3,
    health: Health = True,
    credentials: grpc.ChannelCredentials | None = None,
    options: Options = (),
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
    compression: grpc.Compression | None = None,
    **discovery: Unpack[Discovery],
) -> Channel:
    """A channel to the instances of a service: `etcdv3:///service`, `etcdv3:///group/service`.

    `hub` is an entered hub, or a URL to open one for this channel only. `retry` names the methods
    that may be retried, like `package.Service/Method`, or a service for all of its methods; `tries`
    includes the first attempt. `health`: instances that report NOT_SERVING through the gRPC health
    service are not called; a name instead of True is the service that is checked. All other
    arguments are those of `grpc.aio.insecure_channel` and `secure_channel`, for each instance, and
    those of `hub.discover`. Raises `InvalidRequest`. Call it in a running event loop.
    """
    service = targets.service_of(target)
    targets.check_policy(policy)
    targets.check_tries(tries)
    repeatable = Repeatable(retry)
    all_options = subchannel_options(options, health)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidRequest(f"the channel to {target} must be made in a running loop") from None
    owned = isinstance(hub, str)
    opened = hubs.connect(hub) if isinstance(hub, str) else hub
    if not isinstance(opened, Hub):
        raise InvalidRequest(f"hub is one that mooring.connect gives, or a URL, not {quoted(hub)}")
    if not owned:
        service = opened.registry.canonical(service)
    discovery.setdefault("resilience", RESILIENCE)
    return Channel(
        Subchannels(
            service,
            opened,
            partial(opened.discover, service, policy=policy, **discovery),
            partial(_connect, credentials, all_options, interceptors, compression),
            owns_hub=owned,
        ),
        repeatable,
        tries,
        keyed=policy == "consistent_hash",
    )


def _connect(
    credentials: grpc.ChannelCredentials | None,
    options: Options,
    interceptors: Sequence[grpc.aio.ClientInterceptor],
    compression: grpc.Compression | None,
    target: str,
) -> grpc.aio.Channel:
    # By name: instrumentation that wraps these functions takes the interceptors by name only.
    given = {"options": options, "compression": compression, "interceptors": interceptors}
    check_process()
    if credentials is None:
        return tracked(grpc.aio.insecure_channel(target, **given))
    return tracked(grpc.aio.secure_channel(target, credentials, **given))


class Channel(grpc.aio.Channel):  # type: ignore[misc]
    """Made by `channel`. Everything that takes a `grpc.aio.Channel` takes it: generated stubs."""

    def __init__(
        self, subchannels: Subchannels, repeatable: Repeatable, tries: int, *, keyed: bool
    ) -> None:
        self._subchannels, self._repeatable, self._tries, self._keyed = (
            subchannels,
            repeatable,
            tries,
            keyed,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """No new calls. Those under way are cancelled after `grace` seconds. Idempotent."""
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
        """The present connections, for inspection."""
        return self._subchannels.present

    def explain(self) -> list[Explanation]:
        """For each instance, why it is or is not called. Empty while none are known."""
        return [] if self._subchannels.view is None else self._subchannels.view.explain()

    def _method(self, kind: type[M], name: str, *coders: Any) -> M:
        tries = self._tries if name in self._repeatable else 1
        if kind.streams_requests:
            self._repeatable.check_unary(name)
            tries = 1
        return kind(self._subchannels, name, *coders, tries=tries, keyed=self._keyed)

    unary_unary = method_maker(UnaryUnary)
    unary_stream = method_maker(UnaryStream)
    stream_unary = method_maker(StreamUnary)
    stream_stream = method_maker(StreamStream)
