"""Generated tenants as stored: ten keys each, of realistic length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mooring.model import JSON
from mooring.store import MAX_OPERATIONS, Entry, Put, Store
from mooring.tenants.keys import TenantKeys
from mooring.tenants.model import encode
from mooring.tenants.parts import claims

KEYS = TenantKeys()
SERVICES = ("evidence-command", "evidence-query", "file-storage", "security-management")


def parts(tenant: int) -> dict[str, JSON]:
    """The configuration of one tenant."""
    values: dict[str, JSON] = {
        "meta": {
            "id": tenant,
            "code": f"tenant_{tenant}",
            "name": f"租户 {tenant}",
            "status": "active",
            "billingPlan": "enterprise",
        },
        "domain/primary": f"t{tenant}.example.com",
        "domain/aliases": [f"www.t{tenant}.example.com", f"t{tenant}.example.org"],
        "domain/internal": f"t{tenant}.internal",
        "storage": {
            "tenantId": tenant,
            "uploadQuotaGb": 1000,
            "maxFileSizeMb": 2048,
            "maxConcurrentUploads": 20,
        },
        f"ftp/ftp_{tenant}": {
            "tenantId": tenant,
            "username": f"ftp_{tenant}",
            "passwordHash": "$2a$10$abcdefghijklmnopqrstuvABCDEFGHIJKLMNOPQRSTUV012345678",
            "description": "FTP",
            "status": "active",
            "homeDirectory": f"/tenants/{tenant}",
            "writePermission": True,
        },
    }
    for service in SERVICES:
        values[f"database/{service}"] = {
            "tenantId": tenant,
            "serviceCode": service,
            "driver": "mysql",
            "host": f"mysql-{service}",
            "port": 3306,
            "database": f"tenant_{tenant}_{service}".replace("-", "_"),
            "username": f"tenant_{tenant}",
            "sslMode": "disable",
            "maxOpenConns": 100,
            "maxIdleConns": 20,
            "enabled": True,
        }
    return values


def entries(numbers: Iterable[int]) -> Iterator[Entry]:
    """Their keys as read from the store, without indexes."""
    for number in numbers:
        for path, value in parts(number).items():
            yield Entry(KEYS.part(number, path), encode(path, value), 2, 2, 1)


async def populate(store: Store, numbers: Iterable[int]) -> None:
    """Writes these tenants with their indexes, in batches."""
    writes: list[Put] = []
    for number in numbers:
        values = parts(number)
        writes += [Put(KEYS.part(number, path), encode(path, values[path])) for path in values]
        writes += [Put(claim.key, claim.value) for claim in claims(KEYS, number, values).values()]
        while len(writes) >= MAX_OPERATIONS:
            await store.commit(*writes[:MAX_OPERATIONS])
            del writes[:MAX_OPERATIONS]
    if writes:
        await store.commit(*writes)
