"""Who is left out for a while, how they come back, and how much may be tried again.

Pure decisions with a little state: no I/O and no clock of their own. `now` is a monotonic time in
seconds that never goes back. Everything a call does is O(1), or O(log n) for what it ejects or lets
back in.
"""

from __future__ import annotations

import errno
import math
import socket
import ssl
from collections.abc import KeysView
from dataclasses import dataclass, fields
from heapq import heapify, heappop, heappush

from mooring.errors import InvalidRequest
from mooring.formatting import quoted

_SLOTS = 10
_SLACK = 32  # garbage that is not worth a sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Resilience:
    """All settings of this module. Times are in seconds; a wrong value is an `InvalidRequest`."""

    consecutive_failures: int = 5
    """So many failures of a node, one after another, eject it; 0: never."""

    failure_rate: float = 0.5
    """A node is ejected where this share of its requests failed, lately; 0: never."""
    failure_rate_requests: int = 20
    """…if there were at least so many of them."""
    failure_rate_window: float = 10.0
    """…within this time. It moves on in tenths."""

    ejection: float = 10.0
    """How long the first ejection of a node lasts. The second lasts twice as long, and so on."""
    ejection_most: float = 300.0
    """The longest that one lasts."""
    ejection_forgiven: float = 60.0
    """So much time without being ejected takes one ejection off the count."""
    ejected_share: float = 0.5
    """At most this share of the nodes is ejected at once; one is allowed where there are two or
    more, the last one never is. 0: nobody is ever ejected."""

    recovery_spacing: float = 1.0
    """Nodes come back from ejection one at a time, at least this long after one another."""
    slow_start: float = 30.0
    """How long a node that is new, or came back, takes up to its full weight; 0: at once."""
    slow_start_least: float = 0.1
    """The share of its weight that it starts with."""

    panic_threshold: float = 0.5
    """If less than this share of the nodes is usable, all are used: too many cannot be called for
    the rest to carry the load, or it is the observer who is ill. The caller's zone and all other
    zones are judged apart: while one of the two has enough, no unhealthy node is used. 0: never."""

    zone_threshold: float = 0.7
    """While at least this share of what the caller's zone can carry is usable, all calls stay in
    the zone. Below it, calls spill over to other zones in proportion, as with Envoy's
    overprovisioning factor (1.4 is 1 / 0.7). 0: never, while there is one instance to call."""

    retry_ratio: float = 0.2
    """Retries that each request pays for."""
    retry_least: float = 1.0
    """Retries a second that are allowed though there are hardly any requests."""
    retry_window: float = 10.0
    """The time over which retries are weighed against requests."""

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
                f"({self.ejection:g}): the longest one cannot be shorter than the first"
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
    """By what to multiply a node's weight at `age`: from `least` evenly up to 1 at `window`."""
    if age >= window:
        return 1.0
    return min(1.0, least + (1.0 - least) * max(age, 0.0) / window)


