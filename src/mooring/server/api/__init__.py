"""The HTTP API: one module per resource, each with its `ENDPOINTS`. `endpoints` is the whole table,
with the OpenAPI document that describes it."""

from __future__ import annotations

from typing import Any

from mooring import __version__
from mooring.server.api import (
    audit,
    common_config,
    config,
    console,
    events,
    health,
    locks,
    login,
    operations,
    overview,
    prometheus,
    registration,
    registry,
    search,
    tenant_history,
    tenants,
    tokens,
)
from mooring.server.auth.authorization import ROLES, Need
from mooring.server.http.openapi import describe
from mooring.server.http.request import ApiCall
from mooring.server.http.response import Response, encode
from mooring.server.http.routing import ApiRoute

_MODULES = (
    audit,
    common_config,
    config,
    events,
    health,
    locks,
    operations,
    overview,
    prometheus,
    registration,
    registry,
    search,
    tenant_history,
    tenants,
    tokens,
)
_CONSOLE_MODULES = (console, login)

_openapi_documents: dict[tuple[bool, str], bytes] = {}
"""With and without the console, by the name of the session cookie."""


async def openapi(call: ApiCall) -> Response:
    console, cookie = call.server.settings.console, call.server.sessions.cookie
    if (console, cookie) not in _openapi_documents:
        table = endpoints(console=console)
        document = describe(table, title="Mooring", version=__version__, cookie=cookie)
        _openapi_documents[console, cookie] = encode(document)
    return Response(_openapi_documents[console, cookie])


_OPENAPI = ApiRoute(
    "GET",
    "/admin/openapi.json",
    Need(frozenset(ROLES)),
    openapi,
    "Get this OpenAPI document",
    answers={200: dict[str, Any]},
)


def endpoints(*, console: bool = True) -> tuple[ApiRoute, ...]:
    """The whole table. Without the console there are no pages and no sessions."""
    modules = (*_MODULES, *_CONSOLE_MODULES) if console else _MODULES
    table = (_OPENAPI, *(endpoint for module in modules for endpoint in module.ENDPOINTS))
    return table if console else (*table, *login.WITHOUT_CONSOLE)
