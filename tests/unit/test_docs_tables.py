"""Tables of the documentation match the code."""

from __future__ import annotations

import re
from pathlib import Path

from mooring.server.api import all_endpoints
from mooring.server.auth.authorization import ROLES, Need, need

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| ([A-Z]+) \| `(/[^`]*)` \| ([a-z, ]+) \|", re.MULTILINE)


def access(needs: Need) -> str:
    """The required role, as the page writes it."""
    if needs.roles is None:
        return "open"
    names = {frozenset(ROLES): "any", **{need(role).roles: role for role in ROLES}}
    role = names[needs.roles]
    return f"{role}, unscoped" if needs.within == "everything" else role


def test_the_api_page_has_every_endpoint_with_its_role():
    page = (DOCS / "admin-api.md").read_text()
    endpoints = [
        (endpoint.method, endpoint.path, access(endpoint.needs)) for endpoint in all_endpoints()
    ]
    assert sorted(ROW.findall(page)) == sorted(endpoints)


def test_no_page_promises_clients_of_etcds_json_gateway():
    """The server has no JSON gateway: it serves the clients that speak gRPC."""
    pages = [DOCS.parent / "README.md", DOCS.parent / "CHANGELOG.md", *DOCS.glob("*.md")]
    for page in pages:
        text = " ".join(page.read_text().split())
        assert not re.search(r"(every|any|all) etcd clients?\b", text), page.name
