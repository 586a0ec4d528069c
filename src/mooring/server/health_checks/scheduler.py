"""Who probes: every instance about once an interval, within a budget, for as long as it is there.

Several servers may do so at once; each only knows more than before.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, Self

from mooring.durations import show
from mooring.model import Instance
from mooring.server.health_checks import target_policy as targets
from mooring.server.health_checks.checkers import (
    Checker,
    Checkers,
    CheckFailed,
    Outcome,
    Target,
    failure_text,
    load_checkers,
)
from mooring.server.health_checks.target_policy import (
    CheckSkipped,
    HostLookups,
    Resolver,
    TargetPolicy,
)
from mooring.server.settings import CheckSettings
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A service and an instance's id."""

_NEWEST = 0.3
"""The weight of the newest response time in the average that is told."""
_LONGEST = 200
"""Characters of a failure; those of others' checkers may be longer."""


class CheckedService(Protocol):
    @property
    def instances(self) -> Mapping[str, Instance]: ...


class CheckedFleet(Protocol):
    """What is registered, and who is told how its instances answer."""

    def names(self) -> Iterable[str]: ...
    def service(self, name: str, /) -> CheckedService | None: ...
    def subscribe(self, callback: Callable[[Collection[Key]], None], /) -> Callable[[], None]: ...
    def report_check(self, service: str, id: str, ms: float | None, failure: str, /) -> None: ...
    def report_unchecked(self, service: str, id: str, reason: str, /) -> None: ...


@dataclass(slots=True, eq=False)
class CheckState:
    """An instance that is probed, and how it went so far."""

    key: Key
    ms: float | None = None
    """The average of its response times, the newest weighing most; None while it fails."""
    failed: int = 0
    """In a row."""

    def forget(self) -> None:
        """It was not checked: nothing is known of it."""
        self.failed, self.ms = 0, None

    def learn(self, outcome: Outcome) -> None:
        if not outcome.ok:
            self.failed, self.ms = self.failed + 1, None
        else:
            before = outcome.ms if self.ms is None else self.ms
            self.failed, self.ms = 0, before + _NEWEST * (outcome.ms - before)


