"""How many keys change owner when a node leaves, under consistent hashing."""

from __future__ import annotations

from collections import Counter
from statistics import median

from bench.measure import Line, Plan, Section, Target
from mooring.discovery.balance import Node, make

SIZES = (10, 100, 1_000)

_LEAST, _FOR_EACH = 100_000, 1_000  # keys; enough to keep the random error of a node's share at 3 %


async def run(plan: Plan) -> list[Section]:
    lines: list[Line] = []
    for size in SIZES:
        plan.say(f"keys that move when one of {size:,} leaves")
        moved, typical = _moved(size)
        lines.append(
            Line(
                f"largest of {size:,} nodes leaves",
                f"{_times(moved * size)} 1/n of all keys",
                f"median node {_times(typical * size)}",
                target=Target("≤", 1.2, _times),
                value=moved * size,
            )
        )
    text = (
        "The number of keys that change owner after a node leaves, among nodes of equal "
        "weight. The node that owns the most keys leaves, which is the worst case. On average "
        "1/n of all keys must move, and only the keys of that node do. The result depends only "
        "on the node names and is the same in every run."
    )
    return [Section("Consistent hashing, one node leaves", text, lines)]


def _moved(size: int) -> tuple[float, float]:
    """The shares of keys that move when the largest node and when the median node leaves."""
    picker = make("consistent_hash")
    nodes = [Node(f"10.0.{number >> 8}.{number & 255}:8080") for number in range(size)]
    for node in nodes:
        picker.add(node)
    keys = [b"user-%d" % number for number in range(max(_LEAST, _FOR_EACH * size))]
    before = [picker.pick(key) for key in keys]
    owned = Counter(before)
    fullest, most = owned.most_common(1)[0]
    picker.remove(fullest)
    moved = sum(picker.pick(key) is not owner for key, owner in zip(keys, before, strict=True))
    assert moved == most
    return moved / len(keys), median(owned[node] for node in nodes) / len(keys)


def _times(value: float) -> str:
    return f"{value:.2f} ×"
