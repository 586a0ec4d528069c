"""The tenant that the code at hand works for: of a request, or of a job that says so.

It is a context variable. Tasks and threads that copy their context (`asyncio.create_task`,
`asyncio.to_thread`, Starlette's background tasks) keep the tenant they were started with; two
requests at once never see each other's.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from mooring.errors import NotConfigured

if TYPE_CHECKING:
    from mooring.tenants.read.tenant import Tenant

_tenant: ContextVar[Tenant | None] = ContextVar("mooring.tenant", default=None)


def current() -> Tenant:
    """The tenant of this request, as it was when the request came. Raises `NotConfigured` where
    there is none."""
    tenant = _tenant.get()
    if tenant is None:
        raise NotConfigured(
            "there is no current tenant: this is outside of a request, or the request named none; "
            "a TenantMiddleware sets it, and acting_for(tenant) does for other code"
        )
    return tenant


def current_or_none() -> Tenant | None:
    """The same for code that may run without a tenant."""
    return _tenant.get()


class acting_for:
    """Make a tenant the current one for a while, in a job or a test; None: no tenant is.

    with acting_for(tenants.get(7)):
        ...
    """

    # A class, for a generator would take four times as long, at each request.
    __slots__ = ("_tenant", "_token")

    def __init__(self, tenant: Tenant | None) -> None:
        self._tenant = tenant

    def __enter__(self) -> None:
        self._token = _tenant.set(self._tenant)

    def __exit__(self, *_: object) -> None:
        _tenant.reset(self._token)
