"""Who may be called: the instances of a service, sifted, and a picker over those in rotation.

Some objections to an instance are final (it is disabled or down, has no weight, or is not what
was asked for). Others, that it is unhealthy or was ejected after failures, count only as long as
enough instances remain: below the panic threshold a bad instance is better than none. One without
a connection is not called even then, where its caller keeps connections (`reach`). An instance that
drains still serves for a while: it is called if no other is usable.

A zone is a preference: see `mooring.discovery.zones`.

Pure: time is passed in, and chance can be. One change costs one instance, however many there are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mooring.discovery import balance
from mooring.discovery.balance import Node, Picker, ZonePicker
from mooring.discovery.balance.picker import Clock, effective_weight
from mooring.discovery.eligibility import Wanted, objection
from mooring.discovery.resilience import Outliers, Resilience, slow_start
from mooring.discovery.zones import Mode, Part, Sides, Tally
from mooring.errors import NoInstance
from mooring.messages import Message, joined, message
from mooring.model import Instance

_STEPS = 20
"""In which a slow start goes up: thousands may be warming at once, and each step costs."""


class Seat:
    """One instance in a rotation."""

    __slots__ = (
        "counted",
        "draining",
        "ejected",
        "instance",
        "local",
        "node",
        "objection",
        "reachable",
        "seated",
        "since",
        "step",
    )

    def __init__(self, instance: Instance, since: float) -> None:
        self.instance = instance
        self.since = since
        """Since when it may be called, for its slow start; -inf: from the beginning."""
        self.step = 0
        """How far its slow start has got."""
        self.objection: Message | None = None
        self.draining = False
        """Whether it is about to leave, and called only if no other is usable."""
        self.counted: list[tuple[Tally, Part]] = []
        """Where it is counted, and as what."""
        self.ejected = False
        self.reachable = True
        """Whether there is a connection to it, where somebody keeps one and says so."""
        self.seated = False
        """Whether the picker has it."""
        self.local = False
        """Whether the picker has it among those of the caller's zone."""
        self.node = Node(instance.id, item=self)

    @property
    def well(self) -> bool:
        return self.instance.status.healthy and not self.ejected and self.reachable

    @property
    def rank(self) -> int:
        """The order in which they are tried if others failed: those in rotation, then those out of
        it that are well, those that are not, and at last those that drain."""
        return 0 if self.seated else 1 + 2 * self.draining + (not self.well)


