"""The tenant of each request, for WSGI.

    app.wsgi_app = mooring.wsgi.TenantMiddleware(app.wsgi_app, tenants)

    def orders():
        tenant = mooring.tenants.current()

**Where the tenants are.** Given: what `hub.tenants()` of a blocking hub gives, or a function that
returns it, or None while there are none yet; it is asked at each request. A function can open them
when it is first called, for a server that loads the application before it forks.

**The tenant** is `mooring.tenants.current()` while the application is called and while its answer
is made, and `environ["mooring.tenant"]`, None where there is none. A thread that serves the next
request has nothing of it.

**Refused** are the same as with ASGI, in the same words: see `mooring.asgi.TenantMiddleware`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from mooring.tenants.read.tenant import Tenant
from mooring.tenants.resolve.context import acting_for
from mooring.tenants.resolve.resolver import REFUSED, Admission, Refusal, Source
from mooring.tenants.values import Resolver, Status

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


class TenantMiddleware:
    """An application that knows the tenant of each request. See `Admission` for the settings,
    which are taken from the store at each request unless `resolver` is given."""

    def __init__(
        self,
        app: WSGIApplication,
        tenants: Source,
        *,
        resolver: Resolver | None = None,
        refuse: Collection[Status] = REFUSED,
        required: bool = True,
        host_header: str = "host",
        exempt: Collection[str] = (),
    ) -> None:
        self._app, self._tenants = app, tenants
        self._admission = Admission(
            resolver=resolver,
            refuse=refuse,
            required=required,
            host_header=host_header,
            exempt=exempt,
        )

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
    """What the decision looks at. A server hands over bytes as latin-1."""

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
    """An answer that is made while the server sends it: each step of it has the tenant."""

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
    """Whether an answer needs no more of the application: a list, whose length a server looks at,
    or a file, which it may send by itself."""
    wrapper = environ.get("wsgi.file_wrapper")
    return type(body) in (list, tuple) or (isinstance(wrapper, type) and isinstance(body, wrapper))


def _text(native: str) -> str:
    return (
        native if native.isascii() else native.encode("latin-1", "replace").decode(errors="replace")
    )
