"""Unauthorized access to the admin API: without a token, with an expired one, or outside the scope
of a token. Nothing is revealed or changed."""

from __future__ import annotations

import asyncio
import base64
import datetime
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from mooring.model import Instance, now
from mooring.server.api import all_endpoints
from mooring.server.api.endpoint import ApiEndpoint
from mooring.server.auth.authorization import ROLES
from mooring.server.auth.tokens import ADMIN
from mooring.server.http.routing import SAFE
from tests.admin import Admin
from tests.waiting import PATIENCE, eventually

TABLE = all_endpoints()
GUARDED = [endpoint for endpoint in TABLE if endpoint.needs.roles is not None]
UNLIMITED = {"reads": 0, "writes": 0, "failures": 0}

SECRET = "zebra"
"""A text in everything outside the scope of the narrow token, and nowhere else."""
THEIRS = "Theirs/Their"
OURS = "Ours/Our"
QUERIES = {
    "/admin/search": ["?q=e&limit=100", "?q=ze", f"?q={SECRET}"],
    "/admin/registry/services": ["", "?limit=1", "?group=Theirs", "?name=e", "?after=A"],
    "/prometheus/targets": ["", "?group=Theirs", "?service=Theirs/Their"],
    "/admin/tenants": ["", "?name=e", "?code=c", "?limit=1"],
}

SHOWN = [
    "/admin/overview",
    "/admin/registry/services",
    f"/admin/search?q={SECRET}",
    "/metrics",
    "/prometheus/targets",
    "/admin/audit",
    "/registry/services/Theirs%2FTheir/instances",
]
"""Where authorized callers see it."""

WITHOUT: list[dict[str, str | bytes]] = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer " + "x" * 30_000},
    {"Authorization": b"Bearer \xff\xfe\xc3\x28"},
    {"Authorization": "Bearer admin"},
    {"Authorization": "Bearer *"},
    {"Authorization": "Bearer ' OR '1'='1"},
    {"Authorization": "Basic YWRtaW46"},
    {"Authorization": "Negotiate YII="},
    {"Authorization": 'Digest username="admin"'},
    {"Cookie": "mooring-session="},
    {"Cookie": "mooring-session=x; mooring-session=y"},
    {"Cookie": "mooring-session=" + "x" * 4000},
    {"Cookie": "; ".join(["mooring-session=x"] * 1000)},
    {"Cookie": b"mooring-session=\xff; \xfe"},
    {"Cookie": "Mooring-Session=x; $Version=1"},
]


def path_of(endpoint: ApiEndpoint, **values: str) -> str:
    known = {"tenant": "1", "service": "Theirs%2FTheir", "id": "10.9.9.9:80", "version": "1"}
    given = {**known, **values}
    return endpoint.path.format(**{name: given.get(name, "x") for name in endpoint.parameters})


