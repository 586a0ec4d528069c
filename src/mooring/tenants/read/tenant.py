"""A tenant as its readers see it: put together from its parts, and never changed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from mooring.tenants.keys import kind_of, name_of
from mooring.tenants.values import Database, Domain, Ftp, Meta, Part, ReadOnly, Storage

Kind = Literal["meta", "domain", "database", "ftp", "storage"]
KINDS: tuple[Kind, ...] = ("meta", "domain", "database", "ftp", "storage")


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """What is configured for one tenant. Parts may come in any order: without its meta it has an
    id and nothing to call it by."""

    id: int
    meta: Meta | None = None
    domain: Domain = Domain()
    databases: Mapping[str, Database] = ReadOnly()
    """By service."""
    ftp: Mapping[str, Ftp] = ReadOnly()
    """By user name."""
    storage: Storage | None = None
    active_ftp: Mapping[str, Ftp] = ReadOnly()
    """Those of `ftp` whose status is empty or `active`: found out by itself."""

    def __post_init__(self) -> None:
        ftp = self.ftp
        if not all(each.active for each in ftp.values()):
            ftp = ReadOnly({user: each for user, each in ftp.items() if each.active})
        msgspec.structs.force_setattr(self, "active_ftp", ftp)

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
                _add_part(databases, sys.intern(name), part)  # all tenants have the same few
            elif kind == "ftp":
                ftp = dict(self.ftp) if ftp is None else ftp
                _add_part(ftp, name, part)
            elif kind == "domain":
                domain[name] = part or (() if name == "aliases" else "")
            else:
                fields[kind] = part
        if databases is not None:
            fields["databases"] = ReadOnly(databases)
        if ftp is not None:
            fields["ftp"] = ReadOnly(ftp)
        if domain:
            fields["domain"] = msgspec.structs.replace(self.domain, **domain)
        return msgspec.structs.replace(self, **fields)


def _add_part(held: dict[str, Any], name: str, part: Part | None) -> None:
    if part is None:
        held.pop(name, None)
    else:
        held[name] = part
