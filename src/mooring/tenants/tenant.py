"""A tenant as its readers see it: put together from its parts, and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from mooring.tenants.keys import kind_of, name_of
from mooring.tenants.values import Database, Domain, Ftp, Meta, Part, Storage

Kind = Literal["meta", "domain", "database", "ftp", "storage"]
KINDS: tuple[Kind, ...] = ("meta", "domain", "database", "ftp", "storage")


class Tenant(msgspec.Struct, frozen=True):
    """What is configured for one tenant. Parts may come in any order: without its meta it has an
    id and nothing to call it by."""

    id: int
    meta: Meta | None = None
    domain: Domain = Domain()
    databases: Mapping[str, Database] = MappingProxyType({})
    """By service."""
    ftp: Mapping[str, Ftp] = MappingProxyType({})
    """By user name."""
    storage: Storage | None = None

    @property
    def empty(self) -> bool:
        return self == Tenant(self.id)

    @property
    def active(self) -> bool:
        """Whether its meta says so."""
        return self.meta is not None and self.meta.active

    def changed(self, parts: Iterable[tuple[str, Part | None]]) -> Tenant:
        """The same with other parts; None: it has that part no longer."""
        fields: dict[str, object] = {}
        databases: dict[str, Database] | None = None
        ftp: dict[str, Ftp] | None = None
        domain: dict[str, object] = {}
        for path, part in parts:
            kind, name = kind_of(path), name_of(path)
            if kind == "database":
                databases = dict(self.databases) if databases is None else databases
                _put(databases, name, part)
            elif kind == "ftp":
                ftp = dict(self.ftp) if ftp is None else ftp
                _put(ftp, name, part)
            elif kind == "domain":
                domain[name] = part or (() if name == "aliases" else "")
            else:
                fields[kind] = part
        if databases is not None:
            fields["databases"] = MappingProxyType(databases)
        if ftp is not None:
            fields["ftp"] = MappingProxyType(ftp)
        if domain:
            fields["domain"] = msgspec.structs.replace(self.domain, **domain)
        return msgspec.structs.replace(self, **fields)


def _put(held: dict[str, Any], name: str, part: Part | None) -> None:
    if part is None:
        held.pop(name, None)
    else:
        held[name] = part
