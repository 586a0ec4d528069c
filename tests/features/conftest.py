"""Hubs on the backend of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import mooring
from mooring.hub import Hub


@pytest.fixture
async def hub(store_url: str) -> AsyncIterator[Hub]:
    async with mooring.connect(store_url) as opened:
        yield opened


@pytest.fixture
async def other(store_url: str) -> AsyncIterator[Hub]:
    """Another hub, which to the store is another process."""
    async with mooring.connect(store_url) as opened:
        yield opened
