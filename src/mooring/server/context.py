"""What the handlers of the API work with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mooring.server.api.health import Readiness
from mooring.server.auth.audit import Audit
from mooring.server.auth.credential_store import CredentialStore
from mooring.server.auth.csrf import Origins
from mooring.server.auth.data_dir import DataDir
from mooring.server.auth.rate_limits import RateLimits
from mooring.server.auth.sessions import Sessions
from mooring.server.auth.tokens import Tokens
from mooring.server.http.response import HTTPError
from mooring.server.settings import ServerSettings, split

if TYPE_CHECKING:
    from mooring.hub import Hub
    from mooring.server.event_stream import Stream
    from mooring.server.live.problems import CurrentProblems, StoreAlarms
    from mooring.server.live.state import Fleet
    from mooring.store import Store


@dataclass(slots=True)
class ServerContext:
    settings: ServerSettings
    readiness: Readiness
    folder: DataDir
    tokens: Tokens
    sessions: Sessions
    origins: Origins
    limits: RateLimits
    audit: Audit
    shared: CredentialStore | None = field(default=None)
    _hub: Hub | None = field(default=None)
    _fleet: Fleet | None = field(default=None)
    alarms: StoreAlarms | None = field(default=None)
    """Those of the store; None if there is only Redis."""
    outlook: CurrentProblems | None = field(default=None)
    """What is wrong with the fleet."""
    stream: Stream | None = field(default=None)
    """Who tells of its changes."""

    @property
    def hub(self) -> Hub:
        """Raises `HTTPError` (503) until the store is open: the HTTP face is up before it."""
        if self._hub is None:
            raise self._not_open()
        return self._hub

    @property
    def fleet(self) -> Fleet:
        """Raises `HTTPError` (503) like `hub`."""
        if self._fleet is None:
            raise self._not_open()
        return self._fleet

    def sharing(self, store: Store | None) -> CredentialStore:
        """Where what this server keeps for itself is, while it is entered."""
        self.shared = CredentialStore(self.folder, self.tokens, self.sessions, self.audit, store)
        return self.shared

    def open(self, hub: Hub, fleet: Fleet | None) -> None:
        """From now on requests are about these."""
        self._hub, self._fleet = hub, fleet

    def close(self) -> None:
        """They are about to be closed."""
        self._hub = self._fleet = None

    def _not_open(self) -> HTTPError:
        stopping = self.readiness.stopping
        code, doing = ("stopping", "is about to stop") if stopping else ("starting", "is starting")
        message = f"the server {doing}: its store is not open; try again in a second"
        return HTTPError(503, code, message, headers={"Retry-After": "1"})


def prepare(settings: ServerSettings, readiness: Readiness) -> ServerContext:
    """All but the hub and what hangs on it. Makes the data folder and the admin token where they
    are not there. Raises `StoreError` or `InvalidRequest` for a folder that cannot be used."""
    folder = DataDir(settings.folder())
    folder.prepare()
    tokens = Tokens(folder)
    tokens.open()
    host, _ = split("--http", settings.http)
    return ServerContext(
        settings,
        readiness,
        folder,
        tokens,
        Sessions(tokens, secure=settings.tls is not None),
        Origins([host, *settings.hosts]),
        RateLimits(settings.rates),
        Audit(folder),
    )
