"""Tenant configuration: published atomically with its indexes, read from immutable snapshots.

keys, model, parts, secrets      what is stored, and under which keys
document, validation, diff       one tenant as a YAML or JSON document
redirect_guard                   protects secrets that a caller cannot see from redirection
publish/, history                writing: plans, commits, encryption; history and rollback
read/                            reading: snapshots that follow the store
resolver                         the tenant of a request
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mooring.errors import MissingExtra

if TYPE_CHECKING:
    from mooring.tenants.document import Document as Document
    from mooring.tenants.document import load as load
    from mooring.tenants.document import load_all as load_all
    from mooring.tenants.document import read_all as read_all
    from mooring.tenants.history import HistoryEntry as HistoryEntry
    from mooring.tenants.model import Database as Database
    from mooring.tenants.model import Domain as Domain
    from mooring.tenants.model import Ftp as Ftp
    from mooring.tenants.model import Meta as Meta
    from mooring.tenants.model import Resolver as Resolver
    from mooring.tenants.model import Storage as Storage
    from mooring.tenants.model import Tenant as Tenant
    from mooring.tenants.parts import PartDiff as PartDiff
    from mooring.tenants.publish.encryption import RekeyResult as RekeyResult
    from mooring.tenants.publish.publisher import Publisher as Publisher
    from mooring.tenants.publish.result import PublishResult as PublishResult
    from mooring.tenants.read.parser import Changed as Changed
    from mooring.tenants.read.tenants import DatabaseCache as DatabaseCache
    from mooring.tenants.read.tenants import DomainCache as DomainCache
    from mooring.tenants.read.tenants import FtpCache as FtpCache
    from mooring.tenants.read.tenants import StorageCache as StorageCache
    from mooring.tenants.read.tenants import Tenants as Tenants
    from mooring.tenants.resolver import acting_for as acting_for
    from mooring.tenants.resolver import current as current
    from mooring.tenants.resolver import current_or_none as current_or_none
    from mooring.tenants.secrets import Keyring as Keyring
    from mooring.tenants.secrets import Secret as Secret

_MODULES = {
    "document": ("Document", "load", "load_all", "read_all"),
    "history": ("HistoryEntry",),
    "model": ("Database", "Domain", "Ftp", "Meta", "Resolver", "Storage", "Tenant"),
    "parts": ("PartDiff",),
    "publish.encryption": ("RekeyResult",),
    "publish.publisher": ("Publisher",),
    "publish.result": ("PublishResult",),
    "read.parser": ("Changed",),
    "read.tenants": ("DatabaseCache", "DomainCache", "FtpCache", "StorageCache", "Tenants"),
    "resolver": ("acting_for", "current", "current_or_none"),
    "secrets": ("Keyring", "Secret"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Loads names on first use: some need the extra, and importing all of them is slow."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mooring.tenants' has no attribute '{name}'")
    try:
        value = getattr(importlib.import_module(f"mooring.tenants.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "immutables":
            raise
        raise MissingExtra(f"mooring.tenants.{name}", "tenants") from error
    globals()[name] = value
    return value
