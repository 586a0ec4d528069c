"""The methods of a service, as stubs call them from threads."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import grpc

from mooring.grpc.blocking.failed_call import FailedCall
from mooring.grpc.blocking.swappable_channel import Route, SwappableChannel, kept_in_children
from mooring.grpc.status import NOTICED, never_left


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
