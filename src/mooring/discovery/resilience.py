"""Outlier ejection, slow start and the retry budget.

Pure: no I/O and no clock. `now` is monotonic time in seconds. The cost of each call is O(1), or
O(log n) if it ejects or readmits a node.
"""

from __future__ import annotations

import errno
import math
import socket
import ssl
from dataclasses import dataclass, fields
from heapq import heapify, heappop, heappush

from mooring.errors import InvalidRequest
from mooring.formatting import quoted

_SLOTS = 10
_SWEEP_SLACK = 32  # stale entries that are not worth a sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Resilience:
    """All settings of this module. Times are in seconds. Raises `InvalidRequest`."""

    consecutive_failures: int = 5
    """The number of consecutive failures that eject a node; 0: never."""

    failure_rate: float = 0.5
    """The share of failed requests that ejects a node; 0: never…"""
    failure_rate_requests: int = 20
    """…if it had at least this number of requests…"""
    failure_rate_window: float = 10.0
    """…within this time, a window that moves in tenths."""

    ejection: float = 10.0
    """The duration of a node's first ejection. The second is twice as long, the third three
    times."""
    ejection_most: float = 300.0
    """The maximum duration of an ejection."""
    ejection_forgiven: float = 60.0
    """Each period of this length without an ejection reduces the count by one."""
    ejected_share: float = 0.5
    """The maximum share of the nodes that is ejected at the same time. With two or more nodes, one
    can always be ejected; the last one never is. 0: no node is ejected."""

    recovery_spacing: float = 1.0
    """The minimum time between two readmissions; nodes are readmitted one at a time."""
    slow_start: float = 30.0
    """The time in which a new or readmitted node reaches its full weight; 0: at once."""
    slow_start_least: float = 0.1
    """The share of its weight that it starts with."""

    panic_threshold: float = 0.5
    """If less than this share of the nodes is healthy, all are used: the rest could not carry the
    load, or the fault is the observer's. The caller's zone and the other zones are evaluated
    separately: while one of them has enough, no unhealthy node is used. 0: never."""

    zone_threshold: float = 0.7
    """While at least this share of the weight in the caller's zone is usable, all calls stay in the
    zone. Below it, calls spill over to other zones in proportion, as with Envoy's overprovisioning
    factor (1.4 is 1 / 0.7). 0: calls leave only if the zone has no instance to call."""

    retry_ratio: float = 0.2
    """The number of retries that each request allows."""
    retry_least: float = 1.0
    """Retries per second that are allowed regardless of the number of requests."""
    retry_window: float = 10.0
    """The time over which retries and requests are counted."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least, most, rule = _RULES.get(field.name, _TIME)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidRequest(f"{field.name} must be a number, not {quoted(value)}")
            if not least <= value <= most or value == math.inf:
                raise InvalidRequest(f"{field.name} must be {rule}, not {quoted(value)}")
            if field.name in _COUNTS and value != int(value):
                raise InvalidRequest(f"{field.name} must be a whole number, not {quoted(value)}")
        if self.ejection_most < self.ejection:
            raise InvalidRequest(
                f"ejection_most ({self.ejection_most:g}) is less than ejection "
                f"({self.ejection:g}), the duration of the first one"
            )


_COUNTS = {"consecutive_failures", "failure_rate_requests"}
_SHARE = (0.0, 1.0, "from 0 to 1")
_TIME = (1e-3, math.inf, "a time of at least a millisecond")
_OPEN = (0.0, math.inf, "0 or more")
_RULES: dict[str, tuple[float, float, str]] = {
    "consecutive_failures": _OPEN,
    "failure_rate": _SHARE,
    "failure_rate_requests": (1, math.inf, "1 or more"),
    "ejected_share": _SHARE,
    "recovery_spacing": _OPEN,
    "slow_start": _OPEN,
    "slow_start_least": (1e-3, 1.0, "from 0.001 to 1"),
    "panic_threshold": _SHARE,
    "zone_threshold": _SHARE,
    "retry_ratio": _OPEN,
    "retry_least": _OPEN,
}


def slow_start(age: float, window: float, least: float = 0.1) -> float:
    """The factor for a node's weight: it rises linearly from `least` to 1 at the age `window`."""
    if age >= window:
        return 1.0
    return min(1.0, least + (1.0 - least) * max(age, 0.0) / window)


