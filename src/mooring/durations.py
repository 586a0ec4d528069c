"""Durations as text: `1m30s`."""

from __future__ import annotations

import re

from mooring.errors import InvalidRequest
from mooring.messages import message

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")


def parse_duration(text: str) -> float:
    """The seconds of a text such as `1m30s`: numbers with a unit (ms, s, m, h, d), one after
    another. Zero needs no unit. Raises `InvalidRequest`."""
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise InvalidRequest(message("duration_invalid", text=text))
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def format_duration(seconds: float) -> str:
    """The text for `seconds`: the two largest units that are not zero."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
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
