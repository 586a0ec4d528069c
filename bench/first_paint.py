"""The console in Chromium: time to first paint and to content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx
import msgspec
from playwright.async_api import Browser, Page, async_playwright
from tests.acceptance.console.chromium import FLAGS, find_chromium
from tests.waiting import eventually

from bench.admin import process
from bench.durable_store import scratch_folder
from bench.measure import Line, Plan, Section, Target, interleaved, milliseconds
from bench.population import instance, puts
from mooring.backends import open_store

SERVICES = 1_000
PAINT = 1000.0
"""Milliseconds until the first paint."""
_WITHIN = 120.0


class Seen(NamedTuple):
    """In milliseconds from the request for the page."""

    paint: float
    """The first contentful paint."""
    rows: float
    """The table of services is shown."""


async def run(plan: Plan) -> list[Section]:
    async with _page() as page:
        await _look(page)  # warms the file cache
        taken = await interleaved(plan, "console", {"ours": lambda: _look(page)}, _show)
    paint, rows = (median(values) for values in zip(*taken["ours"], strict=True))
    lines = [
        Line(
            "first paint", milliseconds(paint), target=Target("≤", PAINT, milliseconds), value=paint
        ),
        Line("services shown", milliseconds(rows)),
    ]
    text = (
        f"Headless Chromium loads the overview of {SERVICES:,} services with one instance each "
        "from `mooring serve` on the same machine. Measured until first contentful paint and "
        "until the table of services is shown."
    )
    return [Section("Console: first paint", text, lines)]


def _show(seen: Seen) -> str:
    return f"{milliseconds(seen.paint)} (services {milliseconds(seen.rows)})"


@asynccontextmanager
async def _page() -> AsyncIterator[Page]:
    """A logged-in browser page on a server with all services."""
    with process() as (http, etcd, token, _), scratch_folder() as folder:
        url = f"http://{http}"
        async with open_store(etcd) as store:
            for number in range(SERVICES):
                named = msgspec.structs.replace(instance(number), service=f"bench/s{number:04}")
                await store.commit(*puts(named))
        async with _browser(folder) as browser:
            page = await browser.new_page(viewport={"width": 1280, "height": 800})
            await page.goto(await _link(url, token))
            await page.get_by_role("button").first.click()
            await page.wait_for_url(f"{url}/**")
            await page.goto(f"{url}/")
            yield page


@asynccontextmanager
async def _browser(folder: Path) -> AsyncIterator[Browser]:
    chromium = find_chromium(folder)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium.path, env={**chromium.environment}, args=list(FLAGS)
        )
        try:
            yield browser
        finally:
            await browser.close()


async def _link(url: str, token: str) -> str:
    """A login link, once all the services are shown."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
        await eventually(lambda: _all_known(client), within=_WITHIN)
        link: str = (await client.post("/admin/login-codes")).json()["url"]
    return link


async def _all_known(client: httpx.AsyncClient) -> bool:
    health = (await client.get("/admin/registry/health")).json()
    return bool(health["totalServices"] == SERVICES)


async def _look(page: Page) -> Seen:
    await page.reload()
    await page.locator("main table tbody tr").first.wait_for()
    rows: float = await page.evaluate("performance.now()")
    paint: float = await page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    )
    return Seen(paint, rows)
