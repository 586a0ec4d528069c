"""The policy `round_robin`: all nodes in turn, equally."""

from __future__ import annotations

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
        self._entries: dict[Node, _RingEntry] = {}
        self._next: _RingEntry | None = None

    def add(self, node: Node) -> None:
        check_new(node, present=node in self._entries)
        self._entries[node] = entry = _RingEntry(node)
        following = self._next
        if following is None:
            self._next = entry.before = entry.after = entry
        else:
            entry.after, entry.before = following, following.before
            following.before.after = entry
            following.before = entry

    def remove(self, node: Node) -> None:
        entry = self._entries.pop(node)
        entry.before.after = entry.after
        entry.after.before = entry.before
        if self._next is entry:
            self._next = entry.after if self._entries else None
        del entry.before, entry.after  # the last entry refers to itself

    def reweight(self, node: Node, weight: float) -> None:
        check_present(node, present=node in self._entries)
        node.weight = effective_weight(weight, node.id)

    def pick(self, key: str | bytes | None = None) -> Node:
        entry = self._next
        if entry is None:
            raise no_node()
        self._next = entry.after
        return entry.node

    def __len__(self) -> int:
        return len(self._entries)


class _RingEntry:
    """An entry of the circular list."""

    __slots__ = ("after", "before", "node")
    before: _RingEntry
    after: _RingEntry

    def __init__(self, node: Node) -> None:
        self.node = node
