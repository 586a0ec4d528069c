"""The default layout, contract D: a tree of groups, services and instances.

/registry/{group}/info
/registry/{group}/{service}/info
/registry/{group}/{service}/config
/registry/{group}/{service}/{host}:{port}/data      the instance, on its lease
/registry/{group}/{service}/{host}:{port}/status    health and metrics, on its lease
/registry/{group}/{service}/{host}:{port}/config    operator overrides, without a lease
"""

from __future__ import annotations

from collections.abc import Mapping

from mooring import __version__, addresses
from mooring.errors import InvalidRequest
from mooring.model import (
    JSON,
    NO_CONFIG,
    NO_STATUS,
    Config,
    Instance,
    RecordedMetadata,
    State,
    Time,
)
from mooring.model import Status as InstanceStatus
from mooring.names import check_name, is_service, join_service, split_service
from mooring.registry import json_values as values
from mooring.registry.contract import Problem
from mooring.registry.json_values import Malformed
from mooring.registry.kv.layouts.layout import Assembly, File, Layout, Location
from mooring.store.contract import Entry, Range, prefix

ROOT = "/registry/"
SERVICE_TYPE = "dolphin"


class Tree(Layout):
    name = "tree"
    ttl = 15.0

    def canonical(self, service: str) -> str:
        return join_service(*split_service(service))

    def roots(self, group: str = "") -> tuple[Range, ...]:
        return (prefix((f"{ROOT}{group}/" if group else ROOT).encode()),)

    def after_group(self, group: str) -> bytes:
        return self.roots(group)[0].end

    def _folder(self, service: str) -> str:
        group, name = split_service(service)
        return f"{ROOT}{group}/{name}/"

    def home(self, instance: Instance) -> Range:
        return prefix(f"{self._folder(instance.service)}{instance.address}/".encode())

    def encode(self, instance: Instance) -> dict[bytes, bytes]:
        folder = f"{self._folder(instance.service)}{instance.address}/"
        return {
            f"{folder}data".encode(): values.encode(_data(instance)),
            f"{folder}status".encode(): values.encode(_status(instance.status)),
        }

    def lasting(self, instance: Instance) -> dict[bytes, bytes]:
        group, _ = split_service(instance.service)
        blank = {"displayName": "", "description": ""}
        return {
            self.info_key(group=group): values.encode({**blank, "department": ""}),
            self.info_key(service=instance.service): values.encode(blank),
        }

    def _locate(self, name: str) -> Location | None:
        parts = name.split("/")
        if parts[:2] != ["", "registry"] or "" in parts[2:]:
            return None
        match parts[2:]:
            case [group, "info"]:
                return Location(group, "", "", "info") if is_service(f"{group}/any") else None
            case [group, name, ("info" | "config") as file]:
                id = ""
            case [group, name, id, ("data" | "status" | "config") as file]:
                pass
            case _:
                return None
        service = join_service(group, name)
        return Location(group, service, id, file) if is_service(service) else None

    def assemble(self, service: str, id: str, files: Mapping[File, Entry]) -> Assembly:
        problems: list[Problem] = []
        status, config = NO_STATUS, NO_CONFIG
        data = files.get("data")
        if entry := files.get("status"):
            try:
                status = _decode_status(entry.value)
            except Malformed as error:
                problems.append(Problem(entry.key, str(error)))
        if entry := files.get("config"):
            try:
                config = self.decode_config(entry.value)
            except Malformed as error:
                problems.append(Problem(entry.key, str(error)))
        if data is None:
            return Assembly(None, tuple(problems))
        try:
            instance = _decode_data(service, id, data.value, status, config)
        except InvalidRequest as error:
            return Assembly(None, (*problems, Problem(data.key, str(error))))
        return Assembly(instance, tuple(problems))

    def config_key(self, service: str, id: str = "") -> bytes:
        folder = self._folder(service)
        if not id:
            return f"{folder}config".encode()
        addresses.split(id)
        return f"{folder}{id}/config".encode()

    def decode_config(self, value: bytes) -> Config:
        return values.decode_config(value)

    def info_key(self, *, group: str = "", service: str = "") -> bytes:
        if service:
            return f"{self._folder(service)}info".encode()
        check_name("group", group)
        return f"{ROOT}{group}/info".encode()


def _data(instance: Instance) -> dict[str, JSON]:
    return {
        "serviceType": SERVICE_TYPE,
        "serviceVersion": instance.version,
        "frameworkVersion": __version__,
        "tags": dict(instance.metadata),
        "ports": dict(instance.ports),
        "protocol": instance.protocol,
        "zone": instance.zone,
        "weight": values.number(instance.weight),
        "incarnation": instance.incarnation,
    }


def _decode_data(
    service: str, id: str, value: bytes, status: InstanceStatus, config: Config
) -> Instance:
    host, port = addresses.split(id)
    fields = values.decode(value)
    return Instance(
        service=service,
        host=host,
        port=port,
        protocol=values.get(fields, "protocol", str, "tcp"),
        version=values.get(fields, "serviceVersion", str, "0.0.0"),
        zone=values.get(fields, "zone", str, ""),
        weight=values.get(fields, "weight", float, 1.0),
        metadata=RecordedMetadata(values.get(fields, "tags", dict[str, str], {})),
        ports=values.get(fields, "ports", dict[str, int], {}),
        incarnation=values.get(fields, "incarnation", str, ""),
        id=id,
        status=status,
        config=config,
    )


def _status(status: InstanceStatus) -> dict[str, JSON]:
    return {
        "state": status.state,
        "healthy": status.healthy,
        "registeredAt": values.show_time(status.registered_at),
        "updatedAt": values.show_time(status.updated_at),
        "metrics": dict(status.metrics),
    }


def _decode_status(value: bytes) -> InstanceStatus:
    fields = values.decode(value)
    return InstanceStatus(
        state=values.get(fields, "state", State, NO_STATUS.state),
        healthy=values.get(fields, "healthy", bool, True),
        registered_at=values.get(fields, "registeredAt", Time, NO_STATUS.registered_at),
        updated_at=values.get(fields, "updatedAt", Time, NO_STATUS.updated_at),
        metrics=values.get(fields, "metrics", dict, {}),
    )
