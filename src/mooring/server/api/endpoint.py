"""Endpoints of the API: how a module declares them, what a handler receives, and the statuses of
errors.

```python
endpoints = EndpointList()

@endpoints.add("GET", "/admin/locks", need("viewer", "everything"), answers={200: list[LockInfo]})
async def list_locks(call: ApiCall) -> Response:
    \"\"\"List locks.\"\"\"            # the summary in the OpenAPI document
```
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from mooring import errors
from mooring.server.auth.authorization import Need, Principal
from mooring.server.context import ServerContext
from mooring.server.http.request import paginate
from mooring.server.http.response import HTTPError, Response
from mooring.server.http.routing import SAFE, parameters

T = TypeVar("T")

ANONYMOUS = Principal("anonymous", "viewer", frozenset(), frozenset())
"""The principal of requests without credentials to open endpoints."""

NO_STORE = 409
"""The error of endpoints that need a store, on a server that has only Redis."""


@dataclass(slots=True)
class ApiCall:
    """An authenticated request with parsed path, query and body."""

    server: ServerContext
    request: Request
    endpoint: ApiEndpoint
    path: Mapping[str, str]
    """The parameters of the path."""
    principal: Principal = ANONYMOUS
    query: Any = None
    """The parsed query, of the type `endpoint.query`."""
    body: Any = None
    """The parsed body, of the type `endpoint.body`."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Extra fields of the audit entry: a reason, the previous value."""

    @property
    def client(self) -> str:
        """The address of the client."""
        return self.request.client.host if self.request.client else ""

    @property
    def service(self) -> str:
        return self.path["service"]

    @property
    def tenant(self) -> int:
        return tenant_id(self.path["tenant"])

    @property
    def raw_path(self) -> str:
        """The path as it was sent."""
        raw_path: bytes = self.request.scope["raw_path"]
        return raw_path.decode("ascii", "replace")

    @property
    def may_unmask(self) -> bool:
        """Whether the caller may read secrets."""
        return self.principal.role == "admin"

    def note_reason(self) -> str:
        """The reason for a change, which is also added to the audit entry."""
        reason: str = self.query.reason
        if reason:
            self.notes["reason"] = reason
        return reason

    def page(
        self, items: Iterable[T], name: Callable[[T], str]
    ) -> tuple[Sequence[T], dict[str, str]]:
        """The requested page of items, which are sorted by name, and its headers."""
        return paginate(items, self.query, name, path=self.raw_path)

    def unmasks(self) -> bool:
        """Whether the caller requests secrets in clear text, which is audited. Raises `HTTPError`
        (403) if the caller may not read them."""
        if not self.query.unmask:
            return False
        self.notes["unmask"] = True
        self.server.audit.write(self, 200 if self.may_unmask else 403)
        if not self.may_unmask:
            raise HTTPError(403, "forbidden", "secrets_forbidden", name=self.principal.name)
        return True


def tenant_id(text: str) -> int:
    digits = text.isascii() and text.isdecimal() and len(text) < 20
    if not digits or int(text) >= 2**63:
        raise HTTPError(400, "bad_request", "tenant_id_not_a_number", text=text)
    return int(text)


class UnmaskQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    unmask: bool = False
    """Return secrets in clear text; requires the role admin and is audited."""


UNMASKED: Mapping[str, str] = {"Cache-Control": "no-store"}
"""Headers of a response with secrets in clear text."""


Handler = Callable[[ApiCall], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    method: str
    path: str
    """Segments with parameters in braces, `/services/{service}/health`; each is one segment."""
    needs: Need
    """The role and scope that it requires of the caller."""
    handler: Handler
    summary: str
    """One line for OpenAPI."""
    body: Any = None
    """The type of the JSON body; None: no body."""
    query: type[msgspec.Struct] | None = None
    """The parameters of the query; None: no parameters."""
    answers: Mapping[int, Any] = field(default_factory=dict)
    """The types of successful responses by status; None: not JSON."""
    fails: tuple[int, ...] = ()
    """Errors of this endpoint beyond those of its access and its input."""
    media: str = "application/json"
    """The media type of its response."""
    audited: bool = True
    """Whether calls are written to the audit; see `EndpointList.add`."""

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters in the path."""
        return parameters(self.path)


class EndpointList(list[ApiEndpoint]):
    """The endpoints of a module. `fails` are errors of all of them; see `ApiEndpoint.fails`."""

    def __init__(self, *, fails: tuple[int, ...] = ()) -> None:
        super().__init__()
        self._fails = fails

    def add(
        self,
        method: str,
        path: str,
        needs: Need,
        *,
        answers: Mapping[int, Any],
        body: Any = None,
        query: type[msgspec.Struct] | None = None,
        fails: tuple[int, ...] = (),
        media: str = "application/json",
        summary: str = "",
        audited: bool = True,
    ) -> Callable[[Handler], Handler]:
        """Declare an endpoint. Its summary is by default the docstring of its handler. Methods that
        only read are never audited."""

        def declare(handler: Handler) -> Handler:
            endpoint = ApiEndpoint(
                method,
                path,
                needs,
                handler,
                summary or " ".join((handler.__doc__ or "").split()).removesuffix("."),
                body=body,
                query=query,
                answers=answers,
                fails=(*self._fails, *fails),
                media=media,
                audited=audited and method not in SAFE,
            )
            self.append(endpoint)
            return handler

        return declare


_STATUS: tuple[tuple[type[errors.MooringError], int, str], ...] = (
    (errors.NotConfigured, 404, "not_found"),
    (errors.NoInstance, 404, "not_found"),
    (errors.NotFound, 404, "not_found"),
    (errors.InvalidRequest, 400, "bad_request"),
    (errors.Superseded, 409, "superseded"),
    (errors.Removed, 410, "removed"),
    (errors.Taken, 409, "taken"),
    (errors.Undecipherable, 409, "undecipherable"),
    (errors.Conflict, 409, "conflict"),
    (errors.InUse, 409, "in_use"),
    (errors.TooLarge, 413, "too_large"),
    (errors.OutOfSpace, 507, "out_of_space"),
    (errors.OutcomeUnknown, 504, "outcome_unknown"),
    (errors.StoreError, 503, "unavailable"),
    (errors.MooringError, 409, "refused"),
)
"""The first match applies."""


def http_error(error: Exception) -> HTTPError:
    """The error of the response. The text of an unexpected error is not shown."""
    if isinstance(error, HTTPError):
        return error
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            retry_after = 1 if status == 503 else None
            return HTTPError(status, code, error.message, retry_after=retry_after)
    return HTTPError(500, "internal", "internal_error")
