"""The target and methods of a channel, and what the status of a call says about the instance."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

import grpc

from mooring.discovery import balance
from mooring.errors import InvalidName, InvalidRequest
from mooring.formatting import describe, quoted
from mooring.names import split_service

SCHEMES = ("etcdv3", "mooring")
"""They mean the same: the first is what others write, and names no kind of store."""


def service_of(target: str) -> str:
    """The service that `etcdv3:///group/name` names."""
    if not isinstance(target, str):
        raise InvalidRequest(
            f"a target must be text like 'etcdv3:///service', not {quoted(target)}"
        )
    scheme, colon, rest = target.partition(":")
    if not colon or scheme not in SCHEMES:
        raise InvalidRequest(
            f"the target {quoted(target)} must begin with "
            f"{' or '.join(f'{s}:///' for s in SCHEMES)}: "
            "write it like 'etcdv3:///service' or 'etcdv3:///group/service'"
        )
    if not rest.startswith("///"):
        raise InvalidRequest(
            f"the target {quoted(target)} names a host, or lacks a slash: the registry is that of "
            f"the hub. Write '{scheme}:///{rest.lstrip('/') or 'service'}'"
        )
    service = unquote(rest[3:])
    try:
        split_service(service)
    except InvalidName as error:
        raise InvalidName(f"the target {quoted(target)}: {error}") from None
    return service


def check_policy(policy: str) -> None:
    """Raise `InvalidRequest` for a policy that there is not."""
    balance.make(policy)


class Repeatable:
    """The methods that may be called twice for one call, by name: `package.Service/Method`, or
    `package.Service` for all of a service."""

    def __init__(self, methods: Iterable[str]) -> None:
        if isinstance(methods, str):
            raise InvalidRequest(f"retry is a list of methods: write retry=[{quoted(methods)}]")
        self._names = frozenset(_method(name) for name in methods)

    def __contains__(self, method: str) -> bool:
        name = method.removeprefix("/")
        return name in self._names or name.partition("/")[0] in self._names

    @property
    def names(self) -> list[tuple[str, str]]:
        """Service and method of each; an empty method stands for all."""
        parts = (name.partition("/") for name in sorted(self._names))
        return [(service, method) for service, _, method in parts]

    def check_unary(self, method: str) -> None:
        """Raise `InvalidRequest` where a method is named whose requests are a stream."""
        if method.removeprefix("/") in self._names:
            raise InvalidRequest(
                f"{method} cannot be repeated, since its requests are a stream: leave it out of "
                "retry"
            )


def _method(name: str) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(
            f"retry names methods like 'package.Service/Method', not {quoted(name)}"
        )
    service, slash, method = name.removeprefix("/").partition("/")
    if not service or "/" in method or (slash and not method) or name != name.strip():
        raise InvalidRequest(
            f"retry names methods like 'package.Service/Method', or all of a service like "
            f"'package.Service', not {quoted(name)}"
        )
    return f"{service}{slash}{method}"


def check_tries(tries: object) -> None:
    if not isinstance(tries, int) or isinstance(tries, bool) or tries < 1:
        raise InvalidRequest(f"tries counts the first one too: 1 or more, not {quoted(tries)}")


BLAMED: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
"""It could not be reached, or did not answer in time. What it answers is its own affair."""

AGAIN: Final = grpc.StatusCode.UNAVAILABLE
"""After this a call is tried again elsewhere, where its method may be repeated."""

NOTICED: Final = 0.05
"""Seconds in which gRPC notices that a connection is gone."""

ASK_WITHIN: Final = 0.2
"""Seconds for a call that asks why there is no connection: gRPC knows it, and fails at once."""


# What gRPC says if it has one instance to try, and if it goes round among several.
_UNCONNECTED = ("failed to connect to all addresses", "connections to all backends failing")


def never_left(error: grpc.RpcError) -> bool:
    """Whether a call failed since there was no connection: nothing of it was sent. Only gRPC's
    words tell that from a connection that broke under it."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if code is None or details is None or code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    return str(details()).startswith(_UNCONNECTED)


def connection_error(error: grpc.RpcError) -> str:
    """Why there is no connection, in gRPC's words, from a call that failed for want of one."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return ""
    return re.sub(r"^(.*last error: )?([A-Z_]+: )?(ipv[46]:)?", "", str(error.details()))


def verdict(code: grpc.StatusCode | None) -> bool | None:
    """Whether an instance did well; None where that cannot be told: the caller gave up."""
    if code is grpc.StatusCode.OK:
        return True
    if code is None or code is grpc.StatusCode.CANCELLED:
        return None
    return code not in BLAMED


def reason(error: Exception) -> str:
    """Why no channel can be made, for the details of a status."""
    return describe(error)
