"""Durations as text: `10s`, `1m30s`, `250ms`. In code they are float seconds."""

from __future__ import annotations

import re

from mooring.errors import InvalidRequest
from mooring.formatting import quoted

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse(text: str) -> float:
    """The seconds of a text: numbers with a unit (ms, s, m, h, d), one after another. Zero needs no
    unit. Raises `InvalidRequest`."""
    if text == "0":
        return 0.0
    if not _WHOLE.fullmatch(text):
        raise InvalidRequest(f"{quoted(text)} is not a duration: write it like 10s, 1m30s or 250ms")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def show(seconds: float) -> str:
    """The text for `seconds`: the two largest units that are not zero."""
    if seconds < 0:
        return "-" + show(-seconds)
    if seconds < 0.001:
        return f"{seconds * 1_000_000:.0f}µs"
    if seconds < 1:
        return f"{seconds * 1000:.3g}ms"
    if seconds < 10:
        return f"{seconds:.3g}s"
    left, parts = round(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])
