"""A layout: how instances lie in a store as keys and values. Pure: it reads and writes nothing.

A layout is a codec. On the fields that it carries (`carries`, contract M3), decoding what was
encoded gives the same instance; fields that it cannot carry take their defaults. Keys that it does
not understand belong to somebody else: they are skipped, and told where they look like its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.model import NO_CONFIG, Config, Group, Instance, Service
from mooring.registry.contract import Problem
from mooring.store.contract import Entry, Range

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
    "tree": frozenset(
        {
            "protocol",
            "version",
            "zone",
            "weight",
            "metadata",
            "ports",
            "status",
            "config",
            "incarnation",
            "description",
        }
    ),
    "endpoints": frozenset(
        {"protocol", "version", "zone", "weight", "metadata", "ports", "incarnation"}
    ),
    "redis": frozenset(get_args(Carried)),
    "hprose": frozenset({"protocol", "id"}),
    "plain": frozenset(),
}
"""What each layout carries beside the service, host and port, and what the registry on Redis does.
`config`: the operator's word, which no instance gives itself. `description`: groups and services
have an `info`."""


class Location(NamedTuple):
    """What a key stands for: a file of an instance; without an id, of the service; without a
    service, of a group."""

    group: str
    service: str
    """As it is written: `group/name` or `name`."""
    id: str
    file: File


class Assembly(NamedTuple):
    instance: Instance | None
    problems: tuple[Problem, ...] = ()


def said_by_the_operator(instance: Instance) -> list[str]:
    """What an instance that registers cannot say, wherever it does."""
    return ["config"] if instance.config != NO_CONFIG else []


_PLAIN = Instance("plain", "localhost", 1)  # says nothing but where it is


class Layout(ABC):
    name: str
    ttl: float
    """Seconds that an instance stays without a sign of life, unless told otherwise."""

    @property
    def carries(self) -> frozenset[Carried]:
        return CARRIES[self.name]

    @property
    def scope(self) -> str:
        """Tells this layout's instances from those of others in one store, as part of a key."""
        return self.name

    @abstractmethod
    def canonical(self, service: str) -> str:
        """A service's name as this layout shows it. Raises `InvalidName` where it cannot be."""

    @abstractmethod
    def roots(self, group: str = "") -> tuple[Range, ...]:
        """Where all services lie, or at least those of a group. Raises `InvalidRequest` where that
        would be the whole store."""

    def after_group(self, group: str) -> bytes:
        """The first key after those of a group, where they lie together; empty where not."""
        return b""

    @abstractmethod
    def ranges(self, service: str) -> tuple[Range, ...]:
        """Where all that concerns a service lies; the first is where we write."""

    @abstractmethod
    def home(self, instance: Instance) -> Range:
        """Where the keys of one instance lie, and nothing else."""

    def host_range(self, instance: Instance) -> Range:
        """Where the keys of this instance and those beside it on its host lie."""
        return self.home(instance)

    def check(self, instance: Instance) -> None:  # noqa: B027 - most can hold any instance
        """Raise `InvalidRequest` for an instance that this layout cannot hold at all."""

    @abstractmethod
    def encode(self, instance: Instance) -> dict[bytes, bytes]:
        """The keys that live and die with the instance, and their values, the one that stands for
        it first. Raises as `check` does."""

    def lasting(self, instance: Instance) -> dict[bytes, bytes]:
        """The keys that must exist beside it: made where they are missing, never overwritten."""
        return {}

    @abstractmethod
    def locate(self, key: bytes) -> Location | None:
        """What a key stands for; None: it is not one of this layout's."""

    @abstractmethod
    def assemble(self, service: str, id: str, files: Mapping[File, Entry]) -> Assembly:
        """The instance that these files make, with what could not be understood. None where they
        make none: a `config` alone is not an instance."""

    def config_key(self, service: str, id: str = "") -> bytes:
        """Where the operator's word on an instance lies, or on the service."""
        raise self._lacks("configuration")

    def decode_config(self, value: bytes) -> Config:
        """Raises `Malformed`."""
        return NO_CONFIG

    def info_key(self, *, group: str = "", service: str = "") -> bytes:
        """Where the description of a group or a service lies."""
        raise self._lacks("descriptions")

    def decode_info(self, place: Location, value: bytes) -> Group | Service:
        """Raises `Malformed`."""
        raise self._lacks("descriptions")

    def cannot_carry(self, instance: Instance) -> list[str]:
        """The fields of an instance that will be lost in this layout, to be told once."""
        told: list[Carried] = [
            "protocol",
            "version",
            "zone",
            "weight",
            "metadata",
            "ports",
            "ephemeral",
            "enabled",
        ]
        lost: list[str] = [
            name
            for name in told
            if name not in self.carries and getattr(instance, name) != getattr(_PLAIN, name)
        ]
        if "id" not in self.carries and instance.id not in ("", instance.address):
            lost.append("id")
        return lost + said_by_the_operator(instance)

    def _lacks(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"the layout {quoted(self.name)} has no {what}: use tree, or Redis")
