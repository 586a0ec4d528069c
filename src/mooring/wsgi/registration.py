"""Registration of a WSGI application, in the process that serves it.

    app.wsgi_app = mooring.wsgi.registered(app.wsgi_app, url, mooring.Instance("echo", port=8000))

Servers load an application before they fork or after, and tell it neither. So nothing starts when
it is loaded: the first request starts it, or better `start()` in a hook of the server's, since an
instance that is not registered may get no request. For gunicorn, in its configuration file:

    def post_worker_init(worker):
        worker.wsgi.wsgi_app.start()

Workers take turns, see `mooring.workers`. The end of the process deregisters it, or hands it over
to a worker that stays. The blocking hub is in the environment of each request: `mooring.hub`.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

import mooring.sync
from mooring.errors import MooringError
from mooring.hub import Hub
from mooring.model import Instance
from mooring.registry.registration import LINGER
from mooring.registry.sigterm import WITHIN
from mooring.sync.proxy import within
from mooring.workers import SharedRegistration, State

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)


def registered(
    app: WSGIApplication,
    hub: str | mooring.sync.Hub,
    instance: Instance,
    *,
    ttl: float | None = None,
) -> Registered:
    """The application, registered once it is started in a process. `hub` is a URL, or what
    `mooring.sync.connect` made, not opened yet."""
    return Registered(app, hub, instance, ttl=ttl)


class Registered:
    """A WSGI application that registers itself. Safe for threads and for forks: each process has
    its own hub, and a child begins anew."""

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
        """Register in this process, in the background: it waits for nothing. Again: nothing.

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
        """On the loop, as everything that has to do with `_shared`."""
        self._shared = SharedRegistration(hub, self._instance, ttl=self._ttl)
        self._shared.start()

    @property
    def state(self) -> State:
        """The registration's; `waiting` where another worker has it, `closed` before `start`."""
        hub, shared = self._hub, self._shared
        if hub is None or shared is None:
            return "closed"
        return within(hub, lambda _: shared.state)

    def stop(self, *, linger: float = LINGER) -> None:
        """Leave the registry, give callers the time to notice, and close. For a hook that runs
        before the server stops to listen; otherwise the end of the process does it, without that
        time."""
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
                log.warning("the registry was not left in order: %s", error)
            finally:
                hub.close()

    def _at_exit(self) -> None:
        self.stop(linger=0.0)