class Outliers:
    """Decides which nodes are ejected because their requests fail, and when they are readmitted.

    The owner adds and forgets the nodes, records the result of each request, and calls `due` at the
    time `next_due`, and after it forgot nodes.

    The failures of a readmitted node are reset, but its next ejection is longer; the owner should
    give it a `slow_start`. Since only one node is readmitted in each `recovery_spacing`, the end of
    a mass ejection does not overload servers that have just recovered.
    """

    def __init__(self, settings: Resilience | None = None) -> None:
        self._settings = settings or Resilience()
        self._records: dict[str, _NodeHistory] = {}
        self.ejected: dict[str, float] = {}
        """The ejected nodes, and when the ejection of each ends."""
        self._readmissions: list[tuple[float, str]] = []
        self._last_readmission = -math.inf

    def __len__(self) -> int:
        return len(self._records)

    def add(self, id: str) -> None:
        """Track a node. Does nothing if it is tracked already."""
        if id not in self._records:
            self._records[id] = _NodeHistory(self._settings.failure_rate_window)

    def forget(self, id: str) -> None:
        """Stop tracking a node, and forget its ejections."""
        self._records.pop(id, None)
        if self.ejected.pop(id, None) is not None:
            self._sweep()

    def record(self, id: str, ok: bool, now: float) -> bool:
        """A request ended. Returns whether the node is ejected for it.

        Late results of ejected or forgotten nodes do not count.
        """
        record = self._records.get(id)
        if record is None or id in self.ejected:
            return False
        if ok:
            record.consecutive = 0
            record.window.add(now, 1, 0)
            return False
        record.consecutive += 1
        record.window.add(now, 1, 1)
        if not self._failing(record) or len(self.ejected) >= self._allowed():
            return False
        self._eject(id, record, now)
        return True

    def next_due(self) -> float | None:
        """The time of the next readmission; None if no node is ejected."""
        if not self.ejected:
            return None
        if len(self.ejected) > self._allowed():
            return -math.inf
        return max(
            self._next_readmission()[0], self._last_readmission + self._settings.recovery_spacing
        )

    def due(self, now: float) -> list[str]:
        """Readmit and return the node whose time has come, if any. If more are ejected than
        allowed, because others left, readmit the excess at once."""
        readmitted: list[str] = []
        while len(self.ejected) > self._allowed():
            readmitted.append(self._readmit(now))
        due = self.next_due()
        if not readmitted and due is not None and due <= now:
            readmitted.append(self._readmit(now))
        return readmitted

    def _failing(self, record: _NodeHistory) -> bool:
        settings, window = self._settings, record.window
        return 0 < settings.consecutive_failures <= record.consecutive or (
            settings.failure_rate > 0
            and window.first >= settings.failure_rate_requests
            and window.second >= settings.failure_rate * window.first
        )

    def _allowed(self) -> int:
        count, share = len(self._records), self._settings.ejected_share
        if count < 2 or not share:
            return 0
        return min(max(int(count * share), 1), count - 1)

    def _eject(self, id: str, record: _NodeHistory, now: float) -> None:
        settings = self._settings
        forgiven = (now - record.returned) // settings.ejection_forgiven
        record.ejections = max(record.ejections - forgiven, 0.0) + 1
        duration = min(settings.ejection * record.ejections, settings.ejection_most)
        # Beyond the longest ejection, a higher count would only take longer to be forgiven.
        record.ejections = min(
            record.ejections, math.ceil(settings.ejection_most / settings.ejection)
        )
        record.consecutive = 0
        record.window = _Window(settings.failure_rate_window)
        self.ejected[id] = now + duration
        heappush(self._readmissions, (now + duration, id))

    def _readmit(self, now: float) -> str:
        _, id = self._next_readmission()
        heappop(self._readmissions)
        del self.ejected[id]
        self._records[id].returned = self._last_readmission = now
        return id

    def _next_readmission(self) -> tuple[float, str]:
        """The next node to readmit, and when. There must be one."""
        while self.ejected.get(self._readmissions[0][1]) != self._readmissions[0][0]:
            heappop(self._readmissions)
        return self._readmissions[0]

    def _sweep(self) -> None:
        if len(self._readmissions) > 2 * len(self.ejected) + _SWEEP_SLACK:
            self._readmissions = [(when, id) for id, when in self.ejected.items()]
            heapify(self._readmissions)


