"""Tables of the documentation match the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import mooring
from mooring.registry.lookup import service_not_found
from mooring.server.api import all_endpoints
from mooring.server.api.endpoint import http_error
from mooring.server.auth.authorization import ROLES, Need, need
from mooring.server.http.response import error_response

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


def test_the_error_on_the_api_page_is_a_response_of_the_server():
    example = re.search(
        r"```json\n(\{\n  \"error\".*?)```", (DOCS / "admin-api.md").read_text(), re.S
    )
    assert example is not None
    error = http_error(service_not_found("gatewy", ["gateway"]))
    assert json.loads(example[1]) == json.loads(error_response(error).body())


def test_no_page_promises_clients_of_etcds_json_gateway():
    """The server has no JSON gateway: it serves the clients that speak gRPC."""
    pages = [DOCS.parent / "README.md", DOCS.parent / "CHANGELOG.md", *DOCS.glob("*.md")]
    for page in pages:
        text = " ".join(page.read_text().split())
        assert not re.search(r"(every|any|all) etcd clients?\b", text), page.name


def test_the_design_lists_every_module():
    page = (DOCS / "design.md").read_text()
    table = page.partition("## The source tree")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    listed = [name.strip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)]
    root = Path(mooring.__file__).parent
    modules = {path.stem for path in root.glob("*.py")} - {"__main__"}
    packages = {path.parent.name for path in root.glob("*/__init__.py")}
    assert sorted(listed) == sorted(modules | packages)


def test_every_source_file_that_the_design_names_exists():
    page = (DOCS / "design.md").read_text()
    files = [str(path) for path in Path(mooring.__file__).parent.rglob("*.py")]
    files += [str(path) for path in DOCS.parent.glob("t*/**/*.py")]
    for name in re.findall(r"`([\w/]+\.py)`", page):
        assert any(file.endswith(f"/{name}") for file in files), name
