"""The instances of a service, and a picker over those in rotation.

Some reasons exclude an instance in any case: it is disabled or down, has no weight, or does not
match the selector. Others (it is unhealthy, or was ejected after failures) count only while enough
instances remain: below the panic threshold, unhealthy instances are called too. If the caller keeps
connections (`set_reachable`), an instance without one is never called. A draining instance is
called only if no other is usable.

The caller's zone is a preference: see `mooring.discovery.zones_and_panic`.

Pure: the time is passed in, and the random source can be. The cost of a change does not depend on
the number of instances.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mooring.discovery import balance
from mooring.discovery.balance import Node, Picker
from mooring.discovery.balance.picker import Clock, effective_weight
from mooring.discovery.exclusion import Explanation, Selector, exclusion
from mooring.discovery.resilience import Outliers, Resilience, slow_start
from mooring.discovery.zones_and_panic import Contribution, Mode, ZonePicker, ZoneTallies, ZoneTally
from mooring.errors import NoInstance
from mooring.messages import Message, combined, message
from mooring.model import Instance

_STEPS = 20
"""The steps of a slow start. Each one costs, and thousands of instances may be in it at once."""


@dataclass(slots=True, eq=False)
class RotationMember:
    """One instance in a rotation."""

    instance: Instance
    since: float
    """The time at which its slow start began; -inf: it has none."""
    step: int = 0
    """The current step of its slow start."""
    exclusion: Message | None = None
    draining: bool = False
    """Whether it is about to leave, and called only if no other is usable."""
    contributions: Sequence[tuple[ZoneTally, Contribution]] = ()
    """The tallies that it is counted in, and what it contributes to each."""
    ejected: bool = False
    reachable: bool = True
    """False if the caller keeps connections and has none to this instance."""
    in_rotation: bool = False
    """Whether it is in the picker."""
    local: bool = False
    """Whether it is in the picker of the caller's zone."""
    node: Node = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.node = Node(self.instance.id, item=self)

    @property
    def healthy(self) -> bool:
        return self.instance.status.healthy and not self.ejected and self.reachable

    @property
    def eligible(self) -> bool:
        """Whether it may be called if necessary."""
        return self.reachable and not self.exclusion

    @property
    def rank(self) -> int:
        """The order in which retries use the instances: those in rotation, then healthy ones,
        unhealthy ones, and draining ones last."""
        return 0 if self.in_rotation else 1 + 2 * self.draining + (not self.healthy)


