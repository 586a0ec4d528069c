"""The live picture of everything registered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Self

from mooring.model import Instance, Time
from mooring.registry.contract import Registry
from mooring.server.fleet.history import Sample
from mooring.server.fleet.summary import Observed
from mooring.server.fleet.timeline import Event

Callback = Callable[[Collection[tuple[str, str]]], None]
"""Called with the service and the id of each instance that changed; an empty id stands for the
service itself, nothing at all for the picture as a whole. It must not block."""


class Known:
    """A service that is known."""

    __slots__ = ("_instances", "changed", "emptied", "name", "since", "version")

    def __init__(self, name: str, since: Time) -> None:
        self.name = name
        self.since = since
        """Since when this server knows it."""
        self.changed = since
        self.emptied: Time | None = None
        """When it lost its last instance; None while it has some, or if it never had one."""
        self.version = 0
        """Goes up with each change of it."""
        self._instances: dict[str, Instance] = {}

    @property
    def instances(self) -> Mapping[str, Instance]:
        return MappingProxyType(self._instances)


class Fleet:
    """Everything registered, live. Use it as an async context manager: entering waits for nothing,
    and the picture is `stale` until the store has answered."""

    version: int
    """Goes up with each change."""

    def __init__(self, registry: Registry) -> None:
        self.version = 0
        self.registry = registry

    @property
    def stale(self) -> bool:
        """Whether the picture may be old."""
        raise NotImplementedError

    @property
    def error(self) -> str:
        """Why it does not follow at present; empty where it does."""
        raise NotImplementedError

    @property
    def loaded(self) -> bool:
        """Whether there ever was a picture."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Wait for the first picture."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """The services, in order; one that lost all its instances stays."""
        raise NotImplementedError

    def service(self, name: str) -> Known | None:
        raise NotImplementedError

    def observed(self, service: str) -> Mapping[str, Observed]:
        """What is known of each instance beside what is registered."""
        raise NotImplementedError

    def silence(self, service: str, id: str) -> float | None:
        """Seconds since the last sign of life, as sampled."""
        raise NotImplementedError

    def response_time(self, service: str, id: str) -> float | None:
        """Milliseconds, of active checks; None without."""
        raise NotImplementedError

    def check_failure(self, service: str, id: str) -> str:
        """Why the active check fails; empty where it does not."""
        raise NotImplementedError

    def report_check(self, service: str, id: str, ms: float | None, failure: str) -> None:
        """What an active check found."""
        raise NotImplementedError

    def brake(self, service: str) -> str:
        """Why expiry of a service is paused, in words; empty where it is not."""
        raise NotImplementedError

    def timeline(self, service: str = "", id: str = "") -> list[Event]:
        """What happened, the newest last; of the picture as a whole without a service."""
        raise NotImplementedError

    def history(self, service: str, id: str) -> list[Sample]:
        """The metrics of a while, the newest last."""
        raise NotImplementedError

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call back after each change; what is returned ends it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        raise NotImplementedError
