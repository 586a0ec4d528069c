"""Access over HTTP, on the real server: only authenticated callers, only the server's own pages,
and within its limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import stat
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from mooring.server import app
from mooring.server import http_listener as listening
from mooring.server.api import all_endpoints
from mooring.server.api.endpoint import ApiEndpoint
from mooring.server.auth.authorization import ROLES
from mooring.server.auth.tokens import ADMIN
from mooring.server.http.routing import SAFE
from tests.admin import Admin
from tests.waiting import eventually

OPEN = {
    "GET /",
    "GET /favicon.ico",
    "GET /healthz",
    "GET /readyz",
    "GET /login",
    "POST /login",
    "POST /admin/sessions",
}
"""All endpoints without authentication, besides the files of the console."""

ALMOST = [
    "",
    "Bearer",
    "Bearer null",
    "Bearer undefined",
    "Bearer {id}",
    "Bearer {token}x",
    "bearer  {token} x",
    "Basic {token}",
    "Token {token}",
    "{token}",
    "Bearer {token}, Bearer {token}",
]

NONSENSE = [
    {},
    {"name": "a"},
    {"name": "", "role": "viewer"},
    {"name": "a\nb", "role": "viewer"},
    {"name": " ", "role": "viewer"},
    {"name": "x" * 101, "role": "viewer"},
    {"name": "a", "role": "root"},
    {"name": "a", "role": "viewer", "expires": "soon"},
    {"name": "a", "role": "viewer", "expires": "0s"},
    {"name": "a", "role": "viewer", "expires": "99999999999d"},
    {"name": "a", "role": "viewer", "groups": ["a/b"]},
    {"name": "a", "role": "viewer", "groups": "Common"},
    {"name": "a", "role": "viewer", "tenants": ["x"]},
    {"name": "a", "role": "viewer", "tenants": [-1]},
    {"name": "a", "role": "viewer", "tenants": [0]},
    {"name": "a", "role": "viewer", "more": 1},
    [],
    b"",
    b"{",
    b"\xff",
    b"[" * 10_000,
]

HOSTILE = ['"><img src=x>', "'", "javascript:alert(1)", "//evil.example", "a b", "é"]

FOREIGN = ["evil.example", "evil.example:7480", "localhost.evil.example", "127.0.0.2"]

PATHS = ["/", "/login", "/healthz", "/admin/whoami", "/nowhere"]

TRICKS = [
    "/healthz/../admin/tokens",
    "/healthz%2f..%2fadmin%2ftokens",
    "//admin/tokens",
    "/admin//tokens",
    "/./admin/tokens",
    "/admin/tokens/",
    "/admin/tokens%00",
    "/admin/tokens;.css",
    "/ADMIN/TOKENS",
    "/console/..%2f..%2fadmin/tokens",
    "/console/../admin/tokens",
    "/admin\\tokens",
    "http://127.0.0.1/admin/tokens",
    "http://evil.example/admin/tokens",
    "/console/..%2f..%2fapp.py",
]

OVERRIDES = [
    "X-Original-URL: /admin/tokens",
    "X-Rewrite-URL: /admin/tokens",
    "X-HTTP-Method-Override: GET",
]

DISHONEST = [
    b"GET /admin/whoami HTTP/1.0\r\n\r\n",
    b"GET /admin/whoami HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"POST /admin/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /admin/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
]

OTHERS = [None, "null", "http://evil.example"]

TABLE = all_endpoints()
GUARDED = [endpoint for endpoint in TABLE if endpoint.needs.roles is not None]
WRITES = [endpoint for endpoint in GUARDED if endpoint.method not in SAFE]


def named(endpoint: ApiEndpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def path_of(endpoint: ApiEndpoint) -> str:
    values = {"tenant": "1", "service": "Common%2FAuth"}
    return endpoint.path.format(**{name: values.get(name, "x") for name in endpoint.parameters})


@pytest.fixture
def backend() -> str:
    return "memory"


@contextlib.asynccontextmanager
async def raw(admin: Admin) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that can send any bytes."""
    host, port = admin.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def status_of(admin: Admin, request: bytes) -> int:
    """The status of the response to a raw request."""
    async with raw(admin) as (reader, writer):
        writer.write(request)
        line = await reader.readline()
        return int(line.split()[1])