class Rotation:
    """The instances of a service, of which only errors tell the name."""

    def __init__(
        self,
        service: str,
        *,
        policy: str = "p2c",
        wanted: Wanted | None = None,
        resilience: Resilience | None = None,
        rng: random.Random | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.wanted = wanted or Wanted()
        self.resilience = resilience or Resilience()
        self.mode: Mode = "healthy"
        self.last_resort = False
        """Whether those that drain are called."""
        self.picker: Picker = balance.make(policy, rng=rng, clock=clock)
        self._localities: ZonePicker | None = None
        if self.wanted.zone:
            keyed, remote = policy == "consistent_hash", balance.make(policy, rng=rng, clock=clock)
            self._localities = ZonePicker(self.picker, remote, keyed=keyed, rng=rng)
            self.picker = self._localities
        self._service = service
        self._seats: dict[str, Seat] = {}
        self._outliers = Outliers(self.resilience)
        self._warming: dict[str, Seat] = {}
        self._failing: dict[str, float] = {}
        """When a call to it last failed, or came after one that did: its calls are counted."""
        self._sides = (Sides.empty(), Sides.empty())
        """Without those that drain, and with them, as a last resort."""

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    @property
    def available(self) -> int:
        """How many may be called, in whatever zone: callers leave theirs when they have to."""
        sides = self._members()
        return sum(side.reachable if self.mode == "panic" else side.well for side in sides)

    @property
    def stay(self) -> float:
        """The share of calls that stay in the caller's zone."""
        return 1.0 if self._localities is None else self._localities.stay

    def _members(self) -> Sides:
        return self._sides[self.last_resort]

    def seat(self, id: str) -> Seat | None:
        return self._seats.get(id)

    def reach(self, id: str, reachable: bool) -> None:
        """Somebody keeps connections, and has one to this instance, or has none: then it is not
        called, also where too few are well."""
        seat = self._seats.get(id)
        if seat is None or seat.reachable is reachable:
            return
        seat.reachable = reachable
        self._recount(seat)
        self._settle(seat)

    def put(self, instance: Instance, now: float, *, first: bool = False) -> None:
        """An instance is there, or changed. `first`: it was there before anybody looked, so that
        it has no slow start."""
        seat = self._seats.get(instance.id)
        if seat is not None and instance.incarnation != seat.instance.incarnation:
            # Another process at the same address is cold, has done no wrong yet, and does not
            # answer for calls that were made to the one before.
            self._drop(seat)
            seat = None
        if seat is None:
            seat = self._seats[instance.id] = Seat(instance, float("-inf") if first else now)
        else:
            seat.instance = instance
        seat.objection = objection(instance, self.wanted, last_resort=True)
        seat.draining = instance.status.state == "draining"
        self._watch(seat)
        self._reweigh(seat, now)
        self._settle(seat)
        self._let_back(now)

    def remove(self, id: str, now: float) -> None:
        seat = self._seats.pop(id, None)
        if seat is None:
            return
        self._drop(seat)
        self._settle(None)
        self._let_back(now)

    def _drop(self, seat: Seat) -> None:
        id = seat.instance.id
        self._uncount(seat)
        self._warming.pop(id, None)
        self._failing.pop(id, None)
        self._outliers.forget(id)
        self._unseat(seat)

    def _watch(self, seat: Seat) -> None:
        """Those that are never called, or as a last resort, do not count where a share may be
        ejected."""
        if seat.objection or seat.draining:
            seat.ejected = False
            self._outliers.forget(seat.instance.id)
        else:
            self._outliers.add(seat.instance.id)

    def _uncount(self, seat: Seat) -> None:
        for tally, part in seat.counted:
            tally.count(part, -1)
        seat.counted = []

    def _recount(self, seat: Seat) -> None:
        self._uncount(seat)
        if seat.objection:
            return
        instance, well = seat.instance, seat.well
        weight = effective_weight(instance.weight, instance.id)
        part = Part(weight, True, seat.reachable, well, seat.node.weight if well else 0.0)
        local = bool(self.wanted.zone) and instance.zone == self.wanted.zone
        usual, last = (sides[local] for sides in self._sides)
        seat.counted = [(usual, Part(weight) if seat.draining else part), (last, part)]
        for tally, part in seat.counted:
            tally.count(part, +1)

    def _belongs(self, seat: Seat) -> bool:
        if seat.objection or not seat.reachable or (seat.draining and not self.last_resort):
            return False
        if self.mode == "panic":
            return True
        return seat.well and (self.mode != "zone" or seat.instance.zone == self.wanted.zone)

    def _settle(self, seat: Seat | None) -> None:
        """Give a seat its place, and all of them where the mode changed."""
        before = self.mode, self.last_resort
        self.last_resort = not any(side.well for side in self._sides[False])
        self.mode, stay = self._members().choose(self.resilience)
        if (self.mode, self.last_resort) != before:
            for each in self._seats.values():
                self._place(each)
        elif seat is not None:
            self._place(seat)
        if self._localities is not None:
            self._localities.stay = stay

    def _place(self, seat: Seat) -> None:
        if not self._belongs(seat):
            return self._unseat(seat)
        local = self.mode in ("zone", "spill-over") and seat.instance.zone == self.wanted.zone
        if seat.seated and seat.local is local:
            return
        self._unseat(seat)
        seat.seated, seat.local = True, local
        if self._localities is not None:
            self._localities.add(seat.node, local=local)
        else:
            self.picker.add(seat.node)

    def _unseat(self, seat: Seat) -> None:
        if seat.seated:
            seat.seated = False
            self.picker.remove(seat.node)

    def _reweigh(self, seat: Seat, now: float) -> None:
        """Its weight may be another, and so may be what its zone can carry."""
        if seat.instance.weight:
            # A share of the effective weight is still above 0.
            weight = effective_weight(seat.instance.weight, seat.instance.id)
            weight *= self._warmth(seat, now)
            if seat.seated:
                self.picker.reweight(seat.node, weight)
            else:
                seat.node.weight = weight
        self._recount(seat)

    def _warmth(self, seat: Seat, now: float) -> float:
        """By what its weight counts while it is new."""
        window = self.resilience.slow_start
        if not window or seat.since == float("-inf"):
            return 1.0
        age = now - seat.since
        seat.step = int(_STEPS * age / window)
        factor = slow_start(age, window, self.resilience.slow_start_least)
        if factor < 1.0:
            self._warming[seat.instance.id] = seat
        else:
            self._warming.pop(seat.instance.id, None)
        return factor

    def tick(self, now: float) -> float | None:
        """Let time pass: ejected ones come back, new ones warm up. Seconds until it is worth
        calling again; None where only an event can change anything."""
        self._let_back(now)
        window = self.resilience.slow_start
        for seat in tuple(self._warming.values()):
            if int(_STEPS * (now - seat.since) / window) != seat.step:
                self._reweigh(seat, now)
                self._settle(None)
        for id, last in tuple(self._failing.items()):
            if now - last > self.resilience.failure_rate_window:
                del self._failing[id]
        if self._warming:
            return 0.5
        due = self._outliers.next_due()
        return None if due is None else max(due - now, 0.05)

    def _let_back(self, now: float) -> None:
        """Those whose ejection is over, or is one too many since others are gone."""
        for id in self._outliers.due(now):
            if (seat := self._seats.get(id)) is not None:
                seat.ejected, seat.since = False, now
                self._reweigh(seat, now)
                self._settle(seat)

    def pick(self, key: str | bytes | None = None, exclude: Collection[str] = ()) -> Node:
        """The next to call, none of `exclude` where there is another. Raises `NoInstance`."""
        try:
            node = self.picker.pick(key)
        except LookupError:
            raise NoInstance(self._why_none()) from None
        if not exclude or node.id not in exclude:
            return node
        for number in range(3):  # another key, so that a ring does not answer the same again
            again = self.picker.pick(None if key is None else f"{key!r} {number}")
            if again.id not in exclude:
                return again
        others = [
            seat
            for id, seat in self._seats.items()
            if seat.reachable and not seat.objection and id not in exclude
        ]
        if not others:
            return node
        first = min(seat.rank for seat in others)
        return random.choice([seat for seat in others if seat.rank == first]).node

    def _why_none(self) -> str:
        if not self._seats:
            return f"{self._service}: no instance is registered"
        reasons: dict[str, int] = {}
        for seat in self._seats.values():
            default = "unhealthy" if seat.reachable else "no connection"
            reason = default if seat.objection is None else seat.objection.text
            reasons[reason] = reasons.get(reason, 0) + 1
        told = ", ".join(f"{count} × {reason}" for reason, count in list(reasons.items())[:5])
        return f"{self._service}: none of {len(self._seats)} instances may be called: {told}"

    def finished(self, node: Node, seconds: float, ok: bool | None, now: float) -> bool:
        """A call ended; None: it was cancelled, which says nothing. Whether that ejected the
        instance."""
        self.picker.finished(node, seconds, ok is not False)
        seat: Seat = node.item
        if ok is None or (ok and node.id not in self._failing):
            return False  # nothing to count: the usual way, and a short one
        if self._seats.get(node.id) is not seat:
            return False  # it is gone: who has its place now has done nothing
        self._failing[node.id] = now
        if not self._outliers.record(node.id, ok, now):
            return False
        seat.ejected = True
        self._recount(seat)
        self._settle(seat)
        return True

    def explain(self) -> list[Explanation]:
        return [self._explain(seat) for _, seat in sorted(self._seats.items())]

    def _explain(self, seat: Seat) -> Explanation:
        zone, wanted, reasons = seat.instance.zone, self.wanted.zone, list[Message]()
        if seat.objection:
            reasons.append(seat.objection)
        if seat.draining:
            reasons.append(message("draining_last_resort" if seat.seated else "is_draining"))
        if not seat.instance.status.healthy:
            reasons.append(message("unhealthy"))
        if not seat.reachable:
            reasons.append(message("no_connection"))
        if seat.ejected:
            reasons.append(message("ejected"))
        if self.mode == "zone" and zone != wanted:
            reasons.append(
                message("other_zone", zone=zone, wanted=wanted)
                if zone
                else message("no_zone", wanted=wanted)
            )
        if seat.seated and self.mode == "spill-over" and not seat.local:
            usable, share = self._members().local.share, 1 - self.stay
            reasons.append(
                message("spill_over", usable=_percent(usable), zone=wanted, share=_percent(share))
            )
        if seat.seated and self.mode == "panic" and reasons:
            well = sum(side.well for side in self._members())
            total = sum(side.admissible for side in self._members())
            reasons.append(message("panic", healthy=well, total=total))
        if seat.seated and seat.instance.id in self._warming:
            reasons.append(message("slow_start", weight=float(seat.node.weight)))
        return Explanation(seat.instance, seat.seated, tuple(reasons))


def _percent(share: float) -> int:
    return int(f"{100 * share:.0f}")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an instance is or is not called."""

    instance: Instance
    called: bool
    messages: tuple[Message, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The messages in English."""
        return tuple(each.text for each in self.messages)

    def __str__(self) -> str:
        told = joined(self.messages) or ("in rotation" if self.called else "out of rotation")
        return f"{self.instance.id}: {'called' if self.called else 'not called'}: {told}"


def explain(
    instances: Iterable[Instance], wanted: Wanted, resilience: Resilience
) -> list[Explanation]:
    """Why each of these would or would not be called by somebody who just arrived."""
    rotation = Rotation("", wanted=wanted, resilience=resilience)  # nobody picks from it
    for instance in instances:
        rotation.put(instance, 0.0, first=True)
    return rotation.explain()