class Outliers:
    """Which nodes are ejected because their requests fail, and when they come back.

    Who keeps it adds and forgets the nodes, records how each request ended, and calls `due` when
    `next_due` has come, as well as after nodes were forgotten.

    A node that is let back in starts with a clean sheet, but its next ejection is longer; it should
    come through `slow_start`. Since only one comes back in each `recovery_spacing`, a mass ejection
    does not end in a stampede on servers that have just recovered.
    """

    def __init__(self, settings: Resilience | None = None) -> None:
        self._settings = settings or Resilience()
        self._records: dict[str, _NodeHistory] = {}
        self._ejected: dict[str, float] = {}
        self._returns: list[tuple[float, str]] = []
        self._last_return = -math.inf

    @property
    def ejected(self) -> KeysView[str]:
        """The ids that are ejected now: a live view."""
        return self._ejected.keys()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, id: str) -> None:
        """Watch a node. Nothing changes where it is watched already."""
        if id not in self._records:
            self._records[id] = _NodeHistory(self._settings.failure_rate_window)

    def forget(self, id: str) -> None:
        """The node is gone. What was known of it is lost, its ejections too."""
        self._records.pop(id, None)
        if self._ejected.pop(id, None) is not None:
            self._sweep()

    def record(self, id: str, ok: bool, now: float) -> bool:
        """A request ended. Returns whether the node is ejected for it.

        Late answers of a node that is ejected or forgotten count for nothing.
        """
        record = self._records.get(id)
        if record is None or id in self._ejected:
            return False
        if ok:
            record.consecutive = 0
            record.window.add(now, 1, 0)
            return False
        record.consecutive += 1
        record.window.add(now, 1, 1)
        if not self._failing(record) or len(self._ejected) >= self._allowed():
            return False
        self._eject(id, record, now)
        return True

    def next_due(self) -> float | None:
        """When `due` will next have somebody; None where nobody is ejected."""
        if not self._ejected:
            return None
        if len(self._ejected) > self._allowed():
            return -math.inf
        return max(self._first()[0], self._last_return + self._settings.recovery_spacing)

    def due(self, now: float) -> list[str]:
        """Let back in, and return, whose time has come: mostly nobody, or one.

        Only where so many others are gone that more are ejected than may be, those are let back in
        at once.
        """
        back: list[str] = []
        while len(self._ejected) > self._allowed():
            back.append(self._let_back(now))
        due = self.next_due()
        if not back and due is not None and due <= now:
            back.append(self._let_back(now))
        return back

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
        lasts = min(settings.ejection * record.ejections, settings.ejection_most)
        # Beyond the longest one the count would only take ever longer to be forgiven.
        record.ejections = min(
            record.ejections, math.ceil(settings.ejection_most / settings.ejection)
        )
        record.consecutive = 0
        record.window = _Window(settings.failure_rate_window)
        self._ejected[id] = now + lasts
        heappush(self._returns, (now + lasts, id))

    def _let_back(self, now: float) -> str:
        _, id = self._first()
        heappop(self._returns)
        del self._ejected[id]
        self._records[id].returned = self._last_return = now
        return id

    def _first(self) -> tuple[float, str]:
        """Who comes back next. There must be somebody."""
        while self._ejected.get(self._returns[0][1]) != self._returns[0][0]:
            heappop(self._returns)
        return self._returns[0]

    def _sweep(self) -> None:
        if len(self._returns) > 2 * len(self._ejected) + _SLACK:
            self._returns = [(when, id) for id, when in self._ejected.items()]
            heapify(self._returns)


class RetryBudget:
    """Keeps retries from multiplying an outage: no more than a share of the requests.

    Over any `retry_window` there are at most `retry_ratio` retries for each request of that time,
    plus `retry_least` a second, as in Finagle. What is not used expires with the window.
    """

    def __init__(self, settings: Resilience | None = None) -> None:
        settings = settings or Resilience()
        self._ratio = settings.retry_ratio
        self._reserve = settings.retry_least * settings.retry_window
        self._window = _Window(settings.retry_window)

    def request(self, now: float) -> None:
        """A request was made: a first try, not a retry."""
        self._window.add(now, 1, 0)

    def try_retry(self, now: float) -> bool:
        """Whether a retry may be made; where it may, it is counted."""
        window = self._window
        window.add(now, 0, 0)
        # The bound is a product of decimal fractions: 0.2 × 15 must not come out below 3.
        if window.second + 1 > self._ratio * window.first + self._reserve + 1e-9:
            return False
        window.add(now, 0, 1)
        return True


class _NodeHistory:
    """How the requests of one node ended."""

    __slots__ = ("consecutive", "ejections", "returned", "window")

    def __init__(self, window: float) -> None:
        self.consecutive = 0
        self.ejections = 0.0
        self.returned = 0.0
        self.window = _Window(window)


class _Window:
    """Two sums over the last `seconds`, which move on in tenths: the present tenth and nine before.

    Constant in size, however many requests there are.
    """

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
            self._move_on(slot)
        at = self._slot % _SLOTS
        self._firsts[at] += first
        self._seconds[at] += second
        self.first += first
        self.second += second

    def _move_on(self, slot: int) -> None:
        for old in range(max(self._slot + 1, slot - _SLOTS + 1), slot + 1):
            at = old % _SLOTS
            self.first -= self._firsts[at]
            self.second -= self._seconds[at]
            self._firsts[at] = self._seconds[at] = 0
        self._slot = slot


_UNREACHED = (ConnectionError, TimeoutError, EOFError, socket.gaierror, socket.herror, ssl.SSLError)
_AT_HOME = (
    ValueError,  # what is asked for makes no sense: `io.UnsupportedOperation`
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
_ON_THE_WAY = {
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
    """Whether an error that ends a call is the instance's fault: it could not be reached, or did
    not answer in time. A file that is missing here, or a full disk, is not."""
    if isinstance(error, _UNREACHED):
        return True
    if not isinstance(error, OSError) or isinstance(error, _AT_HOME):
        return False
    # Without a number it comes from a library: asyncio's where no address of a host answers,
    # `requests`' own. A negative one is the resolver's.
    number = error.errno
    return number is None or number < 0 or number in _ON_THE_WAY
