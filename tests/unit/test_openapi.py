"""The OpenAPI document describes the API, not the Python classes behind it."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.server.api import all_endpoints
from mooring.server.api.openapi import describe

SCHEMAS: dict[str, Any] = describe(all_endpoints(), cookie="session")["components"]["schemas"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_descriptions_are_for_clients(name: str):
    description = SCHEMAS[name].get("description", "")
    assert "`" not in description
    assert "class" not in description
    assert description == " ".join(description.split())
