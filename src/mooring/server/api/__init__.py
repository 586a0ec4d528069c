"""One module a noun, each with its `ENDPOINTS`; `endpoints()` is the whole table."""

from __future__ import annotations

from mooring.server.api import (
    audit,
    console,
    events,
    locks,
    login,
    openapi,
    overview,
    probes,
    prometheus,
    registry,
    search,
    tenant_history,
    tenants,
    tokens,
)
from mooring.server.api import brakes as braking
from mooring.server.api import common_config as shared
from mooring.server.api import config as configuring
from mooring.server.api import operations as operating
from mooring.server.api import registration as registering
from mooring.server.http.routing import Endpoint

_MODULES = (
    audit,
    braking,
    configuring,
    console,
    events,
    locks,
    login,
    openapi,
    operating,
    overview,
    probes,
    prometheus,
    registering,
    registry,
    search,
    shared,
    tenant_history,
    tenants,
    tokens,
)
_OF_THE_CONSOLE = (console, login)


def endpoints(*, console: bool = True) -> tuple[Endpoint, ...]:
    """The whole table; without the `console` there are no pages and no sessions."""
    modules = [each for each in _MODULES if console or each not in _OF_THE_CONSOLE]
    found = tuple(endpoint for module in modules for endpoint in module.ENDPOINTS)
    return found if console else (*found, *login.WITHOUT_CONSOLE)