class TestMissingAndWrongTokens:
    def test_open_endpoints_are_listed_here(self):
        open_endpoints = {named(endpoint) for endpoint in TABLE if endpoint.needs.roles is None}
        assert {name for name in open_endpoints if not name.startswith("GET /console/")} == OPEN

    async def test_all_other_endpoints_are_closed(self, admin: Admin):
        for endpoint in GUARDED:
            answer = await admin.request(endpoint.method, path_of(endpoint), as_=None)
            assert answer.status_code == 401, named(endpoint)
            assert answer.json()["error"]["code"] == "unauthenticated"
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")

    async def test_an_almost_correct_header_is_refused(self, tmp_path: Path):
        async with Admin("memory://", folder=tmp_path, rates={"failures": 0}) as admin:
            token = admin.tokens["viewer"]
            id = (await admin.get("/admin/whoami", as_=token)).json()["token"]
            for authorization in ALMOST:
                headers = {"Authorization": authorization.format(token=token, id=id)}
                answer = await admin.get("/admin/whoami", as_=None, headers=headers)
                assert answer.status_code == 401, authorization

    async def test_a_token_outside_the_header_is_ignored(self, admin: Admin):
        token = admin.tokens["admin"]
        for name in ("access_token", "token"):
            answer = await admin.get("/admin/whoami", as_=None, query={name: token})
            assert answer.status_code == 401
        headers = {"Cookie": f"mooring-session={token}", "X-Forwarded-User": "admin"}
        assert (await admin.get("/admin/whoami", as_=None, headers=headers)).status_code == 401

    async def test_a_wrong_token_is_refused_despite_a_valid_session(self, admin: Admin):
        async with admin.browser() as browser:
            headers = {"Authorization": "Bearer wrong"}
            assert (await browser.get("/admin/whoami", headers=headers)).status_code == 401

    async def test_two_tokens_are_refused(self, admin: Admin):
        line = f"Authorization: Bearer {admin.tokens['admin']}\r\n"
        text = f"GET /admin/whoami HTTP/1.1\r\nHost: localhost\r\n{line}{line}\r\n"
        assert await status_of(admin, text.encode()) == 401

    async def test_wrong_tokens_are_limited_but_the_right_one_is_accepted(self, admin: Admin):
        refused = 0
        while (await admin.get("/admin/whoami", as_="wrong" * 10)).status_code == 401:
            refused += 1
        assert 10 <= refused < 100
        assert (await admin.get("/admin/whoami")).status_code == 200


class TestRolesAndScopes:
    async def test_an_insufficient_role_is_refused_everywhere(self, admin: Admin):
        for endpoint in GUARDED:
            assert endpoint.needs.roles is not None
            for role in set(ROLES) - endpoint.needs.roles:
                answer = await admin.request(endpoint.method, path_of(endpoint), as_=role)
                assert answer.status_code == 403, (named(endpoint), role)
                assert answer.json()["error"]["code"] == "forbidden"

    async def test_a_scope_holds_on_every_path(self, admin: Admin):
        elsewhere = await admin.token("admin", groups=["Elsewhere"], tenants=[2])
        for endpoint in GUARDED:
            if endpoint.needs.within == "anywhere":
                continue
            answer = await admin.request(endpoint.method, path_of(endpoint), as_=elsewhere)
            assert answer.status_code == 403, named(endpoint)

    async def test_an_encoded_path_does_not_leave_the_scope(self, admin: Admin):
        here = await admin.token("admin", groups=["Common"])
        for endpoint in GUARDED:
            if endpoint.needs.within != "group":
                continue
            for service in ("Other%2FAuth", "Common%2F..%2FOther%2FAuth", "%43ommonX%2FAuth"):
                path = path_of(endpoint).replace("Common%2FAuth", service)
                answer = await admin.request(endpoint.method, path, as_=here)
                assert answer.status_code in (400, 403), (named(endpoint), service)

    async def test_whoami_returns_the_principal(self, admin: Admin):
        token = await admin.token("operator", groups=["b", "a"], tenants=[3], name="ann")
        principal = (await admin.get("/admin/whoami", as_=token)).json()
        assert (principal["name"], principal["role"], principal["session"]) == (
            "ann",
            "operator",
            False,
        )
        assert (principal["groups"], principal["tenants"]) == (["a", "b"], [3])


