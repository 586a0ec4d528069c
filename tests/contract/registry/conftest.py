"""A registry at every place; a module may choose others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest

from mooring.hub import Hub
from tests.backends import USUAL
from tests.contract.registries import ON_STORES, RawRecords, open_hub, places, raw_records_of


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Exclude tests of descriptions and configuration for layouts that have none."""
    left_out = {item for item in items if item.get_closest_marker("describes") and _is_bare(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _is_bare(item: pytest.Item) -> bool:
    place = cast(pytest.Function, item).callspec.params["place"]
    return place in ON_STORES and place[1] != "tree"


def named(place: tuple[str, str]) -> str:
    """The name of a place in the id of a test."""
    return "-".join(filter(None, (place[0], place[1].partition(":")[0])))


@pytest.fixture(params=places(USUAL, ["7.0", "cluster"]), ids=named)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A backend and a layout; on Redis there are no layouts."""
    chosen: tuple[str, str] = request.param
    return chosen


@pytest.fixture
def backend(place: tuple[str, str]) -> str:
    return place[0]


@pytest.fixture
def layout(place: tuple[str, str]) -> str:
    return place[1] or "tree"


@pytest.fixture
async def hub(store_url: str, layout: str) -> AsyncIterator[Hub]:
    async with open_hub(store_url, layout) as opened:
        yield opened


@pytest.fixture
async def other(store_url: str, layout: str) -> AsyncIterator[Hub]:
    """The same registry through another hub."""
    async with open_hub(store_url, layout) as opened:
        yield opened


@pytest.fixture
def raw_records(hub: Hub) -> RawRecords:
    return raw_records_of(hub)
