"""Tables of the documentation say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from mooring.server.api import all_endpoints
from mooring.server.auth.authorization import ROLES, Need, need

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| ([A-Z]+) \| `(/[^`]*)` \| ([a-z, ]+) \|", re.MULTILINE)


def told(needs: Need) -> str:
    """Who may, as the page says it."""
    if needs.roles is None:
        return "open"
    names = {frozenset(ROLES): "any", **{need(role).roles: role for role in ROLES}}
    role = names[needs.roles]
    return f"{role}, unscoped" if needs.within == "everything" else role


def test_the_page_of_the_api_has_every_endpoint_with_who_may():
    page = (DOCS / "admin-api.md").read_text()
    there = [(each.method, each.path, told(each.needs)) for each in all_endpoints()]
    assert sorted(ROW.findall(page)) == sorted(there)


def test_no_page_promises_clients_of_etcds_json_gateway():
    """The server has no JSON gateway: it serves the clients that speak gRPC."""
    pages = [DOCS.parent / "README.md", DOCS.parent / "CHANGELOG.md", *DOCS.glob("*.md")]
    for page in pages:
        text = " ".join(page.read_text().split())
        assert not re.search(r"(every|any|all) etcd clients?\b", text), page.name
