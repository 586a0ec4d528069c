"""Which node is called next: six policies behind one small interface.

| policy            | a pick costs | weights                       | for |
|-------------------|--------------|-------------------------------|-----|
| `random`          | O(1)         | exact on average              | many clients, short calls |
| `round_robin`     | O(1)         | ignored                       | like nodes, like requests |
| `weighted`        | O(log n)     | exact over every turn         | unlike nodes, like requests |
| `p2c`             | O(1)         | on average, and under load    | slow nodes get less |
| `least_requests`  | O(log n)     | requests under way, relative  | calls of very unlike length |
| `consistent_hash` | O(log n)     | roughly                       | caches, sticky keys |

Pickers do no I/O and know nothing of health: who keeps them adds those that may be called and
removes the others. No operation walks over all nodes, since a view may hold 10,000 and follow 1,000
changes a second. (Structures with lazy deletion are swept once they are half garbage: O(1) for each
change on average.) They are not safe for threads.
"""

from __future__ import annotations

import math
import random
import time
from array import array
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from math import exp
from operator import attrgetter
from typing import Any, Final, Protocol

from mooring.discovery.hashing import Ring
from mooring.errors import InvalidRequest
from mooring.names import nearest

Clock = Callable[[], float]

LIGHTEST: Final = 1e-6
HEAVIEST: Final = 1e6
"""Weights beyond these are taken as these: one wild weight must not break the arithmetic."""


class Node:
    """Something that can be picked. Two nodes are never equal, whatever their ids.

    A node is in one picker at a time. Meanwhile that picker keeps `active` and the latency, and its
    `reweight` changes the weight; all of them outlast removal, so that a node that comes back is
    known. `item` is the owner's own.
    """

    __slots__ = ("active", "id", "item", "latency", "sampled", "weight")

    def __init__(self, id: str, weight: float = 1.0, item: Any = None) -> None:
        self.id = id
        self.weight = _effective(weight, id)
        self.item = item
        self.active = 0
        """Requests under way."""
        self.latency = 0.0
        """Peak EWMA in seconds as of `sampled`; P2C alone keeps it."""
        self.sampled = -math.inf
        """When a request last ended, by the picker's clock; long ago where none ever did."""

    def __repr__(self) -> str:
        return f"Node({self.id!r}, weight={self.weight:g}, active={self.active})"


class Picker(Protocol):
    """A set of nodes, and whose turn it is.

    To add a node twice is a `ValueError`; to remove or reweight one that is not there, a
    `LookupError`. `started` and `finished` are called in pairs around each request, also where the
    node was removed meanwhile.
    """

    def add(self, node: Node) -> None: ...

    def remove(self, node: Node) -> None: ...

    def reweight(self, node: Node, weight: float) -> None:
        """Give a node another weight. `InvalidRequest` where it is not more than 0."""

    def pick(self, key: str | bytes | None = None) -> Node:
        """The node to call next; `LookupError` where there is none.

        Only consistent hashing looks at `key`: without one it takes anyone.
        """

    def started(self, node: Node) -> None: ...

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        """A request ended after `seconds`. `ok` is False where the node is to blame."""

    def __len__(self) -> int: ...


def make(policy: str, *, rng: random.Random | None = None, clock: Clock = time.monotonic) -> Picker:
    """The picker for a policy by name. `InvalidRequest` for an unknown one."""
    rng = rng or random.Random()
    match policy:
        case "random":
            return Random(rng)
        case "round_robin":
            return RoundRobin()
        case "weighted":
            return WeightedRoundRobin(rng)
        case "p2c":
            return P2C(rng, clock)
        case "least_requests":
            return LeastRequests(rng)
        case "consistent_hash":
            return ConsistentHash(rng)
        case _:
            raise InvalidRequest(f"there is no balancing policy {policy!r}{nearest(policy, NAMES)}")


NAMES: Final = (
    "random",
    "round_robin",
    "weighted",
    "p2c",
    "least_requests",
    "consistent_hash",
)


class _Counting:
    """What every picker does about requests: count them."""

    def started(self, node: Node) -> None:
        node.active += 1

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        node.active -= 1


