"""Probes every registered instance about once per interval, within a budget.

Several servers may do so at once, independently.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from mooring.durations import format_duration
from mooring.formatting import printable
from mooring.messages import message, verbatim
from mooring.model import Instance
from mooring.registry.contract import InstanceKey
from mooring.server.health_checks import target_policy as targets
from mooring.server.health_checks.checkers import (
    Checker,
    CheckFailed,
    Outcome,
    Target,
    failure_of,
    load_checkers,
)
from mooring.server.health_checks.target_policy import (
    CheckSkipped,
    HostLookups,
    ResolveHost,
    TargetPolicy,
)
from mooring.server.live.state import Fleet
from mooring.server.settings import CheckSettings
from mooring.tasks import Schedule, Tasks

log = logging.getLogger(__name__)

_SMOOTHING = 0.3
"""The weight of the newest response time in the reported average."""
_MAX_FAILURE = 200
"""Characters of a failure, which a custom checker may exceed."""


@dataclass(slots=True, eq=False)
class CheckState:
    """The results of the checks of one instance."""

    key: InstanceKey
    ms: float | None = None
    """The moving average of its response times; None while it fails."""
    failures: int = 0
    """In a row."""

    def reset(self) -> None:
        self.failures, self.ms = 0, None

    def add(self, outcome: Outcome) -> None:
        if not outcome.ok:
            self.failures, self.ms = self.failures + 1, None
        else:
            before = outcome.ms if self.ms is None else self.ms
            self.failures, self.ms = 0, before + _SMOOTHING * (outcome.ms - before)


class HealthChecks:
    """Runs active checks while it is entered, and reports all results and errors to the fleet. If
    the budget is too small, all instances are probed less often."""

    def __init__(
        self,
        fleet: Fleet,
        settings: CheckSettings,
        *,
        policy: TargetPolicy,
        checkers: Mapping[str, Checker] | None = None,
        resolve: ResolveHost | None = None,
    ) -> None:
        self._fleet, self._settings, self._policy = fleet, settings, policy
        self._checkers = checkers or load_checkers(settings.protocols, ca=settings.ca)
        self._resolve = resolve or HostLookups()
        self._states: dict[InstanceKey, CheckState] = {}
        self._schedule: Schedule[InstanceKey] = Schedule()
        """Instances by the time of their next check. Those that left are dropped when due."""
        self._slots = asyncio.Semaphore(settings.budget)
        self._next_start = 0.0
        self._broken: set[str] = set()
        """Protocols whose checker raised."""
        self._tasks = Tasks()

    def __str__(self) -> str:
        interval, budget = format_duration(self._settings.interval), self._settings.budget
        return f"every {interval}, at most {budget} at once: {', '.join(sorted(self._checkers))}"

    async def __aenter__(self) -> Self:
        self._unsubscribe = self._fleet.subscribe(self._changed)
        self._changed(())
        self._tasks.start(self._run(), name="checks")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        await self._tasks.aclose()

    def _instances(self, service: str) -> Mapping[str, Instance]:
        known = self._fleet.service(service)
        return {} if known is None else known.instances

    def _changed(self, keys: Collection[InstanceKey]) -> None:
        """Update the schedule for some instances, or for all if `keys` is empty."""
        for key in keys or self._all():
            service, id = key
            instance = self._instances(service).get(id)
            if instance is None:
                self._states.pop(key, None)
            elif not self._is_checked(instance):
                if self._states.pop(key, None) is not None:
                    self._fleet.report_check(service, id)
            elif key not in self._states:
                self._states[key] = CheckState(key)
                # Spread out, because many may register at the same time.
                self._plan(key, random.uniform(0, self._settings.interval))

    def _all(self) -> set[InstanceKey]:
        present = {(name, id) for name in self._fleet.names() for id in self._instances(name)}
        return present | self._states.keys()

    def _is_checked(self, instance: Instance) -> bool:
        return self._settings.checks(instance.service) and instance.protocol in self._checkers

    def _plan(self, key: InstanceKey, after: float) -> None:
        self._schedule.plan(key, time.monotonic() + after)

    async def _run(self) -> None:
        while True:
            state = self._states.get(await self._schedule.next())
            if state is None:
                continue
            await self._slots.acquire()
            await self._pace()
            self._tasks.start(self._check(state), name=f"check of {' '.join(state.key)}")

    async def _pace(self) -> None:
        """Wait until the next probe may start: probes are spread evenly over each second."""
        now = asyncio.get_running_loop().time()
        start = max(now, self._next_start)
        self._next_start = start + 1 / self._settings.budget
        await asyncio.sleep(start - now)

    async def _check(self, state: CheckState) -> None:
        service, id = state.key
        try:
            instance = self._instances(service).get(id)
            checker = None if instance is None else self._checkers.get(instance.protocol)
            if instance is None or checker is None:
                return
            try:
                outcome = await self._probe(instance, checker)
            except CheckSkipped as skipped:
                if self._states.get(state.key) is state:
                    state.reset()
                    self._fleet.report_check(*state.key, unchecked=skipped.message)
                return
            if self._states.get(state.key) is state:
                self._report(state, outcome)
        finally:
            self._slots.release()
            if self._states.get(state.key) is state:
                self._plan(state.key, self._settings.interval * random.uniform(0.9, 1.1))

    def _report(self, state: CheckState, outcome: Outcome) -> None:
        state.add(outcome)
        if outcome.ok:
            self._fleet.report_check(*state.key, ms=state.ms)
        elif state.failures >= self._settings.failures:
            failure = outcome.failure or message("probe_failed")
            if isinstance(failure, str):  # of a custom checker
                failure = verbatim(printable(failure)[:_MAX_FAILURE])
            self._fleet.report_check(*state.key, failure=failure)

    async def _targets(self, instance: Instance) -> list[Target]:
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await targets.targets(instance, self._settings, self._policy, self._resolve)
        except OSError as error:
            late = isinstance(error, TimeoutError)
            kind = "host_not_resolved_in_time" if late else "host_not_resolved"
            raise CheckFailed(message(kind)) from error

    async def _probe(self, instance: Instance, checker: Checker) -> Outcome:
        """Check the addresses of an instance until one passes. Raises `CheckSkipped` if the
        instance must not be checked, or if its checker is broken."""
        timeout = self._settings.timeout
        outcome = Outcome(False, 0.0, message("host_without_addresses"))
        try:
            resolved = await self._targets(instance)
            left, end = timeout, asyncio.get_running_loop().time() + timeout
            for target in resolved:
                # Checkers keep the timeout themselves; this is for those that do not.
                async with asyncio.timeout(left + 1):
                    outcome = await checker.check(target, timeout=left)
                left = end - asyncio.get_running_loop().time()
                if outcome.ok or left <= 0:
                    break
        except CheckSkipped:
            raise
        except (OSError, EOFError, CheckFailed) as error:
            return Outcome(False, 0.0, failure_of(error, timeout=timeout))
        except Exception as error:
            if instance.protocol not in self._broken:  # logged once
                self._broken.add(instance.protocol)
                log.exception("the checker of %s raised an error", instance.protocol)
            raise CheckSkipped(message("checker_broken", protocol=instance.protocol)) from error
        return outcome
