"""The methods of a service, as stubs call them: an instance is chosen for each call."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import grpc
import grpc.aio

from mooring.grpc.aio.calls import (
    CallArguments,
    PendingStreamStream,
    PendingStreamUnary,
    PendingUnaryStream,
    PendingUnaryUnary,
)
from mooring.grpc.aio.subchannel import Subchannel
from mooring.grpc.aio.subchannels import Subchannels
from mooring.grpc.options import Coder


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
