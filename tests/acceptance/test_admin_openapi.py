"""The API does what its description says: schemathesis sends valid and invalid requests to every
described operation, and checks that each response is a described one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from mooring.model import Instance
from mooring.server.api import all_endpoints
from mooring.testing.redis import RedisServer
from tests.admin import Admin

SERVICES = ("Auth", "Common/Auth", "Shop/Cart")
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
INCARNATION = "begun-once"
LOCK = "nightly"
TENANTS = (7, 8)
"""Services, instances, the lock and the first tenant are the examples of the description."""

SEMANTIC = (
    "DELETE /registry/services/{service}/instances/{id}",  # the id must be an address on a store
    "GET /admin/registry/services/{service}/instances/{id}/config",
    "GET /prometheus/targets",  # the port is a name or a number
    "PATCH /admin/registry/services/{service}/config",  # at least one change is required
    "PATCH /admin/registry/services/{service}/info",
    "PATCH /admin/registry/services/{service}/instances/{id}/config",
    "POST /admin/shared/{area}/rollback",
    "POST /admin/shared/{area}/values/{key}/diff",  # some settings have additional rules
    "POST /admin/tenants/{tenant}/diff",  # a document has additional rules
    "POST /admin/tenants/{tenant}/rollback",  # whole numbers are written without a decimal point
    "POST /admin/tokens",  # a duration, names of groups
    "POST /registry/services/{service}/instances",  # the host must be valid
    "PUT /admin/shared/{area}/values/{key}",
    "PUT /admin/tenants/{tenant}",
    "PUT /registry/services/{service}/instances/{id}/beat",
)
"""Operations that may refuse a request (400) although it has the described shape."""

WRONG = ("kind=nothing", "kind=services,", "service=a/b/c", "service=%00", "what=ever", "kind", "=")
"""Invalid queries of the stream."""

SETTINGS = """
workers = 1
request-timeout = 60
headers = {{ Authorization = "Bearer {token}", Origin = "{url}" }}
suppress-health-check = ["all"]
warnings = false
continue-on-failure = true

[cache]
enabled = false

[generation]
max-examples = {examples}
deterministic = true
database = "none"
no-shrink = true

[phases]
examples = {{ enabled = false }}
coverage = {{ enabled = true }}
fuzzing = {{ enabled = {fuzzing} }}
stateful = {{ enabled = false }}

[dictionaries]
services = {{ values = {services} }}
ids = {{ values = {ids} }}
tenants = {{ values = {tenants} }}
locks = {{ values = ["{lock}"] }}
versions = {{ values = [1] }}
tokens = {{ values = ["{spare}"] }}

[parameters]
"path.service" = {{ dictionary = "services", probability = 0.8 }}
"path.id" = {{ dictionary = "ids", probability = 0.8 }}
"path.tenant" = {{ dictionary = "tenants", probability = 0.8 }}
"path.version" = {{ dictionary = "versions", probability = 0.8 }}
"path.name" = {{ dictionary = "locks", probability = 0.8 }}
"path.token" = {{ dictionary = "tokens", probability = 0.5 }}

[[operations]]
include-path = "/admin/events"  # it has no end
enabled = false

# What is taken away is nothing that the others look at.
[[operations]]
include-name = ["DELETE /admin/tenants/{{tenant}}", "POST /admin/tenants/{{tenant}}/rollback"]
parameters = {{ "path.tenant" = 8 }}

[[operations]]
include-name = "DELETE /admin/registry/services/{{service}}/instances/{{id}}"
parameters = {{ "path.id" = "10.0.0.3:8080" }}

[[operations]]
include-name = "DELETE /registry/services/{{service}}/instances/{{id}}"

[operations.parameters]
"path.service" = "Auth"
"path.id" = "10.0.0.2:8080"
"query.incarnation" = "{incarnation}"

