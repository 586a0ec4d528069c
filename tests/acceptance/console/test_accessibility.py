"""The console with the keyboard only, on a phone, in dark mode, in Chinese."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from mooring.model import JSON, Instance
from tests.acceptance.console.visitor import PATIENCE, Visitor
from tests.admin import Admin

pytestmark = pytest.mark.asyncio(loop_scope="session")

expect.set_options(timeout=PATIENCE)

PAGES: tuple[list[str], ...] = (
    [],
    ["service", "Common/Auth"],
    ["instance", "Common/Auth", "10.0.0.1:8000"],
    ["tenants"],
    ["tenant", "7"],
    ["shared"],
    ["locks"],
    ["search", "auth"],
    ["audit"],
    ["tokens"],
)


@pytest_asyncio.fixture(loop_scope="session")
async def busy(admin: Admin) -> AsyncIterator[Admin]:
    """A server with content on each page."""
    async with contextlib.AsyncExitStack() as opened:
        for number, service in enumerate(("Common/Auth", "Common/Auth", "Orders/" + "Long" * 20)):
            metadata = {"team": "platform", "dashboard": f"https://example.com/{'d' * 120}"}
            instance = Instance(service, "10.0.0.1", 8000 + number, metadata=metadata)
            registration = await opened.enter_async_context(admin.hub.register(instance))
            metrics: dict[str, JSON] = {"cpu": {"usagePercent": 12.5 + number}}
            registration.update(metrics=metrics, healthy=number != 1)
            await admin.sees(service, registration.instance.id)
        document = {
            "meta": {"name": "Harbour", "code": "harbour"},
            "domain": {"primary": "a.example"},
        }
        assert (await admin.put("/admin/tenants/7", document)).status_code == 201
        for key in ("common/values/resolver", "platform/values/mail"):
            value = {"value": {"httpType": "host"}}
            assert (await admin.put(f"/admin/shared/{key}", value)).status_code == 201
        await opened.enter_async_context(admin.hub.lock("jobs/report"))
        yield admin


async def test_everything_can_be_reached_by_keyboard(browser: Browser, busy: Admin):
    async with Visitor(browser, busy) as visitor:
        await visitor.log_in()
        page, press = visitor.page, visitor.page.keyboard.press
        await expect(page.get_by_role("row").filter(has_text="Common/Auth")).to_be_visible()
        await press("/")
        await expect(page.get_by_role("searchbox", name="Search by name")).to_be_focused()
        await page.keyboard.type("common/auth")
        await expect(page.get_by_role("heading", name="Search")).to_be_visible()
        await expect(page.locator("main tbody tr").first).to_contain_text("Common/Auth")
        await press("ArrowDown")
        await press("Enter")
        heading = page.get_by_role("heading", level=1)
        await expect(heading).to_have_text("Common/Auth")
        await expect(heading).to_be_focused()
        await press("j")
        await press("j")
        await press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("10.0.0.1:800")
        await focus(page, "#do-drain")
        await press("Enter")
        await expect(page.get_by_role("dialog")).to_contain_text("send it no new calls")
        await press("Enter")
        await expect(page.locator(".head")).to_contain_text("disabled")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await press("Backspace")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Common/Auth")
        await press("?")
        await expect(page.get_by_role("dialog")).to_contain_text("Next or previous row")
        await press("Escape")
        await press("g")
        await press("l")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Locks")


async def focus(page: Page, wanted: str) -> None:
    """Focus an element only with the Tab key."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.locator(f"{wanted}:focus").count():
            return
    raise AssertionError(f"{wanted} is not reached with Tab")


async def test_the_skip_link_comes_first(visitor: Visitor):
    await visitor.page.reload()
    await visitor.page.locator("main h1").wait_for()
    await visitor.page.keyboard.press("Tab")
    await expect(visitor.page.get_by_role("link", name="Skip to content")).to_be_focused()
    await visitor.page.keyboard.press("Enter")
    await expect(visitor.page.get_by_role("heading", level=1)).to_be_focused()


async def test_no_page_is_wider_than_a_phone(browser: Browser, busy: Admin):
    async with Visitor(browser, busy, viewport={"width": 390, "height": 700}) as visitor:
        await visitor.log_in()
        for where in PAGES:
            await visitor.go(*where)
            for width in (390, 320):
                await visitor.page.set_viewport_size({"width": width, "height": 700})
                wide = await visitor.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, where


async def test_dark_mode_is_chosen_and_remembered(browser: Browser, busy: Admin):
    async with Visitor(browser, busy, color_scheme="dark") as visitor:
        await visitor.log_in()
        assert await brightness(visitor.page) < 60
        await visitor.page.locator("#theme").click()
        await expect(visitor.page.locator("#theme")).to_have_text("Light")
        assert await brightness(visitor.page) > 200
        await visitor.page.reload()
        await visitor.page.locator("main h1").wait_for()
        assert await brightness(visitor.page) > 200


async def brightness(page: Page) -> float:
    ground: str = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    red, green, blue = (float(channel) for channel in ground[4:-1].split(",")[:3])
    return (red + green + blue) / 3


async def test_chinese_is_chosen_and_remembered(browser: Browser, busy: Admin):
    async with Visitor(browser, busy) as visitor:
        await visitor.log_in()
        await visitor.page.locator("#language").click()
        await expect(visitor.page.get_by_role("link", name="总览")).to_be_visible()
        await expect(visitor.page.locator("html")).to_have_attribute("lang", "zh-CN")
        await visitor.page.reload()
        await expect(visitor.page.get_by_role("link", name="报告自己不健康")).to_be_visible()
        await visitor.go("service", "Common/Auth")
        await expect(visitor.page.get_by_text("自报不健康").first).to_be_visible()


async def test_a_chinese_browser_gets_the_chinese_console(browser: Browser, busy: Admin):
    async with Visitor(browser, busy, locale="zh-CN") as visitor:
        await visitor.log_in()
        await expect(visitor.page.get_by_role("link", name="租户")).to_be_visible()