class TestTokens:
    async def test_a_token_is_created_used_listed_and_revoked(self, admin: Admin):
        wanted = {"name": "ann", "role": "viewer", "groups": ["Common"], "expires": "1h"}
        answer = await admin.post("/admin/tokens", wanted, as_="admin")
        assert answer.status_code == 201
        made = answer.json()
        assert (await admin.get("/admin/whoami", as_=made["token"])).json()["name"] == "ann"
        listed = (await admin.get("/admin/tokens", as_="admin")).text
        assert made["token"] not in listed
        (shown,) = [token for token in json.loads(listed) if token["id"] == made["id"]]
        assert shown == {
            **{name: value for name, value in made.items() if name != "token"},
            "lastUsed": shown["lastUsed"],
        }
        assert shown["lastUsed"] is not None
        answer = await admin.delete(f"/admin/tokens/{made['id']}", as_="admin")
        assert (answer.status_code, answer.json()["state"]) == (200, "revoked")
        assert (await admin.get("/admin/whoami", as_=made["token"])).status_code == 401

    async def test_an_expired_token_is_refused(self, admin: Admin):
        token = await admin.token("viewer", lasts=0.2)

        async def refused() -> bool:
            return (await admin.get("/admin/whoami", as_=token)).status_code == 401

        await eventually(refused)

    async def test_invalid_tokens_are_not_created(self, admin: Admin):
        for body in NONSENSE:
            answer = await admin.post("/admin/tokens", body, as_="admin")
            assert answer.status_code == 400, body
            assert answer.json()["error"]["message"]

    async def test_unknown_tokens_and_the_admin_token_cannot_be_revoked(self, admin: Admin):
        answer = await admin.delete("/admin/tokens/nothing", as_="admin")
        assert answer.status_code == 404
        answer = await admin.delete(f"/admin/tokens/{ADMIN}", as_="admin")
        assert answer.status_code == 409
        assert (await admin.get("/admin/whoami", as_="admin")).status_code == 200


class TestLogin:
    async def test_a_link_logs_in_once(self, admin: Admin):
        link = (await admin.post("/admin/login-codes", as_="viewer")).json()["url"]
        assert link.startswith(f"{admin.url}/login?code=")
        async with admin.client() as browser:
            for _ in range(2):  # opening it does not consume it
                page = await browser.get(link)
                assert page.status_code == 200
                assert "<form" in page.text
                assert page.headers["Referrer-Policy"] == "same-origin"
            browser.headers["Origin"] = admin.url
            answer = await browser.post(link)
            assert (answer.status_code, answer.headers["Location"]) == (303, "/")
            principal = (await browser.get("/admin/whoami")).json()
            assert (principal["role"], principal["session"]) == ("viewer", True)
        async with admin.client() as other:
            other.headers["Origin"] = admin.url
            answer = await other.post(link)
            assert answer.status_code == 401
            assert "Set-Cookie" not in answer.headers

    async def test_the_cookie_is_unavailable_to_scripts_and_other_sites(self, admin: Admin):
        async with admin.client() as browser:
            code = await admin.server.sessions.issue(ADMIN)
            headers = {"Origin": admin.url}
            answer = await browser.post("/login", params={"code": code}, headers=headers)
        flags = answer.headers["Set-Cookie"].split("; ")[1:]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(flags)
        assert not any(flag.startswith("Domain") for flag in flags)

    async def test_another_site_cannot_log_in(self, admin: Admin):
        for origin in OTHERS:
            code = await admin.server.sessions.issue(ADMIN)
            headers = {"Origin": origin} if origin else {}
            answer = await admin.post("/login", as_=None, query={"code": code}, headers=headers)
            assert answer.status_code == 403
            body = {"token": admin.tokens["admin"]}
            answer = await admin.post("/admin/sessions", body, as_=None, headers=headers)
            assert answer.status_code == 403

    async def test_a_token_starts_a_session(self, admin: Admin):
        async with admin.client() as browser:
            browser.headers["Origin"] = admin.url
            answer = await browser.post("/admin/sessions", json={"token": admin.tokens["viewer"]})
            assert answer.status_code == 204
            assert (await browser.get("/admin/whoami")).json()["role"] == "viewer"
            answer = await browser.post("/admin/sessions", json={"token": "wrong"})
            assert answer.status_code == 401

    async def test_a_session_cannot_start_another(self, admin: Admin):
        async with admin.browser() as browser:
            assert (await browser.post("/admin/login-codes")).status_code == 403

    async def test_logging_out_ends_the_session(self, admin: Admin):
        async with admin.browser() as browser:
            cookie = browser.cookies["mooring-session"]
            answer = await browser.post("/logout")
            assert answer.status_code == 204
            assert "Max-Age=0" in answer.headers["Set-Cookie"]
        headers = {"Cookie": f"mooring-session={cookie}"}
        assert (await admin.get("/admin/whoami", as_=None, headers=headers)).status_code == 401

    async def test_a_second_session_cookie_invalidates_both(self, admin: Admin):
        async with admin.browser() as browser, admin.browser() as other:
            cookies = [client.cookies["mooring-session"] for client in (browser, other)]
            assert (await browser.get("/admin/whoami")).status_code == 200
        headers = {"Cookie": "; ".join(f"mooring-session={cookie}" for cookie in cookies)}
        assert (await admin.get("/admin/whoami", as_=None, headers=headers)).status_code == 401

    async def test_a_session_ends_with_its_token(self, admin: Admin):
        made = (
            await admin.post("/admin/tokens", {"name": "a", "role": "viewer"}, as_="admin")
        ).json()
        async with admin.browser(made["id"]) as browser:
            assert (await browser.get("/admin/whoami")).status_code == 200
            await admin.delete(f"/admin/tokens/{made['id']}", as_="admin")
            assert (await browser.get("/admin/whoami")).status_code == 401

    async def test_the_page_contains_no_text_of_the_link(self, admin: Admin):
        for code in HOSTILE:
            answer = await admin.get("/login", as_=None, query={"code": code})
            assert answer.status_code == 200
            assert code not in answer.text
            assert "<form" not in answer.text

    async def test_a_login_does_not_redirect_elsewhere(self, admin: Admin):
        code = await admin.server.sessions.issue(ADMIN)
        for name in ("next", "redirect", "url"):
            query = {"code": code, name: "https://evil.example"}
            headers = {"Origin": admin.url}
            answer = await admin.post("/login", as_=None, query=query, headers=headers)
            assert answer.status_code == 400

    async def test_wrong_codes_are_limited(self, admin: Admin):
        headers = {"Origin": admin.url}
        refused = 0
        while (await admin.post("/login?code=x", as_=None, headers=headers)).status_code == 401:
            refused += 1
        assert 10 <= refused < 100
        code = await admin.server.sessions.issue(ADMIN)
        answer = await admin.post("/login", as_=None, query={"code": code}, headers=headers)
        assert answer.status_code == 303


