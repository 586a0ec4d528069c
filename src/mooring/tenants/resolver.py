"""The tenant of a request: finds it, decides without I/O whether the request is admitted, and holds
it in a context variable.

The setting `common/resolver` configures how a request names its tenant:

    header  `X-Tenant-ID: 7` or `X-Tenant-ID: acme`; digits are an id, anything else is a code
    query   `?tenant=acme`                                likewise
    path    `/acme/orders`: the segment at an index from 0, ignoring empty segments; likewise
    host    numeric: the first label is the id (`7.example.com`); code: it is the code;
            domain: the whole host belongs to the tenant

Codes and hosts are case-insensitive. A request that names several different tenants, or has several
hosts, is rejected: another program might choose a different one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypedDict, get_args
from urllib.parse import unquote_plus

import msgspec

from mooring.errors import InvalidRequest, NotConfigured, Unavailable
from mooring.messages import Message, message
from mooring.tenants.keys import host_of, is_id
from mooring.tenants.model import Resolver, Tenant, TenantStatus

if TYPE_CHECKING:
    from mooring.tenants.read.tenants import Tenants


log = logging.getLogger(__name__)

REFUSED: tuple[TenantStatus, ...] = ("inactive", "suspended")
"""The statuses of tenants that are rejected by default."""

RejectionCode = Literal[
    "tenant_missing",
    "tenant_ambiguous",
    "tenant_malformed",
    "tenant_unknown",
    "tenant_inactive",
    "tenant_suspended",
    "tenants_unavailable",
]

_DEFAULT = Resolver()
_STATUSES: tuple[TenantStatus, ...] = get_args(TenantStatus)

_HTTP_STATUSES: Mapping[RejectionCode, int] = {
    "tenant_unknown": 404,
    "tenant_inactive": 403,
    "tenant_suspended": 403,
    "tenants_unavailable": 503,
}
"""The HTTP status of each code; 400 for the others."""

_MAX_LENGTH = 255
"""Characters of a tenant's name in a request. Longer names are invalid, and not echoed."""


class Request(Protocol):
    """The parts of a request that may name a tenant. Invalid UTF-8 is replaced."""

    @property
    def path(self) -> str:
        """Relative to the application's mount point, percent-decoded."""

    @property
    def query(self) -> str:
        """As sent, without the question mark."""

    def header(self, name: str) -> Sequence[str]:
        """All values of a header."""


TenantsSource: TypeAlias = "Tenants | Callable[[], Tenants | None]"
"""The tenants, or a function that returns them. It returns None or raises `Unavailable` until they
are loaded."""


class TenantReference(msgspec.Struct, frozen=True):
    """The id, code or host by which a request names its tenant."""

    by: Literal["id", "code", "host"]
    name: str

    @property
    def shown(self) -> int | str:
        return int(self.name) if self.by == "id" and is_id(self.name) else self.name


