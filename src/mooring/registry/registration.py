"""A registration: one instance, kept registered for as long as it lives.

Whatever happens to the record (its lease lost, its keys deleted or overwritten, the store away or
restored from a backup, this process held up), it is put right as soon as that is possible. It ends
in three ways only: it is closed, another process took its place (`superseded`), or an operator took
it out (`removed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Self

import msgspec

from mooring import telemetry
from mooring.addresses import reachable_host
from mooring.errors import AccessDenied, Closed, InvalidRequest, Removed, StoreError, Superseded
from mooring.formatting import describe
from mooring.heartbeat.policy import Beats, Decision
from mooring.model import JSON, NO_CONFIG, Config, Instance, RegistrationState
from mooring.registry.contract import Registry
from mooring.registry.published_state import Metrics, PublishedState
from mooring.registry.shutdown import LINGER, close_on_sigterm
from mooring.settings.registry import Policy
from mooring.tasks import Backoff, Tasks, cleanup

log = logging.getLogger(__name__)

_WITHDRAW_WITHIN = 3.0
_CROWDED = 1.0
"""Seconds after which an answer was slow because the registry was away: then many processes got
theirs in the same moment."""
_SEED = random.getrandbits(64)
"""Of the jitter of heartbeats: other processes have another."""
_STANDING: tuple[RegistrationState, ...] = ("registering", "registered", "suspended", "draining")
"""The states in which it may have a record."""


class Registration:
    """Made by `hub.register`; use it as an async context manager.

    Entering waits until the instance is registered, for at most `wait` seconds: a store that is
    away does not keep a service from starting, the registration goes on trying without end.
    Entering raises `InvalidRequest` for an instance that can never be registered, `AccessDenied`,
    `Closed` where it is closed meanwhile, and `Superseded` or `Removed` where that befell it before
    it heard that it was registered. Leaving deregisters. In a forked child it is `closed`: the
    child is not the parent's instance, and whatever it does leaves the parent's registration alone.
    """

    # Many, and for long: without a dictionary of its own each is a third in size.
    __slots__ = (
        "__weakref__",
        "_beats",
        "_callbacks",
        "_closing",
        "_config",
        "_config_callbacks",
        "_end_metrics",
        "_entered",
        "_failed",
        "_fresh",
        "_labels",
        "_leaving",
        "_metrics",
        "_phase",
        "_process",
        "_published",
        "_reason",
        "_record",
        "_registry",
        "_settled",
        "_state",
        "_tasks",
        "_trouble",
        "_ttl",
        "_wait",
        "_wake",
    )

    def __init__(
        self,
        registry: Registry,
        instance: Instance,
        *,
        ttl: float | None = None,
        policy: Policy | None = None,
        metrics: Metrics | None = None,
        wait: float = 5.0,
    ) -> None:
        if not instance.host:
            instance = msgspec.structs.replace(instance, host=reachable_host())
        self._published = PublishedState(registry, instance, metrics)
        self._registry, self._ttl, self._wait = registry, ttl, wait
        self._beats = Beats(
            policy or Policy(),
            renewed=registry.guarantees.renews,
            seed=hash((_SEED, os.getpid())),
        )
        self._metrics = metrics
        self._state: RegistrationState = "closed"
        self._phase: RegistrationState = "registering"
        self._fresh = True
        self._entered = False
        self._leaving: asyncio.Event | None = None
        self._closing: asyncio.Event | None = None
        """Once somebody drains it, or closes it; set when that is done."""
        self._callbacks: tuple[Callable[[RegistrationState], None], ...] = ()
        self._config_callbacks: tuple[Callable[[Config], None], ...] = ()
        self._config = NO_CONFIG
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._trouble = self._reason = ""
        self._failed: Exception | None = None
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
        """By this machine's clock: right also just after the event loop was blocked for longer than
        the TTL, when no callback has run yet."""
        if self._process != os.getpid():
            return "closed"
        return "suspended" if self._is_expired else self._state

    @property
    def reason(self) -> str:
        """Why it is in this state, where there is something to say."""
        return "no sign of life within its TTL" if self._is_expired else self._reason

    @property
    def _is_expired(self) -> bool:
        return self._state == "registered" and self._record.expired

    @property
    def config(self) -> Config:
        """What the operator says of this instance and its service, live."""
        return self._config

    def subscribe(self, callback: Callable[[RegistrationState], None]) -> None:
        """Call back at each change of the state. It must not block."""
        self._callbacks += (callback,)

    def on_config(self, callback: Callable[[Config], None]) -> None:
        """Call back when the operator's word changed, and once with what it is now."""
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
        """Change what the instance says of itself; consumers hear of it soon. Raises
        `InvalidRequest` for what cannot be, and changes nothing then.

        `metrics` are the service's own, beside those that are collected.
        """
        fields = {"version": version, "weight": weight, "zone": zone, "metadata": metadata}
        self._published.update(healthy=healthy, metrics=metrics, fields=fields)
        self._wake.set()

    async def __aenter__(self) -> Self:
        if self._closing is not None:
            raise Closed("the registration of {} {} is closed: make another".format(*self._labels))
        if self._metrics is not None:
            self._metrics.start()
        close_on_sigterm(self, asyncio.get_running_loop())
        record = self._registry.instance_record(self._published.instance, ttl=self._ttl)
        self._published.tell_lost()
        self._record, self._entered = record, True
        telemetry.REGISTRATIONS.show(*self._labels, self)
        record.subscribe(self._look)
        record.open()
        if self._metrics is not None:
            self._end_metrics = self._metrics.subscribe(self._collected)
        self._enter("registering")
        self._tasks.start(self._keep(), name=f"registration of {self._labels[1]}")
        try:
            async with asyncio.timeout(self._wait):
                await self._settled.wait()
        except TimeoutError:
            if not self._trouble:
                self._say_trouble("no answer in time")
        except BaseException:
            await self.aclose()
            raise
        if self._failed is not None:
            await self.aclose()
            raise self._failed
        if self._closing is not None:
            raise Closed("the registration of {} {} was closed meanwhile".format(*self._labels))
        return self

    def _collected(self) -> None:
        self._published.collected()
        self._wake.set()

    async def registered(self) -> None:
        """Wait until it is registered. Raises `Superseded`, `Removed` or `Closed` where it never
        will be."""
        changed = asyncio.Event()

        def hear(_: RegistrationState) -> None:
            changed.set()

        self._callbacks += (hear,)
        try:
            while self.state != "registered":
                if self._failed is not None:
                    raise self._failed
                if self._closing is not None:
                    raise Closed("the registration of {} {} is closed".format(*self._labels))
                changed.clear()
                await changed.wait()
        finally:
            self._callbacks = tuple(each for each in self._callbacks if each is not hear)

    async def _keep(self, *, stands: bool = False) -> None:
        """Put the record right, stay until it is not, and again. `stands`: it is right now."""
        renews = self._registry.guarantees.renews  # then a record must be back within two seconds
        backoff = Backoff() if renews else Backoff(most=self._beats.policy.longest_retry)
        try:
            while True:
                try:
                    if not stands:
                        await self._send(Decision.METADATA_UPDATE, put=True)
                    stands = False
                    backoff.reset()
                    self._enter("registered")
                    self._settled.set()
                    await self._stay()
                    telemetry.REPAIRS.labels(*self._labels).inc()
                    self._enter("registering", "its record is gone or not as it should be")
                except StoreError as error:
                    if isinstance(error, Closed) or (
                        self._fresh and isinstance(error, AccessDenied)
                    ):
                        raise
                    before, self._trouble = self._trouble, str(error)
                    if self._fresh and self._trouble != before:
                        self._say_trouble(self._trouble)
                    if self._phase in ("registered", "suspended"):
                        self._enter("suspended", self._trouble)
                    await asyncio.sleep(backoff.next())
                except (Superseded, Removed, InvalidRequest):
                    raise
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and _cancelled():
                        raise
                    # A mistake of ours must not end what shall go on for ever; nor must the end of
                    # something that was waited for, which looks as if this had been ended.
                    if self._trouble != describe(error):
                        log.exception("%s %s: trying on", *self._labels)
                    self._trouble = describe(error)
                    self._enter("suspended", self._trouble)
                    await asyncio.sleep(backoff.next())
        except Closed as error:
            self._end("closed", error)
        except Superseded as error:
            self._end("superseded", error)
        except Removed as error:
            self._end("removed", error)
        except (InvalidRequest, AccessDenied) as error:
            self._end("closed", error)

    async def _stay(self) -> None:
        """Beat until something is wrong with the record."""
        while not self._record.disturbed:
            self._wake.clear()
            moment = time.monotonic()
            decision = self._beats.decide(moment, self._published.metrics)
            if self._published.changed:
                decision = Decision.METADATA_UPDATE
            if decision is not Decision.NO_UPDATE:
                await self._send(decision)
                continue
            due = self._beats.next_due(moment)
            timer = asyncio.get_running_loop().call_later(due, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

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

    def _look(self) -> None:
        """The state of the record may have changed."""
        if self._record.disturbed:  # before all that may fail
            self._wake.set()
        self._show(self._record.suspended)
        config = self._record.config
        if config != self._config:
            self._config = config
            for callback in self._config_callbacks:
                try:
                    callback(config)
                except Exception:
                    log.exception("%s %s: a subscriber failed", *self._labels)

    def _enter(self, phase: RegistrationState, why: str = "") -> None:
        if self._published.state == "draining" and phase in _STANDING:
            phase = "draining"
        self._phase = phase
        self._show(self._record.suspended if phase == "registered" else "", why)

    def _say_trouble(self, trouble: str) -> None:
        """Of one that has yet to begin nobody else tells: to its session all may be well."""
        log.warning("%s %s: not registered yet, trying on: %s", *self._labels, trouble)

    def _end(self, phase: RegistrationState, error: Exception) -> None:
        self._failed = error
        self._enter(phase, str(error))
        self._settled.set()

    def _show(self, doubt: str, why: str = "") -> None:
        """Tell everybody where the state is another than before."""
        doubtful = bool(doubt) and self._phase == "registered"
        state: RegistrationState = "suspended" if doubtful else self._phase
        reason = why or doubt
        if state == self._state:
            self._reason = reason or self._reason
            return
        before, self._state, self._reason = self._state, state, reason
        # That the store is in doubt, its session tells, once for all who share it.
        level = logging.WARNING if state in ("superseded", "removed") else logging.INFO
        log.log(
            level,
            "%s %s: %s (was %s)%s",
            *self._labels,
            state,
            before,
            f": {reason}" if reason else "",
        )
        for callback in self._callbacks:
            try:
                callback(state)
            except Exception:
                log.exception("%s %s: a subscriber failed", *self._labels)

    async def drain(self, *, grace: float = 10.0, linger: float = LINGER) -> None:
        """Leave without a failed call: mark the instance as draining, keep it registered for
        `linger` seconds, in which consumers call it only if no other is usable, then deregister it.
        If the registry cannot say that it drains, deregister first and wait then. It takes at most
        `grace` seconds, also if the store is away."""
        if self.state in ("superseded", "removed", "closed"):
            return await self.aclose()
        deadline = time.monotonic() + grace
        if self._leaving is None:
            self._leaving = asyncio.Event()
            try:
                await self._tasks.aclose()
                self._enter("draining")
                self._published.state = "draining"
                await cleanup(self._leave(), within=grace / 2)
            finally:
                self._leaving.set()
        else:
            await _set(self._leaving, within=grace / 2)
        left = deadline - time.monotonic()
        left = min(linger, max(left / 2, left - _WITHDRAW_WITHIN))  # the rest is for leaving
        if left > 0:
            await asyncio.sleep(left)
        await self.aclose(within=max(deadline - time.monotonic(), 0.1))

    async def _leave(self) -> None:
        """Out of the rotation. The record stays until it is closed, unless it cannot say that the
        instance drains: callers would go on choosing it."""
        stays, stands = not self._fresh and self._registry.guarantees.describes, False
        try:
            if stays:
                await self._send(Decision.METADATA_UPDATE, put=True)
                stands = True
            else:
                await self._record.withdraw()
        except (Superseded, Removed) as error:
            self._end("superseded" if isinstance(error, Superseded) else "removed", error)
            return
        except StoreError as error:
            log.info("%s %s: not marked as draining yet: %s", *self._labels, error)
        finally:
            if stays and self._failed is None and self._closing is None:
                keeping = self._keep(stands=stands)
                self._tasks.start(keeping, name=f"draining of {self._labels[1]}")

    async def aclose(self, *, within: float = _WITHDRAW_WITHIN) -> None:
        """Deregister, within a few seconds whatever the store does; then it expires by itself. Who
        closes it while somebody else does waits for the same end."""
        if self._process != os.getpid():
            return
        if self._closing is not None:
            await self._closing.wait()
            return
        self._closing = asyncio.Event()
        self._settled.set()  # who still enters it hears of this at once
        try:
            if self._entered:  # otherwise there is nothing to take back
                await cleanup(self._close(within), within=within + 1)
        finally:
            self._closing.set()

    async def _close(self, within: float) -> None:
        deadline = time.monotonic() + within
        await self._tasks.aclose()
        self._end_metrics()
        if self._leaving is not None:  # what is under way needs what is freed here
            await _set(self._leaving, within=within / 2)
        try:
            if self._phase in _STANDING:
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


async def _set(event: asyncio.Event, *, within: float) -> None:
    """Wait for an event, but not for longer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()


def _cancelled() -> bool:
    """Whether somebody wants the present task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
