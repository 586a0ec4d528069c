"""WSGI middleware: registers an application while it serves, and finds the tenant of a request."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Unpack

import mooring.sync
from mooring.errors import MooringError
from mooring.hub import Hub
from mooring.model import Instance
from mooring.registry.shutdown import LINGER, WITHIN
from mooring.sync.proxy import within
from mooring.tenants.model import Tenant
from mooring.tenants.resolver import (
    Admission,
    AdmissionSettings,
    TenantRejection,
    TenantsSource,
    acting_for,
)
from mooring.workers import SharedRegistration, WorkerState

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["RegisteredApplication", "TenantMiddleware", "registered"]


log = logging.getLogger(__name__)


def registered(
    app: WSGIApplication,
    hub: str | mooring.sync.Hub,
    instance: Instance,
    *,
    ttl: float | None = None,
) -> RegisteredApplication:
    """The application, registered once it has started in a process. `hub` is a URL, or the result
    of `mooring.sync.connect`, not opened."""
    return RegisteredApplication(app, hub, instance, ttl=ttl)


class RegisteredApplication:
    """Registers itself. Safe with threads and forks: each process has its own registration."""

    def __init__(
        self,
        app: WSGIApplication,
        hub: str | mooring.sync.Hub,
        instance: Instance,
        *,
        ttl: float | None = None,
    ) -> None:
        self._app, self._instance, self._ttl = app, instance, ttl
        self._connected = mooring.sync.connect(hub) if isinstance(hub, str) else hub
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._hub: mooring.sync.Hub | None = None
        self._shared: SharedRegistration | None = None
        self._changing = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ["mooring.hub"] = self.start()
        return self._app(environ, start_response)

    def start(self) -> mooring.sync.Hub:
        """Register in this process, in the background. Further calls have no effect.

        Raises `InvalidRequest` for an instance that can never be registered.
        """
        if self._hub is not None:
            return self._hub
        with self._changing:
            if self._hub is None:
                hub = self._connected.open()
                try:
                    within(hub, self._register)
                except BaseException:
                    hub.close()
                    raise
                self._hub = hub
                atexit.register(self._at_exit)
            return self._hub

    def _register(self, hub: Hub) -> None:
        """Runs on the event loop, like all uses of `_shared`."""
        self._shared = SharedRegistration(hub, self._instance, ttl=self._ttl)
        self._shared.start()

    @property
    def state(self) -> WorkerState:
        """The registration's state: `waiting` if another worker has it, `closed` before `start`."""
        hub, shared = self._hub, self._shared
        if hub is None or shared is None:
            return "closed"
        return within(hub, lambda _: shared.state)

    def stop(self, *, linger: float = LINGER) -> None:
        """Leave the registry, wait until callers have noticed, and close: for a hook that runs
        before the server stops listening. The exit of the process does it too, without the wait."""
        with self._changing:
            hub, shared = self._hub, self._shared
            self._hub = self._shared = None
            if hub is None or shared is None:
                return
            atexit.unregister(self._at_exit)
            try:
                with mooring.sync.timeout(linger + WITHIN):
                    within(hub, lambda _: shared.drain(linger=linger))
            except (MooringError, TimeoutError) as error:
                log.warning("leaving the registry failed: %s", error)
            finally:
                hub.close()

    def _at_exit(self) -> None:
        self.stop(linger=0.0)


class TenantMiddleware:
    """Sets the tenant of each request for an application. The keyword arguments are those of
    `Admission`. Unless `resolver` is given, each request uses the setting in the store."""

    def __init__(
        self,
        app: WSGIApplication,
        tenants: TenantsSource,
        **settings: Unpack[AdmissionSettings],
    ) -> None:
        self._app, self._tenants = app, tenants
        self._admission = Admission(**settings)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        decided = self._admission.decide(self._tenants, _EnvironRequest(environ))
        if isinstance(decided, TenantRejection):
            status = HTTPStatus(decided.status)
            start_response(f"{status.value} {status.phrase}", decided.headers)
            return [] if environ.get("REQUEST_METHOD") == "HEAD" else [decided.body]
        environ["mooring.tenant"] = decided
        with acting_for(decided):
            body = self._app(environ, start_response)
        return body if _is_complete(body, environ) else _Body(body, decided)


class _EnvironRequest:
    """The parts of a request that `Admission` reads. Servers pass bytes as latin-1."""

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
    """A response that is generated while the server sends it: each step runs with the tenant."""

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


def _is_complete(body: Iterable[bytes], environ: WSGIEnvironment) -> bool:
    """Whether a response is complete: a list, or a file that the server sends itself."""
    wrapper = environ.get("wsgi.file_wrapper")
    return type(body) in (list, tuple) or (isinstance(wrapper, type) and isinstance(body, wrapper))


def _text(native: str) -> str:
    return (
        native if native.isascii() else native.encode("latin-1", "replace").decode(errors="replace")
    )