class HealthChecks:
    """Active checks at work, from `async with` on. They report to the fleet and never raise: what
    goes wrong is what is reported. An instance that is gone is forgotten; where the budget does
    not suffice, everybody is probed less often."""

    def __init__(
        self,
        fleet: CheckedFleet,
        settings: CheckSettings,
        *,
        policy: TargetPolicy,
        checkers: Checkers | None = None,
        resolve: Resolver | None = None,
    ) -> None:
        self._fleet, self._settings, self._policy = fleet, settings, policy
        self._checkers = checkers or load_checkers(settings.protocols, ca=settings.ca)
        self._resolve = resolve or HostLookups()
        self._states: dict[Key, CheckState] = {}
        self._due: list[tuple[float, int, CheckState]] = []
        """A heap by time; those of patients that are gone are dropped when their time comes."""
        self._pushed = 0
        self._wake = asyncio.Event()
        self._places = asyncio.Semaphore(settings.budget)
        self._next_start = 0.0
        self._broken: set[str] = set()
        self._tasks = Tasks()
        self._stack = ExitStack()

    def __str__(self) -> str:
        told = self._settings
        return f"every {show(told.interval)}, at most {told.budget} at once: " + ", ".join(
            self._checkers.protocols()
        )

    async def __aenter__(self) -> Self:
        self._stack.callback(self._fleet.subscribe(self._changed))
        self._changed(())
        self._tasks.start(self._run(), name="checks")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stack.close()
        await self._tasks.aclose()

    def _instances(self, service: str) -> Mapping[str, Instance]:
        known = self._fleet.service(service)
        return {} if known is None else known.instances

    def _changed(self, keys: Collection[Key]) -> None:
        """Take note of what came, went or is another than before; of everything without keys."""
        for key in keys or self._all():
            service, id = key
            instance = self._instances(service).get(id)
            if instance is None:
                self._states.pop(key, None)
            elif not self._wanted(instance):
                if self._states.pop(key, None) is not None:
                    self._fleet.report_check(service, id, None, "")
            elif key not in self._states:
                self._states[key] = state = CheckState(key)
                # Not all at once, where many come together.
                self._push(state, random.uniform(0, self._settings.interval))

    def _all(self) -> set[Key]:
        there = {(name, id) for name in self._fleet.names() for id in self._instances(name)}
        return there | self._states.keys()

    def _wanted(self, instance: Instance) -> bool:
        checked = self._settings.checks(instance.service)
        return checked and self._checkers.get(instance.protocol) is not None

    def _push(self, state: CheckState, after: float) -> None:
        self._pushed += 1
        when = asyncio.get_running_loop().time() + after
        heapq.heappush(self._due, (when, self._pushed, state))
        if self._due[0][2] is state:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            state = await self._next_due()
            if self._states.get(state.key) is not state:
                continue
            await self._places.acquire()
            await self._pace()
            self._tasks.start(self._visit(state), name=f"check of {' '.join(state.key)}")

    async def _next_due(self) -> CheckState:
        loop = asyncio.get_running_loop()
        while True:
            left = self._due[0][0] - loop.time() if self._due else None
            if left is not None and left <= 0:
                return heapq.heappop(self._due)[2]
            self._wake.clear()
            try:
                async with asyncio.timeout(left):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _pace(self) -> None:
        """Wait until another probe may start: they are spread over the second."""
        now = asyncio.get_running_loop().time()
        start = max(now, self._next_start)
        self._next_start = start + 1 / self._settings.budget
        await asyncio.sleep(start - now)

    async def _visit(self, state: CheckState) -> None:
        service, id = state.key
        try:
            instance = self._instances(service).get(id)
            checker = None if instance is None else self._checkers.get(instance.protocol)
            if instance is None or checker is None:
                return
            try:
                outcome = await self._probe(instance, checker)
            except CheckSkipped as why:
                if self._states.get(state.key) is state:
                    state.forget()
                    self._fleet.report_unchecked(*state.key, str(why))
                return
            if self._states.get(state.key) is state:
                self._report(state, outcome)
        finally:
            self._places.release()
            if self._states.get(state.key) is state:
                self._push(state, self._settings.interval * random.uniform(0.9, 1.1))

    def _report(self, state: CheckState, outcome: Outcome) -> None:
        state.learn(outcome)
        if outcome.ok:
            self._fleet.report_check(*state.key, state.ms, "")
        elif state.failed >= self._settings.failures:
            failure = "".join(c if c.isprintable() else "�" for c in outcome.failure[:_LONGEST])
            self._fleet.report_check(*state.key, None, failure or "its check failed")

    async def _targets(self, instance: Instance) -> list[Target]:
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await targets.targets(instance, self._settings, self._policy, self._resolve)
        except OSError as error:
            in_time = "" if not isinstance(error, TimeoutError) else " in time"
            raise CheckFailed(f"its name cannot be looked up{in_time}") from error

    async def _probe(self, instance: Instance, checker: Checker) -> Outcome:
        """Checks the addresses of an instance until one passes. Raises `CheckSkipped` if the
        instance must not be checked, or if its checker is broken."""
        timeout = self._settings.timeout
        outcome = Outcome(False, 0.0, "its name leads nowhere")
        try:
            found = await self._targets(instance)
            left, end = timeout, asyncio.get_running_loop().time() + timeout
            for target in found:
                # It keeps to the time itself, and says more; this is for one that does not.
                async with asyncio.timeout(left + 1):
                    outcome = await checker.check(target, timeout=left)
                left = end - asyncio.get_running_loop().time()
                if outcome.ok or left <= 0:
                    break
        except CheckSkipped:
            raise
        except (OSError, EOFError, CheckFailed) as error:
            return Outcome(False, 0.0, failure_text(error, timeout=timeout))
        except Exception as error:
            if instance.protocol not in self._broken:  # once: it would fill the log
                self._broken.add(instance.protocol)
                log.exception("the checker of %s is broken", instance.protocol)
            raise CheckSkipped(f"the checker of {instance.protocol} is broken") from error
        return outcome
