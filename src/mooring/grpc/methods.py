"""The methods of a channel: their callables on each connection, and which calls are retried."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Generic, TypeVar

import grpc

from mooring.errors import InvalidRequest
from mooring.formatting import quoted

C = TypeVar("C")
M = TypeVar("M")
Coder = Callable[[Any], Any] | None


class ConnectionMethod(Generic[C]):
    """A method of a stub, and its callable on each connection that was used. A connection has the
    gRPC channel in its attribute `channel`."""

    kind: ClassVar[str]
    """The method of a channel that makes the callable, like `unary_unary`."""
    streams_requests: ClassVar[bool] = False
    """Whether its requests are a stream, which can be sent only once."""

    def __init__(self, name: str, *coders: Any) -> None:
        self.name = name
        self.callables: dict[C, Any] = {}
        self._definition = (name, *coders)

    def at(self, connection: C) -> Any:
        made = self.callables.get(connection)
        if made is None:
            channel: Any = connection.channel  # type: ignore[attr-defined]
            made = self.callables[connection] = getattr(channel, self.kind)(*self._definition)
        return made


def method_maker(kind: type[M]) -> Callable[..., M]:
    """A channel's `unary_unary`, `unary_stream` and so on, which makes a method of this kind."""

    def make(
        self: Any,
        method: str,
        request_serializer: Coder = None,
        response_deserializer: Coder = None,
        _registered_method: bool | None = False,
    ) -> M:
        made: M = self._method(
            kind, method, request_serializer, response_deserializer, _registered_method
        )
        return made

    return make


class Repeatable:
    """The methods that may be retried, by name: `package.Service/Method`, or `package.Service` for
    all methods of a service. `tries` includes the first attempt."""

    def __init__(self, methods: Iterable[str], tries: int) -> None:
        if type(tries) is not int or tries < 1:
            raise InvalidRequest(
                f"tries includes the first attempt: 1 or more, not {quoted(tries)}"
            )
        if isinstance(methods, str):
            raise InvalidRequest(f"retry is a list of methods: write retry=[{quoted(methods)}]")
        self.tries = tries
        self._names = frozenset(_checked(name) for name in methods)

    def __contains__(self, method: str) -> bool:
        name = method.removeprefix("/")
        return name in self._names or name.partition("/")[0] in self._names

    @property
    def names(self) -> list[tuple[str, str]]:
        """The service and the method of each; an empty method stands for all."""
        parts = (name.partition("/") for name in sorted(self._names))
        return [(service, method) for service, _, method in parts]

    def check_unary(self, method: str) -> None:
        """Raise `InvalidRequest` if a method is named whose requests are a stream."""
        if method.removeprefix("/") in self._names:
            raise InvalidRequest(
                f"{method} cannot be retried, because its requests are a stream: remove it from "
                "retry"
            )


def _checked(name: object) -> str:
    text = name if isinstance(name, str) else ""
    service, slash, method = text.removeprefix("/").partition("/")
    if not service or "/" in method or (slash and not method) or text != text.strip():
        raise InvalidRequest(
            f"retry names methods like 'package.Service/Method', or all of a service like "
            f"'package.Service', not {quoted(name)}"
        )
    return f"{service}{slash}{method}"


BLAMED: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
"""Status codes that count against an instance: it was not reached, or did not respond in time."""

RETRYABLE: Final = grpc.StatusCode.UNAVAILABLE
"""After this status a repeatable call is retried on another instance."""

NOTICED_WITHIN: Final = 0.05
"""Seconds in which gRPC notices that a connection is lost."""

HEALTH_CHECK_TIMEOUT: Final = 0.2
"""Seconds for a call that finds out why there is no connection. gRPC knows it and fails at once."""


# The texts of gRPC for one instance, and for several in a round robin.
_UNCONNECTED = ("failed to connect to all addresses", "connections to all backends failing")


def was_not_sent(error: grpc.RpcError) -> bool:
    """Whether a call failed before anything was sent, because there was no connection. Only the
    text of gRPC distinguishes this from a connection that broke during the call."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if code is None or details is None or code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    return str(details()).startswith(_UNCONNECTED)


def connection_error(error: grpc.RpcError) -> str:
    """Why there is no connection, as gRPC says in the error of a call; empty for other errors."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return ""
    return re.sub(r"^(.*last error: )?([A-Z_]+: )?(ipv[46]:)?", "", str(error.details()))


def verdict(code: grpc.StatusCode | None) -> bool | None:
    """Whether an instance succeeded; None if that is unknown because the caller cancelled."""
    if code is grpc.StatusCode.OK:
        return True
    if code is None or code is grpc.StatusCode.CANCELLED:
        return None
    return code not in BLAMED
