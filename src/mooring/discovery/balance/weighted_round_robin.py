"""The policy `weighted`: all nodes in turn, in proportion to their weights."""

from __future__ import annotations

import math
import random
from heapq import heapify, heappop, heappush, heapreplace

from mooring.discovery.balance.picker import (
    SLACK,
    Counting,
    Node,
    check_new,
    effective_weight,
    no_node,
)


class WeightedRoundRobin(Counting):
    """In turn, in proportion to the weights, interleaved.

    With integer weights and an unchanged set, every node is picked exactly `weight` times in any
    run of as many picks as the weights add up to.

    Each node has deadlines 1/weight of a turn apart, and the earliest one is next. Deadlines are
    computed afresh in each turn from the same numbers, as (turn, fraction), so that neither
    rounding nor ties ever change the order. The starting offsets are spread evenly over the nodes;
    otherwise ten nodes of weight 1 beside one of weight 10 would come in one burst. A node enters
    at the present time, and keeps its waiting time when its weight changes, so that it is neither
    flooded nor starved.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        # A random start; otherwise all clients call the same nodes in the same order.
        self._start = (rng or random.Random()).random()
        self._schedules: dict[Node, _NodeSchedule] = {}
        self._heap: list[_Deadline] = []
        self._turn, self._fraction = 0, 0.0
        self._entered = 0

    def add(self, node: Node) -> None:
        check_new(node, present=node in self._schedules)
        self._entered += 1
        waited = (self._start + self._entered * _GOLDEN) % 1.0
        self._schedules[node] = schedule = _NodeSchedule(node, self._entered)
        self._place(schedule, waited)

    def remove(self, node: Node) -> None:
        self._schedules.pop(node).deadline = None
        self._sweep()

    def reweight(self, node: Node, weight: float) -> None:
        schedule = self._schedules[node]
        node.weight = effective_weight(weight, node.id)
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
        raise no_node()

    def __len__(self) -> int:
        return len(self._schedules)

    def _place(self, schedule: _NodeSchedule, share: float) -> None:
        """Set its next deadline to `share` of its interval from now."""
        heappush(self._heap, schedule.begin(self._turn, self._fraction, share))

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._schedules) + SLACK:
            self._heap = [entry for entry in self._heap if entry[3].deadline is entry]
            heapify(self._heap)


class _NodeSchedule:
    """The deadlines of one node: (served + share) / weight after the point where it began."""

    __slots__ = ("_fraction", "_number", "_served", "_share", "_turn", "deadline", "node", "weight")

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self._number = number
        self.deadline: _Deadline | None = None
        """The valid one in the heap; any other is garbage."""

    def begin(self, turn: int, fraction: float, share: float) -> _Deadline:
        self.weight = self.node.weight
        self._turn, self._fraction, self._share, self._served = turn, fraction, share, 0.0
        return self._next_deadline()

    def advance(self) -> _Deadline:
        served, weight = self._served + 1.0, self.weight
        if served >= weight:
            turns = served // weight
            served -= turns * weight
            self._turn += int(turns)
        self._served = served
        return self._next_deadline()

    def _next_deadline(self) -> _Deadline:
        after = self._fraction + (self._served + self._share) / self.weight
        whole = int(after)
        self.deadline = deadline = (self._turn + whole, after - whole, self._number, self)
        return deadline


_Deadline = tuple[int, float, int, _NodeSchedule]
_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples modulo 1 are spread evenly, however many there are
