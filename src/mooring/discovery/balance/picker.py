"""What a picker is, and the nodes that it picks from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from mooring.errors import InvalidRequest
from mooring.formatting import quoted

Clock = Callable[[], float]

LIGHTEST: Final = 1e-6
HEAVIEST: Final = 1e6
"""Weights beyond these are taken as these: one wild weight must not break the arithmetic."""

SLACK: Final = 32
"""Garbage of a lazy deletion that is not worth a sweep."""


class Node:
    """Something that can be picked. Two nodes are never equal, whatever their ids.

    A node is in one picker at a time. Meanwhile that picker keeps `active` and the latency, and its
    `reweight` changes the weight; all of them outlast removal, so that a node that comes back is
    known. `item` is the owner's own.
    """

    __slots__ = ("active", "id", "item", "latency", "place", "sampled", "shelf", "weight")

    def __init__(self, id: str, weight: float = 1.0, item: Any = None) -> None:
        self.id = id
        self.weight = effective(weight, id)
        self.item = item
        self.active = 0
        """Requests under way."""
        self.latency = 0.0
        """Peak EWMA in seconds as of `sampled`; P2C alone keeps it."""
        self.sampled = -math.inf
        """When a request last ended, by the picker's clock; long ago where none ever did."""
        self.shelf: Any = None
        """Where it lies in an urn; None: in none."""
        self.place = 0

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


class Counting:
    """What every picker does about requests: count them."""

    def started(self, node: Node) -> None:
        node.active += 1

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        node.active -= 1


def effective(weight: float, id: str) -> float:
    if not 0 < weight < math.inf:
        raise InvalidRequest(
            f"the weight of {quoted(id)} must be a number above 0, not {quoted(weight)}"
        )
    return min(max(float(weight), LIGHTEST), HEAVIEST)


def admit(node: Node, *, there: bool) -> None:
    if there:
        raise ValueError(f"{quoted(node.id)} is in this picker already")
    node.weight = effective(node.weight, node.id)


def must_be_there(node: Node, *, there: bool) -> None:
    if not there:
        raise KeyError(node)


def nobody() -> LookupError:
    return LookupError("there is no node to pick")
