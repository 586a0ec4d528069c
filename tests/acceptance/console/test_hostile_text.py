"""Registered text is shown as text, even if it looks like markup."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from mooring.model import Instance
from tests.acceptance.console.visitor import PATIENCE, Visitor
from tests.admin import Admin

pytestmark = pytest.mark.asyncio(loop_scope="session")

expect.set_options(timeout=PATIENCE)

SERVICE = 'Evil/"><img src=x onerror=alert(1)>'
METADATA = {
    "markup": '"><img src=x onerror=alert(1)><script>alert(2)</script>',
    "script": "javascript:alert(3)",
    "disguised": "JaVaScRiPt:alert(4)//https://example.com",
    "data": "data:text/html,<script>alert(5)</script>",
    "link": "https://example.com/a?b=c",
    "with password": "https://user:secret@example.com/",
    "turned": "invoice\u202efdp.exe",
    "unseen": "a\u200bb\u0000c",
    "<b>key</b>": "value",
    "huge": "x" * 60_000,
    "template": "{{constructor.constructor('alert(6)')()}}${alert(7)}",
}


async def test_hostile_metadata_is_harmless(visitor: Visitor, admin: Admin):
    page = visitor.page
    instance = Instance(
        "Evil/Service",
        "10.0.0.1",
        80,
        version="<svg onload=alert(8)>",
        zone="\u202eenoz",
        metadata={name: value.replace("\x00", "\x01") for name, value in METADATA.items()},
    )
    async with admin.hub.register(instance):
        await admin.sees("Evil/Service", "10.0.0.1:80")
        await visitor.go("instance", "Evil/Service", "10.0.0.1:80")
        about = page.locator("main")
        for name in ("markup", "script", "disguised", "data", "template"):
            await expect(about.get_by_text(METADATA[name], exact=True)).to_be_visible()
        assert await page.locator("main img, main script, main b, main svg[onload]").count() == 0
        leads = [await link.get_attribute("href") for link in await about.locator("dd a").all()]
        assert leads == ["https://example.com/a?b=c"]
        await expect(about).to_contain_text("invoice⟨U+202E⟩fdp.exe")
        await expect(about).to_contain_text("a⟨U+200B⟩b⟨U+0001⟩c")
        await expect(about).to_contain_text("⟨U+202E⟩enoz")
        shown = await about.inner_text()
        assert "\u202e" not in shown
        assert len(shown) < 20_000
        await about.get_by_role("button", name="show all 60,000 characters").click()
        whole = page.get_by_role("dialog").get_by_role("textbox")
        assert len(await whole.input_value()) == 60_000
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        for where in (
            [],
            ["service", "Evil/Service"],
            ["search", "evil"],
            ["search", "<img src=x>"],
        ):
            await visitor.go(*where)
            assert await page.locator("main img").count() == 0


async def test_a_broken_link_shows_a_page(visitor: Visitor):
    for where in ("#/service/%E0%A4%A", "#/instance/a/b/c", "#/tenant/%22%3E", "#/x"):
        await visitor.page.goto(f"{visitor.admin.url}/{where}")
        await expect(visitor.page.locator(f'main[data-shown="{where}"] h1')).to_be_visible()
    visitor.forgiven = "Failed to load resource"  # the browser logs the 404, the page nothing else
