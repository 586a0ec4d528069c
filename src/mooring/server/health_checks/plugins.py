"""Which checker is for which protocol: those that come with Mooring, and those of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points

from mooring.errors import InvalidRequest
from mooring.formatting import describe, quoted
from mooring.names import nearest
from mooring.server.health_checks import checkers
from mooring.server.health_checks.checkers import (
    Checker,
    HTTPChecker,
    Outcome,
    Target,
    WebSocketChecker,
    attempt,
    connected,
)
from mooring.server.settings import NONE


class TCPChecker:
    async def check(self, target: Target, *, timeout: float) -> Outcome:
        async def connect() -> None:
            async with connected(target, None):
                pass

        return await attempt(connect, timeout=timeout)


GROUP = "mooring.health_checkers"
"""Of entry points: the name is the protocol, and what is called without arguments its checker."""


class Checkers:
    """By protocol. One without a checker is not probed: udp, where silence says nothing, and any
    that nobody told us how to speak. To connect is a check only for those that are told so
    (`protocols: {redis: tcp}`)."""

    def __init__(self, by_protocol: Mapping[str, Checker] | None = None) -> None:
        self._by_protocol = dict(by_protocol or {})

    def register(self, protocol: str, checker: Checker) -> None:
        """Let this one check a protocol from now on, in the place of any other."""
        self._by_protocol[protocol] = checker

    def remove(self, protocol: str) -> None:
        """Let nobody check a protocol."""
        self._by_protocol.pop(protocol, None)

    def of(self, protocol: str) -> Checker | None:
        return self._by_protocol.get(protocol)

    def protocols(self) -> list[str]:
        return sorted(self._by_protocol)


def built_in(ca: str = "") -> dict[str, Checker]:
    context = checkers.tls(ca)
    return {
        "http": HTTPChecker(),
        "https": HTTPChecker(context),
        "ws": WebSocketChecker(),
        "wss": WebSocketChecker(context),
        "tcp": TCPChecker(),
        "grpc": checkers.GRPCChecker(),
        "grpcs": checkers.GRPCChecker(checkers.credentials(ca)),
    }


def choose(protocols: Mapping[str, str] | None = None, *, ca: str = "") -> Checkers:
    """Those of entry points over those that come with Mooring, and over both what the settings
    say: a protocol and the name of the one whose checker it shares, or "none".

    Raises `InvalidRequest` for a name that nobody has, and for one that cannot be loaded.
    """
    known = built_in(ca)
    known.update({point.name: _load(point) for point in entry_points(group=GROUP)})
    checkers = Checkers(known)
    for protocol, name in (protocols or {}).items():
        if name == NONE:
            checkers.remove(protocol)
        elif name in known:
            checkers.register(protocol, known[name])
        else:
            raise InvalidRequest(
                f"checks.protocols.{protocol}: no checker "
                f"{quoted(name)}{nearest(name, [*known, NONE])}"
            )
    return checkers


def _load(point: EntryPoint) -> Checker:
    try:
        make: Callable[[], Checker] = point.load()
        return make()
    except Exception as error:
        raise InvalidRequest(
            f"the health checker {quoted(point.name)} of the entry point {point.value} cannot be "
            f"loaded: {describe(error)}"
        ) from error
