"""The state of a running server, as its request handlers use it, and whether it is ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from mooring.errors import InvalidRequest, StoreError
from mooring.hub import Hub
from mooring.registry.contract import Registry
from mooring.server.auth.audit import Audit
from mooring.server.auth.data_dir import DataDir
from mooring.server.auth.host_and_csrf import Origins
from mooring.server.auth.rate_limits import RateLimits
from mooring.server.auth.record_store import RecordStore
from mooring.server.auth.sessions import Sessions
from mooring.server.auth.tokens import Tokens
from mooring.server.event_stream import EventStream
from mooring.server.http.response import HTTPError
from mooring.server.live.problems import CurrentProblems, StoreAlarms
from mooring.server.live.state import Fleet
from mooring.server.settings import ServerSettings, split_address
from mooring.store import Store, key

log = logging.getLogger(__name__)


_PROBE_TIMEOUT = 2.0
_PROBE_KEY = b"/mooring/ready"


class ReadinessProbe(NamedTuple):
    """A cheap read of the store or the registry."""

    target: str
    """What it reads, for callers: `the store`, `the registry`."""
    url: str
    """For the log."""
    read: Callable[[], Awaitable[object]]

    async def failure(self) -> str:
        """Why the read failed; empty if it succeeded."""
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT):
                await self.read()
        except TimeoutError:
            return f"no answer within {_PROBE_TIMEOUT:g} s"
        except StoreError as error:
            return str(error)
        except InvalidRequest:
            pass  # it answered, with a value that Mooring did not write
        return ""


def readiness_probes(hub: Hub, settings: ServerSettings) -> Iterator[ReadinessProbe]:
    """Probes of the store, if there is one, and of the registry, if it is not in the store."""
    if settings.has_store:
        yield ReadinessProbe(
            "the store", hub.store.url, lambda: hub.store.read(key(_PROBE_KEY), keys_only=True)
        )
    if settings.registry_apart:
        url = hub.registry.url
        yield ReadinessProbe("the registry", url, lambda: hub.registry.info(group="mooring"))


@dataclass(slots=True)
class Readiness:
    """Whether the server is ready. It listens before its store is open, and after it is closed."""

    probes: tuple[ReadinessProbe, ...] | None = None
    """They must succeed; None until everything listens."""
    stopping: bool = False
    _failures: dict[str, str] = field(default_factory=dict)
    """Why each probe failed last, by URL."""

    async def problems(self) -> list[str]:
        """Why the server is not ready; empty if it is."""
        if self.stopping:
            return ["stopping"]
        if self.probes is None:
            return ["starting"]
        failures = await asyncio.gather(*(probe.failure() for probe in self.probes))
        results = list(zip(self.probes, failures, strict=True))
        for probe, failure in results:
            self._log_change(probe, failure)
        return [f"{probe.target} does not answer" for probe, failure in results if failure]

    def _log_change(self, probe: ReadinessProbe, failure: str) -> None:
        before = self._failures.get(probe.url, "")
        self._failures[probe.url] = failure
        if failure and not before:
            log.warning("not ready: %s %s: %s", probe.target, probe.url, failure)
        elif before and not failure:
            log.info("%s %s answers again", probe.target, probe.url)


@dataclass(frozen=True, slots=True)
class OpenServer:
    """What a server has only while its store is open."""

    hub: Hub
    fleet: Fleet
    problems: CurrentProblems
    stream: EventStream
    alarms: StoreAlarms | None


@dataclass(slots=True)
class ServerContext:
    """The properties raise `HTTPError` (503) until the store is open: the HTTP listener starts
    before it."""

    settings: ServerSettings
    readiness: Readiness
    data_dir: DataDir
    tokens: Tokens
    sessions: Sessions
    origins: Origins
    limits: RateLimits
    audit: Audit
    shared: RecordStore | None = None
    opened: OpenServer | None = None

    @property
    def hub(self) -> Hub:
        return self._open.hub

    @property
    def registry(self) -> Registry:
        return self.hub.registry

    @property
    def store(self) -> Store:
        """Also raises `HTTPError` (409) if the server has no store, only Redis."""
        hub = self.hub
        try:
            return hub.store
        except InvalidRequest as error:
            raise HTTPError(409, "no_store", error.message) from error

    @property
    def fleet(self) -> Fleet:
        return self._open.fleet

    @property
    def problems(self) -> CurrentProblems:
        return self._open.problems

    @property
    def stream(self) -> EventStream:
        return self._open.stream

    @property
    def alarms(self) -> StoreAlarms | None:
        """None if the server has no store, only Redis."""
        return self._open.alarms

    def sharing(self, store: Store | None) -> RecordStore:
        """The credentials and the audit in the store, shared with other servers while entered."""
        self.shared = RecordStore(self.data_dir, self.tokens, self.sessions, self.audit, store)
        return self.shared

    def close(self) -> None:
        """Answer 503 again, before the store is closed."""
        self.opened = None

    @property
    def _open(self) -> OpenServer:
        if self.opened is not None:
            return self.opened
        state = "stopping" if self.readiness.stopping else "starting"
        raise HTTPError(503, state, f"server_{state}", retry_after=1)


def prepare(settings: ServerSettings, readiness: Readiness) -> ServerContext:
    """The context without a hub. Creates the data folder and the admin token if they are missing.
    Raises `StoreError` or `InvalidRequest` if the folder cannot be used."""
    data_dir = DataDir(settings.folder())
    data_dir.prepare()
    tokens = Tokens(data_dir)
    host, _ = split_address("--http", settings.http)
    return ServerContext(
        settings,
        readiness,
        data_dir,
        tokens,
        Sessions(tokens, secure=settings.tls is not None),
        Origins([host, *settings.hosts]),
        RateLimits(settings.rates),
        Audit(data_dir),
    )
