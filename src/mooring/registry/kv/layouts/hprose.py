"""Hprose domains, contract H: `hprose-service/{domain}/{uuid}`.

The service is the domain and the instance id is the UUID of the server. The URL of the server holds
the protocol, host and port. A path in the URL is stored in the metadata as `path`.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping

from mooring import addresses
from mooring.errors import InvalidName, InvalidRequest
from mooring.messages import message
from mooring.model import JSON, Instance
from mooring.names import DEFAULT_GROUP, accepts, check_part, split_service
from mooring.registry import json_values as values
from mooring.registry.contract import Problem
from mooring.registry.json_values import Malformed
from mooring.registry.kv.layouts.layout import Assembly, File, Layout, Location
from mooring.store.contract import Entry, Range, key, prefix

ROOT = "hprose-service/"
SCHEMES = ("tcp", "tcp4", "tcp6", "http", "https", "ws", "wss")


class Hprose(Layout):
    name = "hprose"
    ttl = 10.0

    def canonical(self, service: str) -> str:
        if "/" in service:
            raise InvalidName(message("hprose_with_group", service=service))
        split_service(service)
        check_part("domain", service)
        return service

    def roots(self, group: str = "") -> tuple[Range, ...]:
        return prefix(ROOT.encode()), prefix(f"/{ROOT}".encode())

    def _folder(self, service: str) -> str:
        return f"{ROOT}{self.canonical(service)}/"

    def ranges(self, service: str) -> tuple[Range, ...]:
        name = self._folder(service)
        return prefix(name.encode()), prefix(f"/{name}".encode())

    def home(self, instance: Instance) -> Range:
        return key(self._key(instance))

    def host_range(self, instance: Instance) -> Range:
        return self.home(instance)

    def encode(self, instance: Instance) -> dict[bytes, bytes]:
        fields: dict[str, JSON] = {
            "UUID": instance.id,
            "Domain": instance.service,
            "ServerUrl": server_url(instance),
            "CPU": os.cpu_count() or 1,
        }
        return {self._key(instance): values.encode(fields)}

    def cannot_carry(self, instance: Instance) -> list[str]:
        lost = super().cannot_carry(instance)
        if set(instance.metadata) == {"path"}:
            lost.remove("metadata")  # the URL holds it
        return lost

    def _key(self, instance: Instance) -> bytes:
        if "/" in instance.id:
            raise InvalidRequest(message("hprose_id_has_slash", id=instance.id))
        return f"{self._folder(instance.service)}{instance.id}".encode()

    def _locate(self, name: str) -> Location | None:
        match name.removeprefix("/").split("/"):
            case ["hprose-service", domain, id] if id and accepts(self.canonical, domain):
                return Location(DEFAULT_GROUP, domain, id, "data")
        return None

    def assemble(self, service: str, id: str, files: Mapping[File, Entry]) -> Assembly:
        entry = files["data"]
        try:
            fields = values.decode(entry.value)
            values.get(fields, "CPU", int, 1)
            instance = instance_at(service, id, values.get(fields, "ServerUrl", str, ""))
            addresses.check_host(instance.host)
            return Assembly(instance)
        except InvalidRequest as error:
            return Assembly(None, (Problem(entry.key, str(error)),))


def protocol_of(domain: str) -> str:
    """The protocol prefix of a domain, as in `http.hello`; empty if there is none. Hprose names
    domains that way by convention."""
    scheme, dot, _ = domain.partition(".")
    return scheme if dot and scheme in SCHEMES else ""


def server_url(instance: Instance) -> str:
    """The URL that hprose clients call. Raises `InvalidRequest` for any other protocol."""
    if instance.protocol not in SCHEMES:
        raise InvalidRequest(
            message(
                "hprose_protocol",
                protocol=instance.protocol,
                service=instance.service,
                known=SCHEMES,
            )
        )
    path = instance.metadata.get("path", "/")
    if not path.startswith(("/", "?")):
        raise InvalidRequest(message("hprose_path", path=path, service=instance.service))
    return f"{instance.protocol}://{instance.address}{path}"


def instance_at(domain: str, uuid: str, url: str) -> Instance:
    """The instance that a server URL describes; its host is empty if the URL has none. Raises
    `InvalidRequest` if the URL cannot be called."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Malformed(message("hprose_not_a_url", url=url, problem=error)) from error
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise Malformed(message("hprose_url", url=url, known=SCHEMES))
    if port is None:
        port = {"http": 80, "ws": 80, "https": 443, "wss": 443}.get(parts.scheme, 0)
    addresses.check_port(port)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Instance(
        domain,
        parts.hostname or "",
        port,
        protocol=parts.scheme,
        metadata={} if path == "/" else {"path": path},
        id=uuid,
    )
