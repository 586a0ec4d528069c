"""The optional role of a registry that evicts instances without a heartbeat, and its reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mooring.formatting import count_of
from mooring.messages import Message, message
from mooring.settings import CleanupSettings


class Brake(NamedTuple):
    """Why expiry of a service is paused."""

    silent: int
    total: int
    since: int
    """On the server's clock, in ms, as is `until`."""
    until: int

    @property
    def rejects_writes(self) -> bool:
        """Whether Redis rejects writes, and therefore receives no heartbeat."""
        return not self.total

    @property
    def message(self) -> Message:
        if self.rejects_writes:
            return message("brake_redis_rejects_writes")
        return message("brake_many_silent", silent=self.silent, total=self.total)

    def __str__(self) -> str:
        return self.message.text


@dataclass(slots=True)
class CleanupReport:
    """What one cleanup pass did."""

    services: int = 0
    removed: list[tuple[str, str]] = field(default_factory=list)
    """Service and id, as in the next three."""
    unhealthy: list[tuple[str, str]] = field(default_factory=list)
    orphans: list[tuple[str, str]] = field(default_factory=list)
    lowered: list[tuple[str, str]] = field(default_factory=list)
    """Instances with a heartbeat ahead of Redis' clock, which stepped back."""
    brakes: dict[str, Brake] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [
            f"{count_of(self.services, 'service')} checked",
            f"{count_of(len(self.removed), 'instance')} evicted",
        ]
        if self.unhealthy:
            parts.append(f"{len(self.unhealthy)} marked unhealthy")
        if self.orphans:
            parts.append(f"{count_of(len(self.orphans), 'incomplete record')} deleted")
        if self.lowered:
            heartbeats = count_of(len(self.lowered), "heartbeat")
            parts.append(f"{heartbeats} ahead of Redis' clock lowered")
        parts += [f"the brake of {name} is engaged: {brake}" for name, brake in self.brakes.items()]
        return "; ".join([*parts, *self.problems])


class Evictions(ABC):
    """Evicts instances without a heartbeat. Any number of processes may do so at once.

    The brake of a service engages, and pauses its evictions, if too many of its instances fall
    silent at once: the cause is then probably not the instances.
    """

    settings: CleanupSettings

    @abstractmethod
    async def run(self, report: Callable[[CleanupReport], None] = lambda _: None) -> None:
        """Sweep at the configured interval until cancelled. If the store did not answer, rejected
        writes or its clock jumped, evict nothing until every instance had time for a heartbeat."""

    @abstractmethod
    async def sweep(self, *, orphans: bool = True) -> CleanupReport:
        """Make one pass over all services. Raises `StoreError`."""

    @abstractmethod
    async def brakes(self) -> Mapping[str, Brake]:
        """The engaged brakes, by service. Leaves out a service that cannot be read, with a
        warning."""

    @abstractmethod
    async def release(self, service: str) -> bool:
        """Release a brake: the next pass evicts the silent instances. Returns whether it was
        engaged."""

    @abstractmethod
    async def clock(self, service: str) -> int:
        """The time that the brake of a service is measured with, in ms since the epoch."""