class RetryBudget:
    """Limits retries to a share of the requests, so that they do not amplify an outage.

    In any `retry_window` there are at most `retry_ratio` retries for each request of that time,
    plus `retry_least` per second, as in Finagle. Unused retries expire with the window.
    """

    def __init__(self, settings: Resilience | None = None) -> None:
        settings = settings or Resilience()
        self._ratio = settings.retry_ratio
        self._reserve = settings.retry_least * settings.retry_window
        self._window = _Window(settings.retry_window)

    def request(self, now: float) -> None:
        """A request was made: a first attempt, not a retry."""
        self._window.add(now, 1, 0)

    def try_retry(self, now: float) -> bool:
        """Whether a retry is allowed; if so, it is counted."""
        window = self._window
        window.add(now, 0, 0)
        # The limit is a product of decimal fractions: 0.2 × 15 must not result in less than 3.
        if window.second + 1 > self._ratio * window.first + self._reserve + 1e-9:
            return False
        window.add(now, 0, 1)
        return True


class _NodeHistory:
    """The results of one node's requests."""

    __slots__ = ("consecutive", "ejections", "returned", "window")

    def __init__(self, window: float) -> None:
        self.consecutive = 0
        self.ejections = 0.0
        self.returned = 0.0
        self.window = _Window(window)


class _Window:
    """Two sums over the last `seconds`: over the current tenth and the nine before it. Its size
    does not depend on the number of requests."""

    __slots__ = ("_firsts", "_seconds", "_slot", "_width", "first", "second")

    def __init__(self, seconds: float) -> None:
        self._width = seconds / _SLOTS
        self._slot = -_SLOTS
        self._firsts = [0] * _SLOTS
        self._seconds = [0] * _SLOTS
        self.first = 0
        self.second = 0

    def add(self, now: float, first: int, second: int) -> None:
        slot = int(now // self._width)
        if slot > self._slot:
            self._advance(slot)
        at = self._slot % _SLOTS
        self._firsts[at] += first
        self._seconds[at] += second
        self.first += first
        self.second += second

    def _advance(self, slot: int) -> None:
        for old in range(max(self._slot + 1, slot - _SLOTS + 1), slot + 1):
            at = old % _SLOTS
            self.first -= self._firsts[at]
            self.second -= self._seconds[at]
            self._firsts[at] = self._seconds[at] = 0
        self._slot = slot


_NETWORK_ERRORS = (
    ConnectionError,
    TimeoutError,
    EOFError,
    socket.gaierror,
    socket.herror,
    ssl.SSLError,
)
_LOCAL_ERRORS = (
    ValueError,  # `io.UnsupportedOperation`
    BlockingIOError,
    ChildProcessError,
    FileExistsError,
    FileNotFoundError,
    InterruptedError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ProcessLookupError,
)
_NETWORK_ERRNOS = {
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.ENOTCONN,
    errno.EPIPE,
    errno.ESHUTDOWN,
    errno.ETIMEDOUT,
}


def blames(error: BaseException) -> bool:
    """Whether an error of a call is the instance's fault: it was not reached, or did not respond in
    time. Errors of this machine, like a missing file or a full disk, are not."""
    if isinstance(error, _NETWORK_ERRORS):
        return True
    if not isinstance(error, OSError) or isinstance(error, _LOCAL_ERRORS):
        return False
    # Errors without a number come from libraries, like asyncio if no address of a host responds, or
    # `requests`. Negative numbers come from the resolver.
    number = error.errno
    return number is None or number < 0 or number in _NETWORK_ERRNOS
