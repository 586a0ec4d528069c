"""What a channel is asked for: a target that names a service, and methods that may be repeated.

Pure. Whatever is wrong is an `InvalidRequest` that says what would be right.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

from mooring.discovery import balance
from mooring.errors import InvalidName, InvalidRequest
from mooring.formatting import quoted
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
