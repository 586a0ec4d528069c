"""The live picture of everything registered.

One mirror of the whole registry, parted by service, and beside it what is found out by asking:
since when each instance is silent, which brakes hold, what active checks say. A change costs one
instance, however many services there are.
"""

from __future__ import annotations

import logging
import secrets
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

from mooring.messages import Message, message
from mooring.mirror import Change, Mirror, Update
from mooring.model import Instance, Time, now
from mooring.registry.contract import Registry
from mooring.server.live.history import (
    Departure,
    EventKind,
    LivenessSignals,
    MetricHistory,
    MetricSample,
    Timeline,
    TimelineEvent,
    events_of,
)
from mooring.server.live.polling import Poller
from mooring.server.live.services import KnownService, RenderCache, ServiceRecord
from mooring.server.live.summary import UNOBSERVED, Observed
from mooring.server.live.summary import moment as moment_of

log = logging.getLogger(__name__)

_EMPTY = 2_000
"""Services without instances that are remembered at the most."""


Callback = Callable[[Collection[tuple[str, str]]], None]
"""Called with the service and the id of each instance that changed; an empty id stands for the
service itself, nothing at all for the picture as a whole. It must not block."""


class Fleet:
    """Everything registered, live. Use it as an async context manager: entering waits for nothing,
    and the picture is `stale` until the store has answered."""

    version: int
    """Goes up with each change."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.version = self.sampled = 0
        self.epoch = secrets.token_hex(4)
        """Tells the versions of this picture from those of another."""
        self.rendering = RenderCache(self.observed)
        self._mirror = Mirror(registry.follow_all(), wait=False)
        self._mirror.subscribe(self._changed)
        self._known: dict[str, KnownService] = {}
        self._names: list[str] = []
        self._highest = 0
        """The highest version of a service that was forgotten: one that is back starts above it."""
        self._observed: dict[str, dict[str, Observed]] = {}
        self._missed: set[tuple[str, str]] = set()
        """Those that were not in the registry when it was last asked about them."""
        self._brakes: dict[str, str] = {}
        self._timeline, self._metrics = Timeline(), MetricHistory()
        self._signals = LivenessSignals()
        self._first_names: list[str] | None = None
        """The services that were found first; None before that."""
        self._hidden: set[str] = set()
        """Services that an operator wants to be forgotten, though the registry still names them."""
        self._callbacks: dict[object, Callback] = {}
        self._loaded = self._was_stale = False
        self._poller = Poller(self, registry)

    @property
    def stale(self) -> bool:
        """Whether the picture may be old."""
        return self._mirror.stale

    @property
    def error(self) -> str:
        """Why it does not follow at present; empty where it does."""
        if self._mirror.error is not None:
            return str(self._mirror.error)
        if not self._mirror.loaded:
            return f"{self.registry.url} has not answered yet"
        return f"{self.registry.url} has not been heard for too long" if self.stale else ""

    @property
    def loaded(self) -> bool:
        """Whether there ever was a picture."""
        return self._loaded

    async def ready(self) -> None:
        """Wait for the first picture."""
        await self._mirror.ready()

    def names(self) -> list[str]:
        """The services, in order; one that lost all its instances stays."""
        return list(self._names)

    def service(self, name: str) -> KnownService | None:
        return self._known.get(name)

    def observed(self, service: str) -> Mapping[str, Observed]:
        """What is known of each instance beside what is registered."""
        return MappingProxyType(self._observed.get(service, {}))

    def _observation(self, service: str, id: str) -> Observed:
        return self._observed.get(service, {}).get(id, UNOBSERVED)

    def silence(self, service: str, id: str) -> float | None:
        """Seconds since the last sign of life, as sampled."""
        return self._observation(service, id).silence

    def response_time(self, service: str, id: str) -> float | None:
        """Milliseconds, of active checks; None without."""
        return self._observation(service, id).response_time

    def check_failure(self, service: str, id: str) -> str:
        """Why the active check fails; empty where it does not."""
        return self._observation(service, id).check_failure

    def brake(self, service: str) -> str:
        """Why expiry of a service is paused, in words; empty where it is not."""
        return self._brakes.get(service, "")

    def brakes(self) -> Mapping[str, str]:
        """The brakes that hold, by service."""
        return MappingProxyType(self._brakes)

    def timeline(self, service: str = "", id: str = "") -> list[TimelineEvent]:
        """What happened, the newest last; of the picture as a whole without a service."""
        events = self._timeline.of(service, id)
        known = self._known.get(service)
        instance = known.instances.get(id) if known is not None else None
        if instance is None or any(event.kind == "added" for event in events):
            return events
        begun = moment_of(instance.status.registered_at) or (known.since if known else now())
        registered = message("registered_before", address=instance.address)
        return [TimelineEvent(begun, service, id, "added", registered), *events]

    def history(self, service: str, id: str) -> list[MetricSample]:
        """The metrics of a while, the newest last."""
        return self._metrics.of((service, id))

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call back after each change; what is returned ends it."""
        subscription = object()
        self._callbacks[subscription] = callback

        def end() -> None:
            self._callbacks.pop(subscription, None)

        return end

    def _notify(self, changed: Collection[tuple[str, str]]) -> None:
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

    def _changed(self, update: Update[tuple[str, str], Instance]) -> None:
        """Something is registered, changed or gone."""
        moment = now()
        first, self._loaded = not self._loaded, True
        emptied: set[str] = set()
        lost: set[str] = set()
        for change in update.changes:
            service, id = change.key
            known = self._ensure_known(service, moment)
            known.version += 1
            known.changed = moment
            how = self._signal(change, news=not first)
            if change.after is None:
                known._instances.pop(id, None)
                if how == "lost":
                    lost.add(service)
                if not known._instances:
                    emptied.add(service)
            else:
                known._instances[id] = change.after
                known.emptied, known.absent, known.kept = None, False, False
                known.remembered = False
                emptied.discard(service)
            try:
                self._remember(change, moment, how, news=not first)
            except Exception:
                log.exception("%s %s: what happened is not remembered", service, id)
        for service in emptied:
            known = self._known[service]
            known.emptied, known.lost = moment, service in lost
            kind = "emptied_lost" if known.lost else "emptied_left"
            self._note(service, "", "emptied", message(kind))
        if first:
            self._mark_absent()
        self._notify(
            [*(change.key for change in update.changes), *((name, "") for name in emptied)]
        )

    def _signal(self, change: Change[tuple[str, str], Instance], *, news: bool) -> Departure | None:
        """Heed what a change says of whether an instance lives; how it went, where it did."""
        before, after, moment = change.before, change.after, time.monotonic()
        if before is not None and after is None:
            return self._signals.classify_departure(change.key, before, moment)
        said = None if after is None else after.status.updated_at
        if news and (before is None or before.status.updated_at != said):
            self._signals.reported(change.key, moment)
        return None

    def set_ttl(self, service: str, id: str, seconds: float) -> None:
        """An instance that registers may be silent for so long."""
        self._signals.set_ttl((service, id), seconds)

    def expect_departure(self, service: str, id: str, how: Departure | None) -> None:
        """Somebody is about to take an instance out, in order; None: it was not to be."""
        known = self._known.get(service)
        if known is not None and id in known.instances:
            self._signals.expect_departure((service, id), how, time.monotonic())

    def _remember(
        self,
        change: Change[tuple[str, str], Instance],
        moment: Time,
        how: Departure | None,
        *,
        news: bool,
    ) -> None:
        """What goes with a change. What was there before this server came is no `news`."""
        (service, id), before, after = change.key, change.before, change.after
        self._sampling_after(change)
        if after is None:
            self._leave(service, id)
        elif before is None or before.status.metrics != after.status.metrics:
            self._metrics.add(change.key, after, moment)
        if news:
            for kind, event in events_of(before, after, how):
                self._timeline.add(TimelineEvent(moment, service, id, kind, event))

    def _sampling_after(self, change: Change[tuple[str, str], Instance]) -> None:
        """Of who came nothing is known yet; and where one goes, others may be about to."""
        service, _ = change.key
        if change.before is None or (change.after is None and self._known[service].instances):
            self._poller.soon(service)

    def _ensure_known(self, name: str, moment: Time) -> KnownService:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = KnownService(name, moment, self._highest + 1)
            self._hidden.discard(name)
            insort(self._names, name)
        return known

    def _leave(self, service: str, id: str) -> None:
        self._missed.discard((service, id))
        self._metrics.leave((service, id))
        self.rendering.leave(service, id)
        if (seen := self._observed.get(service)) is not None:
            seen.pop(id, None)
            if not seen:
                del self._observed[service]

    def record_action(self, service: str, id: str, action: Message) -> None:
        """Record an action that a caller took through this server."""
        self._note(service, id, "action", action)

    def _note(self, service: str, id: str, kind: EventKind, event: Message) -> None:
        self._timeline.add(TimelineEvent(now(), service, id, kind, event))

    def _count_sample(self, known: KnownService) -> None:
        known.sampled += 1
        self.sampled += 1

    def _observe(self, service: str, id: str, observed: Observed) -> None:
        self._observed.setdefault(service, {})[id] = observed

    def report_check(self, service: str, id: str, ms: float | None, failure: str) -> None:
        """The result of an active check: how long it took, or why it failed."""
        self._checked(service, id, response_time=ms, check_failure=failure, unchecked="")

    def report_unchecked(self, service: str, id: str, reason: str) -> None:
        """An active check was not made, for this reason."""
        self._checked(service, id, response_time=None, check_failure="", unchecked=reason)

    def _checked(self, service: str, id: str, **result: Any) -> None:
        known = self._known.get(service)
        if known is None or id not in known.instances:
            return
        before = self._observation(service, id)
        seen = replace(before, **result)
        if seen == before:
            return
        self._observe(service, id, seen)
        failed = bool(before.check_failure), before.unchecked
        if failed == (bool(seen.check_failure), seen.unchecked):
            self._count_sample(known)
            return
        self._note(service, id, "check", _check_event(seen))
        known.version += 1
        self._notify([(service, id)])

    def update_silence(self, service: str, silent: Mapping[str, float]) -> None:
        """Seconds since each instance of a service gave a sign of life, as was just found out."""
        known = self._known.get(service)
        if known is None:
            return
        moment, most = now(), self.registry.guarantees.late
        turned = []
        clock = time.monotonic()
        for id in known.instances:
            before, seconds = self._observation(service, id), silent.get(id)
            missing = seconds is None
            if seconds is not None:
                self._signals.sampled((service, id), seconds, clock)
                self._missed.discard((service, id))
            elif most is None or not self._is_missing(service, id):
                continue
            else:
                seconds = before.aged(moment)
            late = missing or (most is not None and seconds is not None and seconds > most)
            seen = replace(before, silence=seconds, sampled=moment, late=late, missing=missing)
            self._observe(service, id, seen)
            if (late, missing) != (before.late, before.missing):
                turned.append((service, id))
                self._note(service, id, "late", _heartbeat_event(seen))
        self._count_sample(known)
        if turned:
            known.version += 1
            self._notify(turned)

    def _is_missing(self, service: str, id: str) -> bool:
        """One that is shown is not in the registry: since more than one look? It may be about to
        be taken out of the picture, too."""
        if (service, id) in self._missed:
            return True
        self._missed.add((service, id))
        self._poller.soon(service)
        return False

    def update_brakes(self, brakes: Mapping[str, str]) -> None:
        """The brakes that hold, as was just found out."""
        turned = [
            name
            for name in {*self._brakes, *brakes}
            if (name in self._brakes) is not (name in brakes)
        ]
        self._brakes = dict(brakes)
        moment = now()
        for name in turned:
            held = brakes.get(name, "")
            self._ensure_known(name, moment).version += 1
            brake = message("brake_on", detail=held) if held else message("brake_off")
            self._note(name, "", "brake", brake)
        if turned:
            self._notify([(name, "") for name in turned])

    def update_names(self, names: Collection[str], *, kept: Collection[str] = ()) -> None:
        """The services that the registry knows, whether they have instances or not. `kept`: those
        that it names for what is said of them, not for instances."""
        moment = now()
        self._hidden &= set(names)
        fresh = [name for name in names if name not in self._known and name not in self._hidden]
        for name in fresh:
            self._ensure_known(name, moment)
        if self._first_names is None:
            self._first_names = fresh
            self._mark_absent()
        for name in kept:
            known = self._known.get(name)
            if known is not None and not known.instances:
                known.kept = True
        listed = set(names)
        empty = sorted(
            (known.emptied or known.since, name)
            for name, known in self._known.items()
            if not known.instances and name not in listed
        )
        over = len(empty) - _EMPTY
        gone = [
            name
            for number, (since, name) in enumerate(empty)
            if number < over or (moment - since).total_seconds() >= self._known[name].lasts
        ]
        for name in gone:
            self._forget(name)
        if fresh or gone:
            self._notify([(name, "") for name in (*fresh, *gone)])

    def remember(self, services: Mapping[str, ServiceRecord]) -> None:
        """Services that servers knew before this one started."""
        moment = now()
        changed: list[tuple[str, str]] = []
        for name, before in services.items():
            if name in self._hidden:
                continue  # an operator removed it before the history was read
            known = self._ensure_known(name, moment)
            if known.instances or known.emptied is not None:
                continue
            known.emptied, known.lost = before.emptied, before.lost
            known.remembered, known.absent = before.emptied is None, False
            known.version += 1
            changed.append((name, ""))
        self._mark_absent()
        if changed:
            self._notify(changed)

    def _mark_absent(self) -> None:
        """Once it is known both which services there are and who is registered: a service of those
        without anybody may have died while nobody looked."""
        if not self._loaded:
            return
        remembered = [name for name, known in self._known.items() if known.remembered]
        for name in (*(self._first_names or ()), *remembered):
            known = self._known.get(name)
            if known is not None and not known.instances and known.emptied is None:
                known.absent = True
                known.version += 1

    def forget(self, name: str) -> bool:
        """Show a service no longer that has no instances, until it has one again. Whether it is
        gone."""
        known = self._known.get(name)
        if known is None or known.instances:
            return False
        self._forget(name)
        self._hidden.add(name)
        self._notify([(name, "")])
        return True

    def _forget(self, name: str) -> None:
        self._highest = max(self._highest, self._known.pop(name).version)
        del self._names[bisect_left(self._names, name)]
        self._observed.pop(name, None)
        self._timeline.forget(name)
        self.rendering.forget(name)

    def check_staleness(self) -> None:
        """Tell of it once, when it begins and when it ends."""
        stale = self._loaded and self.stale
        if stale is self._was_stale:
            return
        self._was_stale = stale
        event = message("stale", error=self.error) if stale else message("live_again")
        self._note("", "", "stale", event)
        self._notify(())


def _check_event(seen: Observed) -> Message:
    if seen.unchecked:
        return message("check_skipped", detail=seen.unchecked)
    if seen.check_failure:
        return message("check_failing", detail=seen.check_failure)
    return message("check_passing")


def _heartbeat_event(seen: Observed) -> Message:
    if seen.missing:
        return message("missing")
    if seen.late:
        return message("heartbeat_late", seconds=round(seen.silence or 0))
    return message("heartbeat_resumed")
