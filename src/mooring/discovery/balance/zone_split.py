"""How calls are split between the caller's own zone and all other zones."""

from __future__ import annotations

import random
from hashlib import blake2b

from mooring.discovery.balance.picker import Node, Picker
from mooring.formatting import quoted


class ZonePicker:
    """Sends the share `stay` of the calls to local nodes and the rest to remote ones.

    Each side has its own picker of the same policy. A key stays on its side while `stay` does not
    change, and a smaller `stay` moves only the keys that leave.
    """

    def __init__(
        self, local: Picker, remote: Picker, *, keyed: bool, rng: random.Random | None = None
    ) -> None:
        self.stay = 0.0
        """The share of calls for local nodes. Above 0 needs a local node, below 1 a remote one."""
        self._local, self._remote = local, remote
        self._keyed = keyed
        self._random = (rng or random.Random()).random
        self._sides: dict[Node, Picker] = {}

    def add(self, node: Node, *, local: bool = False) -> None:
        if node in self._sides:
            raise ValueError(f"{quoted(node.id)} is in this picker already")
        side = self._local if local else self._remote
        side.add(node)
        self._sides[node] = side

    def remove(self, node: Node) -> None:
        self._sides.pop(node).remove(node)

    def reweight(self, node: Node, weight: float) -> None:
        self._sides[node].reweight(node, weight)

    def pick(self, key: str | bytes | None = None) -> Node:
        stay = self.stay
        if stay >= 1.0:
            return self._local.pick(key)
        if stay <= 0.0:
            return self._remote.pick(key)
        at = _position(key) if self._keyed and key is not None else self._random()
        return (self._local if at < stay else self._remote).pick(key)

    def started(self, node: Node) -> None:
        self._sides.get(node, self._remote).started(node)

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        self._sides.get(node, self._remote).finished(node, seconds, ok)

    def __len__(self) -> int:
        return len(self._sides)


def _position(key: str | bytes) -> float:
    """The position of a key between 0 and 1, the same in every process."""
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return int.from_bytes(blake2b(data, digest_size=6, person=b"locality").digest()) / 2**48
