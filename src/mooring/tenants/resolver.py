"""Which tenant a request is for, and whether it may go on: decided without I/O.

A request names its tenant in the way that `common/resolver` says:

    header  `X-Tenant-ID: 7` or `X-Tenant-ID: acme`       digits are an id, anything else a code
    query   `?tenant=acme`                                likewise
    path    `/acme/orders`: the segment of an index from 0, empty ones not counted; likewise
    host    numeric: the first label is the id (`7.example.com`); code: it is the code;
            domain: the whole host is one of a tenant's

Codes and hosts are the same in any case. What a request says twice it must say alike, and the host
it says once: a request that two readers could understand differently is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict, get_args
from urllib.parse import unquote_plus

import msgspec

from mooring.errors import InvalidRequest, NotConfigured, Unavailable
from mooring.formatting import quoted
from mooring.names import nearest
from mooring.tenants.hosts import host_of
from mooring.tenants.keys import is_id
from mooring.tenants.model import Resolver, Status, Tenant

if TYPE_CHECKING:
    from mooring.tenants.model import Tenant


log = logging.getLogger(__name__)

REFUSED: tuple[Status, ...] = ("inactive", "suspended")
"""Tenants of which status are turned away, unless told otherwise."""

Code = Literal[
    "tenant_missing",
    "tenant_ambiguous",
    "tenant_malformed",
    "tenant_unknown",
    "tenant_inactive",
    "tenant_suspended",
    "tenants_unavailable",
]

_DEFAULT = Resolver()
_STATUSES: tuple[Status, ...] = get_args(Status)

_LONGEST = 255
"""Letters of a tenant's name in a request. What is longer is no name, and is not echoed."""


class Request(Protocol):
    """What is looked at of a request. Text is decoded as UTF-8, wrong bytes replaced."""

    @property
    def path(self) -> str:
        """Below where the application is mounted, percent-decoded."""

    @property
    def query(self) -> str:
        """As it was sent, without the question mark."""

    def header(self, name: str) -> Sequence[str]:
        """The values of a header, one for each time it was sent."""


class Lookup(Protocol):
    """What is asked of the tenants: `Tenants` answers it."""

    @property
    def resolver(self) -> Resolver | None: ...

    def get(self, id: int, /) -> Tenant | None: ...

    def by_code(self, code: str, /) -> int | None: ...

    def by_host(self, host: str, /) -> int | None: ...


Source = Lookup | Callable[[], Lookup | None]
"""The tenants, or a function that has them: None, or `Unavailable`, while nothing was loaded."""


class TenantReference(msgspec.Struct, frozen=True):
    """What a request calls its tenant."""

    by: Literal["id", "code", "host"]
    name: str

    @property
    def shown(self) -> int | str:
        return int(self.name) if self.by == "id" and is_id(self.name) else self.name


class TenantRejection(msgspec.Struct, frozen=True):
    """Why a request may not go on, as it is told to who sent it."""

    status: int
    code: Code
    message: str
    tenant: int | str | None = None
    """What the request called it; None where it named none."""

    @property
    def body(self) -> bytes:
        error = {"code": self.code, "message": self.message, "tenant": self.tenant}
        return msgspec.json.encode({"error": error})

    @property
    def headers(self) -> list[tuple[str, str]]:
        """A cache must not keep it: what is refused now may be there in a moment."""
        return [
            ("content-type", "application/json"),
            ("content-length", str(len(self.body))),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
        ]


UNAVAILABLE = TenantRejection(
    503, "tenants_unavailable", "the tenants are not loaded yet: try again"
)
UNRESOLVED = TenantRejection(
    503,
    "tenants_unavailable",
    "how a request names its tenant cannot be told: the setting common/resolver is unreadable",
)
"""The default in its place could let a client choose the tenant that its host is to decide."""


class AdmissionSettings(TypedDict, total=False):
    """The arguments of `Admission`, for the middlewares that pass them on."""

    resolver: Resolver | None
    refuse: Collection[Status]
    required: bool
    host_header: str
    exempt: Collection[str]


class Admission:
    """Who is let in. Raises `InvalidRequest` for settings that make no sense.

    `resolver` says how a request names its tenant; None: what the store says at that moment.
    `refuse` are the statuses that are turned away; one that is not known counts as inactive.
    `required=False` lets a request go on that names no tenant. One that names an unknown or a
    refused tenant is turned away all the same; but every request has a host, so one that is no
    tenant's (by `domain` or `code`) names none.
    `host_header` is where the host is taken from: another than `host` only behind a proxy that
    overwrites it.
    `exempt` are paths that need no tenant, with all below them: `/health` is not `/healthy`.
    """

    def __init__(
        self,
        *,
        resolver: Resolver | None = None,
        refuse: Collection[Status] = REFUSED,
        required: bool = True,
        host_header: str = "host",
        exempt: Collection[str] = (),
    ) -> None:
        if isinstance(refuse, str) or isinstance(exempt, str):
            raise InvalidRequest("give a collection of statuses or paths, not one text")
        for status in refuse:
            if status not in _STATUSES:
                raise InvalidRequest(
                    f"{quoted(status)} is no status of a tenant{nearest(status, _STATUSES)}"
                )
        for path in exempt:
            if not path.startswith("/") or not path.strip("/"):
                raise InvalidRequest(
                    f"{quoted(path)} cannot be exempt: write a path like '/health'"
                )
        self._resolver, self._required = resolver, required
        self._refuse = frozenset(refuse)
        self._host_header = host_header
        self._exempt = tuple(path.rstrip("/") for path in exempt)
        self._told = ""
        """Why all are turned away, as it was logged."""

    def decide(self, source: Source | None, request: Request) -> Tenant | TenantRejection | None:
        """The request's tenant; None: it goes on without one."""
        if self._exempt and self.exempts(request.path):
            return None
        tenants, why = _loaded(source)
        if tenants is None:
            return self._turned_away(UNAVAILABLE, why)
        resolver = tenants.resolver if self._resolver is None else self._resolver
        if resolver is None:
            return self._turned_away(UNRESOLVED)
        self._told = ""
        named = tenant_reference(resolver, request, host_header=self._host_header)
        if isinstance(named, TenantRejection):
            passes = named.code == "tenant_missing" and not self._required
            return None if passes else named
        tenant = find(tenants, named)
        if tenant is None:
            by_chance = resolver.http_type == "host" and resolver.http_host_mode != "numeric"
            passes = by_chance and not self._required
            return None if passes else _unknown(named)
        return self._judged(tenant, named)

    def _turned_away(self, refusal: TenantRejection, why: str = "") -> TenantRejection:
        """It is told once, and not at each request."""
        told = why or refusal.message
        if told != self._told:
            self._told = told
            log.warning("all requests are turned away: %s", told)
        return refusal

    def exempts(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self._exempt)

    def _judged(self, tenant: Tenant, named: TenantReference) -> Tenant | TenantRejection:
        assert tenant.meta is not None
        status = tenant.meta.status
        if status not in _STATUSES:
            status = "inactive"
        if status not in self._refuse:
            return tenant
        code: Code = "tenant_suspended" if status == "suspended" else "tenant_inactive"
        return TenantRejection(403, code, f"the tenant is {status}", named.shown)


