"""Sends alerts to the webhook: once when a problem lasts, and once when it is over."""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from mooring import __version__
from mooring.errors import Conflict, MooringError, StoreError
from mooring.hub import Hub
from mooring.locks.election import Leader, Leadership
from mooring.model import Time, now
from mooring.registry.contract import LeaderLease
from mooring.server.api.prometheus import NOTICES
from mooring.server.auth.signed_records import ROOT
from mooring.server.http.response import encode, shown
from mooring.server.live.problems import SEVERITIES, CurrentProblems, Problem
from mooring.server.settings import AlertSettings
from mooring.store import Put, key
from mooring.tasks import Backoff, Tasks, cleanup, in_thread


@dataclass(frozen=True, slots=True)
class Notification:
    """What is to be told."""

    firing: tuple[Problem, ...] = ()
    resolved: tuple[Problem, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.firing or self.resolved)


@dataclass(slots=True)
class AlertState:
    after: float
    """Seconds that a problem must last to be told, and be gone to be over."""
    _since: dict[str, float] = field(default_factory=dict)
    """When each that holds began to hold."""
    _gone: dict[str, float] = field(default_factory=dict)
    """When each that was told was first missing."""
    _now: dict[str, Problem] = field(default_factory=dict)
    _told: dict[str, Problem] = field(default_factory=dict)
    _left: frozenset[str] = frozenset()
    """The keys that a successor would know."""

    def look(self, problems: Iterable[Problem], now: float) -> Notification:
        """What is due, given what is wrong now. The same again until it is `told`."""
        self._now = {each.key: each for each in problems}
        self._since = {key: self._since.get(key, now) for key in self._now}
        missing = [key for key in self._told if key not in self._now]
        self._gone = {key: self._gone.get(key, now) for key in missing}
        return Notification(
            firing=tuple(
                problem
                for key, problem in self._now.items()
                if key not in self._told and now - self._since[key] >= self.after
            ),
            resolved=tuple(
                self._told[key] for key in missing if now - self._gone[key] >= self.after
            ),
        )

    def known(self) -> tuple[Problem, ...]:
        """What was told and is not over, as far as was told."""
        return tuple(self._told.values())

    def left(self, known: Iterable[Problem]) -> None:
        """A successor would know these."""
        self._left = frozenset(each.key for each in known)

    def hand_over(self) -> None:
        """Another server goes on from what was left. The end of anything else stays due here."""
        self._told = {key: each for key, each in self._told.items() if key not in self._left}
        self._left = frozenset()

    def take_over(self, known: Iterable[Problem]) -> None:
        """Go on from what another server told."""
        known = tuple(known)
        self.left(known)
        self._told = {each.key: each for each in known} | self._told

    def told(self, notice: Notification) -> None:
        """That notice arrived."""
        self._told.update({each.key: each for each in notice.firing})
        for each in notice.resolved:
            self._told.pop(each.key, None)


class WebhookError(Exception):
    """The webhook did not take it; the message says why, without what may be secret."""


class AlertPayload(msgspec.Struct, frozen=True):
    """The body of the POST. A problem that is told again, by another server or after a restart, has
    the same `key`."""

    source: str
    """The machine whose server tells."""
    time: str
    firing: tuple[Problem, ...]
    resolved: tuple[Problem, ...]
    """As they were told."""


