"""The methods of a service, as stubs call them from threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import grpc

from mooring.grpc.blocking.failed import Failed
from mooring.grpc.blocking.swapping import Route, Swapping

Coder = Callable[[Any], Any] | None


class Method:
    """One method. A call begins on the route of that moment, and ends there."""

    kind: ClassVar[str]

    def __init__(self, swapping: Swapping, *given: Any) -> None:
        self._swapping, self._given = swapping, given

    def _at(self, route: Route) -> Any:
        made = route.methods.get(self)
        if made is None:
            made = route.methods[self] = getattr(route.channel, self.kind)(*self._given)
        return made

    def _take(
        self, timeout: float | None, wait_for_ready: bool | None
    ) -> tuple[Route, float | None]:
        """The route, and the time that is left."""
        deadline = None if timeout is None else time.monotonic() + timeout
        route = self._swapping.take(deadline, wait_for_ready=bool(wait_for_ready))
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
        """A call whose end is waited for."""
        route, left = self._take(timeout, wait_for_ready)
        try:
            return getattr(self._at(route), way)(
                request, left, metadata, credentials, wait_for_ready, compression
            )
        finally:
            self._swapping.over(route)

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
        except Failed as failed:
            return failed
        try:
            call = getattr(self._at(route), way)(
                request, left, metadata, credentials, wait_for_ready, compression
            )
            if call.add_callback(lambda: self._swapping.over(route)):
                return call
        except BaseException:
            self._swapping.over(route)
            raise
        self._swapping.over(route)
        return call


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


class UnaryStream(_Answers, grpc.UnaryStreamMultiCallable):  # type: ignore[misc]
    kind = "unary_stream"


class StreamUnary(_Answer, grpc.StreamUnaryMultiCallable):  # type: ignore[misc]
    kind = "stream_unary"


class StreamStream(_Answers, grpc.StreamStreamMultiCallable):  # type: ignore[misc]
    kind = "stream_stream"
