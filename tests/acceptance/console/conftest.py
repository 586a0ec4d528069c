"""One Chromium for all tests of a worker; each test has a separate server and profile.

Everything runs on one event loop, the one of the browser's driver.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.acceptance.console.chromium import FLAGS, find_chromium
from tests.acceptance.console.visitor import Visitor
from tests.admin import Admin


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    chromium = find_chromium(tmp_path_factory.mktemp("chromium"))
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(
            executable_path=chromium.path, args=list(FLAGS), env=dict(chromium.environment)
        )
        yield launched
        await launched.close()


@pytest_asyncio.fixture(loop_scope="session")
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    """The HTTP server over an empty store."""
    async with Admin(f"memory://{uuid.uuid4().hex}", folder=tmp_path) as admin:
        yield admin


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(browser: Browser, admin: Admin) -> AsyncIterator[Visitor]:
    """A user of the console, logged in as the admin; any error in the browser fails the test."""
    async with Visitor(browser, admin) as visitor:
        await visitor.log_in()
        yield visitor
