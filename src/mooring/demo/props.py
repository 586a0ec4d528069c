"""What is on the stage beside the actors: a lock with a queue, and two tenants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from mooring.errors import InvalidRequest, LockLost, StoreError
from mooring.hub import Hub
from mooring.model import JSON
from mooring.store import Delete
from mooring.tasks import Backoff, Tasks, cleanup
from mooring.tenants.document import parse
from mooring.tenants.publisher import Publisher

LOCK = "demo/nightly-report"
CONTENDERS = 4
HELD = 8.0
"""Seconds that one holds it."""

TENANTS: tuple[Mapping[str, JSON], ...] = (
    {
        "id": 9001,
        "meta": {"code": "demo-harbour", "name": "Demo Harbour", "billingPlan": "enterprise"},
        "domain": {"primary": "harbour.demo.invalid", "aliases": ["www.harbour.demo.invalid"]},
        "storage": {"uploadQuotaGb": 500, "maxFileSizeMb": 1024},
    },
    {
        "id": 9002,
        "meta": {"code": "demo-lighthouse", "name": "Demo 灯塔", "billingPlan": "free"},
        "domain": {"primary": "lighthouse.demo.invalid"},
        "storage": {"uploadQuotaGb": 10, "maxFileSizeMb": 64},
    },
)
_WITHIN = 10.0


@contextlib.asynccontextmanager
async def queue(hub: Hub, *, held: float = HELD) -> AsyncIterator[None]:
    """Some who take turns at one lock."""
    tasks = Tasks()
    for number in range(CONTENDERS):
        tasks.start(_contend(hub, held), name=f"contender {number + 1}")
    try:
        yield
    finally:
        await tasks.aclose()


async def _contend(hub: Hub, held: float) -> None:
    lock, backoff = hub.lock(LOCK), Backoff(0.5, 5.0)
    while True:
        try:
            async with lock:
                backoff.reset()
                await asyncio.sleep(held)
        except (StoreError, LockLost):  # somebody took it away, or the store is: the play goes on
            await asyncio.sleep(backoff.next())


@contextlib.asynccontextmanager
async def tenants(hub: Hub) -> AsyncIterator[list[int]]:
    """Publish the tenants; which, those left out whose number somebody uses. They are gone
    afterwards, and so is their history."""
    publisher = hub.publisher(by="mooring demo")
    made: list[int] = []
    try:
        for told in TENANTS:
            document = parse(told)
            if await _is_free(publisher, document.tenant):
                made.append(document.tenant)
                await publisher.apply(document, note="for the demo")
        if made:
            await publisher.put(made[0], "storage", {"uploadQuotaGb": 800, "maxFileSizeMb": 1024})
        yield made
    finally:
        await cleanup(_forget(hub, publisher, made), within=_WITHIN)


async def _is_free(publisher: Publisher, tenant: int) -> bool:
    return not await publisher.read(tenant) and not await publisher.history(tenant)


async def _forget(hub: Hub, publisher: Publisher, tenants: list[int]) -> None:
    for tenant in tenants:
        with contextlib.suppress(InvalidRequest):  # somebody deleted it meanwhile
            await publisher.delete(tenant)
        await hub.store.commit(Delete(publisher.keys.history_of(tenant)))