class _Urn(_Counting):
    """Nodes to draw from by weight, in O(1) on average; changes in O(1).

    Nodes lie on shelves by the power of two in their weight. A shelf is drawn by what it would hold
    if all on it were as heavy as the heaviest, then a place on it, and a lighter node is put back
    as often as it is lighter: never on a shelf of like ones, and never more than half of the time.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = (rng or random.Random()).random
        self._shelves: list[_Shelf] = []
        self._width = 0.0
        self._places: dict[Node, tuple[_Shelf, int]] = {}
        self._weights: dict[float, int] = {}
        self._even: _Shelf | None = None
        """Where all nodes lie, if their weights are equal."""
        self._usual = 1.0
        """The weight of all nodes, or about the mean."""

    def __len__(self) -> int:
        return len(self._places)

    def add(self, node: Node) -> None:
        _admit(node, self._places)
        weight = node.weight
        exponent = math.frexp(weight)[1]
        for shelf in self._shelves:
            if shelf.exponent == exponent:
                break
        else:
            shelf = _Shelf(exponent)
            self._shelves.append(shelf)
        self._places[node] = (shelf, shelf.append(node))
        self._weights[weight] = self._weights.get(weight, 0) + 1
        self._changed()

    def remove(self, node: Node) -> None:
        shelf, at = self._places.pop(node)
        moved = shelf.remove(at)
        if moved is not node:
            self._places[moved] = (shelf, at)
        if not shelf.nodes:
            self._shelves.remove(shelf)
        if self._weights[node.weight] > 1:
            self._weights[node.weight] -= 1
        else:
            del self._weights[node.weight]
        self._changed()

    def reweight(self, node: Node, weight: float) -> None:
        _must_be_there(node, self._places)
        weight = _effective(weight, node.id)
        if weight != node.weight:
            self.remove(node)
            node.weight = weight
            self.add(node)

    def _changed(self) -> None:
        shelves = self._shelves
        if len(self._weights) == 1:
            self._even = shelf = shelves[0]
            self._usual = shelf.top = next(iter(self._weights))  # heavier ones may have left it
            self._width = shelf.width = shelf.top * len(shelf.nodes)
            return
        self._even = None
        shelves.sort(key=_width, reverse=True)  # a handful, and the first is drawn most often
        self._width = sum(map(_width, shelves))
        self._usual = self._width / max(len(self._places), 1)

    def _draw(self) -> tuple[_Shelf, int]:
        """A shelf and a place on it."""
        random, width, shelves = self._random, self._width, self._shelves
        while shelves:
            at = random() * width
            for shelf in shelves:
                if at < shelf.width:
                    break
                at -= shelf.width
            at /= shelf.top
            place = int(at)
            # What is left of the random number behind the point decides whether it is put back.
            if place < len(shelf.weights) and (at - place) * shelf.top < shelf.weights[place]:
                return shelf, place
        raise _nobody()


class _Shelf:
    """Nodes of an urn, none of them twice as heavy as another, and none heavier than `top`.

    What a pick looks at lies beside the nodes in arrays: with 10,000 nodes all over the memory, to
    look into two of them would take as long as all the rest.
    """

    __slots__ = ("exponent", "load", "nodes", "slowness", "top", "weights", "width")

    def __init__(self, exponent: int) -> None:
        self.exponent = exponent
        self.top = 0.0
        self.width = 0.0
        self.nodes: list[Node] = []
        self.weights = array("d")
        self.load = array("d")
        """Requests under way by weight; for P2C, like the next."""
        self.slowness = array("d")

    def append(self, node: Node) -> int:
        self.nodes.append(node)
        self.weights.append(node.weight)
        self.load.append(0.0)
        self.slowness.append(0.0)
        self.top = max(self.top, node.weight)
        self.width = self.top * len(self.nodes)
        return len(self.nodes) - 1

    def remove(self, at: int) -> Node:
        """Fill the place with the last one, and return that."""
        last = self.nodes.pop()
        columns = (self.weights, self.load, self.slowness)
        values = [column.pop() for column in columns]
        if at < len(self.nodes):
            self.nodes[at] = last
            for column, value in zip(columns, values, strict=True):
                column[at] = value
        self.width = self.top * len(self.nodes)
        return last


_width = attrgetter("width")


class Random(_Urn):
    """Anyone, with a chance in proportion to the weight."""

    def pick(self, key: str | bytes | None = None) -> Node:
        if (shelf := self._even) is not None:
            return shelf.nodes[int(self._random() * len(shelf.nodes))]
        shelf, place = self._draw()
        return shelf.nodes[place]


class RoundRobin(_Counting):
    """One after another, whatever the weights.

    Those that stay are picked equally often, over any stretch, give or take one, though others come
    and go: nobody's place in the circle changes. Who comes is the last of the present turn. Clients
    that add the same nodes in the same order all start with the same one: shuffle them.
    """

    def __init__(self) -> None:
        self._links: dict[Node, _Link] = {}
        self._next: _Link | None = None

    def add(self, node: Node) -> None:
        _admit(node, self._links)
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
        _must_be_there(node, self._links)
        node.weight = _effective(weight, node.id)

    def pick(self, key: str | bytes | None = None) -> Node:
        link = self._next
        if link is None:
            raise _nobody()
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


class WeightedRoundRobin(_Counting):
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
        _admit(node, self._schedules)
        self._entered += 1
        waited = (self._start + self._entered * _GOLDEN) % 1.0
        self._schedules[node] = schedule = _Schedule(node, self._entered)
        self._place(schedule, waited)

    def remove(self, node: Node) -> None:
        self._schedules.pop(node).deadline = None
        self._sweep()

    def reweight(self, node: Node, weight: float) -> None:
        schedule = self._schedules[node]
        node.weight = _effective(weight, node.id)
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
        raise _nobody()

    def __len__(self) -> int:
        return len(self._schedules)

    def _place(self, schedule: _Schedule, share: float) -> None:
        """Its next deadline is `share` of its own interval from now."""
        heappush(self._heap, schedule.begin(self._turn, self._fraction, share))

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._schedules) + _SLACK:
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
_SLACK = 32  # garbage that is not worth a sweep


class P2C(_Urn):
    """The better one of two at random: the power of two choices, on peak EWMA latency.

    A node costs its latency times one more than the requests under way there. The latency jumps to
    any slower answer at once and comes down within some ten seconds, with faster answers or
    without: what is known of a node fades, and what is not known is taken to be typical of all, so
    that a node never tried is neither starved nor flooded, and a bad one is tried again. A failure
    counts as an answer ten times slower than typical, else a node that fails fast would draw all.

    With equal weights the two are distinct. With unequal ones each is drawn by weight, so that idle
    nodes are picked in proportion, and requests under way count relative to the weight, so that
    busy ones carry in proportion too. There a node drawn twice is taken, unless it is slow or busy.
    """

    # A node's slowness is log(latency / typical), which fades by exp(-age / 10 s). All fade alike,
    # so the arrays hold it as if it had been found at `_epoch`, and a pick reckons what has faded
    # since then once, not for each node.

    def __init__(self, rng: random.Random | None = None, clock: Clock = time.monotonic) -> None:
        super().__init__(rng)
        self._clock = clock
        self._epoch = clock()
        self._typical: float | None = None  # the logarithm of a typical latency

    def add(self, node: Node) -> None:
        super().add(node)
        self._note(node, self._slowness(node))

    def pick(self, key: str | bytes | None = None) -> Node:
        shelf = self._even
        if shelf is None:
            return self._pick_by_weight()
        nodes = shelf.nodes
        count = len(nodes)
        if count == 1:
            return nodes[0]
        # One random number makes both: its whole part the first, the rest the second.
        at = self._random() * count
        one = int(at)
        other = int((at - one) * (count - 1))
        if other >= one:
            other += 1
        faded = exp((self._epoch - self._clock()) * _FADING)
        slowness, load, usual = shelf.slowness, shelf.load, self._usual
        cost = exp(slowness[one] * faded) * (load[one] * usual + 1)
        if exp(slowness[other] * faded) * (load[other] * usual + 1) < cost * _CLEARLY:
            return nodes[other]
        return nodes[one]

    def _pick_by_weight(self) -> Node:
        draw, usual = self._draw, self._usual
        faded = exp((self._epoch - self._clock()) * _FADING)
        shelf, place = draw()
        other, there = draw()
        cost = exp(shelf.slowness[place] * faded) * (shelf.load[place] * usual + 1)
        if place == there and shelf is other:
            if cost <= 2:
                return shelf.nodes[place]
            for _ in range(4):
                other, there = draw()
                if place != there or shelf is not other:
                    break
        if exp(other.slowness[there] * faded) * (other.load[there] * usual + 1) < cost * _CLEARLY:
            return other.nodes[there]
        return shelf.nodes[place]

    def started(self, node: Node) -> None:
        node.active += 1
        if (found := self._places.get(node)) is not None:
            found[0].load[found[1]] = node.active / node.weight

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        node.active -= 1
        now, known = self._clock(), node.latency
        sample = max(seconds, 1e-6)
        if not ok:
            sample = max(sample, _PENALTY * (1.0 if self._typical is None else exp(self._typical)))
        if sample < known:
            sample += (known - sample) * exp((node.sampled - now) * _FADING)
        node.latency, node.sampled = sample, now
        if ok:
            # A geometric mean, and without failures: one timeout must not move what is typical.
            log, typical = math.log(sample), self._typical
            self._typical = log if typical is None else typical + (log - typical) / 64
        if node in self._places:
            self._note(node, self._slowness(node))

    def _slowness(self, node: Node) -> float:
        if not node.latency:
            return 0.0
        if node.sampled - self._epoch > _EPOCH:
            self._begin_epoch(node.sampled)
        slowness = math.log(node.latency) - (self._typical or 0.0)
        return slowness * exp((node.sampled - self._epoch) * _FADING)

    def _note(self, node: Node, slowness: float) -> None:
        shelf, place = self._places[node]
        shelf.load[place] = node.active / node.weight
        shelf.slowness[place] = slowness

    def _begin_epoch(self, now: float) -> None:
        """Before the numbers grow out of range; once in an hour it may take a millisecond."""
        faded = exp((self._epoch - now) * _FADING)
        for shelf in self._shelves:
            shelf.slowness = array("d", [slowness * faded for slowness in shelf.slowness])
        self._epoch = now


_CLEARLY = 0.98  # a lower cost than that wins; else the last trace of a slow answer would decide
_FADING = 1 / 10.0
_EPOCH = 3600.0
_PENALTY = 10.0


class LeastRequests:
    """Who has the fewest requests under way, relative to weight; among equals, anyone.

    Exact for any weights: the least (active + 1) / weight wins, so that of idle nodes the heaviest
    come first. Nodes of the same load share a bucket, and a heap holds the loads that occur; with
    equal weights these are only a few, and everything is O(1) in effect.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = (rng or random.Random()).random
        self._buckets: dict[float, list[Node]] = {}
        self._heap: list[float] = []  # the keys of the buckets, empty ones too
        self._places: dict[Node, tuple[list[Node], int]] = {}

    def add(self, node: Node) -> None:
        _admit(node, self._places)
        self._put(node)

    def remove(self, node: Node) -> None:
        self._take(node)

    def reweight(self, node: Node, weight: float) -> None:
        _must_be_there(node, self._places)
        node.weight = _effective(weight, node.id)
        self._take(node)
        self._put(node)

    def pick(self, key: str | bytes | None = None) -> Node:
        heap, buckets = self._heap, self._buckets
        while heap:
            bucket = buckets[heap[0]]
            if bucket:
                return bucket[int(self._random() * len(bucket))]
            del buckets[heappop(heap)]
        raise _nobody()

    def started(self, node: Node) -> None:
        node.active += 1
        if node in self._places:
            self._take(node)
            self._put(node)

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        node.active -= 1
        if node in self._places:
            self._take(node)
            self._put(node)

    def __len__(self) -> int:
        return len(self._places)

    def _put(self, node: Node) -> None:
        load = (node.active + 1) / node.weight
        bucket = self._buckets.get(load)
        if bucket is None:
            if len(self._heap) > 2 * len(self._places) + _SLACK:
                self._buckets = {key: full for key, full in self._buckets.items() if full}
                self._heap = sorted(self._buckets)
            bucket = self._buckets[load] = []
            heappush(self._heap, load)
        self._places[node] = (bucket, len(bucket))
        bucket.append(node)

    def _take(self, node: Node) -> None:
        bucket, at = self._places.pop(node)
        last = bucket.pop()
        if last is not node:
            bucket[at] = last
            self._places[last] = (bucket, at)


