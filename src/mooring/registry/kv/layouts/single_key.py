"""Layouts with one key for each instance, `{root}{service}/{address}`: contracts G1 and G3.

Operators choose the prefix `root`. Without one, keys start with the name of the service, and only
a scan of the whole store could list the services.
"""

from __future__ import annotations

import urllib.parse
from abc import abstractmethod
from collections.abc import Mapping

from mooring import addresses
from mooring.errors import InvalidRequest
from mooring.messages import message
from mooring.model import JSON, Instance, RecordedMetadata
from mooring.names import is_service, split_service
from mooring.registry import json_values as values
from mooring.registry.contract import Problem
from mooring.registry.json_values import Malformed
from mooring.registry.kv.layouts.layout import Assembly, File, Layout, Location
from mooring.store.contract import Entry, Range, key, prefix


class SingleKeyLayout(Layout):
    def __init__(self, root: str = "") -> None:
        if root and not root.endswith("/"):
            root += "/"
        self._root = root

    @property
    def scope(self) -> str:
        return f"{self.name}:{urllib.parse.quote(self._root, safe='')}"

    def canonical(self, service: str) -> str:
        split_service(service)
        return service

    def roots(self, group: str = "") -> tuple[Range, ...]:
        if not self._root:
            raise InvalidRequest(message("layout_without_root", name=self.name))
        return (prefix(self._root.encode()),)

    def home(self, instance: Instance) -> Range:
        return key(f"{self._folder(instance.service)}{instance.address}".encode())

    def encode(self, instance: Instance) -> dict[bytes, bytes]:
        name = f"{self._folder(instance.service)}{instance.address}"
        return {name.encode(): self._value(instance)}

    def _locate(self, name: str) -> Location | None:
        if not name.startswith(self._root):
            return None
        service, slash, id = name[len(self._root) :].rpartition("/")
        if not slash or not id or not is_service(service):
            return None
        return Location(split_service(service)[0], service, id, "data")

    def assemble(self, service: str, id: str, files: Mapping[File, Entry]) -> Assembly:
        entry = files["data"]
        try:
            return Assembly(self._instance(service, id, entry.value))
        except InvalidRequest as error:
            return Assembly(None, (Problem(entry.key, str(error)),))

    def _folder(self, service: str) -> str:
        return f"{self._root}{self.canonical(service)}/"

    @abstractmethod
    def _value(self, instance: Instance) -> bytes: ...

    @abstractmethod
    def _instance(self, service: str, id: str, value: bytes) -> Instance:
        """Raises `InvalidRequest`."""


class Plain(SingleKeyLayout):
    """The value repeats the address."""

    name = "plain"
    ttl = 5.0

    def _value(self, instance: Instance) -> bytes:
        return instance.address.encode()

    def _instance(self, service: str, id: str, value: bytes) -> Instance:
        host, port = addresses.split(value.decode(errors="backslashreplace"))
        return Instance(service, host, port, id=id)


class Endpoints(SingleKeyLayout):
    """The format of etcd's naming package for Go."""

    name = "endpoints"
    ttl = 15.0

    def _value(self, instance: Instance) -> bytes:
        metadata: dict[str, JSON] = {
            "protocol": instance.protocol,
            "version": instance.version,
            "zone": instance.zone,
            "weight": values.number(instance.weight),
            "metadata": dict(instance.metadata),
            "ports": dict(instance.ports),
            "incarnation": instance.incarnation,
        }
        return values.encode({"Op": 0, "Addr": instance.address, "Metadata": metadata})

    def _instance(self, service: str, id: str, value: bytes) -> Instance:
        fields = values.decode(value)
        address = values.get(fields, "Addr", str, "")
        if not address:
            raise Malformed(message("field_missing", field="Addr"))
        host, port = addresses.split(address)
        metadata = fields.get("Metadata")
        if not isinstance(metadata, dict):  # a Go service may store anything there
            return Instance(service, host, port, id=id)
        try:
            return Instance(
                service,
                host,
                port,
                protocol=values.get(metadata, "protocol", str, "tcp"),
                version=values.get(metadata, "version", str, "0.0.0"),
                zone=values.get(metadata, "zone", str, ""),
                weight=values.get(metadata, "weight", float, 1.0),
                metadata=RecordedMetadata(values.get(metadata, "metadata", dict[str, str], {})),
                ports=values.get(metadata, "ports", dict[str, int], {}),
                incarnation=values.get(metadata, "incarnation", str, ""),
                id=id,
            )
        except InvalidRequest:  # the fields of a Go service may have other meanings
            return Instance(service, host, port, id=id)
