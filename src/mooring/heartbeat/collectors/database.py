"""Whether the application's database answers, and how fast."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from mooring.formatting import describe
from mooring.heartbeat.collectors import Cost

log = logging.getLogger(__name__)


class DatabaseCollector:
    """Asks by a check that the user gives, such as `lambda: connection.execute("SELECT 1")`.

    The database is unreachable where the check raises or returns False. The check runs in a
    thread, one call at a time. Without a check there is nothing to measure.
    """

    type = "database"
    cost = Cost.HIGH

    def __init__(self, check: Callable[[], object] | None = None) -> None:
        self._check = check
        self._reachable = True

    def available(self) -> bool:
        return self._check is not None

    def collect(self) -> Mapping[str, object]:
        """`latencySeconds` is there only while the database is reachable."""
        if self._check is None:
            return {}
        started = time.monotonic()
        try:
            reachable, reason = self._check() is not False, "its check returned False"
        except Exception as error:  # noqa: BLE001 - whatever a driver raises is the answer
            reachable, reason = False, describe(error)
        latency = time.monotonic() - started
        if reachable != self._reachable:
            self._reachable = reachable
            if reachable:
                log.info("the database is reachable again")
            else:
                log.warning("the database is not reachable: %s", reason)
        return {"reachable": True, "latencySeconds": latency} if reachable else {"reachable": False}