class ConsistentHash(_Counting):
    """The same key to the same node; see `mooring.discovery.hashing` for what moves, and when."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._ring: Ring[Node] = Ring()
        self._nodes: dict[Node, None] = {}

    def add(self, node: Node) -> None:
        _admit(node, self._nodes)
        self._nodes[node] = None
        self._ring.add(node, node.id, node.weight)

    def remove(self, node: Node) -> None:
        del self._nodes[node]
        self._ring.remove(node)

    def reweight(self, node: Node, weight: float) -> None:
        _must_be_there(node, self._nodes)
        node.weight = _effective(weight, node.id)
        self._ring.reweight(node, node.id, node.weight)

    def pick(self, key: str | bytes | None = None) -> Node:
        if not self._nodes:
            raise _nobody()
        if key is None:
            key = self._rng.randbytes(16)
        elif isinstance(key, str):
            key = key.encode("utf-8", "surrogatepass")
        return self._ring.find(key)

    def __len__(self) -> int:
        return len(self._nodes)


def _effective(weight: float, id: str) -> float:
    if not 0 < weight < math.inf:
        raise InvalidRequest(f"the weight of {id!r} must be a number above 0, not {weight!r}")
    return min(max(float(weight), LIGHTEST), HEAVIEST)


def _admit(node: Node, places: Mapping[Node, object]) -> None:
    if node in places:
        raise ValueError(f"{node!r} is in this picker already")
    node.weight = _effective(node.weight, node.id)


def _must_be_there(node: Node, places: Mapping[Node, object]) -> None:
    if node not in places:
        raise KeyError(node)


def _nobody() -> LookupError:
    return LookupError("there is no node to pick")
