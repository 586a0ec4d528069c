"""The live state of everything registered.

One mirror follows the whole registry. Beside it, the fleet keeps what polling and health checks
observe: silent instances, brakes, check results. The cost of a change does not depend on the number
of services.
"""

from __future__ import annotations

import logging
import secrets
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Self

from mooring.messages import Message, message, verbatim
from mooring.mirror import Change, Mirror, Update
from mooring.model import Instance, Time, now
from mooring.registry.contract import Discovery, InstanceKey
from mooring.registry.evictions import Evictions
from mooring.server.live.departures import Departure, LivenessSignals
from mooring.server.live.polling import Poller
from mooring.server.live.services import KnownService, RenderCache, ServiceRecord
from mooring.server.live.summary import (
    NOT_OBSERVED,
    Observation,
    check_message,
    heartbeat_message,
    in_utc,
)
from mooring.server.live.timeline import (
    EventKind,
    MetricHistory,
    MetricSample,
    Timeline,
    TimelineEvent,
    events_of,
)

log = logging.getLogger(__name__)

_MAX_EMPTY = 2_000
"""Services without instances that are remembered."""

FleetCallback = Callable[[Collection[InstanceKey]], None]
"""Called with the service and id of each instance that changed. An empty id stands for the service,
an empty collection for the fleet as a whole. It must not block."""