[[operations]]
include-name = {semantic}
checks = {{ positive_data_acceptance = {{ expected-statuses = ["2xx", 400, 404, 409, 410] }} }}
"""


@contextlib.asynccontextmanager
async def populated(url: str, folder: Path) -> AsyncIterator[Admin]:
    """A server with at least one record of every kind."""
    anything = {"reads": 0, "writes": 0, "failures": 0}
    async with Admin(url, folder=folder, rates=anything) as admin:
        for service in SERVICES:
            for host in HOSTS:
                instance = Instance(service, host, 8080, incarnation=INCARNATION)
                await admin.hub.registry.enter(instance, ttl=3600)
        if url.startswith("redis"):
            yield admin
            return
        for tenant in TENANTS:
            document = {
                "meta": {"code": f"c{tenant}", "name": f"Tenant {tenant}", "status": "active"},
                "domain": {"primary": f"t{tenant}.example"},
            }
            answer = await admin.put(f"/admin/tenants/{tenant}", document)
            assert answer.status_code == 201, answer.text
        async with admin.hub.lock(LOCK):
            yield admin


async def schemathesis(admin: Admin, folder: Path, *, examples: int, below: str = "/") -> None:
    """Test all operations below a path, with this number of random examples each. Fails with the
    report of schemathesis."""
    body = {"name": "spare", "role": "viewer"}
    spare = (await admin.post("/admin/tokens", body, as_="admin")).json()["id"]
    settings = SETTINGS.format(
        token=admin.tokens["admin"],
        url=admin.url,
        examples=examples or 1,
        fuzzing=str(examples > 0).lower(),
        services=json.dumps(SERVICES),
        ids=json.dumps([f"{host}:8080" for host in HOSTS]),
        tenants=json.dumps(TENANTS),
        lock=LOCK,
        spare=spare,
        semantic=json.dumps(SEMANTIC),
        incarnation=INCARNATION,
    )
    file = folder / "schemathesis.toml"
    file.write_text(settings)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(file), "--no-color"),
        *("run", f"{admin.url}/admin/openapi.json", f"--include-path-regex=^{below}"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()


async def answers(admin: Admin) -> Mapping[str, Mapping[int, int]]:
    """How often each operation returned which status, in this process."""
    text = (await admin.get("/metrics")).text
    counts: dict[str, dict[int, int]] = defaultdict(dict)
    line = r'mooring_http_requests_total\{method="(\w+)",route="([^"]+)",status="(\d+)"\} (\S+)'
    for method, route, status, count in re.findall(line, text):
        counts[f"{method} {route}"][int(status)] = int(float(count))
    return counts


@pytest.mark.parametrize(
    "examples",
    [1, pytest.param(10, marks=pytest.mark.extended("one example of each asks for all"))],
)
async def test_every_operation_is_as_described(tmp_path: Path, examples: int):
    async with populated("memory://", tmp_path) as admin:
        before = await answers(admin)
        await schemathesis(admin, tmp_path, examples=examples)
        after = await answers(admin)
    table = {f"{endpoint.method} {endpoint.path}" for endpoint in all_endpoints()} - {
        "GET /admin/events"
    }
    done = {name for name in table if succeeded(after, name) > succeeded(before, name)}
    # Otherwise the data here no longer matches the requests.
    assert len(done) > 0.7 * len(table), sorted(table - done)


@pytest.mark.parametrize(
    "below",
    [
        "/registry/",
        pytest.param("/", marks=pytest.mark.extended("features run the rest on Redis")),
    ],
)
async def test_every_operation_is_as_described_on_redis(
    tmp_path: Path, redis: Callable[[str], RedisServer], below: str
):
    url = f"{redis('6.2').url}?namespace={uuid.uuid4().hex}"
    async with populated(url, tmp_path) as admin:
        await schemathesis(admin, tmp_path, examples=0, below=below)


def succeeded(counts: Mapping[str, Mapping[int, int]], name: str) -> int:
    return sum(count for status, count in counts.get(name, {}).items() if status < 400)


async def test_the_stream_is_as_described(tmp_path: Path):
    """It is excluded above, since it does not end."""
    async with populated("memory://", tmp_path) as admin, admin.client("viewer") as client:
        description = (await client.get("/admin/openapi.json")).json()
        described = description["paths"]["/admin/events"]["get"]["responses"]
        async with client.stream("GET", "/admin/events") as answer:
            media = answer.headers["Content-Type"].partition(";")[0]
            assert (answer.status_code, media) == (200, "text/event-stream")
            assert media in described["200"]["content"]
        assert (await client.head("/admin/events")).status_code == 200
        for query in WRONG:
            answer = await client.get(f"/admin/events?{query}")
            assert (answer.status_code, str(answer.status_code) in described) == (400, True), query
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            answer = await client.request(method, "/admin/events")
            assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")