class Webhook:
    """Where people are told. A redirect is not followed: it would take the token elsewhere."""

    def __init__(self, settings: AlertSettings) -> None:
        self._settings = settings
        self._url = urllib.parse.urlsplit(settings.webhook)
        self._tls = (
            ssl.create_default_context(cafile=settings.ca or None)
            if self._url.scheme == "https"
            else None
        )

    async def tell(self, notice: Notification, time: Time) -> None:
        """Raises `WebhookError`."""
        body = encode(
            AlertPayload(socket.gethostname(), shown(time) or "", notice.firing, notice.resolved)
        )
        # A thread of its own: names are looked up in it, and the loop waits for none of that.
        outcome = await in_thread(lambda: self._post(body), name="mooring webhook")
        if isinstance(outcome, BaseException):
            raise WebhookError(self._why(outcome)) from outcome

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

    def _why(self, error: BaseException) -> str:
        match error:
            case WebhookError():
                return str(error)
            case TimeoutError():
                return f"no answer within {self._settings.timeout:g} s"
            case ssl.SSLCertVerificationError():
                return f"its certificate is not trusted: {error.verify_message}"
            case OSError():
                return error.strerror or "it cannot be reached"
            case _:  # not in its own words: those of a bad header quote the token
                return "it cannot be told: check the webhook's URL and token"


