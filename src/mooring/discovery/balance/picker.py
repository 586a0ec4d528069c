"""The interface of a picker, and the nodes that it picks from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from mooring.errors import InvalidRequest
from mooring.formatting import quoted

Clock = Callable[[], float]

LIGHTEST: Final = 1e-6
HEAVIEST: Final = 1e6
"""Weights are limited to this range: one extreme weight must not break the arithmetic."""

SLACK: Final = 32
"""Garbage of a lazy deletion that is not worth a sweep."""


class Node:
    """Something that can be picked. Two nodes are never equal, whatever their ids.

    A node is in one picker at a time. That picker maintains `active` and the latency, and its
    `reweight` changes the weight. They all survive removal, so that a node that returns keeps its
    history. `item` belongs to the owner.
    """

    __slots__ = ("active", "id", "item", "latency", "place", "sampled", "weight", "weight_class")

    def __init__(self, id: str, weight: float = 1.0, item: Any = None) -> None:
        self.id = id
        self.weight = effective_weight(weight, id)
        self.item = item
        self.active = 0
        """Requests in flight."""
        self.latency = 0.0
        """Peak EWMA in seconds as of `sampled`; only P2C maintains it."""
        self.sampled = -math.inf
        """When a request last ended, by the picker's clock; -inf if none ever did."""
        self.weight_class: Any = None
        """The group of nodes of similar weight that it is in; None if it is in no picker."""
        self.place = 0

    def __repr__(self) -> str:
        return f"Node({self.id!r}, weight={self.weight:g}, active={self.active})"


class Picker(Protocol):
    """A set of nodes, and the choice of the next one.

    Adding a node twice raises `ValueError`; removing or reweighting one that is not present raises
    `LookupError`. `started` and `finished` are called in pairs around each request, even if the
    node is removed in between.
    """

    def add(self, node: Node) -> None: ...

    def remove(self, node: Node) -> None: ...

    def reweight(self, node: Node, weight: float) -> None:
        """Change the weight of a node. Raises `InvalidRequest` unless it is more than 0."""

    def pick(self, key: str | bytes | None = None) -> Node:
        """The node to call next. Raises `LookupError` if there is none.

        Only consistent hashing uses `key`; without one it picks a random node.
        """

    def started(self, node: Node) -> None: ...

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        """A request ended after `seconds`. `ok` is False if the node is to blame."""

    def __len__(self) -> int: ...


class Counting:
    """A picker that only counts the requests in flight."""

    def started(self, node: Node) -> None:
        node.active += 1

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        node.active -= 1


def effective_weight(weight: float, id: str) -> float:
    if not 0 < weight < math.inf:
        raise InvalidRequest(
            f"the weight of {quoted(id)} must be a number above 0, not {quoted(weight)}"
        )
    return min(max(float(weight), LIGHTEST), HEAVIEST)


def check_new(node: Node, *, present: bool) -> None:
    if present:
        raise ValueError(f"{quoted(node.id)} is in this picker already")
    node.weight = effective_weight(node.weight, node.id)


def check_present(node: Node, *, present: bool) -> None:
    if not present:
        raise KeyError(node)


def no_node() -> LookupError:
    return LookupError("no node to pick")