class TenantRejection(msgspec.Struct, frozen=True):
    """Why a request is rejected, and the response to it."""

    code: RejectionCode
    message: Message
    tenant: int | str | None = None
    """The name in the request; None if there is none."""

    @property
    def status(self) -> int:
        return _HTTP_STATUSES.get(self.code, 400)

    @property
    def body(self) -> bytes:
        kind, params, text = self.message.kind, self.message.params, self.message.text
        error = {"code": self.code, "message": text, "kind": kind, "params": params}
        return msgspec.json.encode({"error": error | {"tenant": self.tenant}})

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Prevents caching, since the tenant may become available."""
        return [
            ("content-type", "application/json"),
            ("content-length", str(len(self.body))),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
        ]


UNAVAILABLE = TenantRejection("tenants_unavailable", message("tenants_not_loaded"))
UNRESOLVED = TenantRejection("tenants_unavailable", message("resolver_unreadable", problem=""))
"""A default in its place could let a client choose a tenant that its host should determine."""


class AdmissionSettings(TypedDict, total=False):
    """The arguments of `Admission`, which the middlewares pass on."""

    resolver: Resolver | None
    refuse: Collection[TenantStatus]
    required: bool
    host_header: str
    exempt: Collection[str]


class Admission:
    """Decides which requests are admitted. Raises `InvalidRequest` for invalid settings.

    `resolver` configures how a request names its tenant; None: the current setting in the store.
    `refuse` are the statuses of tenants that are rejected; an unknown status counts as inactive.
    `required=False` admits requests that name no tenant. Requests for an unknown or refused tenant
    are still rejected, except that a host of no tenant (by `domain` or `code`) names none.
    `host_header` is the header with the host; set it only behind a proxy that overwrites it.
    `exempt` are paths that need no tenant, with all paths below: `/health` is not `/healthy`.
    """

    def __init__(
        self,
        *,
        resolver: Resolver | None = None,
        refuse: Collection[TenantStatus] = REFUSED,
        required: bool = True,
        host_header: str = "host",
        exempt: Collection[str] = (),
    ) -> None:
        if isinstance(refuse, str) or isinstance(exempt, str):
            raise InvalidRequest(message("argument_is_text"))
        for status in refuse:
            if status not in _STATUSES:
                raise InvalidRequest(
                    message("argument_not_allowed", name="refuse", allowed=_STATUSES, value=status)
                )
        for path in exempt:
            if not path.startswith("/") or not path.strip("/"):
                raise InvalidRequest(message("exempt_invalid", path=path))
        self._resolver, self._required = resolver, required
        self._refuse = frozenset(refuse)
        self._host_header = host_header
        self._exempt = tuple(path.rstrip("/") for path in exempt)
        self._logged: object = None
        """Why all requests are rejected, as logged last."""

    def decide(
        self, source: TenantsSource | None, request: Request
    ) -> Tenant | TenantRejection | None:
        """The request's tenant; None if it is admitted without one."""
        if self._exempt and self.exempts(request.path):
            return None
        tenants, reason = _load(source)
        if tenants is None:
            return self._reject_all(UNAVAILABLE, reason)
        resolver = tenants.resolver if self._resolver is None else self._resolver
        if resolver is None:
            return self._reject_all(UNRESOLVED, UNRESOLVED.message)
        self._logged = None
        reference = tenant_reference(resolver, request, host_header=self._host_header)
        if isinstance(reference, TenantRejection):
            passes = reference.code == "tenant_missing" and not self._required
            return None if passes else reference
        tenant = find(tenants, reference)
        if tenant is None:
            may_be_none = resolver.http_type == "host" and resolver.http_host_mode != "numeric"
            if may_be_none and not self._required:
                return None
            text = message(f"no_tenant_with_{reference.by}")
            return TenantRejection("tenant_unknown", text, reference.shown)
        return self._check_status(tenant, reference)

    def _reject_all(self, rejection: TenantRejection, reason: Message) -> TenantRejection:
        """Logs the reason once, and not for each request."""
        if reason != self._logged:
            self._logged = reason
            log.warning("all requests are rejected: %s", reason)
        return rejection

    def exempts(self, path: str) -> bool:
        return any(path == prefix or path.startswith(f"{prefix}/") for prefix in self._exempt)

    def _check_status(self, tenant: Tenant, reference: TenantReference) -> Tenant | TenantRejection:
        assert tenant.meta is not None
        status = tenant.meta.status
        if status not in _STATUSES:
            status = "inactive"
        if status not in self._refuse:
            return tenant
        code: RejectionCode = "tenant_suspended" if status == "suspended" else "tenant_inactive"
        return TenantRejection(code, message(code), reference.shown)


def _load(source: TenantsSource | None) -> tuple[Tenants | None, Message]:
    """The tenants, or the reason why there are none."""
    try:
        return (source() if callable(source) else source), UNAVAILABLE.message
    except Unavailable as error:
        return None, error.message


def find(tenants: Tenants, reference: TenantReference) -> Tenant | None:
    """The tenant with this name. One without meta does not count: it is incomplete."""
    id: int | None
    if reference.by == "id":
        id = int(reference.name) if is_id(reference.name) else None
    elif reference.by == "code":
        id = tenants.by_code(reference.name)
    else:
        id = tenants.by_host(reference.name)
    tenant = None if id is None else tenants.get(id)
    return None if tenant is None or tenant.meta is None else tenant