class TestOtherSites:
    async def test_a_foreign_host_is_misdirected_on_every_path(self, admin: Admin):
        for host in FOREIGN:
            for path in ("/", "/healthz", "/login", "/admin/whoami", "/nowhere"):
                answer = await admin.get(path, as_="admin", headers={"Host": host})
                assert answer.status_code == 421, path
                assert answer.json()["error"]["code"] == "misdirected"

    async def test_headers_of_proxies_change_nothing(self, admin: Admin):
        headers = {"X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example"}
        link = (await admin.post("/admin/login-codes", as_="admin", headers=headers)).json()["url"]
        assert link.startswith(admin.url)
        headers = {"Host": "evil.example", "X-Forwarded-Host": "127.0.0.1"}
        assert (await admin.get("/healthz", as_=None, headers=headers)).status_code == 421

    async def test_a_configured_host_is_accepted(self, tmp_path: Path):
        async with Admin("memory://", folder=tmp_path, hosts=["mooring.example"]) as admin:
            headers = {"Host": "mooring.example:7480"}
            assert (await admin.get("/healthz", as_=None, headers=headers)).status_code == 200

    async def test_a_session_cannot_write_from_another_page(self, admin: Admin):
        async with admin.browser() as browser:
            for endpoint in WRITES:
                for origin in ("http://evil.example", "null", "http://localhost:1", None):
                    headers = {"Origin": origin} if origin else {}
                    request = browser.build_request(
                        endpoint.method,
                        path_of(endpoint),
                        headers={**headers, "Content-Length": "0"},
                    )
                    if origin is None:
                        del request.headers["Origin"]
                    answer = await browser.send(request)
                    assert answer.status_code == 403, (named(endpoint), origin)
                    assert answer.json()["error"]["code"] == "foreign_origin"

    async def test_a_session_cannot_write_with_the_media_type_of_a_form(self, admin: Admin):
        body = json.dumps({"name": "evil", "role": "admin"}).encode()
        async with admin.browser() as browser:
            for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                headers = {"Content-Type": media}
                answer = await browser.post("/admin/tokens", content=body, headers=headers)
                assert answer.status_code == 415
        assert "evil" not in (await admin.get("/admin/tokens", as_="admin")).text

    async def test_a_foreign_page_cannot_use_a_token(self, admin: Admin):
        headers = {"Origin": "http://evil.example"}
        body = {"name": "evil", "role": "admin"}
        answer = await admin.post("/admin/tokens", body, as_="admin", headers=headers)
        assert answer.status_code == 403

    async def test_preflight_requests_of_other_sites_are_refused(self, admin: Admin):
        headers = {
            "Origin": "http://evil.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        answer = await admin.request("OPTIONS", "/admin/tokens", as_=None, headers=headers)
        assert answer.status_code == 405
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]

    async def test_every_response_has_security_headers(self, admin: Admin):
        for path in PATHS:
            answer = await admin.get(path, as_=None)
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert "server" not in answer.headers


