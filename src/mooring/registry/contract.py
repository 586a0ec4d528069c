"""The contract of a registry, by role: registrar, discovery, operations, and optional evictions.

Registrations, views, the server and the CLI use a registry only through this contract. A registry
keeps an instance while its heartbeats arrive, reports every change to consumers, and never
restores an instance that an operator deregistered.

**Succession.** An id identifies an instance; each start of its process is an *incarnation*. The
incarnation that registers last owns the record. An older incarnation that is still alive gets
`Superseded` and never writes the record again. An incarnation that an operator deregistered gets
`Removed`. Any other damage to the record (deleted, overwritten, expired) is repaired.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from mooring.errors import InvalidRequest, Removed, Superseded
from mooring.mirror import Feed
from mooring.model import JSON, Config, Group, Instance, Service, State, Status, check_json, now
from mooring.settings.registry import CleanupSettings


class Problem(NamedTuple):
    """Something in the store that cannot be understood and was left out."""

    key: bytes
    reason: str

    def __str__(self) -> str:
        return f"{self.key.decode(errors='backslashreplace')}: {self.reason}"


class InstanceFeed(Feed[str, Instance], Protocol):
    """A feed of the instances of a service, by id."""

    @property
    def doubt(self) -> str:
        """Why some of the instances may be gone; empty if all are certain."""

    @property
    def kept(self) -> Collection[str]:
        """The ids of the instances that may be gone and are kept for a grace period."""

    async def explained(self, gone: Mapping[str, Instance]) -> Set[str]:
        """Of some instances that it no longer shows, those of which it is known why: they drained,
        deregistered or were deregistered. The others vanished: their records were deleted, or
        their leases expired, which cannot be told apart."""


class Listing(NamedTuple):
    """The instances of a service at one moment, and the records that could not be read."""

    instances: tuple[Instance, ...]
    mark: int
    problems: tuple[Problem, ...] = ()


class ServiceCount(NamedTuple):
    """A service and the number of its instances."""

    name: str
    instances: int


class RegistryGuarantees(msgspec.Struct, frozen=True):
    """How a registry differs from others, as data."""

    expires: str
    """How a dead instance expires, as a sentence."""
    renews: bool
    """Whether the store renews a lease, so that heartbeats without data need not be sent."""
    describes: bool
    """Groups and services have descriptions, instances status and configuration."""
    keeps_names: bool = False
    """A service that is listed without instances is described or configured, and is listed until
    that is taken out. Otherwise it may be listed for instances that are silent, until cleanup."""
    late: float | None = None
    """Seconds of silence from which on an instance is late; None where it is then as good as
    gone."""


class InstanceRecord(ABC):
    """The record of one instance in a registry, from `open` to `aclose`."""

    disturbed: bool
    """Whether the record may no longer be what it should be: `put` again."""

    @property
    @abstractmethod
    def suspended(self) -> str:
        """Why the record may no longer exist; empty if it is certain to."""

    @property
    @abstractmethod
    def expired(self) -> bool:
        """Whether the record may have expired, by this machine's clock alone. Right also before a
        blocked event loop had a chance to notice, and from any thread."""

    @property
    @abstractmethod
    def config(self) -> Config:
        """The operator overrides of the instance and its service, live."""

    @abstractmethod
    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` when any of these may have changed. It must not block."""

    @abstractmethod
    async def put(self, instance: Instance, *, fresh: bool) -> None:
        """Make the record what it should be. `fresh`: the first time, as a successor of whoever
        had this place; otherwise as a repair.

        Raises `Superseded`, `Removed`, `InvalidRequest`, or what a store raises.
        """

    @abstractmethod
    async def beat(self, instance: Instance, *, update: bool) -> None:
        """Send a heartbeat, with the status if `update` is set. Raises as `put` does."""

    @abstractmethod
    async def withdraw(self) -> None:
        """Delete the record if this incarnation still owns it. Raises `StoreError`."""

    @abstractmethod
    def open(self) -> None:
        """Start to watch the record. Writes nothing."""

    @abstractmethod
    async def aclose(self, *, within: float) -> None:
        """Watch no longer, and free what was needed, within so many seconds. A record that was
        not withdrawn is left to expire."""


class RemoteRegistration(NamedTuple):
    """A registration whose beats come from elsewhere: see `Registry.enter`."""

    instance: Instance
    """The instance as registered, with its id and incarnation."""
    ttl: float
    """Seconds without a heartbeat after which it expires."""
    every: float
    """Seconds between two heartbeats."""
    lost: tuple[str, ...] = ()
    """The fields that this registry cannot store."""


def superseded(service: str, id: str) -> Superseded:
    return Superseded(
        f"{service} {id} was registered later by another process, which lives: this one leaves it "
        "alone"
    )


