"""The OpenAPI document describes the API, not the Python classes behind it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from mooring.server.api import all_endpoints
from mooring.server.api.openapi import describe
from mooring.server.event_stream import ResetEvent
from mooring.server.http.response import ErrorBody

SCHEMAS: dict[str, Any] = describe(all_endpoints(), cookie="session")["components"]["schemas"]

TEXTS = {
    "detail",
    "error",
    "hint",
    "message",
    "note",
    "problem",
    "reason",
    "reasons",
    "text",
    "why",
}
"""Names of fields with sentences."""
WRITTEN_BY_OTHERS = {
    ("SearchResult", "text"),
    ("VersionDetail", "note"),
    ("VersionSummary", "note"),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_descriptions_are_for_clients(name: str):
    description = SCHEMAS[name].get("description", "")
    assert "`" not in description
    assert "class" not in description
    assert description == " ".join(description.split())


def test_every_text_of_a_response_has_its_data_beside_it():
    answers = [kind for endpoint in all_endpoints() for kind in endpoint.answers.values() if kind]
    _, schemas = msgspec.json.schema_components([*answers, ErrorBody, ResetEvent])
    bare = set()
    for name, schema in schemas.items():
        fields = schema.get("properties", {})
        if {"kind", "params"} <= fields.keys() or '/Message"' in json.dumps(fields):
            continue
        for field, kind in fields.items():
            english = "in english" in kind.get("description", "").lower()
            if (field in TEXTS or english) and "$ref" not in json.dumps(kind):
                bare.add((name, field))
    assert bare == WRITTEN_BY_OTHERS