def _loaded(source: Source | None) -> tuple[Lookup | None, str]:
    """The tenants, or why there are none."""
    try:
        return (source() if callable(source) else source), ""
    except Unavailable as error:
        return None, f"there are no tenants yet: {error}"


def find(tenants: Lookup, named: TenantReference) -> Tenant | None:
    """The tenant of that name. One without meta is none: it is not there yet, or no longer."""
    id: int | None
    if named.by == "id":
        id = int(named.name) if is_id(named.name) else None
    elif named.by == "code":
        id = tenants.by_code(named.name)
    else:
        id = tenants.by_host(named.name)
    tenant = None if id is None else tenants.get(id)
    return None if tenant is None or tenant.meta is None else tenant


def tenant_reference(
    resolver: Resolver, request: Request, *, host_header: str = "host"
) -> TenantReference | TenantRejection:
    """What the request calls its tenant, or why that cannot be told."""
    if resolver.http_type == "host":
        return _by_host(resolver.http_host_mode, request.header(host_header), host_header)
    if resolver.http_type == "header":
        values = _listed(request.header(resolver.http_header_name or _DEFAULT.http_header_name))
    elif resolver.http_type == "query":
        values = _in_query(request.query, resolver.http_query_param or _DEFAULT.http_query_param)
    else:
        index = resolver.http_path_index
        segments = [segment for segment in request.path.split("/") if segment]
        values = segments[index : index + 1] if index >= 0 else []
    if not values:
        return TenantRejection(
            400, "tenant_missing", f"{_where(resolver)} is missing: it names the tenant"
        )
    value = values[0]
    if len(values) > 1 and len({each.lower() for each in values}) > 1:
        message = f"{_where(resolver)} is given more than once, not alike"
        return TenantRejection(400, "tenant_ambiguous", message)
    if len(value) > _LONGEST or not value.isprintable():
        message = f"{_where(resolver)} is neither a tenant's id nor its code"
        return TenantRejection(400, "tenant_malformed", message)
    return TenantReference("id" if value.isascii() and value.isdigit() else "code", value)


def _by_host(
    mode: Literal["numeric", "domain", "code"], values: Sequence[str], header: str
) -> TenantReference | TenantRejection:
    if len(values) > 1:
        return TenantRejection(
            400, "tenant_ambiguous", f"the header {header} is given more than once"
        )
    host = "" if not values else host_of(values[0]) if values[0].isascii() else None
    if host is None:
        return TenantRejection(400, "tenant_malformed", f"the header {header} is not a host")
    if not host:
        message = f"the header {header} is missing: it names the tenant"
        return TenantRejection(400, "tenant_missing", message)
    if mode == "domain":
        return TenantReference("host", host)
    label, dot, rest = host.partition(".")
    is_address = ":" in host or (dot and rest.rpartition(".")[2].isdigit())
    if is_address or (mode == "numeric" and not label.isdigit()):
        kind = "id" if mode == "numeric" else "code"
        message = f"the host {host} does not begin with the {kind} of a tenant"
        return TenantRejection(400, "tenant_missing", message)
    return TenantReference("id" if mode == "numeric" else "code", label)


def _listed(values: Sequence[str]) -> list[str]:
    """A header that is sent twice may arrive as one, with a comma."""
    return [
        stripped for value in values for piece in value.split(",") if (stripped := piece.strip())
    ]


def _in_query(query: str, name: str) -> list[str]:
    fields = (field.partition("=") for field in query.split("&"))
    return [unquote_plus(value) for key, _, value in fields if value and unquote_plus(key) == name]


def _where(resolver: Resolver) -> str:
    """Where a request was to name its tenant. The names come from the store: any length."""
    if resolver.http_type == "path":
        return f"segment {resolver.http_path_index} of the path, counted from 0,"
    if resolver.http_type == "query":
        name = resolver.http_query_param or _DEFAULT.http_query_param
        return f"the query parameter {name[:_LONGEST]}"
    return f"the header {(resolver.http_header_name or _DEFAULT.http_header_name)[:_LONGEST]}"


def _unknown(named: TenantReference) -> TenantRejection:
    return TenantRejection(404, "tenant_unknown", f"no tenant has this {named.by}", named.shown)


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