def removed(service: str, id: str) -> Removed:
    return Removed(
        f"{service} {id} was deregistered by an operator: it stays out until its process starts "
        "anew"
    )


class StatusReport(NamedTuple):
    """What an instance says of its status with a beat. None: as it was."""

    healthy: bool | None = None
    state: State | None = None
    metrics: Mapping[str, JSON] | None = None

    def check(self, service: str) -> None:
        """Raise `InvalidRequest` for what cannot be report."""
        if self.metrics is not None:
            check_json(f"the metrics of {service}", self.metrics, finite=False)

    @property
    def nothing(self) -> bool:
        return self == _NOTHING

    def over(self, status: Status) -> Status:
        """The status as it is from now on."""
        return Status(
            state=status.state if self.state is None else self.state,
            healthy=status.healthy if self.healthy is None else self.healthy,
            registered_at=status.registered_at,
            updated_at=now(),
            metrics=status.metrics if self.metrics is None else self.metrics,
        )


_NOTHING = StatusReport()


def check_incarnation(service: str, id: str, incarnation: str) -> None:
    if not incarnation:
        raise InvalidRequest(
            f"{service} {id}: say which incarnation it is: the one that it was given when it "
            "registered"
        )


class Registrar(ABC):
    """Registers instances: those of this process, and those that send heartbeats through it."""

    guarantees: RegistryGuarantees

    @abstractmethod
    def prepare(self, instance: Instance) -> tuple[Instance, list[str]]:
        """The instance as this registry will hold it (id, incarnation), and the names of those of
        its fields that cannot be held. Raises `InvalidRequest`. No I/O."""

    @abstractmethod
    def instance_record(self, instance: Instance, *, ttl: float | None = None) -> InstanceRecord:
        """A place for an instance that was prepared. Raises `InUse` where this registry object
        holds that place already."""

    @abstractmethod
    async def enter(self, instance: Instance, *, ttl: float | None = None) -> RemoteRegistration:
        """Register an instance of which nothing is kept here: whoever lives there sends the beats,
        through any process. Without an incarnation it is a new start, and the successor of whoever
        had its place; with one it comes back as that one, as a repair.

        Raises `InvalidRequest`; of who comes back, `Superseded` and `Removed`; or what a store
        raises. After `OutcomeUnknown` it may be there until its time is over: enter again.
        """

    @abstractmethod
    async def beat(
        self,
        service: str,
        id: str,
        incarnation: str,
        *,
        healthy: bool | None = None,
        state: State | None = None,
        metrics: Mapping[str, JSON] | None = None,
    ) -> bool:
        """A sign of life of one that entered, with what it says of its status. Whether it is still
        registered; where not, it enters again with the same incarnation. Raises `Superseded`,
        `Removed`, `InvalidRequest`, or what a store raises."""

    @abstractmethod
    async def leave(self, service: str, id: str, incarnation: str) -> bool:
        """Take out one that entered, never another incarnation. Whether it was there."""


class Discovery(ABC):
    """Reads and follows what is registered."""

    @abstractmethod
    def canonical(self, service: str) -> str:
        """A service's name as this registry shows it. Raises `InvalidName` where it cannot be."""

    @abstractmethod
    async def groups(self) -> list[str]: ...

    @abstractmethod
    async def names(self, group: str = "") -> list[str]:
        """The names of the same services, without reading their instances."""

    @abstractmethod
    async def services(self, group: str = "") -> list[ServiceCount]:
        """The services that are known, in order; those of one group where it is given. Each with
        the number of its instances: a record that cannot be read does not count, as in
        `instances`."""

    @abstractmethod
    async def instances(self, service: str) -> Listing:
        """The instances of a service, as the operator wants them. Empty where there is no such
        service."""

    @abstractmethod
    def follow(self, service: str) -> InstanceFeed:
        """The same, to be followed: instances by id."""

    @abstractmethod
    def follow_all(self) -> Feed[tuple[str, str], Instance]:
        """Everything registered, to be followed: the instances of all services as the operator
        wants them, by service and id. Raises `InvalidRequest` where services cannot be listed."""

    @abstractmethod
    async def silence(self, service: str) -> Mapping[str, float]:
        """Seconds since each instance of a service gave its last sign of life, by id; of whom that
        cannot be told is left out. On a store that is the last renewal of its lease, to a second;
        on Redis its last heartbeat."""

    @abstractmethod
    async def configured(self, service: str) -> bool:
        """Whether an operator override exists for a service or for one of its instances."""


