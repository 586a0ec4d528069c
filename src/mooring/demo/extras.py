"""What is on the stage beside the actors: a lock with a queue, two tenants, and descriptions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping

from mooring.errors import InvalidRequest, LockLost, StoreError
from mooring.hub import Hub
from mooring.model import JSON
from mooring.names import split_service
from mooring.registry.kv.layouts import layout_of
from mooring.store import Delete, key, unchanged
from mooring.tasks import Backoff, Tasks, cleanup
from mooring.tenants.document import parse
from mooring.tenants.publish.publisher import Publisher

LOCK = "demo/nightly-report"
CONTENDERS = 4
HELD = 8.0
"""Seconds that one holds it."""

TENANTS: tuple[Mapping[str, JSON], ...] = (
    {
        "id": 9001,
        "meta": {"code": "demo_harbour", "name": "Demo Harbour", "billingPlan": "enterprise"},
        "domain": {"primary": "harbour.demo.invalid", "aliases": ["www.harbour.demo.invalid"]},
        "storage": {"uploadQuotaGb": 500, "maxFileSizeMb": 1024},
    },
    {
        "id": 9002,
        "meta": {"code": "demo_lighthouse", "name": "Demo 灯塔", "billingPlan": "free"},
        "domain": {"primary": "lighthouse.demo.invalid"},
        "storage": {"uploadQuotaGb": 10, "maxFileSizeMb": 64},
    },
)
_WITHIN = 10.0


@contextlib.asynccontextmanager
async def descriptions(hub: Hub, services: Collection[str]) -> AsyncIterator[None]:
    """Registering describes a service and its group. What was not described before, and by nobody
    since, is gone again afterwards."""
    layout, store = layout_of("tree"), hub.store
    groups = {split_service(service)[0] for service in services}
    mine = {service: layout.info_key(service=service) for service in services}
    mine |= {f"{group}/": layout.info_key(group=group) for group in groups}
    before = {name for name, at in mine.items() if (await store.read(key(at))).first is not None}
    try:
        yield
    finally:
        fresh = {name: at for name, at in mine.items() if name not in before}
        await cleanup(_undescribe(hub, fresh), within=_WITHIN)


async def _undescribe(hub: Hub, fresh: Mapping[str, bytes]) -> None:
    """Services first: a group with one that is not ours keeps its description."""
    for name, at in sorted(fresh.items(), key=lambda pair: pair[0].endswith("/")):
        entry = (await hub.store.read(key(at))).first
        if name.endswith("/") and await hub.registry.names(name.removesuffix("/")):
            continue
        if entry is not None and entry.version == 1:
            await hub.store.commit(Delete(key(at)), require=[unchanged(at, entry.modified)])


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
    unused = not (await hub.store.read(key(publisher.keys.sentinel))).entries
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
        await cleanup(_forget(hub, publisher, made, unused=unused), within=_WITHIN)


async def _is_free(publisher: Publisher, tenant: int) -> bool:
    return not await publisher.read(tenant) and not await publisher.history(tenant)


async def _forget(hub: Hub, publisher: Publisher, tenants: list[int], *, unused: bool) -> None:
    keys = publisher.keys
    for tenant in tenants:
        with contextlib.suppress(InvalidRequest):  # somebody deleted it meanwhile
            await publisher.delete(tenant)
        await hub.store.commit(Delete(keys.history_of(tenant)))
    if unused and not (await hub.store.read(keys.all, limit=1)).entries:
        await hub.store.commit(Delete(keys.health))  # the sign of life of who publishes
