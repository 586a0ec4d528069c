"""A registration: keeps one instance registered until it is closed.

Whatever happens to the record (its lease is lost, its keys are deleted or overwritten, the store is
unavailable or restored from a backup, this process is blocked), the registration repairs it as soon
as possible. It ends in only three ways: it is closed, another process registers the same instance
(`superseded`), or an operator deregisters it (`removed`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Self, TypeVar

import msgspec

from mooring import telemetry
from mooring.addresses import reachable_host
from mooring.errors import AccessDenied, Closed, InvalidRequest, Removed, StoreError, Superseded
from mooring.formatting import describe
from mooring.heartbeat.collectors import Collecting
from mooring.heartbeat.policy import Beats, Decision
from mooring.messages import message
from mooring.model import JSON, NO_CONFIG, Config, Instance, RegistrationState
from mooring.registry.contract import Registrar
from mooring.registry.published_state import PublishedState
from mooring.registry.shutdown import LINGER, close_on_sigterm, leave_to_sigterm
from mooring.settings import Policy
from mooring.tasks import Backoff, Tasks, cleanup, wait_for

log = logging.getLogger(__name__)

T = TypeVar("T")

_WITHDRAW_WITHIN = 3.0
_CROWDED = 1.0
"""Seconds after which an answer is slow because the registry was unavailable: many processes get
theirs at the same moment."""
_SEED = random.getrandbits(64)
"""The seed of the jitter of heartbeats; each process has its own."""
_FINAL_STATES: tuple[RegistrationState, ...] = ("superseded", "removed", "closed")


class Registration:
    """Created by `hub.register`; use it as an async context manager.

    Entering waits until the instance is registered, for at most `wait` seconds. An unavailable
    store does not keep a service from starting: the registration retries without end. Entering
    raises `InvalidRequest` for an instance that can never be registered, `AccessDenied`, `Closed`
    if it is closed in the meantime, and `Superseded` or `Removed` if that happened before the first
    write was confirmed. Leaving deregisters. In a forked child it is `closed`: the child is not the
    instance of the parent, and cannot affect the parent's registration.
    """

    def __init__(
        self,
        registrar: Registrar,
        instance: Instance,
        *,
        ttl: float | None,
        policy: Policy,
        metrics: Collecting,
        wait: float,
    ) -> None:
        if not instance.host:
            instance = msgspec.structs.replace(instance, host=reachable_host())
        self._published = PublishedState(registrar, instance, metrics)
        self._registrar, self._ttl, self._wait = registrar, ttl, wait
        self._beats = Beats(
            policy,
            renewed=registrar.guarantees.renews,
            seed=hash((_SEED, os.getpid())),
        )
        self._metrics = metrics
        self._state: RegistrationState = "closed"
        self._phase: RegistrationState = "registering"
        self._fresh = True
        self._entered = False
        self._leaving: asyncio.Event | None = None
        self._closing: asyncio.Event | None = None
        """Exist once `drain` or `aclose` was called; set when it is done."""
        self._callbacks: tuple[Callable[[RegistrationState], None], ...] = ()
        self._config_callbacks: tuple[Callable[[Config], None], ...] = ()
        self._config = NO_CONFIG
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._problem = self._reason = ""
        self._failed: BaseException | None = None
        self._tasks = Tasks()
        self._process = os.getpid()
        self._end_metrics: Callable[[], None] = lambda: None
        self._labels = (self._published.instance.service, self._published.instance.id)

    @property
    def instance(self) -> Instance:
        """The instance as it is registered: with its id, incarnation and status."""
        return self._published.as_of_now()

    @property
    def state(self) -> RegistrationState:
        """Correct by the local clock, even if the event loop was blocked for longer than the TTL
        and no callback has run yet."""
        if self._process != os.getpid():
            return "closed"
        return "suspended" if self._is_expired else self._state

    @property
    def reason(self) -> str:
        """Why it is in this state; empty if there is no particular reason."""
        return "no heartbeat within its TTL" if self._is_expired else self._reason

    @property
    def _is_expired(self) -> bool:
        return self._state == "registered" and self._record.expired

    @property
    def config(self) -> Config:
        """The operator overrides of this instance and its service, live."""
        return self._config

    def subscribe(self, callback: Callable[[RegistrationState], None]) -> None:
        """Call `callback` at each change of the state. It must not block."""
        self._callbacks += (callback,)

    def on_config(self, callback: Callable[[Config], None]) -> None:
        """Call `callback` now and whenever the operator overrides change."""
        self._config_callbacks += (callback,)
        callback(self._config)

    def update(
        self,
        *,
        healthy: bool | None = None,
        metrics: Mapping[str, JSON] | None = None,
        version: str | None = None,
        weight: float | None = None,
        zone: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Change the fields, health and metrics of the instance. Raises `InvalidRequest` for an
        invalid value, and changes nothing then.

        `metrics` are the service's own, in addition to the collected ones.
        """
        fields = {"version": version, "weight": weight, "zone": zone, "metadata": metadata}
        self._published.update(healthy=healthy, metrics=metrics, fields=fields)
        self._wake.set()

    async def __aenter__(self) -> Self:
        if self._closing is not None:
            raise self._closed("registration_closed")
        self._metrics.start()
        close_on_sigterm(self, asyncio.get_running_loop())
        record = self._registrar.instance_record(self._published.instance, ttl=self._ttl)
        self._published.log_lost_fields()
        self._record, self._entered = record, True
        telemetry.REGISTRATIONS.show(*self._labels, self)
        record.open(self._on_record_change)
        self._end_metrics = self._metrics.subscribe(self._on_metrics)
        self._enter("registering")
        self._tasks.start(self._keep(), name=f"registration of {self._labels[1]}")
        try:
            if not await wait_for(self._settled, within=self._wait) and not self._problem:
                self._warn_unregistered("no response in time")
        except BaseException:
            await self.aclose()
            raise
        if self._failed is not None:
            await self.aclose()
            raise self._failed
        if self._closing is not None:
            await leave_to_sigterm()
            raise self._closed("registration_closed_meanwhile")
        return self

    def _closed(self, kind: str) -> Closed:
        service, id = self._labels
        return Closed(message(kind, service=service, id=id))

    def _on_metrics(self) -> None:
        self._published.metrics_changed()
        self._wake.set()

    async def registered(self) -> None:
        """Wait until it is registered. Raises `Superseded`, `Removed` or `Closed` if it never will
        be."""
        changed = asyncio.Event()

        def on_change(_: RegistrationState) -> None:
            changed.set()

        self._callbacks += (on_change,)
        try:
            while self.state != "registered":
                if self._failed is not None:
                    raise self._failed
                if self._closing is not None:
                    raise self._closed("registration_closed")
                changed.clear()
                await changed.wait()
        finally:
            self._callbacks = tuple(
                callback for callback in self._callbacks if callback is not on_change
            )

    async def _keep(self, *, written: bool = False) -> None:
        """Write the record, send heartbeats until it is disturbed, and repeat. `written`: skip the
        first write."""
        renews = self._registrar.guarantees.renews  # then a repair must take less than 2 s
        backoff = Backoff() if renews else Backoff(most=self._beats.policy.longest_retry)
        while True:
            try:
                if not written:
                    await self._send(Decision.METADATA_UPDATE, put=True)
                written = False
                backoff.reset()
                self._enter("registered")
                self._settled.set()
                await self._beat_until_disturbed()
                telemetry.REPAIRS.labels(*self._labels).inc()
                self._enter("registering", "its record was deleted or changed")
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise
                if self._is_final(error):
                    self._end(error)
                    return
                self._suspend(error)
                await asyncio.sleep(backoff.next())

    def _is_final(self, error: BaseException) -> bool:
        """Whether an error ends the registration. A fresh one also ends if it has no access."""
        return isinstance(error, Closed | Superseded | Removed | InvalidRequest) or (
            self._fresh and isinstance(error, AccessDenied)
        )

    def _suspend(self, error: BaseException) -> None:
        """Report an error after which the registration retries. A bug must not end it. Nor must the
        cancellation of an awaited task, which looks like a cancellation of this one."""
        is_bug = not isinstance(error, StoreError)
        before, self._problem = self._problem, describe(error) if is_bug else str(error)
        if self._problem != before:
            if is_bug:
                log.exception("%s %s: retrying", *self._labels)
            elif self._fresh:
                self._warn_unregistered(self._problem)
        if is_bug or self._phase in ("registered", "suspended"):
            self._enter("suspended", self._problem)

    async def _beat_until_disturbed(self) -> None:
        while not self._record.disturbed:
            self._wake.clear()
            moment = time.monotonic()
            decision = self._beats.decide(moment, self._published.metrics)
            if self._published.changed:
                decision = Decision.METADATA_UPDATE
            if decision is not Decision.NO_UPDATE:
                await self._send(decision)
                continue
            await wait_for(self._wake, within=self._beats.next_due(moment))

    async def _send(self, decision: Decision, *, put: bool = False) -> None:
        metrics, changed = self._published.metrics, self._published.changed
        moment = time.monotonic()
        self._published.changed = False
        self._beats.began()
        try:
            record = self._published.as_of_now()
            if put:
                await self._record.put(record, fresh=self._fresh)
                self._fresh = False
            else:
                update = decision is Decision.METADATA_UPDATE
                await self._record.beat(record, update=update)
        except BaseException:
            self._beats.failed()
            self._published.changed = self._published.changed or changed
            raise
        crowded = put or time.monotonic() - moment > _CROWDED
        self._beats.sent(moment, decision, metrics, crowded=crowded)

    def _on_record_change(self) -> None:
        if self._record.disturbed:  # first: the rest may fail
            self._wake.set()
        self._show(self._record.suspended)
        config = self._record.config
        if config != self._config:
            self._config = config
            self._notify(self._config_callbacks, config)

    def _notify(self, callbacks: Iterable[Callable[[T], None]], value: T) -> None:
        for callback in callbacks:
            try:
                callback(value)
            except Exception:
                log.exception("%s %s: a subscriber failed", *self._labels)

    def _enter(self, phase: RegistrationState, why: str = "") -> None:
        if self._published.state == "draining" and phase not in _FINAL_STATES:
            phase = "draining"
        self._phase = phase
        self._show(self._record.suspended if phase == "registered" else "", why)

    def _warn_unregistered(self, problem: str) -> None:
        """Before the first registration nothing else reports it: the session may be healthy."""
        log.warning("%s %s: not registered yet, retrying: %s", *self._labels, problem)

    def _end(self, error: BaseException) -> None:
        self._failed = error
        superseded, removed = isinstance(error, Superseded), isinstance(error, Removed)
        self._enter("superseded" if superseded else "removed" if removed else "closed", str(error))
        self._settled.set()

    def _show(self, doubt: str, why: str = "") -> None:
        """Update the state, and notify subscribers if it changed."""
        doubtful = bool(doubt) and self._phase == "registered"
        state: RegistrationState = "suspended" if doubtful else self._phase
        reason = why or doubt
        if state == self._state:
            self._reason = reason or self._reason
            return
        before, self._state, self._reason = self._state, state, reason
        # The session logs a doubtful store at a higher level, once for all that share it.
        level = logging.WARNING if state in ("superseded", "removed") else logging.INFO
        cause = f": {reason}" if reason else ""
        log.log(level, "%s %s: %s (was %s)%s", *self._labels, state, before, cause)
        self._notify(self._callbacks, state)

    async def drain(self, *, grace: float = 10.0, linger: float = LINGER) -> None:
        """Leave without a failed call: mark the instance as draining, keep it registered for
        `linger` seconds, in which consumers call it only if no other is usable, then deregister it.
        If the registry has no draining state, deregister it first and then wait. Takes at most
        `grace` seconds, even if the store is unavailable."""
        if self.state in _FINAL_STATES:
            return await self.aclose()
        deadline = time.monotonic() + grace
        if self._leaving is None:
            self._leaving = asyncio.Event()
            try:
                await self._tasks.aclose()
                self._enter("draining")
                self._published.state = "draining"
                await cleanup(self._start_draining(), within=grace / 2)
            finally:
                self._leaving.set()
        else:
            await wait_for(self._leaving, within=grace / 2)
        left = deadline - time.monotonic()
        left = min(linger, max(left / 2, left - _WITHDRAW_WITHIN))  # the rest is for deregistering
        if left > 0:
            await asyncio.sleep(left)
        await self.aclose(within=max(deadline - time.monotonic(), 0.1))

    async def _start_draining(self) -> None:
        """Mark the record as draining and keep it. If the registry has no such state, delete it:
        consumers would not stop choosing the instance."""
        keeps, written = not self._fresh and self._registrar.guarantees.describes, False
        try:
            if keeps:
                await self._send(Decision.METADATA_UPDATE, put=True)
                written = True
            else:
                await self._record.withdraw()
        except (Superseded, Removed) as error:
            self._end(error)
            return
        except StoreError as error:
            log.info("%s %s: not marked as draining yet: %s", *self._labels, error)
        finally:
            if keeps and self._failed is None and self._closing is None:
                keeping = self._keep(written=written)
                self._tasks.start(keeping, name=f"draining of {self._labels[1]}")

    async def aclose(self, *, within: float = _WITHDRAW_WITHIN) -> None:
        """Deregister. If the store does not answer within a few seconds, the record is left to
        expire. Concurrent calls wait for the first."""
        if self._process != os.getpid():
            return
        if self._closing is not None:
            await self._closing.wait()
            return
        self._closing = asyncio.Event()
        self._settled.set()  # wakes a task that is still entering
        try:
            if self._entered:  # otherwise there is no record
                await cleanup(self._close(within), within=within + 1)
        finally:
            self._closing.set()

    async def _close(self, within: float) -> None:
        deadline = time.monotonic() + within
        await self._tasks.aclose()
        self._end_metrics()
        if self._leaving is not None:  # it needs the record, which is closed here
            await wait_for(self._leaving, within=within / 2)
        try:
            if self._phase not in _FINAL_STATES:
                async with asyncio.timeout(within / 2):
                    await self._record.withdraw()
        except (StoreError, TimeoutError) as error:
            reason = str(error) or "the store does not answer"
            log.info("%s %s: left to expire: %s", *self._labels, reason)
        self._phase = "closed" if self._failed is None else self._phase
        self._show("")
        telemetry.REGISTRATIONS.hide(*self._labels, self)
        await self._record.aclose(within=max(deadline - time.monotonic(), 0.1))

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
