"""Tenant configuration: published atomically with its indexes, read from immutable snapshots.

what lies where             keys · hosts · values · secrets · hiding · tenant
a file, and its rules       document · files · rules · merging
publishing, decided         publishing · indexing · stages · history · undoing · settings
publishing, done            publisher · committing · scribe · work · encryption · erasing · rekeying
keeping and finding         retention · finding
reading, decided            reading · snapshot · claims · resolver
reading, done               provider · outlook · pacing · copy · live · caches · context
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mooring.errors import MissingExtra
from mooring.tenants.context import acting_for, current, current_or_none

if TYPE_CHECKING:
    from mooring.tenants.caches import DatabaseCache, DomainCache, FtpCache, StorageCache
    from mooring.tenants.document import Document
    from mooring.tenants.live import Tenants
    from mooring.tenants.publisher import Publisher
    from mooring.tenants.reading import Changed
    from mooring.tenants.secrets import Keyring, Secret
    from mooring.tenants.tenant import Tenant
    from mooring.tenants.values import Database, Domain, Ftp, Meta, Resolver, Storage

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
    "Changed": "reading",
    "Database": "values",
    "DatabaseCache": "caches",
    "Document": "document",
    "Domain": "values",
    "DomainCache": "caches",
    "Ftp": "values",
    "FtpCache": "caches",
    "Keyring": "secrets",
    "Meta": "values",
    "Publisher": "publisher",
    "Resolver": "values",
    "Secret": "secrets",
    "Storage": "values",
    "StorageCache": "caches",
    "Tenant": "tenant",
    "Tenants": "live",
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
