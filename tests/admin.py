"""The real HTTP server over a store, in this process on a free port, for tests of the API.

    async def test_services_are_listed(admin: Admin):          # fixture of tests/conftest.py
        answer = await admin.get("/admin/registry/services", as_="viewer")
        assert answer.status_code == 200

or, over any URL:

    async with Admin(store_url, folder=tmp_path) as admin:
        await admin.hub...                          # what the API looks at
        await admin.post("/admin/...", {"json": 1}, as_="operator")
        async with admin.client("service") as client:   # an httpx.AsyncClient with its token
            ...

There is a token for each role without a scope (`admin.tokens["viewer"]`); create more with
`await admin.token("operator", groups=["Common"], tenants=[7])`. `as_=None` sends no
credentials. Everything is as in `mooring serve`: the same application, limits, audit and uvicorn.
"""

from __future__ import annotations

import contextlib
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from mooring.hub import Hub, connect
from mooring.server.api import all_endpoints
from mooring.server.app import Application
from mooring.server.auth.authorization import Role
from mooring.server.auth.tokens import ADMIN
from mooring.server.context import Readiness, ServerContext, prepare, readiness_probes
from mooring.server.http_listener import listen
from mooring.server.lifecycle import serve_api
from mooring.server.live.state import Fleet
from mooring.server.settings import ServerSettings, checked
from tests.waiting import eventually

_TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without authorities: reading them takes as long as the rest of an Admin's start."""


class Admin:
    """`store_url` is any URL that `connect` accepts; `settings` are those of the configuration
    file."""

    def __init__(
        self,
        store_url: str,
        *,
        folder: Path,
        registry: str = "",
        roles: Collection[Role] = ("viewer", "operator", "service"),
        **settings: Any,
    ) -> None:
        """`roles` are those that get tokens, beside the admin."""
        self._roles = roles
        settings_file = {
            "store": store_url,
            "registry": registry,
            "data": str(folder / "data"),
            "http": "127.0.0.1:0",
            "etcd": "off",
            "cleanup": False,
            **settings,
        }
        self.settings = checked(msgspec.convert(settings_file, ServerSettings))
        self.tokens: dict[str, str] = {}
        """The bearer token of each role."""
        self.readiness = Readiness()
        self.server: ServerContext
        self.hub: Hub
        self.fleet: Fleet
        self.url = ""
        self._opened = contextlib.AsyncExitStack()
        self._client: httpx.AsyncClient

    async def __aenter__(self) -> Self:
        settings = self.settings
        async with contextlib.AsyncExitStack() as opened:
            self.server = prepare(settings, self.readiness)
            self.application = Application(
                self.server, all_endpoints(with_console=settings.console)
            )
            self.url = await opened.enter_async_context(listen(self.application, settings))
            self.tokens["admin"] = self.server.data_dir.read_admin_token()
            self._client = await opened.enter_async_context(self.client())
            self.hub = await opened.enter_async_context(
                connect(
                    settings.store,
                    registry=settings.registry,
                    settings=settings.registry_settings,
                    tenants_namespace=settings.tenants_namespace,
                )
            )
            await opened.enter_async_context(
                self.server.sharing(self.hub.store if settings.has_store else None)
            )
            for role in self._roles:
                self.tokens[role] = await self.token(role)
            await opened.enter_async_context(serve_api(self.server, self.hub))
            self.fleet = self.server.fleet
            opened.callback(self._stop)
            self.readiness.probes = tuple(readiness_probes(self.hub, settings))
            self._opened = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    def _stop(self) -> None:
        self.readiness.stopping = True
        self.application.end_streams()
        self.server.close()

    async def sees(self, service: str, id: str) -> None:
        """Wait until the server knows an instance."""

        def known() -> bool:
            service_state = self.fleet.service(service)
            return service_state is not None and id in service_state.instances

        await eventually(known, what=f"{service} {id} is known")

    async def token(
        self,
        role: Role,
        *,
        groups: Collection[str] = (),
        tenants: Collection[int] = (),
        lasts: float | None = 3600.0,
        name: str = "",
    ) -> str:
        """Create another token, and return its text."""
        _, text = await self.server.tokens.create(
            name or f"a-{role}", role, groups=groups, tenants=tenants, lasts=lasts
        )
        return text

    def client(self, as_: str | None = None) -> httpx.AsyncClient:
        """A separate client: with the token of a role, with this token, or without any."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers=self.headers(as_),
            timeout=60,
            trust_env=False,
            verify=_TRUST,
        )

    def headers(self, as_: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens.get(as_, as_)}"} if as_ else {}

    @contextlib.asynccontextmanager
    async def browser(self, token: str = ADMIN) -> AsyncIterator[httpx.AsyncClient]:
        """A browser on the server's own page, with a session of this token id."""
        async with self.client() as client:
            client.headers["Origin"] = self.url
            code = await self.server.sessions.issue(token)
            answer = await client.post("/login", params={"code": code})
            assert answer.status_code == 303, answer.text
            yield client

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        as_: str | None = "admin",
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        all_headers = {**self.headers(as_), **(headers or {})}
        content = None
        if body is not None:
            content = body if isinstance(body, bytes) else msgspec.json.encode(body)
            all_headers.setdefault("Content-Type", "application/json")
        if query:
            path += f"?{urllib.parse.urlencode(query)}"
        return await self._client.request(method, path, content=content, headers=all_headers)

    async def get(self, path: str, *, as_: str | None = "viewer", **named: Any) -> httpx.Response:
        return await self.request("GET", path, as_=as_, **named)

    async def post(
        self, path: str, body: object = None, *, as_: str | None = "operator", **named: Any
    ) -> httpx.Response:
        return await self.request("POST", path, body, as_=as_, **named)

    async def put(
        self, path: str, body: object = None, *, as_: str | None = "operator", **named: Any
    ) -> httpx.Response:
        return await self.request("PUT", path, body, as_=as_, **named)

    async def delete(
        self, path: str, *, as_: str | None = "operator", **named: Any
    ) -> httpx.Response:
        return await self.request("DELETE", path, as_=as_, **named)
