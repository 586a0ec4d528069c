"""Fixtures of several fault tests."""

from __future__ import annotations

import time

import pytest

from mooring.store.embedded import durable


class SteppedClock:
    """The clock of stores in files, which a test can step forward."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def step(self, seconds: float) -> None:
        self._ahead += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SteppedClock:
    stepped = SteppedClock()
    monkeypatch.setattr(durable, "time", stepped)
    return stepped
