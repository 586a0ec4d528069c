"""The contract of a registry, by role.

| role               | what it does                                                        |
|--------------------|---------------------------------------------------------------------|
| `Registrar`        | keeps the instances of this process registered                      |
| `RemoteRegistrar`  | registers instances that send their heartbeats through any process  |
| `Discovery`        | reads and follows what is registered                                |
| `Operations`       | what an operator changes: overrides, descriptions, deregistrations  |
| `Evictions`        | evicts dead instances, unless the leases of a store do              |
| `LeaderLease`      | elects a leader among servers, unless the store has locks           |

A `Registry` has the first four roles, and the last two if its store needs them. Consumers take the
role that they use; only the hub and the context of the server hold a whole `Registry`. A registry
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
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from mooring.errors import InUse, InvalidRequest, Removed, Superseded
from mooring.messages import Message, message
from mooring.mirror import Feed
from mooring.model import (
    JSON,
    NO_CONFIG,
    Config,
    Group,
    Instance,
    Service,
    State,
    Status,
    check_json,
    now,
)
from mooring.registry.evictions import Evictions
from mooring.store.contract import Store

InstanceKey: TypeAlias = tuple[str, str]
"""A service and the id of an instance."""


class Problem(NamedTuple):
    """Something in the store that cannot be read and was left out."""

    key: bytes
    reason: str

    def __str__(self) -> str:
        return f"{self.key.decode(errors='backslashreplace')}: {self.reason}"


class InstanceFeed(Feed[str, Instance], Protocol):
    """A feed of the instances of a service, by id."""

    @property
    def doubt(self) -> Message | None:
        """Why some of the instances may be gone; None if all are certain."""

    @property
    def kept(self) -> Collection[str]:
        """The ids of the instances that may be gone and are kept for a grace period."""

    async def explained(self, gone: Mapping[str, Instance]) -> Set[str]:
        """Of the instances that are gone, those that left for a known reason: they drained,
        deregistered or were deregistered. The others vanished: their records were deleted or their
        leases expired, which the store cannot distinguish."""


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
    """How a dead instance expires, as a main clause that may follow a colon."""
    renews: bool
    """Whether the store renews a lease, so that heartbeats without data need not be sent."""
    describes: bool
    """Groups and services have descriptions, instances have a status and overrides."""
    keeps_names: bool = False
    """Whether a service without instances is listed only while it has a description or overrides.
    Otherwise it may be listed until cleanup removes its silent instances."""
    late: float | None = None
    """Seconds of silence after which an instance is late; None if it expires then."""


class InstanceRecord(ABC):
    """The record of one instance in a registry, from `open` to `aclose`."""

    disturbed: bool
    """Whether the record may differ from what was last put: `put` again."""

    @property
    @abstractmethod
    def suspended(self) -> str:
        """Why the record may no longer exist; empty if it is certain to."""

    @property
    @abstractmethod
    def expired(self) -> bool:
        """Whether the record may have expired by the local clock. Correct in any thread, and even
        before a blocked event loop had a chance to notice."""

    @property
    @abstractmethod
    def config(self) -> Config:
        """The operator overrides of the instance and its service, live."""

    @abstractmethod
    async def put(self, instance: Instance, *, fresh: bool) -> None:
        """Write the record. `fresh`: for the first time, replacing a predecessor; otherwise it is
        a repair.

        Raises `Superseded`, `Removed`, `InvalidRequest` or `StoreError`.
        """

    @abstractmethod
    async def beat(self, instance: Instance, *, update: bool) -> None:
        """Send a heartbeat, with the status if `update` is set. Raises as `put` does."""

    @abstractmethod
    async def withdraw(self) -> None:
        """Delete the record if this incarnation still owns it. Raises `StoreError`."""

    @abstractmethod
    def open(self, changed: Callable[[], None]) -> None:
        """Start to watch the record. Writes nothing. `changed` is called when any of the properties
        may have changed; it must not block."""

    @abstractmethod
    async def aclose(self, *, within: float) -> None:
        """Stop watching and release all resources, within `within` seconds. A record that was not
        withdrawn is left to expire."""


class RemoteRegistration(NamedTuple):
    """A registration that sends its heartbeats through any process: see `RemoteRegistrar`."""

    instance: Instance
    """The instance as registered, with its id and incarnation."""
    ttl: float
    """Seconds without a heartbeat after which it expires."""
    every: float
    """Seconds between two heartbeats."""
    lost: tuple[str, ...] = ()
    """The fields that this registry cannot store."""


def superseded(service: str, id: str) -> Superseded:
    return Superseded(message("instance_superseded", service=service, id=id))


def removed(service: str, id: str) -> Removed:
    return Removed(message("instance_removed", service=service, id=id))


def registered_here(service: str, id: str) -> InUse:
    return InUse(message("instance_registered_here", service=service, id=id))


class StatusReport(NamedTuple):
    """The status that an instance reports with a heartbeat. None: unchanged."""

    healthy: bool | None = None
    state: State | None = None
    metrics: Mapping[str, JSON] | None = None

    @property
    def empty(self) -> bool:
        return self == (None, None, None)

    def over(self, status: Status) -> Status:
        """The status after this report."""
        return Status(
            state=status.state if self.state is None else self.state,
            healthy=status.healthy if self.healthy is None else self.healthy,
            registered_at=status.registered_at,
            updated_at=now(),
            metrics=status.metrics if self.metrics is None else self.metrics,
        )


def check_incarnation(service: str, id: str, incarnation: str) -> None:
    if not incarnation:
        raise InvalidRequest(message("incarnation_missing", service=service, id=id))


def operator_fields(instance: Instance) -> list[str]:
    """The fields that only an operator can set: a registration loses them."""
    return ["config"] if instance.config != NO_CONFIG else []


class RegistryRole(ABC):
    """What all roles have."""

    url: str
    """The URL, with any password masked."""
    guarantees: RegistryGuarantees
    """How this registry differs from others."""

    @abstractmethod
    def canonical(self, service: str) -> str:
        """The canonical name of a service. Raises `InvalidName`."""


class Registrar(RegistryRole):
    """Keeps the instances of this process registered."""

    @abstractmethod
    def prepare(self, instance: Instance) -> tuple[Instance, list[str]]:
        """The instance as this registry will store it (id, incarnation), and the names of the
        fields that it cannot store. Raises `InvalidRequest`. No I/O."""

    @abstractmethod
    def instance_record(self, instance: Instance, *, ttl: float | None = None) -> InstanceRecord:
        """The record of a prepared instance. Raises `InUse` if this registry object has a record of
        that id already."""


class RemoteRegistrar(RegistryRole):
    """Registers instances that send their heartbeats through any process: all of their state is in
    the store."""

    @abstractmethod
    async def enter(self, instance: Instance, *, ttl: float | None = None) -> RemoteRegistration:
        """Register an instance without keeping state in this process: it may send its heartbeats
        through any process. Without an incarnation it is a new start and replaces a predecessor;
        with one it returns as that incarnation, as a repair.

        Raises `InvalidRequest` and `StoreError`; for a returning incarnation also `Superseded` and
        `Removed`. After `OutcomeUnknown` it may be registered until its TTL: enter again.
        """

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
        """A heartbeat of an instance that entered, with changes of its status. Returns whether it
        is still registered; otherwise it enters again with the same incarnation. Raises
        `Superseded`, `Removed`, `InvalidRequest` or `StoreError`."""
        check_incarnation(service, id, incarnation)
        if metrics is not None:
            check_json(message("what_metrics", service=service), metrics, finite=False)
        return await self._beat(service, id, incarnation, StatusReport(healthy, state, metrics))

    @abstractmethod
    async def _beat(
        self, service: str, id: str, incarnation: str, report: StatusReport
    ) -> bool: ...

    @abstractmethod
    async def leave(self, service: str, id: str, incarnation: str) -> bool:
        """Deregister an instance that entered, but no other incarnation. Returns whether it was
        registered."""


class Discovery(RegistryRole):
    """Reads and follows what is registered."""

    @abstractmethod
    async def groups(self) -> list[str]:
        """The names of the known groups."""

    @abstractmethod
    async def names(self, group: str = "") -> list[str]:
        """The names of the known services, of one group if `group` is given. Reads no
        instances."""

    @abstractmethod
    async def services(self, group: str = "") -> list[ServiceCount]:
        """The known services in order, of one group if `group` is given, with the numbers of their
        instances. As in `instances`, records that cannot be read do not count."""

    @abstractmethod
    async def instances(self, service: str) -> Listing:
        """The instances of a service, with operator overrides applied. Empty for an unknown
        service."""

    @abstractmethod
    def follow(self, service: str) -> InstanceFeed:
        """The instances of a service, as a feed."""

    @abstractmethod
    def follow_all(self) -> Feed[InstanceKey, Instance]:
        """The instances of all services, as a feed by service and id. Raises `InvalidRequest` if
        services cannot be listed."""

    @abstractmethod
    async def silence(self, service: str) -> Mapping[str, float]:
        """Seconds since the last heartbeat of each instance of a service, by id, if known. On a
        store that is the last renewal of its lease, in whole seconds."""


class Operations(RegistryRole):
    """What an operator changes."""

    @abstractmethod
    async def deregister(self, service: str, id: str) -> bool:
        """Deregister an instance as an operator: it cannot register again before its process
        restarts. Returns whether it was registered."""

    @abstractmethod
    async def config(self, service: str, id: str = "") -> Mapping[str, JSON]:
        """The operator overrides of an instance or a service: all stored fields."""

    @abstractmethod
    async def configure(
        self, service: str, id: str = "", *, set: Mapping[str, JSON], unset: tuple[str, ...] = ()
    ) -> Mapping[str, JSON]:
        """Change some overrides and keep the others. Returns all of them. Raises `InvalidRequest`
        for an invalid value (a weight that is not a number). A stored value that cannot be read is
        replaced as a whole, with a warning."""

    @abstractmethod
    async def configured(self, service: str) -> bool:
        """Whether an operator override exists for a service or for one of its instances."""

    @abstractmethod
    async def info(self, *, group: str = "", service: str = "") -> Group | Service:
        """The description of a group or a service."""

    @abstractmethod
    async def describe(
        self, *, group: str = "", service: str = "", set: Mapping[str, str]
    ) -> Group | Service:
        """Change some fields of a description (displayName, department, description)."""

    @abstractmethod
    async def forget(self, service: str) -> bool:
        """Delete the description and all overrides of a service without instances. Returns False,
        and changes nothing, if an instance is registered. Deregistered instances still cannot
        register again."""


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


class Registry(Registrar, RemoteRegistrar, Discovery, Operations):
    """A registry of services: `hub.registry`. To register an instance, use `hub.register`."""

    lease_store: Store | None = None
    """The store that renews the leases of the instances; None if there are no leases."""
    evictions: Evictions | None = None
    """Evicts dead instances; None if the leases of the store do."""
    leader_lease: LeaderLease | None = None
    """Elects a leader; None if the store has locks, which do that better."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connection to the registry. The hub does this."""
