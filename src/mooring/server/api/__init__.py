"""One module a noun, each with its `ENDPOINTS`; `endpoints()` is the whole table."""

from __future__ import annotations

from mooring.server.api import console
from mooring.server.http.endpoint import Endpoint

_MODULES = (console,)


def endpoints() -> tuple[Endpoint, ...]:
    return tuple(endpoint for module in _MODULES for endpoint in module.ENDPOINTS)
