"""Who may be called: the instances of a service, sifted, and a picker over those in rotation.

Some objections to an instance are final (it is disabled, draining, has no weight, or is not what
was asked for). Others, that it is unhealthy or was ejected after failures, count only as long as
enough instances remain: below the panic threshold a bad instance is better than none. One without
a connection is not called even then, where its caller keeps connections (`reach`). A zone is a
preference: callers stay in theirs while there is anybody to call.

Pure: time is passed in. One change costs one instance, however many there are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mooring.discovery import balance
from mooring.discovery.balance import Node, Picker
from mooring.discovery.balance.contract import effective
from mooring.discovery.resilience import Outliers, Resilience, panicking, slow_start
from mooring.errors import NoInstance
from mooring.model import Instance

Mode = Literal["zone", "healthy", "panic"]

_STEPS = 20
"""In which a slow start goes up: thousands may be warming at once, and each step costs."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller asks for."""

    version: str = ""
    """This version alone; empty: any."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Metadata that an instance must have."""
    zone: str = ""
    """The caller's own zone: preferred."""
    zone_only: bool = False
    """Never leave the zone."""
    where: Callable[[Instance], bool] | None = None
    """Any other condition."""


def objection(instance: Instance, wanted: Wanted) -> str:
    """Why an instance is never called, in words; empty where it may be."""
    if not instance.enabled:
        return "disabled by an operator"
    if instance.status.state != "up":
        return f"it is {instance.status.state}"
    if not instance.weight:
        return "its weight is 0"
    if wanted.version and instance.version != wanted.version:
        return f"its version is {instance.version}, not {wanted.version}"
    for name, value in wanted.tags.items():
        if (has := instance.metadata.get(name)) != value:
            return f"its {name} is {has!r}, not {value!r}"
    if wanted.zone_only and instance.zone != wanted.zone:
        return f"its zone is {instance.zone or 'not known'}, not {wanted.zone}"
    if wanted.where is not None:
        try:
            meets = wanted.where(instance)
        except Exception as error:  # noqa: BLE001 - the caller's own code
            return f"the caller's condition fails on it: {error!r}"
        if not meets:
            return "it does not meet the caller's condition"
    return ""