class Fleet:
    """Everything registered, live. An async context manager; entering does not wait, and the state
    is `stale` until the store has answered."""

    version: int
    """Increases with each change."""

    def __init__(self, discovery: Discovery, evictions: Evictions | None = None) -> None:
        self.discovery = discovery
        self.version = self.sampled = 0
        self.epoch = secrets.token_hex(4)
        """Distinguishes the versions of this fleet from those of another."""
        self.rendering = RenderCache()
        self._mirror = Mirror(discovery.follow_all(), wait=False)
        self._mirror.subscribe(self._changed)
        self._known: dict[str, KnownService] = {}
        self._names: list[str] = []
        self._highest = 0
        """The highest version of any forgotten service. A service that returns starts above it."""
        self._missed: set[InstanceKey] = set()
        """Instances that the registry did not list when it was last polled."""
        self._brakes: dict[str, Message] = {}
        self._timeline, self._metrics = Timeline(), MetricHistory()
        self._signals = LivenessSignals()
        self._first_names: list[str] | None = None
        """The new services of the first poll; None before it."""
        self._hidden: set[str] = set()
        """Services that an operator removed and that the registry still lists."""
        self._callbacks: dict[object, FleetCallback] = {}
        self.loaded = False
        """Whether the registry was ever read."""
        self._was_stale = False
        self._poller = Poller(self, discovery, evictions)

    @property
    def stale(self) -> bool:
        """Whether the state may be outdated."""
        return self._mirror.stale

    @property
    def error(self) -> Message | None:
        """Why the registry cannot be followed at the moment; None if it can."""
        if self._mirror.error is not None:
            return self._mirror.error.message
        url = verbatim(self.discovery.url)
        if not self._mirror.loaded:
            return message("registry_unanswered", url=url)
        return message("registry_silent", url=url) if self.stale else None

    def names(self) -> list[str]:
        """The services, sorted, including those that lost all their instances."""
        return list(self._names)

    def service(self, name: str) -> KnownService | None:
        return self._known.get(name)

    def services(self, sees: Callable[[str], bool] = lambda _: True) -> list[KnownService]:
        """The services whose names `sees` accepts, sorted by name."""
        return [self._known[name] for name in self._names if sees(name)]

    def observation(self, service: str, id: str) -> Observation:
        known = self._known.get(service)
        return NOT_OBSERVED if known is None else known.observations.get(id, NOT_OBSERVED)

    def brake(self, service: str) -> Message | None:
        """Why the eviction of instances of a service is paused; None if it is not."""
        return self._brakes.get(service)

    def timeline(self, service: str = "", id: str = "") -> list[TimelineEvent]:
        """The events of a service or instance, oldest first; without a service, those of the fleet
        as a whole."""
        events = self._timeline.of(service, id)
        known = self._known.get(service)
        instance = None if known is None else known.instances.get(id)
        if known is None or instance is None or any(event.kind == "added" for event in events):
            return events
        since = in_utc(instance.status.registered_at) or known.since
        registered = message("registered_before", address=instance.address)
        return [TimelineEvent(since, service, id, "added", registered), *events]

    def history(self, service: str, id: str) -> list[MetricSample]:
        """Recent metrics of an instance, oldest first."""
        return self._metrics.of((service, id))

    def subscribe(self, callback: FleetCallback) -> Callable[[], None]:
        """Call `callback` after each change, until the returned function is called."""
        subscription = object()
        self._callbacks[subscription] = callback

        def unsubscribe() -> None:
            self._callbacks.pop(subscription, None)

        return unsubscribe

    def _notify(self, changed: Collection[InstanceKey]) -> None:
        self.version += 1
        for callback in tuple(self._callbacks.values()):
            try:
                callback(changed)
            except Exception:
                log.exception("a subscriber of the fleet failed")

    async def __aenter__(self) -> Self:
        self._mirror.start()
        self._poller.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._poller.aclose()
        await self._mirror.aclose()

    def _changed(self, update: Update[InstanceKey, Instance]) -> None:
        """Instances were registered, changed or removed."""
        moment = now()
        first, self.loaded = not self.loaded, True
        touched: dict[str, KnownService] = {}
        lost: set[str] = set()
        for change in update.changes:
            service, id = change.key
            known = touched[service] = self._ensure_known(service, moment)
            known.version += 1
            known.changed = moment
            departure = self._track_liveness(change, first=first)
            if change.after is not None:
                known.add(id, change.after)
            else:
                known.instances.pop(id, None)
                if departure == "lost":
                    lost.add(service)
            try:
                self._record(change, known, departure, first=first)
            except Exception:
                log.exception("%s %s: the change is missing from the history", service, id)
        emptied = [name for name, known in touched.items() if not known.instances]
        for service in emptied:
            known = touched[service]
            known.emptied, known.lost = moment, service in lost
            kind = "emptied_lost" if known.lost else "emptied_left"
            self._add_event(service, "", "emptied", message(kind))
        if first:
            self._mark_absent()
        self._notify([change.key for change in update.changes] + [(name, "") for name in emptied])

    def _track_liveness(
        self, change: Change[InstanceKey, Instance], *, first: bool
    ) -> Departure | None:
        """Record the heartbeat in a change. Returns why the instance left, if it did."""
        before, after, moment = change.before, change.after, time.monotonic()
        if before is not None and after is None:
            return self._signals.classify_departure(change.key, before, moment)
        updated = None if after is None else after.status.updated_at
        if not first and (before is None or before.status.updated_at != updated):
            self._signals.reported(change.key, moment)
        return None

    def _record(
        self,
        change: Change[InstanceKey, Instance],
        known: KnownService,
        departure: Departure | None,
        *,
        first: bool,
    ) -> None:
        """Add a change to the history. The first snapshot contains no events."""
        (service, id), before, after = change.key, change.before, change.after
        if before is None or (after is None and known.instances):
            # A new instance was never polled; and when one leaves, others may follow.
            self._poller.soon(service)
        if after is None:
            self._missed.discard(change.key)
            self._metrics.leave(change.key)
            known.rendered_instances.pop(id, None)
            known.observations.pop(id, None)
        elif before is None or before.status.metrics != after.status.metrics:
            self._metrics.add(change.key, after, known.changed)
        if not first:
            for kind, event in events_of(before, after, departure):
                self._add_event(service, id, kind, event, time=known.changed)

    def _ensure_known(self, name: str, moment: Time) -> KnownService:
        known = self._known.get(name)
        if known is None:
            known = KnownService(name, since=moment, changed=moment, version=self._highest + 1)
            self._known[name] = known
            self._hidden.discard(name)
            insort(self._names, name)
        return known

    def set_ttl(self, service: str, id: str, seconds: float) -> None:
        """Set the heartbeat timeout of an instance that registered through this server."""
        self._signals.set_ttl((service, id), seconds)

    def expect_departure(self, service: str, id: str, how: Departure | None) -> None:
        """Announce the removal of an instance; None: it failed."""
        known = self._known.get(service)
        if known is not None and id in known.instances:
            self._signals.expect_departure((service, id), how, time.monotonic())

    def record_action(self, service: str, id: str, action: Message) -> None:
        """Record an action that a caller took through this server."""
        self._add_event(service, id, "action", action)

    def _add_event(
        self, service: str, id: str, kind: EventKind, event: Message, *, time: Time | None = None
    ) -> None:
        self._timeline.add(TimelineEvent(time or now(), service, id, kind, event))

    def _count_sample(self, known: KnownService) -> None:
        known.sampled += 1
        self.sampled += 1

    def report_check(
        self,
        service: str,
        id: str,
        *,
        ms: float | None = None,
        failure: Message | None = None,
        unchecked: Message | None = None,
    ) -> None:
        """Record the result of an active check: its response time, why it failed, or why it was
        skipped. Without any, the instance is no longer checked."""
        known = self._known.get(service)
        if known is None or id not in known.instances:
            return
        before = self.observation(service, id)
        after = replace(before, response_time=ms, check_failure=failure, unchecked=unchecked)
        if after == before:
            return
        known.observations[id] = after
        if (bool(before.check_failure), before.unchecked) == (bool(failure), unchecked):
            self._count_sample(known)
            return
        self._add_event(service, id, "check", check_message(after))
        known.version += 1
        self._notify([(service, id)])

    def update_silence(self, service: str, silent: Mapping[str, float]) -> None:
        """Set the seconds since the last heartbeat of each instance of a service, as polled."""
        known = self._known.get(service)
        if known is None:
            return
        moment, most = now(), self.discovery.guarantees.late
        changed = []
        clock = time.monotonic()
        for id in known.instances:
            before, seconds = self.observation(service, id), silent.get(id)
            missing = seconds is None
            if seconds is not None:
                self._signals.sampled((service, id), seconds, clock)
                self._missed.discard((service, id))
            elif most is None or not self._is_missing(service, id):
                continue
            else:
                seconds = before.aged(moment)
            late = missing or (most is not None and seconds is not None and seconds > most)
            after = replace(before, silence=seconds, sampled=moment, late=late, missing=missing)
            known.observations[id] = after
            if (late, missing) != (before.late, before.missing):
                changed.append((service, id))
                self._add_event(service, id, "late", heartbeat_message(after))
        self._count_sample(known)
        if changed:
            known.version += 1
            self._notify(changed)

    def _is_missing(self, service: str, id: str) -> bool:
        """Whether the registry did not list an instance in two polls. After the first, the mirror
        may be about to remove it."""
        if (service, id) in self._missed:
            return True
        self._missed.add((service, id))
        self._poller.soon(service)
        return False

    def update_brakes(self, brakes: Mapping[str, Message]) -> None:
        """Set the engaged brakes, as polled."""
        changed = self._brakes.keys() ^ brakes.keys()
        self._brakes = dict(brakes)
        moment = now()
        for name in changed:
            self._ensure_known(name, moment).version += 1
            detail = brakes.get(name)
            event = message("brake_on", detail=detail) if detail else message("brake_off")
            self._add_event(name, "", "brake", event)
        if changed:
            self._notify([(name, "") for name in changed])

    def update_names(self, names: Collection[str], *, kept: Collection[str] = ()) -> None:
        """Set the services that the registry lists. `kept` are listed for their configuration, not
        for instances."""
        moment = now()
        self._hidden &= set(names)
        added = [name for name in names if name not in self._known and name not in self._hidden]
        for name in added:
            self._ensure_known(name, moment)
        if self._first_names is None:
            self._first_names = added
            self._mark_absent()
        for name in kept:
            known = self._known.get(name)
            if known is not None and not known.instances:
                known.kept = True
        expired = self._expired(set(names), moment)
        for name in expired:
            self._drop(name)
        if added or expired:
            self._notify([(name, "") for name in (*added, *expired)])

    def _expired(self, listed: Collection[str], moment: Time) -> list[str]:
        """The services without instances to forget now, unless the registry lists them."""
        unlisted = [known for name, known in self._known.items() if name not in listed]
        empty = sorted(
            (known.emptied or known.since, known.name) for known in unlisted if not known.instances
        )
        excess = max(len(empty) - _MAX_EMPTY, 0)
        return [name for _, name in empty[:excess]] + [
            name
            for since, name in empty[excess:]
            if (moment - since).total_seconds() >= self._known[name].retention
        ]

    def remember(self, services: Mapping[str, ServiceRecord]) -> None:
        """Add services that servers knew before this server started."""
        moment = now()
        changed: list[InstanceKey] = []
        for name, record in services.items():
            if name in self._hidden:
                continue  # an operator removed it before the records were read
            known = self._ensure_known(name, moment)
            if known.instances or known.emptied is not None:
                continue
            known.emptied, known.lost = record.emptied, record.lost
            known.remembered, known.absent = record.emptied is None, False
            known.version += 1
            changed.append((name, ""))
        self._mark_absent()
        if changed:
            self._notify(changed)

    def _mark_absent(self) -> None:
        """Mark services that may have lost their instances while no server was running. Needs both
        the instances and the names of services, so it is called whenever one of them was read."""
        if not self.loaded:
            return
        remembered = [name for name, known in self._known.items() if known.remembered]
        for name in (*(self._first_names or ()), *remembered):
            known = self._known.get(name)
            if known is not None and not known.instances and known.emptied is None:
                known.absent = True
                known.version += 1

    def forget(self, name: str) -> bool:
        """Remove a service without instances until it has one again. Whether it was removed."""
        known = self._known.get(name)
        if known is None or known.instances:
            return False
        self._drop(name)
        self._hidden.add(name)
        self._notify([(name, "")])
        return True

    def _drop(self, name: str) -> None:
        self._highest = max(self._highest, self._known.pop(name).version)
        del self._names[bisect_left(self._names, name)]
        self._timeline.forget(name)

    def check_staleness(self) -> None:
        """Add an event when the state becomes stale, and when it is live again."""
        stale = self.loaded and self.stale
        if stale is self._was_stale:
            return
        self._was_stale = stale
        event = message("stale", error=self.error) if stale else message("live_again")
        self._add_event("", "", "stale", event)
        self._notify(())
