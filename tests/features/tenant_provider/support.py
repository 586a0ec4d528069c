"""Tenants as any publisher may write them, and a provider of them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from mooring.store import Put, Store
from mooring.tenants.keys import TenantKeys
from mooring.tenants.read.provider import Provider
from mooring.tenants.read.snapshot import TenantSnapshot
from mooring.tenants.read.tenants import Tenants
from mooring.tenants.secrets import Keyring

KEYS = TenantKeys()


DEAD = "etcd://127.0.0.1:1?timeout=500ms"


def part(tenant: int, path: str, value: object) -> Put:
    raw = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return Put(KEYS.part(tenant, path), raw)


def common(path: str, value: object) -> Put:
    return Put(f"jxt/{path}".encode(), json.dumps(value).encode())


def how(tenants: Tenants) -> str:
    return tenants.resolver.http_type if tenants.resolver else "unknown"


def where(tenants: Tenants) -> str:
    return tenants.storage_directory.directory if tenants.storage_directory else "unknown"


def content(tenants: Tenants) -> TenantSnapshot:
    """The snapshot without its revision. On a shared server, a lease of another test that expires
    advances the revision, and only a provider that starts after that sees it."""
    return msgspec.structs.replace(tenants.snapshot, revision=0)


def provider(store: Store, *, file: Path | None = None, wait: float = 5.0) -> Provider:
    return Provider(store, KEYS, Keyring(), file=file, wait=wait)


WHOLE = (
    part(1, "meta", {"code": "Acme", "name": "甲 公司", "status": "active"}),
    part(1, "domain/primary", "Acme.example"),
    part(1, "domain/aliases", ["www.acme.example"]),
    part(1, "domain/internal", '"acme.internal"'),
    part(1, "database/evidence-query", {"host": "db", "port": 3306, "password": "p"}),
    part(1, "database/meta", {"enabled": False}),
    part(1, "ftp/meta", {"homeDirectory": "/m"}),
    part(1, "ftp/bob", {"status": "active"}),
    part(1, "ftp/eve", {"status": "inactive"}),
    part(1, "storage", {"uploadQuotaGb": 5}),
    part(10, "meta", {"code": "Ten", "name": "Ten", "status": "suspended"}),
    common("common/resolver", {"httpType": "host"}),
    common("common/storage-directory", {"directory": "d"}),
    common("platform/configs/limits", {"a": [1]}),
    common("_health/sentinel", {"updatedAt": "2024-05-06T07:08:09Z"}),
)