def named(endpoint: ApiEndpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


async def assert_unauthorized(
    admin: Admin, headers: Mapping[str, Any], endpoints: Sequence[ApiEndpoint] = GUARDED
) -> None:
    """Assert that these headers authenticate no caller, on any endpoint."""
    for endpoint in endpoints:
        answer = await admin.request(endpoint.method, path_of(endpoint), as_=None, headers=headers)
        assert answer.status_code == 401, (named(endpoint), headers)


def sample(number: int) -> Sequence[ApiEndpoint]:
    """Every fifth endpoint, with another start for each number. Authentication precedes everything
    else, so that not every combination needs a request."""
    return GUARDED[number % 5 :: 5]


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with Admin("memory://", folder=tmp_path, rates=UNLIMITED) as started:
        yield started


class TestUnauthenticated:
    async def test_anything_but_a_token_is_refused(self, admin: Admin):
        await assert_unauthorized(admin, WITHOUT[0])
        for number, headers in enumerate(WITHOUT):
            await assert_unauthorized(admin, headers, sample(number))

    async def test_a_revoked_token_is_refused(self, admin: Admin):
        body = {"name": "a", "role": "admin"}
        made = (await admin.post("/admin/tokens", body, as_="admin")).json()
        headers = {"Authorization": f"Bearer {made['token']}"}
        assert (await admin.get("/admin/tokens", as_=made["token"])).status_code == 200
        await admin.delete(f"/admin/tokens/{made['id']}", as_="admin")
        await assert_unauthorized(admin, headers)
        answer = await admin.post(
            "/admin/sessions",
            {"token": made["token"]},
            as_=None,
            headers={"Origin": admin.url},
        )
        assert answer.status_code == 401

    async def test_an_expired_token_is_refused(self, admin: Admin):
        token = await admin.token("admin", lasts=60)
        assert (await admin.get("/admin/tokens", as_=token)).status_code == 200
        later = now() + datetime.timedelta(seconds=61)
        admin.server.tokens._clock = lambda: later
        answer = await admin.get("/admin/tokens", as_=token)
        assert answer.status_code == 401
        assert (await admin.get("/admin/tokens", as_="admin")).status_code == 200

    async def test_a_token_or_session_of_another_server_is_refused(
        self, admin: Admin, tmp_path: Path
    ):
        async with Admin("memory://", folder=tmp_path / "other", rates=UNLIMITED) as other:
            await assert_unauthorized(admin, other.headers("admin"))
            async with other.browser() as browser:
                cookie = f"mooring-session={browser.cookies['mooring-session']}"
                await assert_unauthorized(admin, {"Cookie": cookie, "Origin": admin.url})

    async def test_a_token_outside_the_authorization_header_is_refused(self, admin: Admin):
        token = admin.tokens["admin"]
        basic = base64.b64encode(f"admin:{token}".encode()).decode()
        elsewhere: list[dict[str, str]] = [
            {"Authorization": f"Basic {basic}"},
            {"Authorization": f"Bearer Bearer {token}"},
            {"Authorization": f"Bearer\t{token}"},
            {"Authorization": f"Bearer {token[:-1]}"},
            {"Authorization": f"Bearer {token.swapcase()}"},
            {"Authorization": f'Bearer "{token}"'},
            {"Authorization": f"Bearer {token};"},
            {"X-Authorization": f"Bearer {token}"},
            {"Proxy-Authorization": f"Bearer {token}"},
            {"X-Api-Key": token},
            {"Cookie": f"Authorization=Bearer {token}; token={token}"},
            {"Cookie": f"mooring-session={token}"},
        ]
        for number, headers in enumerate(elsewhere):
            await assert_unauthorized(admin, headers, sample(number))
        for endpoint in GUARDED:
            query = {"token": token, "access_token": token, "authorization": f"Bearer {token}"}
            answer = await admin.request(endpoint.method, path_of(endpoint), as_=None, query=query)
            assert answer.status_code == 401


class TestLogin:
    async def test_a_code_is_valid_once_even_for_concurrent_requests(self, admin: Admin):
        code = await admin.server.sessions.issue(ADMIN)

        async def redeem() -> int:
            answer = await admin.post(
                "/login", as_=None, query={"code": code}, headers={"Origin": admin.url}
            )
            return answer.status_code

        statuses = await asyncio.gather(*(redeem() for _ in range(30)))
        assert sorted(statuses) == [303, *[401] * 29]

    async def test_a_session_id_chosen_by_another_is_never_used(self, admin: Admin):
        chosen = "chosen-by-somebody-else-" + "x" * 20
        async with admin.client() as browser:
            browser.cookies.set("mooring-session", chosen)
            code = await admin.server.sessions.issue(ADMIN)
            headers = {"Origin": admin.url}
            answer = await browser.post("/login", params={"code": code}, headers=headers)
            assert answer.status_code == 303
            assert chosen not in answer.headers["Set-Cookie"]
        await assert_unauthorized(admin, {"Cookie": f"mooring-session={chosen}"})

    async def test_session_ids_are_unique(self, admin: Admin):
        session_ids = set()
        for _ in range(5):
            async with admin.browser() as browser:
                session_ids.add(browser.cookies["mooring-session"])
        assert len(session_ids) == 5
        assert all(len(session_id) >= 43 for session_id in session_ids)

    async def test_redirects_never_lead_to_another_site(self, admin: Admin):
        elsewhere = "https://evil.example"
        for method, path in (
            ("GET", f"/login?next={elsewhere}"),
            ("GET", "/login?code=a%0d%0aLocation:%20https://evil.example"),
            ("POST", f"/login?code=x&next={elsewhere}"),
            ("GET", "//evil.example"),
            ("GET", "/%2f%2fevil.example"),
            ("GET", "/\\evil.example"),
            ("GET", f"/?next={elsewhere}"),
            ("POST", "/logout"),
        ):
            headers = {"Origin": admin.url, "Referer": elsewhere}
            answer = await admin.request(method, path, as_=None, headers=headers)
            assert "Location" not in answer.headers, path
            assert answer.status_code not in range(300, 400)
            assert "evil" not in str(answer.headers)


@pytest.fixture(params=["memory", "redis-7.0"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def shared(store_url: str, tmp_path: Path) -> AsyncIterator[Admin]:
    """A server with records inside and outside the scope; the latter contain the secret text."""
    async with Admin(store_url, folder=tmp_path, rates=UNLIMITED) as started:
        registry = started.hub.registry
        metadata = {SECRET: SECRET, "key": f"{SECRET}-value"}
        theirs = Instance(
            *(THEIRS, "10.9.9.9", 80),
            metadata=metadata,
            version=f"1.0-{SECRET}",
            zone=SECRET,
            protocol="http",
        )
        await registry.enter(theirs, ttl=3600)
        await registry.enter(Instance(f"Theirs/{SECRET}", "10.9.9.8", 80), ttl=3600)
        await registry.enter(Instance(SECRET, "10.9.9.7", 80), ttl=3600)
        await registry.enter(Instance(OURS, "10.0.0.1", 80), ttl=3600)

        def seen() -> bool:
            return len(started.fleet.names()) == 4

        await eventually(seen)
        drained = f"/admin/registry/services/Theirs%2F{SECRET}/instances/10.9.9.8:80"
        assert (await started.post(f"{drained}/drain?reason={SECRET}")).status_code == 200
        edit = {"set": {"key": SECRET}}
        service = "/admin/registry/services/Theirs%2FTheir"
        answer = await started.request("PATCH", f"{service}/instances/10.9.9.9:80/config", edit)
        assert answer.status_code == 200, answer.text
        if store_url.startswith("memory"):
            meta = {"code": SECRET, "name": f"{SECRET} Ltd"}
            document = {"meta": meta, "domain": {"primary": f"{SECRET}.example"}}
            answer = await started.put(f"/admin/tenants/1?reason={SECRET}", document)
            assert answer.status_code == 201, answer.text
            document = {"meta": {"code": "ours", "name": "Ours"}}
            assert (await started.put("/admin/tenants/2", document)).status_code == 201

        async def shown() -> bool:
            answers = [await started.get(path, as_="admin") for path in SHOWN]
            return all(SECRET in answer.text for answer in answers)

        await eventually(shown)
        yield started


def paths_of(endpoint: ApiEndpoint) -> list[str]:
    """All paths of an endpoint, inside and outside the scope."""
    if endpoint.path in QUERIES:
        return [endpoint.path + query for query in QUERIES[endpoint.path]]
    ours = path_of(endpoint, service="Ours%2FOur", id="10.0.0.1:80", tenant="2")
    return [*{path_of(endpoint), ours}]


class TestOutsideTheScope:
    """A token for the group Ours and the tenant 2."""

    async def test_no_response_contains_anything_outside_the_scope(self, shared: Admin):
        for role in ROLES:
            narrow = await shared.token(role, groups=["Ours"], tenants=[2])
            for endpoint in GUARDED:
                if endpoint.method not in SAFE or endpoint.path == "/admin/events":
                    continue
                for path in paths_of(endpoint):
                    answer = await shared.get(path, as_=narrow)
                    text = f"{answer.headers}{answer.text}"
                    assert SECRET not in text, (role, path, text)
                    # A refusal repeats the requested name.
                    assert "Their" not in text or answer.status_code == 403, (role, path, text)

    async def test_every_request_outside_the_scope_is_refused(self, shared: Admin):
        narrow = await shared.token("admin", groups=["Ours"], tenants=[2])
        for endpoint in GUARDED:
            if not {"service", "tenant"} & set(endpoint.parameters):
                continue
            answer = await shared.request(endpoint.method, path_of(endpoint), as_=narrow)
            assert answer.status_code == 403, named(endpoint)
            assert SECRET not in answer.text
            # Nor does it reveal whether the name exists.
            missing = path_of(endpoint, service="Theirs%2FMissing", tenant="99")
            other = await shared.request(endpoint.method, missing, as_=narrow)
            assert other.status_code == 403
            gone = other.text.replace("Theirs/Missing", "Theirs/Their").replace("99", "1")
            assert gone == answer.text

    async def test_the_stream_contains_nothing_outside_the_scope(self, shared: Admin):
        narrow = await shared.token("viewer", groups=["Ours"], tenants=[2])
        async with shared.client(narrow) as client:
            answer = await client.get("/admin/events?service=Theirs/Their")
            assert answer.status_code == 403
            async with client.stream("GET", "/admin/events") as stream:
                received = await self._until_ours_changes(shared, stream)
        assert SECRET not in received
        assert "Theirs" not in received

    async def _until_ours_changes(self, shared: Admin, stream: httpx.Response) -> str:
        received, registry = "", shared.hub.registry
        async with asyncio.timeout(PATIENCE):
            async for text in stream.aiter_text():
                if not received:
                    await registry.enter(Instance(f"Theirs/{SECRET}2", "10.9.9.6", 80), ttl=60)
                    await registry.deregister(THEIRS, "10.9.9.9:80")
                    await registry.enter(Instance("Ours/Second", "10.0.0.2", 80), ttl=60)
                received += text
                if "Ours/Second" in received:
                    return received
        raise AssertionError(received)

    async def test_a_service_token_sees_only_instances(self, shared: Admin):
        service = await shared.token("service", groups=["Ours"])
        for endpoint in GUARDED:
            path = path_of(endpoint, service="Ours%2FOur", id="10.0.0.1:80", tenant="2")
            answer = await shared.request(endpoint.method, path, as_=service)
            assert endpoint.needs.roles is not None
            if "service" not in endpoint.needs.roles:
                assert answer.status_code == 403, named(endpoint)

    async def test_similar_names_are_outside_the_scope(self, shared: Admin):
        narrow = await shared.token("admin", groups=["Ours"])
        for service in (
            *("ours%2FOur", "OURS%2FOur", "Ours%20%2FOur", "Ours%2F..%2FTheirs%2FTheir"),
            *("Our", "default%2FOur", "Ours%252FOur", "Ours%2FOur%2F", "%2FOurs%2FOur"),
            *("%EF%BC%AFurs%2FOur", "Ours%E2%80%8B%2FOur", "Ours%EF%BC%8FOur", ".%2FOurs"),
        ):
            answer = await shared.get(f"/admin/registry/services/{service}", as_=narrow)
            assert answer.status_code in (400, 403), service
