"""Measures the locks of blocking clients. Imports only the standard library and `bench.load`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median

from bench.load import Load

_WARM_UP = 0.5

Lock = AbstractContextManager[object]


def uncontended(lock: Lock, seconds: float) -> Load:
    def loop(seconds: float) -> list[float]:
        latencies, end = list[float](), time.perf_counter() + seconds
        while (sent := time.perf_counter()) < end:
            with lock:
                pass
            latencies.append(time.perf_counter() - sent)
        return latencies

    loop(_WARM_UP)
    start = time.perf_counter()
    latencies = loop(seconds)
    return Load(len(latencies) / (time.perf_counter() - start), median(latencies) * 1000)


def hand_over(make: Callable[[int], Lock], contenders: int, seconds: float) -> Load:
    """Threads that acquire the lock again as soon as they have released it."""
    changes, last, released = 0, -1, 0.0
    latencies: list[float] = []
    end = time.perf_counter() + seconds + 2 * _WARM_UP

    def contend(number: int) -> None:
        nonlocal changes, last, released
        lock = make(number)
        while time.perf_counter() < end:
            with lock:
                if last != number:
                    changes += 1
                    latencies.append(time.perf_counter() - released)
                last = number
                released = time.perf_counter()

    threads = [
        threading.Thread(target=contend, args=(number,), daemon=True)
        for number in range(contenders)
    ]
    for thread in threads:
        thread.start()
    time.sleep(_WARM_UP)
    before, start = changes, time.perf_counter()
    latencies.clear()
    time.sleep(seconds)
    done, elapsed, taken = changes - before, time.perf_counter() - start, list(latencies)
    for thread in threads:
        thread.join(5)
    return Load(done / elapsed, median(taken or [float("inf")]) * 1000)
