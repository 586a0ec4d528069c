"""Taking turns: round robin, plain and by weight."""

from __future__ import annotations

import math
import random
from heapq import heapify, heappop, heappush, heapreplace

from mooring.discovery.balance.picker import (
    SLACK,
    Counting,
    Node,
    admit,
    effective,
    must_be_there,
    nobody,
)


class RoundRobin(Counting):
    """One after another, whatever the weights.

    Those that stay are picked equally often, over any stretch, give or take one, though others come
    and go: nobody's place in the circle changes. Who comes is the last of the present turn. Clients
    that add the same nodes in the same order all start with the same one: shuffle them.
    """

    def __init__(self) -> None:
        self._links: dict[Node, _Link] = {}
        self._next: _Link | None = None

    def add(self, node: Node) -> None:
        admit(node, there=node in self._links)
        self._links[node] = link = _Link(node)
        following = self._next
        if following is None:
            self._next = link.before = link.after = link
        else:
            link.after, link.before = following, following.before
            following.before.after = link
            following.before = link

    def remove(self, node: Node) -> None:
        link = self._links.pop(node)
        link.before.after = link.after
        link.after.before = link.before
        if self._next is link:
            self._next = link.after if self._links else None
        del link.before, link.after  # the last one refers to itself

    def reweight(self, node: Node, weight: float) -> None:
        must_be_there(node, there=node in self._links)
        node.weight = effective(weight, node.id)

    def pick(self, key: str | bytes | None = None) -> Node:
        link = self._next
        if link is None:
            raise nobody()
        self._next = link.after
        return link.node

    def __len__(self) -> int:
        return len(self._links)


class _Link:
    """A place in the circle of a round robin."""

    __slots__ = ("after", "before", "node")
    before: _Link
    after: _Link

    def __init__(self, node: Node) -> None:
        self.node = node


class WeightedRoundRobin(Counting):
    """By turns in proportion to the weights, interleaved.

    With whole weights and an unchanged set, every node is picked exactly `weight` times in any run
    of as many picks as the weights add up to.

    Each node has deadlines 1/weight of a turn apart, and the earliest one is next. Deadlines are
    reckoned anew in each turn from the same numbers, as (turn, fraction), so that neither rounding
    nor ties ever change the order, however long it runs. Where in its own interval a node starts
    is spread evenly over the nodes: else ten nodes of weight 1 beside one of weight 10 would come
    in one burst. A node enters at the present time, and keeps what it has waited when its weight
    changes, so that it is neither flooded nor starved.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        # A random start: else all clients call the same nodes in the same order.
        self._start = (rng or random.Random()).random()
        self._schedules: dict[Node, _Schedule] = {}
        self._heap: list[_Deadline] = []
        self._turn, self._fraction = 0, 0.0
        self._entered = 0

    def add(self, node: Node) -> None:
        admit(node, there=node in self._schedules)
        self._entered += 1
        waited = (self._start + self._entered * _GOLDEN) % 1.0
        self._schedules[node] = schedule = _Schedule(node, self._entered)
        self._place(schedule, waited)

    def remove(self, node: Node) -> None:
        self._schedules.pop(node).deadline = None
        self._sweep()

    def reweight(self, node: Node, weight: float) -> None:
        schedule = self._schedules[node]
        node.weight = effective(weight, node.id)
        deadline = schedule.deadline
        assert deadline is not None
        left = deadline[0] - self._turn + deadline[1] - self._fraction
        self._place(schedule, left * schedule.weight)
        self._sweep()

    def pick(self, key: str | bytes | None = None) -> Node:
        heap = self._heap
        while heap:
            deadline = heap[0]
            schedule = deadline[3]
            if schedule.deadline is deadline:
                self._turn, self._fraction = deadline[0], deadline[1]
                heapreplace(heap, schedule.advance())
                return schedule.node
            heappop(heap)
        raise nobody()

    def __len__(self) -> int:
        return len(self._schedules)

    def _place(self, schedule: _Schedule, share: float) -> None:
        """Its next deadline is `share` of its own interval from now."""
        heappush(self._heap, schedule.begin(self._turn, self._fraction, share))

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._schedules) + SLACK:
            self._heap = [entry for entry in self._heap if entry[3].deadline is entry]
            heapify(self._heap)


class _Schedule:
    """The deadlines of one node: (served + share) / weight after the point where it began."""

    __slots__ = ("_fraction", "_number", "_served", "_share", "_turn", "deadline", "node", "weight")

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self._number = number
        self.deadline: _Deadline | None = None
        """The one that counts, in the heap; any other is garbage."""

    def begin(self, turn: int, fraction: float, share: float) -> _Deadline:
        self.weight = self.node.weight
        self._turn, self._fraction, self._share, self._served = turn, fraction, share, 0.0
        return self._reckon()

    def advance(self) -> _Deadline:
        served, weight = self._served + 1.0, self.weight
        if served >= weight:
            turns = served // weight
            served -= turns * weight
            self._turn += int(turns)
        self._served = served
        return self._reckon()

    def _reckon(self) -> _Deadline:
        after = self._fraction + (self._served + self._share) / self.weight
        whole = int(after)
        self.deadline = deadline = (self._turn + whole, after - whole, self._number, self)
        return deadline


_Deadline = tuple[int, float, int, _Schedule]
_GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it, modulo 1, lie evenly however many there are
