"""ASGI: an application that is registered while it serves, and knows the tenant of each request.

`registration` keeps it registered, `tenants` has the middleware, `protocol` the types.
"""

from mooring.asgi.registration import (
    GRACE,
    App,
    Application,
    Lifespan,
    Message,
    Receive,
    Scope,
    Send,
    Serving,
    State,
    lifespan,
    registered,
)
from mooring.asgi.tenants import TenantMiddleware

__all__ = [
    "GRACE",
    "App",
    "Application",
    "Lifespan",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "Serving",
    "State",
    "TenantMiddleware",
    "lifespan",
    "registered",
]