class Seat:
    """One instance in a rotation."""

    __slots__ = (
        "ejected",
        "failing",
        "instance",
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
        self.objection = ""
        self.ejected = False
        self.reachable = True
        """Whether there is a connection to it, where somebody keeps one and says so."""
        self.failing = False
        """Whether a call to it failed lately, so that its calls are counted."""
        self.seated = False
        """Whether the picker has it."""
        self.node = Node(instance.id, item=self)

    @property
    def well(self) -> bool:
        return self.instance.status.healthy and not self.ejected and self.reachable


class Rotation:
    """The instances of a service, of which only errors tell the name."""

    def __init__(
        self,
        service: str,
        *,
        policy: str = "p2c",
        wanted: Wanted | None = None,
        resilience: Resilience | None = None,
    ) -> None:
        self.wanted = wanted or Wanted()
        self.resilience = resilience or Resilience()
        self.mode: Mode = "healthy"
        self.picker: Picker = balance.make(policy)
        self._service = service
        self._seats: dict[str, Seat] = {}
        self._outliers = Outliers(self.resilience)
        self._warming: dict[str, Seat] = {}
        self._failing: dict[str, float] = {}
        self._admissible = self._reachable = self._well = self._well_here = 0

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    @property
    def available(self) -> int:
        """How many may be called, in whatever zone: callers leave theirs when they have to."""
        return self._reachable if self.mode == "panic" else self._well

    def seat(self, id: str) -> Seat | None:
        return self._seats.get(id)

    def reach(self, id: str, reachable: bool) -> None:
        """Somebody keeps connections, and has one to this instance, or has none: then it is not
        called, also where too few are well."""
        seat = self._seats.get(id)
        if seat is None or seat.reachable is reachable:
            return
        self._count(seat, -1)
        seat.reachable = reachable
        self._count(seat, +1)
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
            self._count(seat, -1)
            seat.instance = instance
        seat.objection = objection(instance, self.wanted)
        self._watch(seat)
        self._count(seat, +1)
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
        self._count(seat, -1)
        self._warming.pop(id, None)
        self._failing.pop(id, None)
        self._outliers.forget(id)
        self._unseat(seat)

    def _watch(self, seat: Seat) -> None:
        """Those that are never called do not count where a share may be ejected."""
        if seat.objection:
            seat.ejected = False
            self._outliers.forget(seat.instance.id)
        else:
            self._outliers.add(seat.instance.id)

    def _count(self, seat: Seat, by: int) -> None:
        if seat.objection:
            return
        self._admissible += by
        if seat.reachable:
            self._reachable += by
        if seat.well:
            self._well += by
            if seat.instance.zone == self.wanted.zone:
                self._well_here += by

    def _choose_mode(self) -> Mode:
        if panicking(self._well, self._admissible, self.resilience.panic_threshold):
            return "panic"
        return "zone" if self.wanted.zone and self._well_here else "healthy"

    def _belongs(self, seat: Seat) -> bool:
        if seat.objection or not seat.reachable:
            return False
        if self.mode == "panic":
            return True
        return seat.well and (self.mode == "healthy" or seat.instance.zone == self.wanted.zone)

    def _settle(self, seat: Seat | None) -> None:
        """Give a seat its place, and all of them where the mode changed."""
        mode = self._choose_mode()
        if mode != self.mode:
            self.mode = mode
            for each in self._seats.values():
                self._place(each)
        elif seat is not None:
            self._place(seat)

    def _place(self, seat: Seat) -> None:
        if not self._belongs(seat):
            self._unseat(seat)
        elif not seat.seated:
            seat.seated = True
            self.picker.add(seat.node)

    def _unseat(self, seat: Seat) -> None:
        if seat.seated:
            seat.seated = False
            self.picker.remove(seat.node)

    def _reweigh(self, seat: Seat, now: float) -> None:
        if not seat.instance.weight:
            return
        weight = effective(seat.instance.weight, seat.instance.id)  # one share of it is above 0
        factor = 1.0
        if (window := self.resilience.slow_start) and seat.since > float("-inf"):
            age = now - seat.since
            seat.step = int(_STEPS * age / window)
            factor = slow_start(age, window, self.resilience.slow_start_least)
            if factor < 1.0:
                self._warming[seat.instance.id] = seat
            else:
                self._warming.pop(seat.instance.id, None)
        if seat.seated:
            self.picker.reweight(seat.node, weight * factor)
        else:
            seat.node.weight = weight * factor

    def tick(self, now: float) -> float | None:
        """Let time pass: ejected ones come back, new ones warm up. Seconds until it is worth
        calling again; None where only an event can change anything."""
        self._let_back(now)
        window = self.resilience.slow_start
        for seat in tuple(self._warming.values()):
            if int(_STEPS * (now - seat.since) / window) != seat.step:
                self._reweigh(seat, now)
        for id, last in tuple(self._failing.items()):
            if now - last > self.resilience.failure_rate_window:
                del self._failing[id]
                if id in self._seats:
                    self._seats[id].failing = False
        if self._warming:
            return 0.5
        due = self._outliers.next_due()
        return None if due is None else max(due - now, 0.05)

    def _let_back(self, now: float) -> None:
        """Those whose ejection is over, or is one too many since others are gone."""
        for id in self._outliers.due(now):
            if (seat := self._seats.get(id)) is not None:
                self._eject(seat, False)
                seat.since = now
                self._reweigh(seat, now)

    def _eject(self, seat: Seat, ejected: bool) -> None:
        self._count(seat, -1)
        seat.ejected = ejected
        self._count(seat, +1)
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
            for seat in self._seats.values()
            if seat.reachable and seat.instance.id not in exclude
        ]
        for may in (
            [seat for seat in others if seat.seated],
            [seat for seat in others if not seat.objection and seat.well],
            [seat for seat in others if not seat.objection],
        ):
            if may:
                return random.choice(may).node
        return node

    def _why_none(self) -> str:
        if not self._seats:
            return f"{self._service}: no instance is registered"
        reasons: dict[str, int] = {}
        for seat in self._seats.values():
            reason = seat.objection or ("unhealthy" if seat.reachable else "no connection")
            reasons[reason] = reasons.get(reason, 0) + 1
        told = ", ".join(f"{count} × {reason}" for reason, count in list(reasons.items())[:5])
        return f"{self._service}: none of {len(self._seats)} instances may be called: {told}"

    def finished(self, node: Node, seconds: float, ok: bool | None, now: float) -> bool:
        """A call ended; None: it was cancelled, which says nothing. Whether that ejected the
        instance."""
        self.picker.finished(node, seconds, ok is not False)
        seat: Seat = node.item
        if ok is None or (ok and not seat.failing):
            return False  # nothing to count: the usual way, and a short one
        if self._seats.get(node.id) is not seat:
            return False  # it is gone: who has its place now has done nothing
        seat.failing = True
        self._failing[node.id] = now
        if not self._outliers.record(node.id, ok, now):
            return False
        self._eject(seat, True)
        return True

    def explain(self) -> list[Explanation]:
        return [self._explain(seat) for _, seat in sorted(self._seats.items())]

    def _explain(self, seat: Seat) -> Explanation:
        reasons: list[str] = []
        if seat.objection:
            reasons.append(seat.objection)
        if not seat.instance.status.healthy:
            reasons.append("it says that it is not healthy")
        if not seat.reachable:
            reasons.append("no connection")
        if seat.ejected:
            reasons.append("ejected: calls to it failed")
        if self.mode == "zone" and seat.instance.zone != self.wanted.zone:
            zone = seat.instance.zone or "no zone"
            reasons.append(f"it is in {zone}, and there are instances in {self.wanted.zone}")
        if seat.seated and self.mode == "panic" and reasons:
            few = f"only {self._well} of {self._admissible} are well"
            reasons.append(f"called all the same: {few} (panic threshold)")
        if seat.seated and seat.instance.id in self._warming:
            reasons.append(f"slow start: its weight counts {seat.node.weight:g} for the time being")
        return Explanation(seat.instance, seat.seated, tuple(reasons))


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an instance is or is not called."""

    instance: Instance
    called: bool
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        told = "; ".join(self.reasons) or ("in rotation" if self.called else "out of rotation")
        return f"{self.instance.id}: {'called' if self.called else 'not called'}: {told}"


def explain(
    instances: Iterable[Instance], wanted: Wanted, resilience: Resilience
) -> list[Explanation]:
    """Why each of these would or would not be called by somebody who just arrived."""
    rotation = Rotation("", wanted=wanted, resilience=resilience)  # nobody picks from it
    for instance in instances:
        rotation.put(instance, 0.0, first=True)
    return rotation.explain()
