"""Taking out the dead, and the brake that stops it where so many seem dead that it is not them.

Any number of sweepers may run at once: what a script call does, it decides by itself, from what is
in Redis at that moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from prometheus_client import Counter, Gauge

from mooring.durations import show
from mooring.errors import InvalidName, OutcomeUnknown, StoreError, Unavailable
from mooring.registry.contract import Brake, CleanupReport, Evictions
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.layout import RedisKeys, ServiceKeys, check_service
from mooring.registry.redis.live_service import drop_service, message_head
from mooring.registry.redis.pipeline import CLEANUP, RELEASE
from mooring.registry.redis.reader import Reader, of_each
from mooring.settings.registry import CleanupSettings
from mooring.tasks import Backoff

log = logging.getLogger(__name__)

T = TypeVar("T")

REMOVED = Counter("mooring_cleanup_removed", "Instances that were taken out", ["service"])
BRAKE = Gauge("mooring_cleanup_brake", "1 while expiry of a service is paused", ["service"])

_BATCH = 100
"""Instances in one script call: so many that it stays far below 10 ms."""
_TOGETHER = 20
"""Services that are looked at together."""
_SCAN_EVERY = 20
"""Passes between looks for records that no list names: those go over the whole Redis."""


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
        """`beat` is how many seconds instances let pass between two heartbeats."""
        self._connection, self._keys, self._reader = connection, keys, reader
        self.settings, self._beat = settings, beat
        self._checked = False
        self._braked: set[str] = set()
        self._calm: dict[str, float] = {}
        """Until when nobody of a service is taken out; of all of them under the empty name."""
        self._looked: dict[str, float] = {}
        """By service, when its clock was last looked at."""

    async def run(self, report: Callable[[CleanupReport], None] = lambda _: None) -> None:
        passes, backoff, due = 0, Backoff(1.0, self.settings.interval), 0.0
        problem = ""
        while True:
            try:
                if not self._keys.cluster:  # there, a node that is down is not everybody's matter
                    await self._watch(self._connection.call("TIME", what="read of the clock"))
                if time.monotonic() >= max(due, self._calm_until()):
                    due = time.monotonic() + self.settings.interval
                    report(await self.sweep(orphans=passes % _SCAN_EVERY == 0))
                    passes += 1
                backoff.reset()
                problem = ""
                left = max(due, self._calm_until()) - time.monotonic()
                await asyncio.sleep(min(max(left, 0.0), self._patience))
            except StoreError as error:
                if str(error) != problem:
                    log.warning("cleanup: %s", problem := str(error))
                self._be_calm("did not answer")
                await asyncio.sleep(backoff.next())

    @property
    def _patience(self) -> float:
        """Seconds between looks at whether Redis answers, and for one of them. A stop that is
        shorter than two of these makes nobody overdue who beats twice within the timeout."""
        return min(1.0, self.settings.global_timeout / 4)

    async def _watch(self, answer: Awaitable[T], service: str = "") -> T:
        """An answer of Redis; where it took too long, calm is kept from now on."""
        asked = time.monotonic()
        told = await answer
        if time.monotonic() - asked > self._patience:
            self._be_calm("stood still", service)
        return told

    async def _now(self, keys: ServiceKeys) -> int:
        """The clock of the Redis that has a service, in ms; where it jumped, or heard nobody, calm
        is kept for that service."""
        state = await self._watch(self._reader.state(keys), keys.name)
        moment, timeout = time.monotonic(), self.settings.global_timeout
        if state.clock.stepped(self._looked.get(keys.name, moment - timeout)) > timeout / 4:
            self._be_calm("has another clock", keys.name)
        self._looked[keys.name] = moment
        if state.brake is not None and state.brake.rejects_writes:
            self._be_calm("takes no writes", keys.name)
        return state.now

    def _be_calm(self, why: str, service: str = "") -> None:
        moment = time.monotonic()
        if moment >= self._calm_until(service):
            log.warning(
                "cleanup%s: Redis %s: nobody is taken out for %s, until all can have beaten again",
                *(f" of {service}" if service else "", why, self._timeout),
            )
        self._calm[service] = moment + self.settings.global_timeout

    def _calm_until(self, service: str = "") -> float:
        return max(self._calm.get("", 0.0), self._calm.get(service, 0.0))

    async def sweep(self, *, orphans: bool = True) -> CleanupReport:
        self._check_timeout()
        swept = CleanupReport()
        names = await self._connection.call(
            "SMEMBERS", self._keys.services, what="list of services"
        )
        services = {_text(name) for name in names}
        remains: dict[str, list[str]] = {}
        if orphans:
            try:
                remains = await self._unlisted(services)
            except StoreError as error:
                swept.problems.append(str(error))
        every = sorted(services | remains.keys())
        for first in range(0, len(every), _TOGETHER):
            await asyncio.gather(
                *(
                    self._service(name, remains.get(name, ()), swept)
                    for name in every[first:][:_TOGETHER]
                )
            )
        return swept

    def _check_timeout(self) -> None:
        """Warn once if a single lost heartbeat is enough to evict an instance."""
        if not self._checked and self.settings.global_timeout < 2 * self._beat:
            log.warning(
                "cleanup after %s, with a heartbeat every %s: one that is lost takes an instance "
                "out; let registry.cleanup.global-timeout be twice as long at least",
                self._timeout,
                show(self._beat),
            )
        self._checked = True

    async def _unlisted(self, services: set[str]) -> dict[str, list[str]]:
        """Records that their service's heartbeats do not name, by service."""
        found: dict[str, list[str]] = {}
        for key in await self._connection.scan(f"{_escaped(self._keys.services)}:*:instance:*"):
            if (place := self._keys.service_of(key)) is not None:
                found.setdefault(place[0], []).append(place[1])
        remains: dict[str, list[str]] = {}
        for service, ids in found.items():
            try:
                scores = await self._reader.scores(self._keys.of(service))
            except StoreError:
                continue  # it is told where the service is looked at
            if lost := [id for id in ids if id not in scores]:
                remains[service] = lost
            elif service not in services:
                remains[service] = []
        return remains

    async def _service(self, name: str, remains: Iterable[str], swept: CleanupReport) -> None:
        try:
            keys = self._keys.of(name)
            swept.services += 1
            empty = await self._expire(keys, list(remains), swept)
            if self._keys.cluster:
                if empty:
                    await drop_service(self._connection, self._keys, name)
                else:
                    await self._connection.call(
                        "SADD", self._keys.services, name, what=f"cleanup of {name}", writes=True
                    )
        except InvalidName as error:
            swept.problems.append(f"{self._keys.services} holds what is no service: {error}")
        except StoreError as error:
            if isinstance(error, Unavailable | OutcomeUnknown):
                self._be_calm("did not answer", name)
            swept.problems.append(str(error))
            log.warning("%s", error)  # which says of what service

    async def _expire(self, keys: ServiceKeys, remains: list[str], swept: CleanupReport) -> bool:
        """Take out who is overdue, in batches; whether nobody is left."""
        now, timeout = await self._now(keys), round(self.settings.global_timeout * 1000)
        oldest = now - timeout
        if time.monotonic() < self._calm_until(keys.name):
            swept.problems.append(f"{keys.name}: after a break nobody is taken out for a while")
            return False
        for first in range(0, len(remains), _BATCH):
            await self._call(keys, remains[first : first + _BATCH], swept, oldest)
        await self._lower(keys, now + timeout, swept, oldest)
        await self._look_at(keys, ("-inf", f"({oldest}"), swept, oldest)
        left = await self._connection.call(
            "EXISTS", keys.heartbeats, what=f"cleanup of {keys.name}"
        )
        return not left

    async def _lower(
        self, keys: ServiceKeys, newest: int, swept: CleanupReport, oldest: int
    ) -> None:
        """Lower the heartbeats later than `newest` to now. A beat never lowers one: after a step of
        Redis' clock back, an instance that died would stay for as long as that step."""
        scores = (f"({newest}", "+inf")
        if not await self._ids(keys, scores, 0):
            return
        before = len(swept.lowered)
        await self._look_at(keys, scores, swept, oldest)
        if count := len(swept.lowered) - before:
            log.warning(
                "%s: Redis' clock stepped back: the heartbeats of %d instances lay more than %s "
                "ahead of it, and were lowered to its time",
                *(keys.name, count, self._timeout),
            )

    async def _look_at(
        self, keys: ServiceKeys, scores: tuple[str, str], swept: CleanupReport, oldest: int
    ) -> None:
        """Let the script decide about those with such heartbeats, in batches."""
        offset = 0
        while True:
            ids = await self._ids(keys, scores, offset)
            gone, braked = await self._call(keys, ids, swept, oldest)
            offset += len(ids) - gone
            if len(ids) < _BATCH or (braked and not gone):
                return

    async def _ids(self, keys: ServiceKeys, scores: tuple[str, str], offset: int) -> list[str]:
        told = await self._connection.call(
            *("ZRANGEBYSCORE", keys.heartbeats, *scores, "LIMIT", offset, _BATCH),
            what=f"cleanup of {keys.name}",
        )
        return [_text(id) for id in told]

    async def _call(
        self, keys: ServiceKeys, ids: list[str], swept: CleanupReport, oldest: int
    ) -> tuple[int, bool]:
        """How many of these no longer have such a heartbeat, and whether the brake holds. Who beat
        at `oldest`, in ms, or later, stays."""
        settings, tier1 = self.settings, [] if self._keys.cluster else [self._keys.services]
        reply: Any = await self._connection.run(
            CLEANUP,
            [
                *(keys.heartbeats, keys.brake, keys.evictions, keys.persistent),
                *tier1,
                *(_bytes(keys.instance(id)) for id in ids),
            ],
            [
                *(keys.changes, len(tier1), keys.name, oldest),
                int(settings.global_timeout * 1000),
                int(settings.interval * 1000),
                int(settings.brake_release * 1000),
                settings.brake_share,
                settings.brake_least,
                message_head(keys.name, ""),
                int(self._beat * 1000),
                *(part for id in ids for part in (_bytes(id), message_head(keys.name, _shown(id)))),
            ],
            what=f"cleanup of {keys.name}",
        )
        now, state, silent, total, *outcomes = reply
        braked = self._brake(keys.name, state.decode(), Brake(silent, total, int(now), 0), swept)
        gone = 0
        for outcome, id in outcomes:
            gone += self._outcome(keys.name, outcome.decode(), _shown(_text(id)), swept)
        return gone, braked

    def _outcome(self, service: str, outcome: str, id: str, swept: CleanupReport) -> bool:
        """Record what was done to an instance; whether it no longer has that heartbeat."""
        if outcome == "removed":
            swept.removed.append((service, id))
            REMOVED.labels(service).inc()
            log.info("%s %s: taken out, no heartbeat for %s", service, id, self._timeout)
        elif outcome == "unhealthy":
            swept.unhealthy.append((service, id))
            log.warning("%s %s: unhealthy, no heartbeat for %s", service, id, self._timeout)
            return False
        elif outcome == "orphan":
            swept.orphans.append((service, id))
            log.info("%s %s: half a record was cleared away", service, id)
        elif outcome == "lowered":
            swept.lowered.append((service, id))
        else:
            swept.problems.append(f"{service} {id}: {outcome}")
            log.warning("cleanup of %s %s: %s", service, id, outcome)
            return False
        return True

    @property
    def _timeout(self) -> str:
        return show(self.settings.global_timeout)

    def _brake(self, service: str, state: str, brake: Brake, swept: CleanupReport) -> bool:
        """Tell of a change of the brake, once; whether it holds."""
        holds = state in ("tripped", "holding")
        BRAKE.labels(service).set(holds)
        if holds:
            swept.brakes[service] = brake
            if service not in self._braked:
                log.warning("%s: the brake holds: %s", service, brake)
            self._braked.add(service)
        elif service in self._braked:
            self._braked.discard(service)
            why = {"recovered": "they beat again", "timed out": "its time is over"}.get(
                state, "an operator released it"
            )
            log.warning("%s: the brake is off: %s", service, why)
        return holds

    async def brakes(self) -> dict[str, Brake]:
        names = await self._connection.call("SMEMBERS", self._keys.services, what="list of brakes")
        services = sorted(name for name in map(_text, names) if _is_service(name))
        states = await of_each(
            services, lambda name: self._reader.state(self._keys.of(name)), log=log
        )
        return {name: state.brake for name, state in states.items() if state.brake}

    async def clock(self, service: str) -> int:
        return (await self._reader.state(self._keys.of(service))).now

    async def release(self, service: str) -> bool:
        keys = self._keys.of(service)
        kept = int((2 * self.settings.interval + self.settings.global_timeout) * 1000)
        released = await self._connection.run(
            RELEASE, [keys.brake], [kept], what=f"release of the brake of {service}"
        )
        return bool(released)


def _is_service(name: str) -> bool:
    try:
        check_service(name)
    except InvalidName:
        return False
    return True


def _text(name: bytes) -> str:
    """What is in Redis, as text: also what is none, so that it can be taken out."""
    return name.decode(errors="surrogateescape")


def _bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _shown(name: str) -> str:
    return _bytes(name).decode(errors="backslashreplace")


def _escaped(prefix: str) -> str:
    """A prefix with what has a meaning in a pattern taken literally."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in prefix)
