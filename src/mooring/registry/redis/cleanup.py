"""Eviction of dead instances, and the brake that pauses it if too many seem dead at once.

Any number of processes may sweep at once: each script call decides by the current state of Redis.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from prometheus_client import Counter

from mooring.durations import format_duration
from mooring.errors import InvalidName, OutcomeUnknown, StoreError, Unavailable
from mooring.messages import message
from mooring.registry.evictions import Brake, CleanupReport, Evictions
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.layout import RedisKeys, ServiceKeys, is_service
from mooring.registry.redis.live_service import ServiceWriter, message_head
from mooring.registry.redis.pipeline import CLEANUP, RELEASE
from mooring.registry.redis.reader import Reader, read_each
from mooring.settings import CleanupSettings
from mooring.tasks import Backoff, in_parallel, slices

log = logging.getLogger(__name__)

T = TypeVar("T")

EVICTIONS = Counter("mooring_evictions", "Instances that this process evicted", ["service"])

_BATCH = 100
"""Instances per script call, so that it takes far less than 10 ms."""
_SCAN_EVERY = 20
"""Passes between two scans of the whole Redis for records without a heartbeat."""


class RedisEvictions(Evictions):
    def __init__(
        self,
        connection: Connection,
        keys: RedisKeys,
        reader: Reader,
        settings: CleanupSettings,
        *,
        beat: float = 0.0,
    ) -> None:
        """`beat`: the seconds between two heartbeats of an instance."""
        self._connection, self._keys, self._reader = connection, keys, reader
        self.settings, self._beat = settings, beat
        self._checked = False
        self._braked: set[str] = set()
        self._paused_until: dict[str, float] = {}
        """When eviction resumes, by service; for all services under the empty name."""
        self._clock_read: dict[str, float] = {}
        """When the clock was last read, by service."""

    async def run(self, report: Callable[[CleanupReport], None] = lambda _: None) -> None:
        passes, backoff, due = 0, Backoff(1.0, self.settings.interval), 0.0
        problem = ""
        while True:
            try:
                if not self._keys.cluster:  # there, a node that is down affects its services only
                    await self._timed(self._connection.call("TIME", what=message("op_clock")))
                if time.monotonic() >= max(due, self._resumes_at()):
                    due = time.monotonic() + self.settings.interval
                    report(await self.sweep(orphans=passes % _SCAN_EVERY == 0))
                    passes += 1
                backoff.reset()
                problem = ""
                left = max(due, self._resumes_at()) - time.monotonic()
                await asyncio.sleep(min(max(left, 0.0), self._patience))
            except StoreError as error:
                if str(error) != problem:
                    log.warning("cleanup: %s", problem := str(error))
                self._pause("did not answer")
                await asyncio.sleep(backoff.next())

    @property
    def _patience(self) -> float:
        """Seconds between two checks that Redis answers, and of one check. A shorter stop than two
        of these makes no instance overdue that sends two heartbeats within the timeout."""
        return min(1.0, self.settings.global_timeout / 4)

    async def _timed(self, answer: Awaitable[T], service: str = "") -> T:
        """An answer of Redis. Pauses eviction if it took too long."""
        asked = time.monotonic()
        result = await answer
        if time.monotonic() - asked > self._patience:
            self._pause("was stopped", service)
        return result

    async def _now(self, keys: ServiceKeys) -> int:
        """The clock of the Redis that holds a service, in ms. Pauses eviction if it jumped, or if
        Redis rejected writes."""
        state = await self._timed(self._reader.state(keys), keys.name)
        moment, timeout = time.monotonic(), self.settings.global_timeout
        if state.clock.stepped(self._clock_read.get(keys.name, moment - timeout)) > timeout / 4:
            self._pause("changed its clock", keys.name)
        self._clock_read[keys.name] = moment
        if state.brake is not None and state.brake.rejects_writes:
            self._pause("rejects writes", keys.name)
        return state.now

    def _pause(self, why: str, service: str = "") -> None:
        """Evict nothing until every instance had time for a heartbeat."""
        moment = time.monotonic()
        if moment >= self._resumes_at(service):
            log.warning(
                "cleanup%s: Redis %s: no instance is evicted for %s, so that all can send a "
                "heartbeat",
                f" of {service}" if service else "",
                why,
                self._timeout,
            )
        self._paused_until[service] = moment + self.settings.global_timeout

    def _resumes_at(self, service: str = "") -> float:
        return max(self._paused_until.get("", 0.0), self._paused_until.get(service, 0.0))

    async def sweep(self, *, orphans: bool = True) -> CleanupReport:
        self._check_timeout()
        report = CleanupReport()
        reply = await self._connection.call(
            "SMEMBERS", self._keys.services, what=message("op_list", what=message("what_services"))
        )
        services = {_text(name) for name in reply}
        orphaned: dict[str, list[str]] = {}
        if orphans:
            try:
                orphaned = await self._orphans(services)
            except StoreError as error:
                report.problems.append(str(error))
        names = sorted(services | orphaned.keys())

        async def sweep(name: str) -> None:
            await self._sweep_service(name, orphaned.get(name, []), report)

        async for _ in in_parallel(names, sweep):
            pass
        return report

    def _check_timeout(self) -> None:
        """Warn once if a single lost heartbeat is enough to evict an instance."""
        if not self._checked and self.settings.global_timeout < 2 * self._beat:
            log.warning(
                "cleanup after %s, with a heartbeat every %s: a single lost heartbeat evicts an "
                "instance; set registry.cleanup.global-timeout to at least twice the interval",
                self._timeout,
                format_duration(self._beat),
            )
        self._checked = True

    async def _orphans(self, services: set[str]) -> dict[str, list[str]]:
        """Records without a heartbeat, by service. Includes unlisted services without orphans."""
        records: dict[str, list[str]] = {}
        for key in await self._connection.scan(f"{_escaped(self._keys.services)}:*:instance:*"):
            if (record := self._keys.service_of(key)) is not None:
                records.setdefault(record[0], []).append(record[1])
        orphaned: dict[str, list[str]] = {}
        for service, ids in records.items():
            try:
                scores = await self._reader.scores(self._keys.of(service))
            except StoreError:
                continue  # the sweep of the service reports it
            orphans = [id for id in ids if id not in scores]
            if orphans or service not in services:
                orphaned[service] = orphans
        return orphaned

    async def _sweep_service(self, name: str, orphans: list[str], report: CleanupReport) -> None:
        try:
            keys = self._keys.of(name)
            report.services += 1
            empty = await self._expire(keys, orphans, report)
            if keys.cluster:
                writer = ServiceWriter(self._connection, keys)
                what = message("op_cleanup", service=name)
                await (writer.drop_service() if empty else writer.list_service(what=what))
        except InvalidName as error:
            report.problems.append(f"{self._keys.services} holds an invalid name: {error}")
        except StoreError as error:
            if isinstance(error, Unavailable | OutcomeUnknown):
                self._pause("did not answer", name)
            report.problems.append(str(error))
            log.warning("%s", error)  # it names the service

    async def _expire(self, keys: ServiceKeys, orphans: list[str], report: CleanupReport) -> bool:
        """Evict overdue instances, in batches. Returns whether the service is empty."""
        now, timeout = await self._now(keys), round(self.settings.global_timeout * 1000)
        oldest = now - timeout
        if time.monotonic() < self._resumes_at(keys.name):
            report.problems.append(f"{keys.name}: eviction is paused for a while after a break")
            return False
        for batch in slices(orphans, _BATCH):
            await self._run_script(keys, batch, report, oldest)
        await self._lower(keys, now + timeout, report, oldest)
        await self._sweep_range(keys, ("-inf", f"({oldest}"), report, oldest)
        left = await self._connection.call(
            "EXISTS", keys.heartbeats, what=message("op_cleanup", service=keys.name)
        )
        return not left

    async def _lower(
        self, keys: ServiceKeys, newest: int, report: CleanupReport, oldest: int
    ) -> None:
        """Lower heartbeats later than `newest` to now. New heartbeats never lower one, so if Redis'
        clock stepped back, a dead instance would stay for as long as the step."""
        scores = (f"({newest}", "+inf")
        if not await self._ids(keys, scores, 0):
            return
        before = len(report.lowered)
        await self._sweep_range(keys, scores, report, oldest)
        if count := len(report.lowered) - before:
            log.warning(
                "%s: Redis' clock stepped back: the heartbeats of %d instances were more than %s "
                "ahead of it, and were lowered to its time",
                keys.name,
                count,
                self._timeout,
            )

    async def _sweep_range(
        self, keys: ServiceKeys, scores: tuple[str, str], report: CleanupReport, oldest: int
    ) -> None:
        """Run the script for the instances with heartbeats in a range, in batches."""
        offset = 0
        while True:
            ids = await self._ids(keys, scores, offset)
            changed, braked = await self._run_script(keys, ids, report, oldest)
            offset += len(ids) - changed
            if len(ids) < _BATCH or (braked and not changed):
                return

    async def _ids(self, keys: ServiceKeys, scores: tuple[str, str], offset: int) -> list[str]:
        limit, what = ("LIMIT", offset, _BATCH), message("op_cleanup", service=keys.name)
        reply = await self._connection.call(
            "ZRANGEBYSCORE",
            keys.heartbeats,
            *scores,
            *limit,
            what=what,
        )
        return [_text(id) for id in reply]

    async def _run_script(
        self, keys: ServiceKeys, ids: list[str], report: CleanupReport, oldest: int
    ) -> tuple[int, bool]:
        """Evict instances with a heartbeat before `oldest`, in ms. Returns the number of instances
        that left the range, and whether the brake is engaged."""
        settings = self.settings
        reply: Any = await self._connection.run(
            CLEANUP,
            [
                keys.heartbeats,
                keys.brake,
                keys.evictions,
                keys.persistent,
                *keys.tier1,
                *(_bytes(keys.instance(id)) for id in ids),
            ],
            [
                keys.changes,
                len(keys.tier1),
                keys.name,
                oldest,
                int(settings.global_timeout * 1000),
                int(settings.interval * 1000),
                int(settings.brake_release * 1000),
                settings.brake_share,
                settings.brake_least,
                message_head(keys.name, ""),
                int(self._beat * 1000),
                *(part for id in ids for part in (_bytes(id), message_head(keys.name, _shown(id)))),
            ],
            what=message("op_cleanup", service=keys.name),
        )
        now, state, silent, total, *outcomes = reply
        brake = Brake(silent, total, int(now), 0)
        braked = self._report_brake(keys.name, state.decode(), brake, report)
        changed = 0
        for outcome, id in outcomes:
            changed += self._report(keys.name, outcome.decode(), _shown(_text(id)), report)
        return changed, braked

    def _report(self, service: str, outcome: str, id: str, report: CleanupReport) -> bool:
        """Report an outcome. Returns whether the instance left the range."""
        if outcome == "removed":
            report.removed.append((service, id))
            EVICTIONS.labels(service).inc()
            log.info("%s %s: evicted, no heartbeat for %s", service, id, self._timeout)
        elif outcome == "unhealthy":
            report.unhealthy.append((service, id))
            log.warning("%s %s: unhealthy, no heartbeat for %s", service, id, self._timeout)
            return False
        elif outcome == "orphan":
            report.orphans.append((service, id))
            log.info("%s %s: an incomplete record was deleted", service, id)
        elif outcome == "lowered":
            report.lowered.append((service, id))
        else:
            report.problems.append(f"{service} {id}: {outcome}")
            log.warning("cleanup of %s %s: %s", service, id, outcome)
            return False
        return True

    @property
    def _timeout(self) -> str:
        return format_duration(self.settings.global_timeout)

    def _report_brake(self, service: str, state: str, brake: Brake, report: CleanupReport) -> bool:
        """Report a change of the brake once. Returns whether it is engaged."""
        holds = state in ("tripped", "holding")
        if holds:
            report.brakes[service] = brake
            if service not in self._braked:
                log.warning("%s: the brake is engaged: %s", service, brake)
            self._braked.add(service)
        elif service in self._braked:
            self._braked.discard(service)
            why = {
                "recovered": "the instances sent heartbeats again",
                "timed out": "its release time was reached",
            }.get(state, "an operator released it")
            log.warning("%s: the brake is released: %s", service, why)
        return holds

    async def brakes(self) -> dict[str, Brake]:
        what = message("op_list", what=message("what_brakes"))
        names = await self._connection.call("SMEMBERS", self._keys.services, what=what)
        services = sorted(name for name in map(_text, names) if is_service(name))
        states = await read_each(
            services, lambda name: self._reader.state(self._keys.of(name)), log=log
        )
        return {name: state.brake for name, state in states.items() if state.brake}

    async def clock(self, service: str) -> int:
        return (await self._reader.state(self._keys.of(service))).now

    async def release(self, service: str) -> bool:
        keys = self._keys.of(service)
        kept = int((2 * self.settings.interval + self.settings.global_timeout) * 1000)
        released = await self._connection.run(
            RELEASE, [keys.brake], [kept], what=message("op_brake_release", service=service)
        )
        return bool(released)


def _text(name: bytes) -> str:
    """A name in Redis as text. Keeps invalid UTF-8, so that the key can be deleted."""
    return name.decode(errors="surrogateescape")


def _bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _shown(name: str) -> str:
    return _bytes(name).decode(errors="backslashreplace")


def _escaped(prefix: str) -> str:
    """A prefix with the special characters of patterns escaped."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in prefix)
