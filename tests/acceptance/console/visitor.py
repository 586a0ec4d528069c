"""A user of the console, whose browser reports every error."""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import quote

from playwright.async_api import Browser, BrowserContext, Page

from tests.admin import Admin

PATIENCE = 20_000
"""Milliseconds for actions without a promised time."""


class Visitor:
    """A browser profile with one page. Leaving it fails if the page broke a rule: an error in its
    console, an exception, a violation of the Content-Security-Policy, a request to another host."""

    def __init__(self, browser: Browser, admin: Admin, **options: Any) -> None:
        self._browser, self.admin = browser, admin
        self._options = {
            "viewport": {"width": 1280, "height": 800},
            "locale": "en-US",
            "reduced_motion": "reduce",
            **options,
        }
        self.complaints: list[str] = []
        self.forgiven = ""
        """What is in a complaint that the test itself brought about."""
        self._context: BrowserContext
        self.page: Page

    async def __aenter__(self) -> Self:
        self._context = await self._browser.new_context(**self._options)
        self._context.set_default_timeout(PATIENCE)
        self.page = await self._context.new_page()
        self.page.on(
            "console",
            lambda message: self._on_message(
                message.type, f"{message.text} {message.location.get('url', '')}"
            ),
        )
        self.page.on("pageerror", lambda error: self._on_message("error", str(error)))
        self.page.on(
            "dialog", lambda dialog: self._on_message("error", f"a dialog: {dialog.message}")
        )
        self.page.on("request", lambda request: self._on_request(request.url))
        return self

    def _on_message(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _on_request(self, url: str) -> None:
        if not url.startswith(self.admin.url):
            self.complaints.append(f"error: it asked for {url[:200]}")

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self._context.close()
        if kind is None:
            unexpected = [
                complaint for complaint in self.complaints if not self._forgives(complaint)
            ]
            assert not unexpected, unexpected

    def _forgives(self, complaint: str) -> bool:
        return bool(self.forgiven) and self.forgiven in complaint

    async def log_in(self, role: str = "admin") -> None:
        """Log in by the link, as users do."""
        answer = await self.admin.post("/admin/login-codes", as_=role)
        assert answer.status_code == 201, answer.text
        await self.page.goto(answer.json()["url"])
        await self.page.get_by_role("button", name="Log in").click()
        await self.page.locator("main h1").wait_for()

    async def go(self, *path: str) -> None:
        """Go to a page of the console, and wait until it is shown."""
        place = f"#/{'/'.join(quote(segment, safe='') for segment in path)}"
        await self.page.goto(f"{self.admin.url}/{place}")
        await self.page.locator(f'main[data-shown="{place}"] h1').wait_for()
