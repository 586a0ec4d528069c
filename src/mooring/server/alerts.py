"""Reports problems to a webhook: once when a problem persists, and once when it is resolved.

Of the servers on one registry, one is elected to call the webhook: with an election on the store,
or with a lease on Redis if the registry is there. If it dies, another takes over within the TTL and
reads which problems were already reported.

While the store is unavailable, no server can be elected, and that is when alerts matter most. So
each server keeps its last known role: the elected one continues until it learns that another one is
elected, and a server that never reached the store considers itself elected.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import secrets
import socket
import ssl
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
from prometheus_client import Counter

from mooring import __version__
from mooring.errors import Conflict, MooringError, StoreError
from mooring.hub import Hub
from mooring.locks.election import Leader, Leadership
from mooring.model import now
from mooring.registry.contract import LeaderLease
from mooring.server.auth.signed_records import ROOT
from mooring.server.http.response import encode, rfc3339
from mooring.server.live.problems import SEVERITIES, CurrentProblems, FleetProblem
from mooring.server.settings import AlertSettings
from mooring.store import Put, key
from mooring.tasks import Backoff, Tasks, cleanup, in_thread

log = logging.getLogger(__name__)

NOTICES = Counter("mooring_alert_notices", "Notifications to the webhook", ["outcome"])
"""`sent` or `failed`."""

INTERVAL = 1.0
"""Seconds between two checks for new and resolved problems."""
TTL = 10.0
"""Seconds after which another server takes over from one that died."""
_FIRST_RETRY, _MAX_RETRY = 2.0, 300.0
_TIMEOUT = 2.0
"""Seconds for each exchange with the store that delays a report or a shutdown."""
_MAX_STORED = 2_000
"""Reported problems that are stored. A successor reports the others again."""
_ELECTION = f"{ROOT}alerts/leader"
_REPORTED = f"{ROOT}alerts/notified".encode()


@dataclass(frozen=True, slots=True)
class Notification:
    """The problems to report."""

    firing: tuple[FleetProblem, ...] = ()
    resolved: tuple[FleetProblem, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.firing or self.resolved)


class AlertState:
    """Decides which problems to report. Pure."""

    def __init__(self, after: float) -> None:
        """A problem is reported after this many seconds, and resolved after being absent for as
        long."""
        self._after = after
        self._since: dict[str, float] = {}
        """When each current problem began."""
        self._gone: dict[str, float] = {}
        """When each reported problem was first absent."""
        self._reported: dict[str, FleetProblem] = {}
        self._stored: frozenset[str] = frozenset()
        """The keys of the reported problems that a successor can read."""

    def update(self, problems: Iterable[FleetProblem], now: float) -> Notification:
        """What to report, given the current problems. Repeated until `mark_sent` is called."""
        current = {problem.key: problem for problem in problems}
        self._since = {key: self._since.get(key, now) for key in current}
        absent = [key for key in self._reported if key not in current]
        self._gone = {key: self._gone.get(key, now) for key in absent}
        return Notification(
            firing=tuple(
                problem
                for key, problem in current.items()
                if key not in self._reported and now - self._since[key] >= self._after
            ),
            resolved=tuple(
                self._reported[key] for key in absent if now - self._gone[key] >= self._after
            ),
        )

    def mark_sent(self, notification: Notification) -> None:
        self._reported.update({problem.key: problem for problem in notification.firing})
        for problem in notification.resolved:
            self._reported.pop(problem.key, None)

    def reported(self) -> tuple[FleetProblem, ...]:
        """The problems that were reported and not yet resolved."""
        return tuple(self._reported.values())

    def mark_stored(self, problems: Iterable[FleetProblem]) -> None:
        self._stored = frozenset(problem.key for problem in problems)

    def hand_over(self) -> None:
        """Another server continues with the stored problems. This server still has to report the
        end of all others."""
        for name in self._stored:
            self._reported.pop(name, None)
        self._stored = frozenset()

    def take_over(self, problems: Iterable[FleetProblem]) -> None:
        """Continue with the problems that another server reported."""
        stored = {problem.key: problem for problem in problems}
        self._stored = frozenset(stored)
        self._reported = stored | self._reported


class WebhookError(Exception):
    """The webhook did not accept a notification. The message contains no secrets."""


class AlertPayload(msgspec.Struct, frozen=True):
    """The body of the POST request. A problem that is reported again, by another server or after a
    restart, has the same `key`."""

    source: str
    """The host name of the server."""
    time: str
    firing: tuple[FleetProblem, ...]
    resolved: tuple[FleetProblem, ...]
    """As they were reported."""


class Webhook:
    """Does not follow redirects, which would send the token to another host."""

    def __init__(self, settings: AlertSettings) -> None:
        self._settings = settings
        self._url = urllib.parse.urlsplit(settings.webhook)
        self._tls = (
            ssl.create_default_context(cafile=settings.ca or None)
            if self._url.scheme == "https"
            else None
        )

    async def send(self, notification: Notification) -> None:
        """Raises `WebhookError`."""
        payload = AlertPayload(
            socket.gethostname(), rfc3339(now()), notification.firing, notification.resolved
        )
        body = encode(payload)
        # In a thread, because looking up the host name would block the event loop.
        outcome = await in_thread(lambda: self._post(body), name="mooring webhook")
        if isinstance(outcome, BaseException):
            raise WebhookError(self._reason(outcome)) from outcome

    def _post(self, body: bytes) -> None:
        host, timeout = self._url.hostname or "", self._settings.timeout
        connection = (
            http.client.HTTPSConnection(host, self._url.port, timeout=timeout, context=self._tls)
            if self._tls is not None
            else http.client.HTTPConnection(host, self._url.port, timeout=timeout)
        )
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"mooring/{__version__}",
            "Connection": "close",
        }
        if self._settings.token_file:
            token = Path(self._settings.token_file).read_text(encoding="utf-8").strip()
            headers["Authorization"] = f"Bearer {token}"
        path = urllib.parse.urlunsplit(("", "", self._url.path or "/", self._url.query, ""))
        try:
            connection.request("POST", path, body, headers)
            status = connection.getresponse().status
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise WebhookError(f"it answered {status}")

    def _reason(self, error: BaseException) -> str:
        match error:
            case WebhookError():
                return str(error)
            case TimeoutError():
                return f"no answer within {self._settings.timeout:g} s"
            case ssl.SSLCertVerificationError():
                return f"its certificate is not trusted: {error.verify_message}"
            case OSError():
                return error.strerror or "it cannot be reached"
            case _:  # without the text of the error, which may quote the token
                return "the request could not be sent: check the webhook's URL and token"


class NotifierElection(ABC):
    """Elects the server that calls the webhook. Entering does not wait for the store."""

    def __init__(self) -> None:
        self._id = f"{socket.gethostname()} {secrets.token_hex(6)}"
        self._elected: bool | None = None
        self.term = 0
        """Increases whenever this server is elected: another one may have been elected before."""
        self._tasks = Tasks()

    @property
    def elected(self) -> bool:
        return self._elected is True

    @abstractmethod
    async def confirm(self) -> bool:
        """Check with the store before a call. False if another server is elected, or if the store
        is back and the election is still open."""

    @abstractmethod
    async def load_reported(self) -> bytes:
        """What the elected server last saved. Raises `StoreError`."""

    @abstractmethod
    async def save_reported(self, reported: bytes) -> None:
        """Save what was reported for a successor. Raises `StoreError`."""

    @abstractmethod
    async def _run(self) -> None:
        """Keep `_elected` up to date."""

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), name="election of the server that calls the webhook")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        self._elected = False

    def _set(self, elected: bool) -> None:
        if elected is not self._elected:
            log.info("%s calls the webhook", "this server" if elected else "another server")
            self.term += elected
        self._elected = elected

    def _election_failed(self, error: MooringError) -> None:
        if self._elected is None:
            log.warning("no server can be elected to call the webhook, so this one does: %s", error)
            self._set(True)


class StoreElection(NotifierElection):
    def __init__(self, hub: Hub, *, ttl: float = TTL) -> None:
        super().__init__()
        self._store, self._election = hub.store, hub.election(_ELECTION, ttl=ttl)
        self._leadership: Leadership | None = None

    async def _run(self) -> None:
        self._tasks.start(self._campaign(), name="campaign for calling the webhook")
        async with self._election.observe() as leaders:
            async for leader in leaders:
                if leader is not None:
                    self._observe(leader)

    async def _campaign(self) -> None:
        backoff = Backoff(0.2, 2.0)
        while True:
            try:
                async with self._election.campaign(self._id) as leadership:
                    self._leadership = leadership
                    self.term += 1
                    self._set(True)
                    backoff.reset()
                    await leadership.lost.wait()
            except MooringError as error:
                self._election_failed(error)
            finally:
                self._leadership = None
            await asyncio.sleep(backoff.next())

    def _observe(self, leader: Leader) -> None:
        if leader.text != self._id:
            self._set(False)
        elif self._leadership is not None and self._leadership.key == leader.key:
            self._set(True)
        # Otherwise it is this server's key from before an outage: it must expire first.

    async def confirm(self) -> bool:
        if self._leadership is not None or not self.elected:
            return self.elected
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self.load_reported()
        except (StoreError, TimeoutError):
            return self.elected
        return False

    async def load_reported(self) -> bytes:
        entry = (await self._store.read(key(_REPORTED))).first
        return b"" if entry is None else entry.value

    async def save_reported(self, reported: bytes) -> None:
        if self._leadership is None:
            raise StoreError("it is unknown whether another server is elected")
        try:
            await self._store.commit(Put(_REPORTED, reported), require=[self._leadership.check])
        except Conflict as error:
            raise StoreError("another server is elected") from error


class RedisElection(NotifierElection):
    def __init__(self, lease: LeaderLease, *, ttl: float = TTL) -> None:
        super().__init__()
        self._lease, self._ttl = lease, ttl

    async def _run(self) -> None:
        while True:
            await self._campaign()
            await asyncio.sleep(self._ttl / 3)

    async def _campaign(self) -> None:
        try:
            self._set(await self._lease.lead(self._id, self._ttl))
        except StoreError as error:
            self._election_failed(error)

    async def confirm(self) -> bool:
        await self._campaign()
        return self.elected

    async def __aexit__(self, *_: object) -> None:
        elected = self.elected
        await super().__aexit__()
        if elected:
            await cleanup(self._resign(), within=_TIMEOUT)

    async def _resign(self) -> None:
        try:
            await self._lease.resign(self._id)
        except StoreError as error:
            log.debug("resigning failed, so the lease of the elected server expires: %s", error)

    async def load_reported(self) -> bytes:
        return await self._lease.note()

    async def save_reported(self, reported: bytes) -> None:
        if not await self._lease.leave_note(self._id, reported):
            raise StoreError("another server is elected")


class Alerts:
    """Calls the webhook while it is entered and this server is elected. Leaving does not wait for
    the webhook."""

    def __init__(
        self, problems: CurrentProblems, settings: AlertSettings, election: NotifierElection
    ) -> None:
        self._problems, self._settings, self._election = problems, settings, election
        self._was_elected = self._saved = False
        self._term = 0
        self._state = AlertState(settings.after)
        self._webhook = Webhook(settings)
        self._failure = ""
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), name="alerts")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        if self._election.elected and not self._saved:
            await cleanup(self._save(), within=_TIMEOUT)

    async def _run(self) -> None:
        loop, backoff, retry_at = asyncio.get_running_loop(), Backoff(_FIRST_RETRY, _MAX_RETRY), 0.0
        while True:
            await self._follow_election()
            if self._election.elected and not self._saved:
                await self._save()
            notification = self._due()
            if notification and loop.time() >= retry_at and await self._may_send():
                if await self._send(notification):
                    backoff.reset()
                else:
                    retry_at = loop.time() + backoff.next()
            await asyncio.sleep(INTERVAL)

    def _due(self) -> Notification:
        severities = SEVERITIES[: SEVERITIES.index(self._settings.severity) + 1]
        problems = [p for p in self._problems.problems() if p.severity in severities]
        # The problems may be a second old: they lasted until then, not until now.
        notification = self._state.update(problems, self._problems.updated_at)
        if self._election.elected:
            return notification
        # Only this server knows what it reported while the store was away.
        return Notification(resolved=notification.resolved)

    async def _may_send(self) -> bool:
        """Whether the election has not changed since `_follow_election`."""
        elected = self._election.elected
        if elected is not self._was_elected or (elected and not await self._election.confirm()):
            return False
        return self._election.term == self._term

    async def _follow_election(self) -> None:
        """Hand over to the newly elected server, or take over from the one before."""
        before, self._was_elected = self._was_elected, self._election.elected
        term, self._term = self._term, self._election.term
        if before and not self._was_elected:
            self._state.hand_over()
        if not self._was_elected or (before and term == self._term):
            return
        self._saved = not self._state.reported()
        try:
            saved = await self._election.load_reported()
            reported = msgspec.json.decode(saved, type=list[FleetProblem]) if saved else []
        except (StoreError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.debug("the reported problems cannot be read and are reported again: %s", error)
            return
        if before:  # another server may have been elected in between
            self._state.hand_over()
        self._state.take_over(reported)

    async def _save(self) -> None:
        """Save what was reported for a successor. If the store is unavailable, `_run` retries."""
        self._saved = False
        try:
            reported = self._state.reported()[:_MAX_STORED]
            await self._election.save_reported(msgspec.json.encode(reported))
            self._state.mark_stored(reported)
            self._saved = True
        except StoreError as error:
            log.debug("the reported problems cannot be saved: %s", error)

    async def _send(self, notification: Notification) -> bool:
        try:
            await self._webhook.send(notification)
        except WebhookError as error:
            NOTICES.labels("failed").inc()
            if str(error) != self._failure:
                self._failure = str(error)
                log.warning("the webhook %s: %s", self._settings.where, error)
            return False
        NOTICES.labels("sent").inc()
        self._state.mark_sent(notification)
        if self._election.elected:
            await self._save()
        if self._failure:
            self._failure = ""
            log.info("the webhook %s accepts alerts again", self._settings.where)
        return True
