"""The policy `round_robin`: all nodes in turn, equally."""

from __future__ import annotations

from collections import OrderedDict

from mooring.discovery.balance.picker import (
    Counting,
    Node,
    check_new,
    check_present,
    effective_weight,
    no_node,
)


class RoundRobin(Counting):
    """One node after another, regardless of weight.

    Nodes that stay are picked equally often over any stretch, give or take one, even if others come
    and go: their order does not change. A new node is the last of the current turn. Clients that
    add the same nodes in the same order all start with the same one: shuffle the nodes first.
    """

    def __init__(self) -> None:
        self._nodes: OrderedDict[Node, None] = OrderedDict()
        """In the order of their turns, the next one first."""

    def add(self, node: Node) -> None:
        check_new(node, present=node in self._nodes)
        self._nodes[node] = None

    def remove(self, node: Node) -> None:
        del self._nodes[node]

    def reweight(self, node: Node, weight: float) -> None:
        check_present(node, present=node in self._nodes)
        node.weight = effective_weight(weight, node.id)

    def pick(self, key: str | bytes | None = None) -> Node:
        for node in self._nodes:
            self._nodes.move_to_end(node)
            return node
        raise no_node()

    def __len__(self) -> int:
        return len(self._nodes)