class Operations(ABC):
    """What an operator changes."""

    @abstractmethod
    async def deregister(self, service: str, id: str) -> bool:
        """Take an instance out for good, as an operator: it does not come back by itself until its
        process starts anew. Whether it was there."""

    @abstractmethod
    async def config(self, service: str, id: str = "") -> Mapping[str, JSON]:
        """What the operator said of an instance or a service: all fields as they lie there."""

    @abstractmethod
    async def configure(
        self, service: str, id: str = "", *, set: Mapping[str, JSON], unset: tuple[str, ...] = ()
    ) -> Mapping[str, JSON]:
        """Change some of it and leave the rest; what it is afterwards. Raises `InvalidRequest`
        for a value that cannot be (a weight that is no number). What lies there and cannot be read
        is replaced whole, and logged."""

    @abstractmethod
    async def info(self, *, group: str = "", service: str = "") -> Group | Service:
        """The description of a group or a service."""

    @abstractmethod
    async def describe(
        self, *, group: str = "", service: str = "", set: Mapping[str, str]
    ) -> Group | Service:
        """Change some of a description (displayName, department, description)."""

    @abstractmethod
    async def forget(self, service: str) -> bool:
        """Delete what is kept of a service that has no instances: its description, and what the
        operator said of it and of those that it had. Whether that could be: not while somebody is
        registered there. Whom an operator took out stays out."""


class Brake(NamedTuple):
    """Why expiry of a service is paused."""

    silent: int
    total: int
    since: int
    """On the server's clock, in ms, as is `until`."""
    until: int

    @property
    def unheard(self) -> bool:
        """Redis itself takes no writes, and so hears nobody."""
        return not self.total

    def __str__(self) -> str:
        if self.unheard:
            return (
                "Redis takes no writes (a replica without its master, too few replicas, or a disk "
                "that fails it): it hears no heartbeat, and the last list is kept until it does"
            )
        return (
            f"{self.silent} of {self.total} instances are silent at once: the fault is likely "
            "elsewhere, and the last list is kept until they beat again"
        )


@dataclass(slots=True)
class CleanupReport:
    """What one cleanup pass did."""

    services: int = 0
    removed: list[tuple[str, str]] = field(default_factory=list)
    """Service and id, as in the next three."""
    unhealthy: list[tuple[str, str]] = field(default_factory=list)
    orphans: list[tuple[str, str]] = field(default_factory=list)
    lowered: list[tuple[str, str]] = field(default_factory=list)
    """Those whose heartbeat lay ahead of Redis' clock, which stepped back."""
    brakes: dict[str, Brake] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        looked_at = "1 service" if self.services == 1 else f"{self.services} services"
        out = "1 instance" if len(self.removed) == 1 else f"{len(self.removed)} instances"
        parts = [f"{looked_at} looked at", f"{out} taken out"]
        if self.unhealthy:
            parts.append(f"{len(self.unhealthy)} marked unhealthy")
        if self.orphans:
            parts.append(f"{len(self.orphans)} remains cleared away")
        if self.lowered:
            count = len(self.lowered)
            heartbeats = "1 heartbeat" if count == 1 else f"{count} heartbeats"
            parts.append(f"{heartbeats} ahead of Redis' clock lowered")
        parts += [f"the brake holds for {name}: {brake}" for name, brake in self.brakes.items()]
        return "; ".join([*parts, *self.problems])


class Evictions(ABC):
    """Evicts instances without a heartbeat. Any number of processes may do so at once.

    A brake pauses the eviction of a service if too many of its instances fall silent at once: the
    cause is then probably not the instances.
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
        """The brakes that are on, by service. Leaves out a service that cannot be read, with a
        warning."""

    @abstractmethod
    async def release(self, service: str) -> bool:
        """Release a brake: the next pass evicts the silent instances. Returns whether it was on."""

    @abstractmethod
    async def clock(self, service: str) -> int:
        """The time that the brake of a service is measured with, in ms since the epoch."""


class LeaderLease(Protocol):
    """Elects one leader among the servers of a registry. For a moment there may be two leaders:
    suitable for work that may be done twice. Each method raises `StoreError`."""

    async def lead(self, id: str, ttl: float) -> bool:
        """Whether this candidate leads for the next `ttl` seconds."""

    async def resign(self, id: str) -> None:
        """Let another candidate lead."""

    async def note(self) -> bytes:
        """The note of the last leader; empty if there is none."""

    async def leave_note(self, id: str, note: bytes) -> bool:
        """Leave a note to later leaders. Returns False if another candidate leads."""


class Registry(Registrar, Discovery, Operations):
    url: str
    """The URL, with any password masked."""
    evictions: Evictions | None = None
    """Evicts dead instances; None if the leases of the store do."""
    leader_lease: LeaderLease | None = None
    """Elects a leader; None if the store has locks, which do that better."""

    @abstractmethod
    async def aclose(self) -> None: ...
