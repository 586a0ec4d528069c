"""Going away without a failed call: wait for SIGTERM, then leave the registry before stopping."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from mooring.errors import InvalidRequest
from mooring.registry.registration import LINGER, Registration
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

SIGNAL_CHECK = 0.5
"""Seconds between two checks for a signal. The system may deliver a signal to any thread, or just
before the main thread begins to wait. Neither wakes that thread, which runs Python's handlers."""


async def until_stopped(
    *registrations: Registration,
    grace: float = 10.0,
    linger: float = LINGER,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
) -> signal.Signals:
    """Wait for a signal, then drain: mark the registrations draining, keep them so for `linger`
    seconds, and deregister them. When this returns, no new calls are to be expected: stop the
    server. Of `grace` seconds it takes at most two thirds, also where the store is away, and leaves
    the rest for stopping; a second signal makes it return at once. Once it has returned or was
    cancelled, signals have the effect that they had before.

    Only in the main thread's event loop, since Python gives signals to no other.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidRequest("signals reach the main thread only: call until_stopped there")
    loop = asyncio.get_running_loop()
    tasks = Tasks()
    arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def received(number: signal.Signals) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, number)

    with listening(signals, received):
        first = await _next(arrived)
        grace *= 2 / 3
        log.info("%s: leaving the registry, then stopping", first.name)
        draining = [
            tasks.start(each.drain(grace=grace, linger=linger), name="draining")
            for each in registrations
        ]
        again = tasks.start(arrived.get(), name="a second signal")
        drained = tasks.start(_all(draining), name="all drained")
        await asyncio.wait([drained, again], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        for task in (again, drained, *draining):
            task.cancel()  # after a second signal or the time limit, do not wait for the rest
        return first


async def _next(arrived: asyncio.Queue[signal.Signals]) -> signal.Signals:
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(SIGNAL_CHECK):
                return await arrived.get()


Listener = Callable[[signal.Signals], None]
_listeners: defaultdict[signal.Signals, set[Listener]] = defaultdict(set)
_before: dict[signal.Signals, Any] = {}
"""The handlers that the first listeners replaced."""


@contextmanager
def listening(signals: Sequence[signal.Signals], listener: Listener) -> Iterator[None]:
    """Within, signals go to this listener, and to others that listen at the same time. The last one
    restores the earlier handler, unless it was replaced meanwhile. In the main thread only."""
    try:
        for number in signals:
            _listeners[number].add(listener)
            if signal.getsignal(number) is not _deliver:
                _before[number] = signal.signal(number, _deliver)
        yield
    finally:
        for number in signals:
            if _listeners[number] == {listener} and signal.getsignal(number) is _deliver:
                signal.signal(number, _before[number] or signal.SIG_DFL)  # None: it is not Python's
            _listeners[number].discard(listener)


def _deliver(number: int, _: FrameType | None) -> None:
    for listener in tuple(_listeners[signal.Signals(number)]):
        listener(signal.Signals(number))


async def _all(tasks: Sequence[asyncio.Task[object]]) -> None:
    for task in tasks:
        await asyncio.wait([task])