def tenant_reference(
    resolver: Resolver, request: Request, *, host_header: str = "host"
) -> TenantReference | TenantRejection:
    """The name of the tenant in a request, or why it has none."""
    if resolver.http_type == "host":
        return _by_host(resolver.http_host_mode, request.header(host_header), host_header)
    kind, name, values = _named_in(resolver, request)
    distinct = {value.lower() for value in values}
    if len(distinct) == 1 and len(value := values[0]) <= _MAX_LENGTH and value.isprintable():
        return TenantReference("id" if value.isascii() and value.isdigit() else "code", value)
    code: RejectionCode = "tenant_ambiguous" if distinct else "tenant_missing"
    if len(distinct) == 1:
        code = "tenant_malformed"
    place = message(kind, name=name[:_MAX_LENGTH])
    return TenantRejection(code, message(code, place=place))


def _by_host(
    mode: Literal["numeric", "domain", "code"], values: Sequence[str], header: str
) -> TenantReference | TenantRejection:
    if len(values) > 1:
        return TenantRejection("tenant_ambiguous", message("hosts_ambiguous", header=header))
    host = "" if not values else host_of(values[0]) if values[0].isascii() else None
    if host is None:
        return TenantRejection("tenant_malformed", message("host_malformed", header=header))
    if not host:
        place = message("the_header", name=header)
        return TenantRejection("tenant_missing", message("tenant_missing", place=place))
    if mode == "domain":
        return TenantReference("host", host)
    return _by_label(mode, host)


def _by_label(mode: Literal["numeric", "code"], host: str) -> TenantReference | TenantRejection:
    label, dot, rest = host.partition(".")
    is_address = ":" in host or (dot and rest.rpartition(".")[2].isdigit())
    if is_address or (mode == "numeric" and not label.isdigit()):
        text = message("host_without_id" if mode == "numeric" else "host_without_code", host=host)
        return TenantRejection("tenant_missing", text)
    return TenantReference("id" if mode == "numeric" else "code", label)


def _listed(values: Sequence[str]) -> list[str]:
    """Splits the values: a header that is sent twice may arrive as one, with a comma."""
    return [
        stripped for value in values for piece in value.split(",") if (stripped := piece.strip())
    ]


def _in_query(query: str, name: str) -> list[str]:
    fields = (field.partition("=") for field in query.split("&"))
    return [unquote_plus(value) for key, _, value in fields if value and unquote_plus(key) == name]


def _named_in(resolver: Resolver, request: Request) -> tuple[str, str, list[str]]:
    """The place in a request that names the tenant, as the kind of a message with its parameter,
    and the names there. The name of a header or parameter is from the store, and may have any
    length."""
    if resolver.http_type == "header":
        header = resolver.http_header_name or _DEFAULT.http_header_name
        return "the_header", header, _listed(request.header(header))
    if resolver.http_type == "query":
        name = resolver.http_query_param or _DEFAULT.http_query_param
        return "the_query_parameter", name, _in_query(request.query, name)
    index = resolver.http_path_index
    segments = [segment for segment in request.path.split("/") if segment]
    return "the_segment", str(index), segments[index : index + 1] if index >= 0 else []


_tenant: ContextVar[Tenant | None] = ContextVar("mooring.tenant", default=None)


def current() -> Tenant:
    """The tenant of this request, as it was when the request arrived. Raises `NotConfigured` if
    there is none."""
    tenant = _tenant.get()
    if tenant is None:
        raise NotConfigured(message("no_current_tenant"))
    return tenant


def current_or_none() -> Tenant | None:
    """Like `current`, for code that may run without a tenant."""
    return _tenant.get()


class acting_for:
    """Makes a tenant the current one, in a job or a test; None: no tenant.

    ```python
    with acting_for(tenants.get(7)):
        ...
    ```
    """

    # A class, since a generator would take four times as long for each request.
    __slots__ = ("_tenant", "_token")

    def __init__(self, tenant: Tenant | None) -> None:
        self._tenant = tenant

    def __enter__(self) -> None:
        self._token = _tenant.set(self._tenant)

    def __exit__(self, *_: object) -> None:
        _tenant.reset(self._token)
