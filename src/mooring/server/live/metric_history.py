"""The metrics of a while, for charts: so many samples of each instance as fit into memory."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from mooring.model import Instance, Time
from mooring.server.live.summary import moment, numbers

MOST = 200_000
"""Samples of all instances together, or about so many."""
MOST_OF_ONE = 240
_LEAST_OF_ONE = 20
_GONE = 500
"""Instances that are gone, of which it is still shown how they were."""

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    time: Time
    metrics: Mapping[str, float]
    """Numbers by path: `memory.usagePercent`."""


class _Packed:
    """A sample in little space: its paths are shared with others."""

    __slots__ = ("paths", "time", "values")

    def __init__(self, time: Time, paths: tuple[str, ...], values: array[float]) -> None:
        self.time, self.paths, self.values = time, paths, values


class History:
    def __init__(self) -> None:
        self._samples: dict[_Key, deque[_Packed]] = {}
        self._gone: OrderedDict[_Key, deque[_Packed]] = OrderedDict()
        self._paths: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, key: _Key, instance: Instance, time: Time) -> None:
        """What an instance tells of itself now."""
        found = dict(numbers(instance.status.metrics))
        if not found:
            return
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = self._gone.pop(key, deque())
        names = tuple(found)
        if len(self._paths) > 10_000:  # somebody makes up names
            self._paths.clear()
        paths = self._paths.setdefault(names, names)
        samples.append(
            _Packed(moment(instance.status.updated_at) or time, paths, array("d", found.values()))
        )
        most = min(max(MOST // len(self._samples), _LEAST_OF_ONE), MOST_OF_ONE)
        while len(samples) > most:
            samples.popleft()

    def leave(self, key: _Key) -> None:
        """An instance is gone: what is known of it is kept for a while."""
        samples = self._samples.pop(key, None)
        if samples is not None:
            self._gone[key] = samples
            while len(self._gone) > _GONE:
                self._gone.popitem(last=False)

    def of(self, key: _Key) -> list[Sample]:
        """The newest last."""
        samples = self._samples.get(key) or self._gone.get(key) or ()
        return [
            Sample(each.time, dict(zip(each.paths, each.values, strict=True))) for each in samples
        ]
