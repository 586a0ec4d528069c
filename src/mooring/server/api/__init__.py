"""The HTTP API: one module per resource, each with its `endpoints`."""

from __future__ import annotations

from mooring.server.api import (
    access,
    config,
    console,
    events,
    locks,
    monitoring,
    operations,
    overview,
    registration,
    registry,
    search,
    shared_settings,
    tenant_history,
    tenants,
)
from mooring.server.api.endpoint import ApiEndpoint
from mooring.server.api.openapi import openapi_endpoints

_MODULES = (
    access,
    shared_settings,
    config,
    events,
    locks,
    monitoring,
    operations,
    overview,
    registration,
    registry,
    search,
    tenant_history,
    tenants,
)


def all_endpoints(*, with_console: bool = True) -> tuple[ApiEndpoint, ...]:
    """All endpoints; without the console, those of its files and sessions are missing."""
    endpoints = [endpoint for module in _MODULES for endpoint in module.endpoints]
    endpoints += console.endpoints if with_console else console.endpoints_when_off
    return (*openapi_endpoints(endpoints), *endpoints)
