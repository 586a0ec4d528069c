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

Coder = Callable[[Any], Any] | None


class Method:
    """One method. A call begins on the route of that moment, and ends there."""

    kind: ClassVar[str]
    streams: ClassVar[bool] = True
    """Whether it is asked with a stream, which can be sent but once."""

    def __init__(self, swappable: SwappableChannel, *given: Any) -> None:
        self._swappable, self._given = swappable, given
        self.made: dict[Route, Any] = {}
        """The same method of each route that was taken."""
        swappable.add(self)

    def _at(self, route: Route) -> Any:
        made = self.made.get(route)
        if made is None:
            made = self.made[route] = getattr(route.channel, self.kind)(*self._given)
        return made

    def _take(
        self, timeout: float | None, wait_for_ready: bool | None
    ) -> tuple[Route, float | None]:
        """The route, and the time that is left."""
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
        """A call whose end is waited for. Whoever waits for a connection waits here, where the
        instances may become others: gRPC would wait for those of the route that it was given."""
        deadline = None if timeout is None else time.monotonic() + timeout
        waits = bool(wait_for_ready) and not self.streams
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
        """A call that goes on when this returns."""
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
    """An iterator whose end is told once, also where nobody reads it up to there."""

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


class _Answer(Method):
    """What ends in one message."""

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return self._wait(
            "__call__", request, timeout, metadata, credentials, wait_for_ready, compression
        )

    def with_call(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return self._wait(
            "with_call", request, timeout, metadata, credentials, wait_for_ready, compression
        )

    def future(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return self._begin(
            "future", request, timeout, metadata, credentials, wait_for_ready, compression
        )


class _Answers(Method):
    """What answers with a stream."""

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return self._begin(
            "__call__", request, timeout, metadata, credentials, wait_for_ready, compression
        )


class UnaryUnary(_Answer, grpc.UnaryUnaryMultiCallable):  # type: ignore[misc]
    kind = "unary_unary"
    streams = False


class UnaryStream(_Answers, grpc.UnaryStreamMultiCallable):  # type: ignore[misc]
    kind = "unary_stream"


class StreamUnary(_Answer, grpc.StreamUnaryMultiCallable):  # type: ignore[misc]
    kind = "stream_unary"


class StreamStream(_Answers, grpc.StreamStreamMultiCallable):  # type: ignore[misc]
    kind = "stream_stream"