class Rotation:
    """The instances of a service. Its name appears in errors only."""

    def __init__(
        self,
        service: str,
        *,
        policy: str = "p2c",
        selector: Selector | None = None,
        resilience: Resilience | None = None,
        rng: random.Random | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.selector = selector or Selector()
        self.resilience = resilience or Resilience()
        self.mode: Mode = "healthy"
        self.last_resort = False
        """Whether draining instances are called."""
        self.picker: Picker = balance.make(policy, rng=rng, clock=clock)
        self._zone_picker: ZonePicker | None = None
        if self.selector.zone:
            keyed, remote = policy == "consistent_hash", balance.make(policy, rng=rng, clock=clock)
            self._zone_picker = ZonePicker(self.picker, remote, keyed=keyed, rng=rng)
            self.picker = self._zone_picker
        self._service = service
        self._members: dict[str, RotationMember] = {}
        self._outliers = Outliers(self.resilience)
        self._warming: dict[str, RotationMember] = {}
        """Those in slow start."""
        self._failing: dict[str, float] = {}
        """Instances whose calls are counted since one failed, with the time of the last call."""
        self._all_tallies = (ZoneTallies.empty(), ZoneTallies.empty())
        """Without draining instances, and with them as a last resort."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[RotationMember]:
        return iter(self._members.values())

    @property
    def available(self) -> int:
        """How many instances of all zones may be called: callers leave their zone if necessary."""
        panic = self.mode == "panic"
        return sum(zone.reachable if panic else zone.healthy for zone in self._tallies)

    @property
    def local_share(self) -> float:
        """The share of calls that stay in the caller's zone."""
        return 1.0 if self._zone_picker is None else self._zone_picker.local_share

    @property
    def _tallies(self) -> ZoneTallies:
        return self._all_tallies[self.last_resort]

    def member(self, id: str) -> RotationMember | None:
        return self._members.get(id)

    def set_reachable(self, id: str, reachable: bool) -> None:
        """For callers that keep connections: an instance without one is never called."""
        member = self._members.get(id)
        if member is None or member.reachable is reachable:
            return
        member.reachable = reachable
        self._update_tallies(member)
        self._update(member)

    def put(self, instance: Instance, now: float, *, first: bool = False) -> None:
        """An instance was added or changed. `first`: it belongs to the first list, and has no slow
        start."""
        member = self._members.get(instance.id)
        if member is not None and instance.incarnation != member.instance.incarnation:
            # A new process at the same address needs a slow start, and the failures of its
            # predecessor do not count against it.
            self._discard(member)
            member = None
        if member is None:
            member = self._members[instance.id] = RotationMember(
                instance, float("-inf") if first else now
            )
        else:
            member.instance = instance
        member.exclusion = exclusion(instance, self.selector, last_resort=True)
        member.draining = instance.status.state == "draining"
        self._track_failures(member)
        self._update_weight(member, now)
        self._update(member)
        self._readmit(now)

    def remove(self, id: str, now: float) -> None:
        member = self._members.pop(id, None)
        if member is None:
            return
        self._discard(member)
        self._update(None)
        self._readmit(now)

    def _discard(self, member: RotationMember) -> None:
        id = member.instance.id
        self._remove_from_tallies(member)
        self._warming.pop(id, None)
        self._failing.pop(id, None)
        self._outliers.forget(id)
        self._take_out(member)

    def _track_failures(self, member: RotationMember) -> None:
        """The share that may be ejected is one of the instances that are neither excluded nor
        draining."""
        if member.exclusion or member.draining:
            member.ejected = False
            self._outliers.forget(member.instance.id)
        else:
            self._outliers.add(member.instance.id)

    def _remove_from_tallies(self, member: RotationMember) -> None:
        for tally, contribution in member.contributions:
            tally.count(contribution, -1)
        member.contributions = ()

    def _update_tallies(self, member: RotationMember) -> None:
        self._remove_from_tallies(member)
        if member.exclusion:
            return
        instance, healthy = member.instance, member.healthy
        weight = effective_weight(instance.weight, instance.id)
        usable_weight = member.node.weight if healthy else 0.0
        full = Contribution(weight, True, member.reachable, healthy, usable_weight)
        local = bool(self.selector.zone) and instance.zone == self.selector.zone
        usual, last_resort = (tallies[local] for tallies in self._all_tallies)
        member.contributions = [
            (usual, Contribution(weight) if member.draining else full),
            (last_resort, full),
        ]
        for tally, contribution in member.contributions:
            tally.count(contribution, +1)

    def _is_callable(self, member: RotationMember) -> bool:
        if not member.eligible or (member.draining and not self.last_resort):
            return False
        if self.mode == "panic":
            return True
        return member.healthy and (
            self.mode != "zone" or member.instance.zone == self.selector.zone
        )

    def _update(self, member: RotationMember | None) -> None:
        """Update the mode, and the picker for this member, or for all if the mode changed."""
        before = self.mode, self.last_resort
        self.last_resort = not any(zone.healthy for zone in self._all_tallies[False])
        self.mode, local_share = self._tallies.choose(self.resilience)
        if (self.mode, self.last_resort) != before:
            for other in self._members.values():
                self._update_picker(other)
        elif member is not None:
            self._update_picker(member)
        if self._zone_picker is not None:
            self._zone_picker.local_share = local_share

    def _update_picker(self, member: RotationMember) -> None:
        if not self._is_callable(member):
            return self._take_out(member)
        local = self.mode in ("zone", "spill-over") and member.instance.zone == self.selector.zone
        if member.in_rotation and member.local is local:
            return
        self._take_out(member)
        member.in_rotation, member.local = True, local
        if self._zone_picker is not None:
            self._zone_picker.add(member.node, local=local)
        else:
            self.picker.add(member.node)

    def _take_out(self, member: RotationMember) -> None:
        if member.in_rotation:
            member.in_rotation = False
            self.picker.remove(member.node)

    def _update_weight(self, member: RotationMember, now: float) -> None:
        if member.instance.weight:
            # Any share of the effective weight is above 0.
            weight = effective_weight(member.instance.weight, member.instance.id)
            weight *= self._slow_start_factor(member, now)
            if member.in_rotation:
                self.picker.reweight(member.node, weight)
            else:
                member.node.weight = weight
        self._update_tallies(member)

    def _slow_start_factor(self, member: RotationMember, now: float) -> float:
        """The factor for its weight: below 1 during its slow start."""
        window = self.resilience.slow_start
        if not window or member.since == float("-inf"):
            return 1.0
        age = now - member.since
        member.step = int(_STEPS * age / window)
        factor = slow_start(age, window, self.resilience.slow_start_least)
        if factor < 1.0:
            self._warming[member.instance.id] = member
        else:
            self._warming.pop(member.instance.id, None)
        return factor

    def tick(self, now: float) -> float | None:
        """Readmit ejected instances and advance slow starts. Returns the seconds until the next
        call is useful; None if only an event can change anything."""
        self._readmit(now)
        window = self.resilience.slow_start
        for member in tuple(self._warming.values()):
            if int(_STEPS * (now - member.since) / window) != member.step:
                self._update_weight(member, now)
                self._update(None)
        for id, last in tuple(self._failing.items()):
            if now - last > self.resilience.failure_rate_window:
                del self._failing[id]
        if self._warming:
            return 0.5
        due = self._outliers.next_due()
        return None if due is None else max(due - now, 0.05)

    def _readmit(self, now: float) -> None:
        """Readmit instances whose ejection ended, or exceeds the limit because others left."""
        for id in self._outliers.due(now):
            if (member := self._members.get(id)) is not None:
                member.ejected, member.since = False, now
                self._update_weight(member, now)
                self._update(member)

    def pick(self, key: str | bytes | None = None, exclude: Collection[str] = ()) -> Node:
        """The next instance to call, not one of `exclude` if there is another. Raises
        `NoInstance`."""
        try:
            node = self.picker.pick(key)
        except LookupError:
            raise NoInstance(self.unavailable_reason()) from None
        if not exclude or node.id not in exclude:
            return node
        return self._pick_other(key, exclude) or node

    def _pick_other(self, key: str | bytes | None, exclude: Collection[str]) -> Node | None:
        """A node that is not excluded; None if there is none."""
        for number in range(3):  # with another key, since a hash ring would return the same node
            other = self.picker.pick(None if key is None else f"{key!r} {number}")
            if other.id not in exclude:
                return other
        others = [
            member for id, member in self._members.items() if member.eligible and id not in exclude
        ]
        if not others:
            return None
        first = min(member.rank for member in others)
        return random.choice([member for member in others if member.rank == first]).node

    def unavailable_reason(self) -> Message:
        """Why no instance may be called."""
        if not self._members:
            return message("no_instance_registered", service=self._service)
        counts: Counter[str] = Counter()
        reasons: dict[str, Message] = {}
        for member in self._members.values():
            default = message("not_healthy" if member.reachable else "no_connection")
            reason = member.exclusion or default
            counts[reason.text] += 1
            reasons[reason.text] = reason
        why = combined(
            message("count_of_reason", count=counts[text], reason=reason)
            for text, reason in [*reasons.items()][:5]
        )
        total = len(self._members)
        return message("no_instance_callable", service=self._service, total=total, reasons=why)

    def finished(self, node: Node, seconds: float, ok: bool | None, now: float) -> bool:
        """A call ended. `ok` is None if it was cancelled, which does not count. Returns whether the
        instance is ejected for it."""
        self.picker.finished(node, seconds, ok is not False)
        member: RotationMember = node.item
        if ok is None or (ok and node.id not in self._failing):
            return False  # the fast path: nothing to count
        if self._members.get(node.id) is not member:
            return False  # it left: its successor is not to blame
        self._failing[node.id] = now
        if not self._outliers.record(node.id, ok, now):
            return False
        member.ejected = True
        self._update_tallies(member)
        self._update(member)
        return True

    def explain(self) -> list[Explanation]:
        return [self._explain(member) for _, member in sorted(self._members.items())]

    def _explain(self, member: RotationMember) -> Explanation:
        reasons = [*self._objections(member)]
        if member.in_rotation:
            reasons += self._circumstances(member, despite=bool(reasons))
        return Explanation(member.instance, member.in_rotation, tuple(reasons))

    def _objections(self, member: RotationMember) -> Iterator[Message]:
        """The reasons not to call an instance. Some of them count only while others remain."""
        zone, wanted = member.instance.zone, self.selector.zone
        if member.exclusion:
            yield member.exclusion
        if member.draining:
            yield message("draining_last_resort" if member.in_rotation else "is_draining")
        if not member.instance.status.healthy:
            yield message("unhealthy")
        if not member.reachable:
            yield message("no_connection")
        if member.ejected:
            yield message("ejected")
        if self.mode == "zone" and zone != wanted:
            yield (
                message("other_zone", zone=zone, wanted=wanted)
                if zone
                else message("no_zone", wanted=wanted)
            )

    def _circumstances(self, member: RotationMember, *, despite: bool) -> Iterator[Message]:
        """Why an instance in rotation receives calls, `despite` objections, and how many."""
        if self.mode == "spill-over" and not member.local:
            usable, share = _percent(self._tallies.local.usable_share), 1 - self.local_share
            yield message(
                "spill_over", usable=usable, zone=self.selector.zone, share=_percent(share)
            )
        if self.mode == "panic" and despite:
            healthy = sum(zone.healthy for zone in self._tallies)
            total = sum(zone.eligible for zone in self._tallies)
            yield message("panic", healthy=healthy, total=total)
        if member.instance.id in self._warming:
            yield message("slow_start", weight=float(member.node.weight))


def _percent(share: float) -> int:
    return int(f"{100 * share:.0f}")


def explain(
    instances: Iterable[Instance], selector: Selector, resilience: Resilience
) -> list[Explanation]:
    """Why a caller that just started would or would not call each of these instances."""
    rotation = Rotation("", selector=selector, resilience=resilience)
    for instance in instances:
        rotation.put(instance, 0.0, first=True)
    return rotation.explain()
