"""Sticking to keys: consistent hashing."""

from __future__ import annotations

import random

from mooring.discovery.balance.contract import (
    Counting,
    Node,
    admit,
    effective,
    must_be_there,
    nobody,
)
from mooring.discovery.balance.hashing import Ring


class ConsistentHash(Counting):
    """The same key to the same node; see `mooring.discovery.hashing` for what moves, and when."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._ring: Ring[Node] = Ring()
        self._nodes: dict[Node, None] = {}

    def add(self, node: Node) -> None:
        admit(node, there=node in self._nodes)
        self._nodes[node] = None
        self._ring.add(node, node.id, node.weight)

    def remove(self, node: Node) -> None:
        del self._nodes[node]
        self._ring.remove(node)

    def reweight(self, node: Node, weight: float) -> None:
        must_be_there(node, there=node in self._nodes)
        node.weight = effective(weight, node.id)
        self._ring.reweight(node, node.id, node.weight)

    def pick(self, key: str | bytes | None = None) -> Node:
        if not self._nodes:
            raise nobody()
        if key is None:
            key = self._rng.randbytes(16)
        elif isinstance(key, str):
            key = key.encode("utf-8", "surrogatepass")
        return self._ring.find(key)

    def __len__(self) -> int:
        return len(self._nodes)
