"""WSGI: an application that is registered in the process that serves it (`registration`), and knows
the tenant of each request (`tenants`)."""

from mooring.wsgi.registration import Registered, registered
from mooring.wsgi.tenants import TenantMiddleware

__all__ = ["Registered", "TenantMiddleware", "registered"]
