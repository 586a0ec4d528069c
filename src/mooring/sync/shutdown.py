"""Wait for a signal in blocking code, then leave the registry before stopping."""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from mooring.errors import InvalidRequest
from mooring.registry.registration import LINGER
from mooring.registry.shutdown import listening
from mooring.sync.portal import next_item

if TYPE_CHECKING:
    import mooring.sync

log = logging.getLogger(__name__)


def until_stopped(
    *registrations: mooring.sync.Registration,
    grace: float = 10.0,
    linger: float = LINGER,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
) -> signal.Signals:
    """Wait for a signal, then drain, as `mooring.until_stopped` does: mark the registrations
    draining, keep them so for `linger` seconds, and deregister them. Then stop the server. It
    takes two thirds of `grace` seconds at most. Another signal has the effect that it had before.

    Only in the main thread, since Python handles signals in no other.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidRequest("signals reach the main thread only: call until_stopped there")
    received: queue.SimpleQueue[signal.Signals] = queue.SimpleQueue()
    with listening(signals, received.put):  # a handler may interrupt its `get`
        first = next_item(received)
    log.info("%s: leaving the registry, then stopping", first.name)
    if registrations:
        within = grace * 2 / 3
        with ThreadPoolExecutor(len(registrations), "mooring drain") as pool:
            for draining in [
                pool.submit(each.drain, grace=within, linger=linger) for each in registrations
            ]:
                draining.result()
    return first