log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks."""
_FIRST, _MOST = 2.0, 300.0
"""Seconds between two tries, at first and at the most."""


_LEAVE_WITHIN = 2.0
_LEFT = 2_000
"""Problems that a successor is told of; it tells the others again."""


TTL = 10.0
"""Seconds after which another server takes over from one that died."""
_ELECTION = f"{ROOT}alerts/leader"
_REPORTED = f"{ROOT}alerts/notified".encode()
_ASK_WITHIN = _CLOSE_WITHIN = 2.0


class NotifierElection(ABC):
    """Entering does not wait for the store."""

    def __init__(self) -> None:
        self._id = f"{socket.gethostname()} {secrets.token_hex(6)}"
        self._mine: bool | None = None
        self.term = 0
        """Increases whenever this server is elected: another one may have been elected before."""
        self._tasks = Tasks()

    @property
    def mine(self) -> bool:
        """Whether it is for this server to call."""
        return self._mine is True

    @abstractmethod
    async def confirm(self) -> bool:
        """Check with the store before a call. False if another server is elected, or if the store
        is back and the election is still open."""

    @abstractmethod
    async def reported(self) -> bytes:
        """What the server with the duty last reported. Raises what a store raises."""

    @abstractmethod
    async def leave(self, reported: bytes) -> None:
        """Leave to the others what was reported. Raises what a store raises."""

    @abstractmethod
    async def _run(self) -> None:
        """Keep `_mine` right."""

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), name="duty of calling the webhook")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        self._mine = False

    def _set(self, mine: bool) -> None:
        if mine is not self._mine:
            log.info("%s calls the webhook", "this server" if mine else "another server")
            self.term += mine
        self._mine = mine

    def _cannot_ask(self, error: MooringError) -> None:
        if self._mine is None:
            log.warning("which server calls the webhook cannot be decided: %s", error)
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
                    self._learn(leader)

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
                self._cannot_ask(error)
            finally:
                self._leadership = None
            await asyncio.sleep(backoff.next())

    def _learn(self, leader: Leader) -> None:
        if leader.text != self._id:
            self._set(False)
        elif self._leadership is not None and self._leadership.key == leader.key:
            self._set(True)
        # Otherwise it is this server's key from before an outage: it must expire first.

    async def confirm(self) -> bool:
        if self._leadership is not None or not self.mine:
            return self.mine
        try:
            async with asyncio.timeout(_ASK_WITHIN):
                await self.reported()
        except (StoreError, TimeoutError):
            return self.mine
        return False

    async def reported(self) -> bytes:
        found = (await self._store.read(key(_REPORTED))).first
        return b"" if found is None else found.value

    async def leave(self, reported: bytes) -> None:
        if self._leadership is None:
            raise StoreError("it is not known whether another server has the duty")
        try:
            await self._store.commit(Put(_REPORTED, reported), require=[self._leadership.check])
        except Conflict as error:
            raise StoreError("another server has the duty") from error


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
            self._cannot_ask(error)

    async def confirm(self) -> bool:
        await self._campaign()
        return self.mine

    async def __aexit__(self, *_: object) -> None:
        mine = self.mine
        await super().__aexit__()
        if mine:
            await cleanup(self._resign(), within=_CLOSE_WITHIN)

    async def _resign(self) -> None:
        try:
            await self._lease.resign(self._id)
        except StoreError as error:
            log.debug("the duty is left to its lease: %s", error)

    async def reported(self) -> bytes:
        return await self._lease.note()

    async def leave(self, reported: bytes) -> None:
        if not await self._lease.leave_note(self._id, reported):
            raise StoreError("another server has the duty")


class Alerts:
    """Tells the webhook of what is wrong while it is entered, if that is for this server to do.
    Leaving waits for no webhook."""

    def __init__(
        self,
        problems: CurrentProblems,
        settings: AlertSettings,
        election: NotifierElection,
        *,
        interval: float = INTERVAL,
    ) -> None:
        self._problems, self._settings, self._interval = problems, settings, interval
        self._election = election
        self._on_duty = self._left = False
        self._term = 0
        self._ledger = AlertState(settings.after)
        self._webhook = Webhook(settings)
        self._failing = ""
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), name="alerts")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        if self._election.mine and not self._left:
            await cleanup(self._leave(), within=_LEAVE_WITHIN)

    def _grave(self) -> list[Problem]:
        grave = SEVERITIES[: SEVERITIES.index(self._settings.severity) + 1]
        return [each for each in self._problems.problems() if each.severity in grave]

    async def _run(self) -> None:
        loop, backoff, again = asyncio.get_running_loop(), Backoff(_FIRST, _MOST), 0.0
        while True:
            await self._change_duty()
            grave = self._grave()
            # They may be a second old. A problem has lasted until then, not until now.
            notice = self._ledger.look(grave, self._problems.updated_at)
            if self._election.mine and not self._left:
                await self._leave()
            mine = self._election.mine
            if not mine:  # what was reported while the store was away, only this server knows
                notice = Notification(resolved=notice.resolved)
            if notice and mine is self._on_duty and loop.time() >= again:
                if mine and not await self._confirm():
                    pass  # at the next look it is known who reports this
                elif await self._tell(notice):
                    backoff.reset()
                else:
                    again = loop.time() + backoff.next()
            await asyncio.sleep(self._interval)

    async def _confirm(self) -> bool:
        return await self._election.confirm() and self._election.term == self._term

    async def _change_duty(self) -> None:
        """Go on where the server stopped that had the duty before, or let another one go on."""
        before, self._on_duty = self._on_duty, self._election.mine
        term, self._term = self._term, self._election.term
        if before and not self._on_duty:
            self._ledger.hand_over()
        if not self._on_duty or (before and term == self._term):
            return
        self._left = not self._ledger.known()
        try:
            reported = await self._election.reported()
            known = msgspec.json.decode(reported, type=list[Problem]) if reported else []
        except (StoreError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.debug("earlier reports cannot be read, so problems are reported again: %s", error)
            return
        if before:  # another server may have had the duty since
            self._ledger.hand_over()
        self._ledger.take_over(known)

    async def _leave(self) -> None:
        """Leave to a successor what was reported; at the next look, if the store is away."""
        self._left = False
        try:
            known = self._ledger.known()[:_LEFT]
            await self._election.leave(msgspec.json.encode(known))
            self._ledger.left(known)
            self._left = True
        except StoreError as error:
            log.debug("what was told is known here alone: %s", error)

    async def _tell(self, notice: Notification) -> bool:
        try:
            await self._webhook.tell(notice, now())
        except WebhookError as error:
            NOTICES.labels("failed").inc()
            if str(error) != self._failing:
                self._failing = str(error)
                log.warning("the webhook %s: %s", self._settings.where, error)
            return False
        NOTICES.labels("sent").inc()
        self._ledger.told(notice)
        if self._election.mine:
            await self._leave()
        if self._failing:
            self._failing = ""
            log.info("the webhook %s takes alerts again", self._settings.where)
        return True
