"""Take the screenshots in docs/images: the console with a small fleet, in Chromium.

python -m tools.screenshots

It takes half a minute, because the charts need some history of metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, async_playwright
from tests.acceptance.console.chromium import FLAGS, find_chromium
from tests.acceptance.console.visitor import Visitor
from tests.admin import Admin

from mooring.locks.admission_rules import EXCLUSIVE, ContenderValue, encode_value
from mooring.model import JSON, Instance
from mooring.registry.contract import RemoteRegistration
from mooring.store import Put

IMAGES = Path("docs/images")
LARGEST = 200_000
"""Bytes of a screenshot."""
BEATS, EVERY = 100, 0.2

FLEET = {
    "Common/Auth": 4,
    "Common/Gateway": 3,
    "Media/Thumbnails": 2,
    "Orders/Cart": 2,
    "Orders/Checkout": 4,
    "Orders/Invoice": 3,
    "Payments/Card": 3,
    "Payments/Ledger": 1,
    "Search/Index": 2,
    "Search/Query": 4,
    "mailer": 2,
    "scheduler": 1,
}
"""The number of instances of each service."""
SICK = ("Orders/Invoice", 2)
GONE = "Payments/Ledger"
OUT = ("Common/Auth", 3)
LOCKS = {
    "jobs/nightly-report": ("batch-2:4121", "batch-1:310", "batch-3:887", "batch-1:311"),
    "leaders/scheduler": ("scheduler-0:77",),
    "migrations/orders": ("deploy-7:12", "deploy-8:12"),
}
"""The holder of each lock, and then its waiters."""
TENANTS: Mapping[int, Mapping[str, Any]] = {
    1001: {
        "meta": {"name": "Harbour Logistics", "code": "harbour", "billingPlan": "enterprise"},
        "domain": {"primary": "harbour.example", "aliases": ["www.harbour.example"]},
        "storage": {"uploadQuotaGb": 500, "maxFileSizeMb": 1024},
    },
    1002: {
        "meta": {"name": "灯塔科技", "code": "lighthouse", "billingPlan": "pro"},
        "domain": {"primary": "lighthouse.example"},
        "storage": {"uploadQuotaGb": 50, "maxFileSizeMb": 256},
    },
    1003: {
        "meta": {"name": "Pier 7", "code": "pier7", "status": "suspended"},
        "domain": {"primary": "pier7.example"},
    },
}


@dataclass(slots=True)
class Actor:
    """An instance that sends heartbeats with changing metrics."""

    entered: RemoteRegistration
    chance: random.Random
    cpu: float = 35.0
    memory: float = 210e6

    def metrics(self) -> dict[str, JSON]:
        self.cpu = min(max(self.cpu + self.chance.uniform(-6, 6), 4), 92)
        self.memory += self.chance.uniform(-3e6, 4e6)
        return {
            "cpu": {"usagePercent": round(self.cpu, 1)},
            "memory": {"usedBytes": round(self.memory)},
            "requests": {"perSecond": round(120 + self.cpu * 4 + self.chance.uniform(-9, 9), 1)},
            "latency": {"p99Ms": round(9 + self.cpu / 3 + self.chance.uniform(-1, 1), 1)},
        }


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    path: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None


PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
PICTURES = (
    Picture("overview"),
    Picture("overview-dark", options={"color_scheme": "dark"}),
    Picture("overview-zh", options={"locale": "zh-CN"}),
    Picture("service", ("service", "Common/Auth")),
    Picture("instance", ("instance", "Common/Auth", "10.0.0.1:8080")),
    Picture("tenant", ("tenant", "1001")),
    Picture("locks", ("locks",)),
    Picture("phone", options=PHONE),
)


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    asyncio.run(_take_all())
    large = [file.name for file in IMAGES.glob("*.png") if file.stat().st_size > LARGEST]
    if large:
        print(f"too large for the repository: {', '.join(large)}", file=sys.stderr)
    return bool(large)


async def _take_all() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        chromium = find_chromium(folder)
        async with (
            Admin(f"memory://{uuid.uuid4().hex}", folder=folder) as admin,
            _furnished(admin),
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(
                executable_path=chromium.path, args=list(FLAGS), env=dict(chromium.environment)
            )
            for picture in PICTURES:
                await _take(browser, admin, picture)
            await browser.close()


async def _take(browser: Browser, admin: Admin, picture: Picture) -> None:
    options = {"viewport": {"width": 1280, "height": 800}, **(picture.options or {})}
    async with Visitor(browser, admin, **options) as visitor:
        await visitor.log_in()
        await visitor.go(*picture.path)
        await visitor.page.locator(".top .mark.good").wait_for()
        await visitor.page.screenshot(path=IMAGES / f"{picture.name}.png", animations="disabled")
    print(f"docs/images/{picture.name}.png")


@contextlib.asynccontextmanager
async def _furnished(admin: Admin) -> AsyncIterator[None]:
    """Services with problems, tenants with a history, locks with a queue."""
    actors = await _cast(admin)
    for number in range(BEATS):
        await asyncio.gather(*(_beat(admin, name, actor, number) for name, actor in actors.items()))
        await asyncio.sleep(EVERY)
    service, _ = OUT
    await admin.post(
        f"/admin/registry/services/{_segment(service)}/instances/10.0.0.4%3A8080/drain"
    )
    gone = actors[GONE, 0].entered.instance
    await admin.hub.registry.leave(gone.service, gone.id, gone.incarnation)
    for id, document in TENANTS.items():
        await admin.put(f"/admin/tenants/{id}?reason=first", document)
    more = {"storage": {"uploadQuotaGb": 800, "maxFileSizeMb": 1024}}
    await admin.put("/admin/tenants/1001?reason=they+pay+for+more", more)
    for name, contenders in LOCKS.items():
        for who in contenders:
            await _contend(admin, name, who)
    yield


async def _contend(admin: Admin, lock: str, who: str) -> None:
    """Add a contender to the queue of a lock."""
    lease = await admin.hub.store.grant(600)
    key = f"{lock}/{lease.id:x}".encode()
    await admin.hub.store.commit(
        Put(key, encode_value(ContenderValue(EXCLUSIVE, who)), lease=lease.id)
    )


async def _cast(admin: Admin) -> dict[tuple[str, int], Actor]:
    actors = {}
    for row, (service, count) in enumerate(FLEET.items()):
        for number in range(count):
            instance = Instance(
                service,
                f"10.0.{row}.{number + 1}",
                8080,
                protocol="http",
                version="2.4.1" if number else "2.5.0-rc1",
                zone=("sh-a", "sh-b")[number % 2],
                metadata={
                    "team": "platform",
                    "commit": f"{random.Random(row).getrandbits(28):07x}",
                    "dashboard": f"https://grafana.example/d/{service.lower()}",
                },
            )
            entered = await admin.hub.registry.enter(instance, ttl=600.0)
            actors[service, number] = Actor(entered, random.Random(row * 10 + number))
    return actors


async def _beat(admin: Admin, name: tuple[str, int], actor: Actor, number: int) -> None:
    instance = actor.entered.instance
    await admin.hub.registry.beat(
        instance.service,
        instance.id,
        instance.incarnation,
        healthy=name != SICK or number < BEATS // 2,
        metrics=actor.metrics(),
    )


def _segment(name: str) -> str:
    return name.replace("/", "%2F")


if __name__ == "__main__":
    sys.exit(main())
