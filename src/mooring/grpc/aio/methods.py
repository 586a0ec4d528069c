"""The methods of a service, as stubs call them: each call goes to an instance of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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

Coder = Callable[[Any], Any] | None


class Method:
    """One method. If an instance is connected and nothing is to be repeated, a call is one of
    gRPC's own to that instance; otherwise it is one of ours (`calls`), which waits and tries. A
    call with `wait_for_ready` is always one of ours: it waits for another instance if the
    connection breaks before it left, which gRPC, that knows only one, cannot.

    `late` makes the latter; `streams`: its calls are as long as callers like.
    """

    kind: ClassVar[str]
    streams: ClassVar[bool] = True
    late: ClassVar[type[Any]]

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
        self._dispatch = subchannels.dispatch if tries == 1 and not keyed else _by_and_by
        self._loop = asyncio.get_running_loop()
        subchannels.add(self)

    def at(self, subchannel: Subchannel) -> Any:
        """The method of one instance."""
        made = self.made.get(subchannel)
        if made is None:
            made = self.made[subchannel] = getattr(subchannel.channel, self.kind)(*self._given)
        return made

    def _late(
        self,
        request: Any,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> Any:
        """What could not be dispatched at once."""
        subchannels = self.subchannels
        if subchannels.closed:
            raise grpc.aio.UsageError("Channel is closed.")
        key = key_in(metadata) if self._keyed else None
        if self.tries == 1 and not wait_for_ready and (found := subchannels.next(key)) is not None:
            node, subchannel = found
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
        asked = CallArguments(
            request, deadline, metadata, credentials, bool(wait_for_ready), compression, key
        )
        return self.late(self, asked)


class UnaryUnary(Method, grpc.aio.UnaryUnaryMultiCallable):  # type: ignore[misc]
    kind = "unary_unary"
    streams = False
    late = PendingUnaryUnary

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
        return self._late(request, timeout, metadata, credentials, wait_for_ready, compression)


class UnaryStream(Method, grpc.aio.UnaryStreamMultiCallable):  # type: ignore[misc]
    kind = "unary_stream"
    late = PendingUnaryStream

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
        return self._late(request, timeout, metadata, credentials, wait_for_ready, compression)


class StreamUnary(Method, grpc.aio.StreamUnaryMultiCallable):  # type: ignore[misc]
    kind = "stream_unary"
    late = PendingStreamUnary

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
        return self._late(
            request_iterator, timeout, metadata, credentials, wait_for_ready, compression
        )


class StreamStream(Method, grpc.aio.StreamStreamMultiCallable):  # type: ignore[misc]
    kind = "stream_stream"
    late = PendingStreamStream

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
        return self._late(
            request_iterator, timeout, metadata, credentials, wait_for_ready, compression
        )


def _by_and_by(*_: Any, **__: Any) -> None:
    """For methods of which no call is dispatched at once."""


KEY = "mooring-key"
"""The metadata that consistent hashing goes by."""


def key_in(metadata: Any) -> str | None:
    """What a call is hashed by; None where it does not say."""
    for name, value in metadata or ():
        if name == KEY:
            return str(value)
    return None