class TestPathsAndHeads:
    async def test_malformed_paths_do_not_bypass_access_control(self, admin: Admin):
        for path in TRICKS:
            text = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            assert await status_of(admin, text.encode()) in (400, 401, 404, 405)

    async def test_override_headers_do_not_change_the_path_or_method(self, admin: Admin):
        for line in OVERRIDES:
            text = f"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n"
            assert await status_of(admin, text.encode()) == 404

    async def test_malformed_requests_are_refused_and_the_server_survives(self, admin: Admin):
        for request_ in DISHONEST:
            assert await status_of(admin, request_) in (400, 401, 404, 405, 421)
            assert (await admin.get("/healthz")).status_code == 200

    async def test_an_endless_request_head_is_cut_off(self, admin: Admin):
        async with raw(admin) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    writer.write(b"X-Filler: " + b"x" * 1000 + b"\r\n")
                    await writer.drain()
            with contextlib.suppress(ConnectionResetError):
                line = await reader.readline()
                assert line == b"" or b"431" in line
        assert (await admin.get("/healthz")).status_code == 200

    async def test_the_server_does_not_wait_for_an_incomplete_head(
        self, admin: Admin, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(listening, "HEAD_TIMEOUT", 0.2)
        for beginning in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
            async with raw(admin) as (reader, writer):
                writer.write(beginning)
                assert b"408" in await reader.readline()

    async def test_upgrades_are_ignored(self, admin: Admin):
        text = (
            "GET /admin/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n"
        )
        assert await status_of(admin, text.encode()) == 401


class TestLimits:
    async def test_a_body_over_the_limit_is_refused(self, admin: Admin):
        small = {"name": "x", "role": "viewer"}
        large = json.dumps({**small, "groups": ["g" * 200] * 6000}).encode()
        assert len(large) > 1024 * 1024
        answer = await admin.post("/admin/tokens", large, as_="admin")
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "too_large"
        assert (await admin.post("/admin/tokens", small, as_="admin")).status_code == 201

    async def test_the_server_does_not_wait_for_a_missing_body(
        self, admin: Admin, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(app, "_BODY_TIMEOUT", 0.2)
        async with raw(admin) as (reader, writer):
            line = f"Authorization: Bearer {admin.tokens['admin']}\r\n"
            writer.write(
                b"POST /admin/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"
                + line.encode()
                + b"Content-Type: application/json\r\n\r\n{"
            )
            assert b"408" in await reader.readline()

    async def test_a_body_without_a_token_is_not_read(self, admin: Admin):
        async with raw(admin) as (reader, writer):
            writer.write(
                b"POST /admin/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
                b"Content-Type: application/json\r\n\r\n"
            )
            assert b"401" in await reader.readline()

    async def test_writes_are_limited(self, tmp_path: Path):
        async with Admin("memory://", folder=tmp_path, rates={"writes": 0.01}) as admin:
            statuses = [
                (await admin.post("/admin/login-codes", as_="viewer")).status_code for _ in range(3)
            ]
            assert statuses == [201, 429, 429]
            assert (await admin.post("/admin/login-codes", as_="admin")).status_code == 201
            statuses = [
                (await admin.post("/admin/tokens", as_="operator")).status_code for _ in range(3)
            ]
            assert statuses == [403, 429, 429]  # refused requests count too
            assert (await admin.get("/admin/whoami")).status_code == 200

    async def test_requests_are_limited(self, tmp_path: Path):
        async with Admin("memory://", folder=tmp_path, rates={"reads": 0.01}) as admin:
            assert (await admin.get("/healthz", as_=None)).status_code == 200
            answer = await admin.get("/healthz", as_=None)
            assert answer.status_code == 429
            assert 0 < int(answer.headers["Retry-After"]) <= 100


class TestAudit:
    async def test_every_write_is_recorded_with_its_caller_and_action(self, admin: Admin):
        body = {"name": "ann", "role": "viewer"}
        made = (await admin.post("/admin/tokens", body, as_="admin")).json()
        await admin.post("/admin/tokens", body, as_="operator")
        await admin.post("/admin/tokens", body, as_=None)
        async with admin.browser() as browser:
            await browser.delete(f"/admin/tokens/{made['id']}")
        entries = (await admin.get("/admin/audit", as_="admin")).json()
        assert [
            (entry["actor"], entry["method"], entry["path"], entry["status"]) for entry in entries
        ] == [
            ("admin", "DELETE", f"/admin/tokens/{made['id']}", 200),
            ("admin", "POST", "/login", 303),
            ("anonymous", "POST", "/admin/tokens", 401),
            ("a-operator", "POST", "/admin/tokens", 403),
            ("admin", "POST", "/admin/tokens", 201),
        ]
        assert entries[0]["session"]
        assert entries[0]["from"] == "127.0.0.1"
        assert entries[-1]["notes"] == {"id": made["id"], "name": "ann", "role": "viewer"}
        kept = admin.server.data_dir.path / "audit.jsonl"
        assert made["token"] not in kept.read_text()
        assert "code=" not in kept.read_text()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600

    async def test_the_audit_log_is_paged_and_filtered(self, admin: Admin):
        for _ in range(5):
            await admin.post("/admin/login-codes", as_="viewer")
            await admin.post("/admin/tokens", as_="viewer")
        read: list[str] = []
        path = "/admin/audit?actor=a-viewer&refused=true&limit=2"
        while path:
            answer = await admin.get(path, as_="admin")
            assert {entry["status"] for entry in answer.json()} == {403}
            read += [entry["id"] for entry in answer.json()]
            path = answer.links.get("next", {}).get("url", "")
        assert len(read) == len(set(read)) == 5
        assert read == sorted(read, reverse=True)
        assert (await admin.get("/admin/audit?actor=nobody-else", as_="admin")).json() == []


class TestStart:
    async def test_the_server_reports_that_it_is_starting(self, admin: Admin):
        admin.server.close()
        admin.readiness.probes = None
        assert (await admin.get("/healthz", as_=None)).status_code == 200
        answer = await admin.get("/readyz", as_=None)
        assert (answer.status_code, answer.text) == (503, "starting\n")
        assert (await admin.get("/admin/whoami")).status_code == 200


async def test_over_tls_the_cookie_is_secure(tmp_path: Path, certificates: Path):
    tls = {"cert": str(certificates / "server.pem"), "key": str(certificates / "server.key")}
    trust = ssl.create_default_context(cafile=certificates / "ca.pem")
    async with Admin("memory://", folder=tmp_path, tls=tls) as admin:
        assert admin.url.startswith("https://")
        async with httpx.AsyncClient(base_url=admin.url, verify=trust, trust_env=False) as browser:
            code = await admin.server.sessions.issue(ADMIN)
            answer = await browser.post(
                f"/login?code={urllib.parse.quote(code)}", headers={"Origin": admin.url}
            )
            assert answer.status_code == 303
            assert "; Secure" in answer.headers["Set-Cookie"]
            assert answer.headers["Set-Cookie"].startswith("__Host-")
            assert (await browser.get("/admin/whoami")).status_code == 200
            document = (await browser.get("/admin/openapi.json")).json()
            session = document["components"]["securitySchemes"]["session"]
            assert session["name"] == admin.server.sessions.cookie == "__Host-mooring-session"
            plain = admin.url.replace("https", "http")
            refused = await browser.post("/logout", headers={"Origin": plain})
            assert refused.status_code == 403


async def test_without_the_console_there_are_no_sessions(tmp_path: Path):
    async with Admin("memory://", folder=tmp_path, console=False) as admin:
        for path in ("/", "/login"):
            assert (await admin.get(path, as_=None)).status_code == 404
        assert (await admin.post("/admin/login-codes", as_=None)).status_code == 401
        answer = await admin.post("/admin/login-codes", as_="admin")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "console_off")
        assert (await admin.get("/admin/whoami")).status_code == 200


async def test_openapi_describes_every_endpoint(admin: Admin):
    document = (await admin.get("/admin/openapi.json")).json()
    described = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert described == {named(endpoint) for endpoint in TABLE}


async def test_an_internal_error_is_reported_without_details(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(*_: object) -> None:
        raise RuntimeError("hunter2")

    monkeypatch.setattr(admin.server.tokens, "listed", broken)
    answer = await admin.get("/admin/tokens", as_="admin")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "hunter2" not in answer.text
    assert "GET /admin/tokens failed" in caplog.text
