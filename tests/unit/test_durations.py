"""Durations as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.durations import parse, show
from mooring.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("5m", 300), ("1m30s", 90), ("250ms", 0.25), ("1.5h", 5400), ("1d", 86400)],
)
def test_what_is_written(text: str, seconds: float):
    assert parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "s", "-1s", "10 s", "1x", "1s2"])
def test_what_is_no_duration(text: str):
    with pytest.raises(InvalidRequest, match="10s"):
        parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000004, "4µs"),
        (0.0005, "500µs"),
        (0.25, "250ms"),
        (3.14159, "3.14s"),
        (90, "1m30s"),
        (90061, "1d1h"),
        (-2, "-2s"),
    ],
)
def test_what_is_shown(seconds: float, text: str):
    assert show(seconds) == text


@given(st.integers(10, 10**6))
def test_whole_seconds_come_back_within_their_two_largest_units(seconds: int):
    assert parse(show(seconds)) == pytest.approx(seconds, rel=0.05)
