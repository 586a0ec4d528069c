"""The registry: register, beat, deregister, list, follow; and what an operator may say.

Everything above this file (registrations, views, the CLI) knows a registry only through it. A
registry keeps instances for as long as they give signs of life, tells consumers of every change,
and never brings back what an operator took out.

**Succession.** An instance is known by its id; each start of a process is an *incarnation*. The
newest to register is the one that counts. An older one that is still alive finds itself
`Superseded` and never touches the registry again. One that an operator deregistered finds itself
`Removed`. Anything else that happens to its record (deleted, overwritten, expired) is repaired.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Set
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from mooring.errors import Removed, Superseded
from mooring.mirror import Feed
from mooring.model import JSON, Config, Group, Instance, Service, State
from mooring.registry.kv.layouts.layout import Problem

if TYPE_CHECKING:
    from mooring.registry.evictions import Evictions


class InstanceFeed(Feed[str, Instance], Protocol):
    """The instances of a service by id, to be followed."""

    @property
    def doubt(self) -> str:
        """Why some of those that it shows may be gone, in words; empty if there is no doubt."""

    @property
    def kept(self) -> Collection[str]:
        """The ids of those that it shows and has doubts about. It keeps them for a while."""

    async def explained(self, gone: Mapping[str, Instance]) -> Set[str]:
        """Of some instances that it no longer shows, those of which it is known why: they drained,
        deregistered or were deregistered. The others vanished: their records were deleted, or
        their leases expired, which cannot be told apart."""


class Listing(NamedTuple):
    """The instances of a service at one moment, and what could not be understood."""

    instances: tuple[Instance, ...]
    mark: int
    problems: tuple[Problem, ...] = ()


class ServiceCount(NamedTuple):
    """A service that is known, and how many instances it has at present."""

    name: str
    instances: int


class RegistryGuarantees(msgspec.Struct, frozen=True):
    """How a registry differs from others, as data."""

    expires: str
    """How an instance that died goes away, in words."""
    renews: bool
    """Signs of life are given by the registry's own means: heartbeats alone need not be sent."""
    describes: bool
    """Groups and services have descriptions, instances status and configuration."""
    keeps_names: bool = False
    """A service that is listed without instances is described or configured, and is listed until
    that is taken out. Otherwise it may be listed for instances that are silent, until cleanup."""
    late: float | None = None
    """Seconds of silence from which on an instance is late; None where it is then as good as
    gone."""


class InstanceRecord(ABC):
    """One instance's place in a registry, from `open` to `aclose`."""

    disturbed: bool
    """Whether the record may no longer be what it should be: `put` again."""

    @property
    @abstractmethod
    def suspended(self) -> str:
        """Why it is in doubt whether the record still stands; empty where it is not."""

    @property
    @abstractmethod
    def expired(self) -> bool:
        """Whether the record may have expired, by this machine's clock alone. Right also before a
        blocked event loop had a chance to notice, and from any thread."""

    @property
    @abstractmethod
    def config(self) -> Config:
        """The operator's word on the instance and its service, live."""

    @abstractmethod
    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back when any of these may have changed. It must not block."""

    @abstractmethod
    async def put(self, instance: Instance, *, fresh: bool) -> None:
        """Make the record what it should be. `fresh`: the first time, as a successor of whoever
        had this place; otherwise as a repair.

        Raises `Superseded`, `Removed`, `InvalidRequest`, or what a store raises.
        """

    @abstractmethod
    async def beat(self, instance: Instance, *, update: bool) -> None:
        """A sign of life; with `update`, with the status. Raises as `put` does."""

    @abstractmethod
    async def withdraw(self) -> None:
        """Take the record out, if it is still ours. Raises what a store raises."""

    @abstractmethod
    def open(self) -> None:
        """Begin to watch over the record. Writes nothing."""

    @abstractmethod
    async def aclose(self, *, within: float) -> None:
        """Watch no longer, and free what was needed, within so many seconds. A record that was
        not withdrawn is left to expire."""


class RemoteRegistration(NamedTuple):
    """A registration whose beats come from elsewhere: see `Registry.enter`."""

    instance: Instance
    """As it is held, with its id and incarnation."""
    ttl: float
    """Seconds that it stays without a beat."""
    every: float
    """Seconds to let pass between two beats."""
    lost: tuple[str, ...] = ()
    """The fields that this registry cannot hold."""


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
