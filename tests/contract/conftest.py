"""A contract holds on every store."""

from __future__ import annotations

import pytest

from tests.backends import BACKENDS


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
