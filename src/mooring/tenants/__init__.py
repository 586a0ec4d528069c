"""Tenant configuration: published atomically with its indexes, read from immutable snapshots.

keys, values, secrets     what is stored, and under which keys
document                  one tenant as a YAML or JSON document; validation, diff and masking of it
publish/                  writing: plans, transactions, history, deletion, encryption
read/                     reading: snapshots that follow the store
resolver, context         which tenant a request belongs to
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mooring.errors import MissingExtra
from mooring.tenants.resolver import acting_for, current, current_or_none

if TYPE_CHECKING:
    from mooring.tenants.document import Document
    from mooring.tenants.model import Database, Domain, Ftp, Meta, Resolver, Storage, Tenant
    from mooring.tenants.publish.publisher import Publisher
    from mooring.tenants.read.parser import Changed
    from mooring.tenants.read.tenants import (
        DatabaseCache,
        DomainCache,
        FtpCache,
        StorageCache,
        Tenants,
    )
    from mooring.tenants.secrets import Keyring, Secret

__all__ = [
    "Changed",
    "Database",
    "DatabaseCache",
    "Document",
    "Domain",
    "DomainCache",
    "Ftp",
    "FtpCache",
    "Keyring",
    "Meta",
    "Publisher",
    "Resolver",
    "Secret",
    "Storage",
    "StorageCache",
    "Tenant",
    "Tenants",
    "acting_for",
    "current",
    "current_or_none",
]

_HOMES = {
    "Changed": "read.parser",
    "Database": "model",
    "DatabaseCache": "read.tenants",
    "Document": "document",
    "Domain": "model",
    "DomainCache": "read.tenants",
    "Ftp": "model",
    "FtpCache": "read.tenants",
    "Keyring": "secrets",
    "Meta": "model",
    "Publisher": "publish.publisher",
    "Resolver": "model",
    "Secret": "secrets",
    "Storage": "model",
    "StorageCache": "read.tenants",
    "Tenant": "model",
    "Tenants": "read.tenants",
}


def __getattr__(name: str) -> object:
    """The rest is loaded when it is first asked for: some of it needs the extra."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mooring.tenants' has no attribute '{name}'")
    try:
        return getattr(importlib.import_module(f"mooring.tenants.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "immutables":
            raise
        raise MissingExtra(f"mooring.tenants.{name}", "tenants") from error
