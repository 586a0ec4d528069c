"""What is the same on every registry when an operator changes overrides and descriptions: both are
JSON objects, and a change of some fields keeps the others."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping

from mooring.errors import InvalidRequest
from mooring.messages import message
from mooring.model import (
    JSON,
    Group,
    Service,
    check_json,
    check_metadata,
    check_metadata_size,
    check_text,
)
from mooring.registry import json_values as values
from mooring.registry.contract import Operations
from mooring.registry.json_values import Fields, Malformed, located

log = logging.getLogger(__name__)


class StoredObject(ABC):
    """A JSON object in a registry, for one operation."""

    place: str
    """Where it is, for messages."""

    @abstractmethod
    async def read(self) -> bytes | None: ...

    @abstractmethod
    async def replace(self, value: bytes) -> bool:
        """Replace what was read last; an empty value deletes it. Returns False, and changes
        nothing, if it has changed since."""

    async def edit(
        self,
        set: Mapping[str, JSON],
        unset: Iterable[str] = (),
        *,
        check: Callable[[bytes], object] = lambda _: None,
    ) -> Fields:
        """Change some fields and keep the others, even under concurrent writes. A value that is
        not a JSON object is replaced as a whole, with a warning. A result that `check` rejects is
        never written. Returns all fields."""
        while True:
            before, fields = await self.read() or b"", Fields()
            try:
                fields = values.decode(before) if before else fields
            except Malformed as error:
                log.warning("%s %s: its %d bytes are replaced", self.place, error, len(before))
            fields.update(set)
            for name in unset:
                fields.pop(name, None)
            value = values.encode(fields) if fields else b""
            if value:
                with located(self.place):
                    check(value)
            if await self.replace(value):
                return fields


class ObjectOperations(Operations):
    """The operations on overrides and descriptions, each of which is a `StoredObject`."""

    @abstractmethod
    def _overrides(self, service: str, id: str) -> StoredObject: ...

    @abstractmethod
    def _description(self, group: str, service: str) -> StoredObject: ...

    async def config(self, service: str, id: str = "") -> Mapping[str, JSON]:
        overrides = self._overrides(service, id)
        value = await overrides.read()
        with located(overrides.place):
            return {} if value is None else values.decode(value)

    async def configure(
        self, service: str, id: str = "", *, set: Mapping[str, JSON], unset: tuple[str, ...] = ()
    ) -> Mapping[str, JSON]:
        check_config(service, set)
        return await self._overrides(service, id).edit(set, unset, check=values.decode_config)

    async def info(self, *, group: str = "", service: str = "") -> Group | Service:
        described = self._description(group, service)
        value = await described.read()
        return self._decoded(described, b"{}" if value is None else value, group, service)

    async def describe(
        self, *, group: str = "", service: str = "", set: Mapping[str, str]
    ) -> Group | Service:
        described = self._description(group, service)
        check_info(set, service=bool(service))
        fields = await described.edit(set)
        return self._decoded(described, values.encode(fields), group, service)

    def _decoded(
        self, described: StoredObject, value: bytes, group: str, service: str
    ) -> Group | Service:
        with located(described.place):
            service = service and self.canonical(service)
            return decode_info(value, group=group, service=service)


def decode_info(value: bytes, *, group: str = "", service: str = "") -> Group | Service:
    """The description of a group or a service. Raises `Malformed`."""
    fields = values.decode(value)
    title = values.get(fields, "displayName", str, "")
    description = values.get(fields, "description", str, "")
    if service:
        return Service(service, title, description)
    return Group(group, title, values.get(fields, "department", str, ""), description)


def check_config(service: str, set: Mapping[str, JSON]) -> None:
    """Raise `InvalidRequest` for invalid overrides of a service or an instance."""
    what = message("what_config", service=service)
    check_json(what, set)
    if isinstance(metadata := set.get("metadata"), dict):
        check_metadata(metadata)
        check_metadata_size(service, metadata)
    with located(what):
        values.decode_config(values.encode(set))


def check_info(set: Mapping[str, str], *, service: bool) -> None:
    """Raise `InvalidRequest` for invalid fields of a description."""
    known = (
        ["description", "displayName"] if service else ["department", "description", "displayName"]
    )
    if unknown := [field for field in set if field not in known]:
        raise InvalidRequest(message("description_field_unknown", field=unknown[0], known=known))
    for field, text in set.items():
        check_text(field, text)
