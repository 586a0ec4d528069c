"""A layout: how instances are stored as keys and values. Pure: it performs no I/O.

A layout is a codec. For the fields that it carries (`carries`, contract M3), decoding an encoded
instance returns an equal instance. Fields that it does not carry take their defaults. Keys that it
does not understand belong to others and are ignored; the ones that look like its own are reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from mooring.errors import InvalidRequest
from mooring.messages import message
from mooring.model import NO_CONFIG, Config, Instance
from mooring.registry.contract import Problem, operator_fields
from mooring.store.contract import Entry, Range, prefix

File = Literal["data", "status", "config", "info"]

Carried = Literal[
    "protocol",
    "version",
    "zone",
    "weight",
    "metadata",
    "ports",
    "status",
    "config",
    "incarnation",
    "id",
    "description",
    "ephemeral",
    "enabled",
]

CARRIES: Mapping[str, frozenset[Carried]] = {
    "tree": frozenset(get_args(Carried)) - {"id", "ephemeral", "enabled"},
    "endpoints": frozenset(
        {"protocol", "version", "zone", "weight", "metadata", "ports", "incarnation"}
    ),
    "redis": frozenset(get_args(Carried)),
    "hprose": frozenset({"protocol", "id"}),
    "plain": frozenset(),
}
"""What each layout, and the registry on Redis, stores besides the service, host and port. `config`:
operator overrides. `description`: groups and services have an `info`."""

TOMBSTONES = "/mooring/tombstones/"


class Location(NamedTuple):
    """What a key stands for: a file of an instance; without an id, of a service; without a service,
    of a group."""

    group: str
    service: str
    """The canonical name: `group/name` or `name`."""
    id: str
    file: File


class Assembly(NamedTuple):
    """An instance that was decoded from its files, and the problems with them."""

    instance: Instance | None
    problems: tuple[Problem, ...] = ()


_DEFAULTS = Instance("plain", "localhost", 1)
_OTHER: set[Carried] = {"status", "config", "incarnation", "id", "description"}
_INSTANCE_FIELDS = [name for name in get_args(Carried) if name not in _OTHER]


class Layout(ABC):
    name: str
    ttl: float
    """The default TTL of a registration, in seconds."""

    @property
    def carries(self) -> frozenset[Carried]:
        return CARRIES[self.name]

    @property
    def scope(self) -> str:
        """Part of a key that separates the instances of this layout from those of other layouts in
        the same store."""
        return self.name

    @abstractmethod
    def canonical(self, service: str) -> str:
        """The canonical name of a service. Raises `InvalidName`."""

    @abstractmethod
    def roots(self, group: str = "") -> tuple[Range, ...]:
        """The ranges of all services, or at least of the services of a group. Raises
        `InvalidRequest` if that is the whole store."""

    def after_group(self, group: str) -> bytes:
        """The first key after the keys of a group; empty if those are not adjacent."""
        return b""

    @abstractmethod
    def _folder(self, service: str) -> str:
        """What the keys of a service start with."""

    def ranges(self, service: str) -> tuple[Range, ...]:
        """The ranges of all keys of a service. Registrations write to the first one."""
        return (prefix(self._folder(service).encode()),)

    def keys_of(self, service: str, entries: Iterable[Entry]) -> Iterator[tuple[Location, Entry]]:
        """The entries that belong to a service, which is a canonical name."""
        for entry in entries:
            location = self.locate(entry.key)
            if location is not None and location.service == service:
                yield location, entry

    @abstractmethod
    def home(self, instance: Instance) -> Range:
        """The range that holds exactly the keys of one instance."""

    def host_range(self, instance: Instance) -> Range:
        """The range of the service's instances on the host of this one."""
        host = instance.address.removesuffix(str(instance.port))
        return prefix(f"{self._folder(instance.service)}{host}".encode())

    def tombstones(self, service: str) -> Range:
        """The keys that mark the deregistered instances of a service."""
        return prefix(f"{TOMBSTONES}{self.scope}/{self.canonical(service)}/".encode())

    def tombstone(self, instance: Instance) -> bytes:
        """The key that marks an instance as deregistered by an operator."""
        incarnation = instance.incarnation if "incarnation" in self.carries else ""
        return self.tombstones(instance.service).start + (
            f"{instance.id}/{incarnation or 'any'}".encode()
        )

    @abstractmethod
    def encode(self, instance: Instance) -> dict[bytes, bytes]:
        """The keys on the lease of an instance and their values, the main key first. Raises
        `InvalidRequest` for an instance that this layout cannot store."""

    def lasting(self, instance: Instance) -> dict[bytes, bytes]:
        """The keys that must exist besides those of the instance. A registration creates missing
        ones and never overwrites them."""
        return {}

    def locate(self, key: bytes) -> Location | None:
        """What a key stands for; None if it is not a key of this layout."""
        try:
            return self._locate(key.decode())
        except UnicodeDecodeError:
            return None

    @abstractmethod
    def _locate(self, name: str) -> Location | None: ...

    @abstractmethod
    def assemble(self, service: str, id: str, files: Mapping[File, Entry]) -> Assembly:
        """Decode the files of an instance. The instance is None if its main file is missing or
        cannot be decoded."""

    def config_key(self, service: str, id: str = "") -> bytes:
        """The key of the operator overrides of an instance, or of the service without an id."""
        raise self._lacks("configuration")

    def decode_config(self, value: bytes) -> Config:
        """Raises `Malformed`."""
        return NO_CONFIG

    def info_key(self, *, group: str = "", service: str = "") -> bytes:
        """The key of the description of a group or a service."""
        raise self._lacks("descriptions")

    def cannot_carry(self, instance: Instance) -> list[str]:
        """The fields of an instance that this layout cannot store."""
        lost: list[str] = [
            name
            for name in _INSTANCE_FIELDS
            if name not in self.carries and getattr(instance, name) != getattr(_DEFAULTS, name)
        ]
        if "id" not in self.carries and instance.id not in ("", instance.address):
            lost.append("id")
        return lost + operator_fields(instance)

    def _lacks(self, feature: str) -> InvalidRequest:
        what = message(f"what_{feature}")
        return InvalidRequest(message("layout_lacks", name=self.name, feature=what))
