"""The tenant of each request, for WSGI.

    app.wsgi_app = mooring.wsgi.TenantMiddleware(app.wsgi_app, tenants)

    def orders():
        tenant = mooring.tenants.current()

**Source.** The result of `hub.tenants()` of a blocking hub, or a function that returns it, or None
while the tenants are not loaded; it is called at each request. A function can open the tenants at
its first call, for a server that loads the application before it forks.

**Tenant.** `mooring.tenants.current()` returns it while the application is called and while its
response is produced. `environ["mooring.tenant"]` holds it too; None if the request has no tenant.
It does not leak into the next request of the same thread.

**Refusals** are the same as with ASGI: see `mooring.asgi.TenantMiddleware`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Unpack

from mooring.tenants.read.tenant import Tenant
from mooring.tenants.resolve.context import acting_for
from mooring.tenants.resolve.resolver import Admission, AdmissionSettings, Refusal, Source

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


class TenantMiddleware:
    """Sets the tenant of each request for an application. The keyword arguments are those of
    `Admission`. Unless `resolver` is given, each request uses the setting in the store."""

    def __init__(
        self,
        app: WSGIApplication,
        tenants: Source,
        **settings: Unpack[AdmissionSettings],
    ) -> None:
        self._app, self._tenants = app, tenants
        self._admission = Admission(**settings)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        decided = self._admission.decide(self._tenants, _Request(environ))
        if isinstance(decided, Refusal):
            status = HTTPStatus(decided.status)
            start_response(f"{status.value} {status.phrase}", decided.headers)
            return [] if environ.get("REQUEST_METHOD") == "HEAD" else [decided.body]
        environ["mooring.tenant"] = decided
        with acting_for(decided):
            body = self._app(environ, start_response)
        return body if _is_made(body, environ) else _Body(body, decided)


class _Request:
    """The parts of a request that `Admission` reads. A server passes bytes as latin-1."""

    __slots__ = ("_environ",)

    def __init__(self, environ: WSGIEnvironment) -> None:
        self._environ = environ

    @property
    def path(self) -> str:
        return _text(self._environ.get("PATH_INFO", ""))

    @property
    def query(self) -> str:
        return _text(self._environ.get("QUERY_STRING", ""))

    def header(self, name: str) -> list[str]:
        value = self._environ.get("HTTP_" + name.upper().replace("-", "_"))
        return [] if value is None else [_text(value)]


class _Body:
    """A response that is produced while the server sends it: each step runs with the tenant."""

    __slots__ = ("_body", "_iterator", "_tenant")

    def __init__(self, body: Iterable[bytes], tenant: Tenant | None) -> None:
        self._body, self._tenant = body, tenant
        self._iterator: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with acting_for(self._tenant):
            if self._iterator is None:
                self._iterator = iter(self._body)
            return next(self._iterator)

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            with acting_for(self._tenant):
                close()


def _is_made(body: Iterable[bytes], environ: WSGIEnvironment) -> bool:
    """Whether a response is complete: a list, whose length servers use, or a file, which the server
    may send without the application."""
    wrapper = environ.get("wsgi.file_wrapper")
    return type(body) in (list, tuple) or (isinstance(wrapper, type) and isinstance(body, wrapper))


def _text(native: str) -> str:
    return (
        native if native.isascii() else native.encode("latin-1", "replace").decode(errors="replace")
    )
