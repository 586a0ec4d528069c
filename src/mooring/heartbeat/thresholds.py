"""Which changes of an instance's metrics are worth telling at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mooring.settings.registry import Threshold, canonical


def flatten(metrics: Mapping[str, object]) -> dict[str, object]:
    """Nested mappings as dotted paths: `{"memory": {"free": 1}}` is `{"memory.free": 1}`."""
    flat: dict[str, object] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{path}": leaf for path, leaf in flatten(value).items()})
        else:
            flat[str(name)] = value
    return flat


def has_values(metrics: Mapping[str, object]) -> bool:
    """Whether there is anything in it but empty mappings."""
    return any(
        has_values(value) if isinstance(value, Mapping) else True for value in metrics.values()
    )


def changes(
    old: Mapping[str, object], new: Mapping[str, object], thresholds: Mapping[str, Threshold]
) -> tuple[str, ...]:
    """The paths, sorted, in which `new` differs significantly from `old`.

    Only paths with a threshold are watched. One for a branch (`memory`) holds for all below it
    that has none of its own. A watched value that appears or disappears is significant; None is
    the same as no value, and not-a-number is equal to itself.
    """
    rules = {canonical(path): threshold for path, threshold in thresholds.items()}
    before, after = _watchable(old), _watchable(new)
    return tuple(
        path
        for path in sorted(before.keys() | after.keys())
        if (rule := _rule(path, rules)) is not None
        and significant(before.get(path), after.get(path), rule)
    )


def significant(old: object, new: object, threshold: Threshold) -> bool:
    """Whether a value that was `old` and is `new` changed by more than the threshold."""
    if old == new or (_is_nan(old) and _is_nan(new)):
        return False
    before, after = _number(old), _number(new)
    if threshold.type == "any" or before is None or after is None:
        return True
    change = abs(after - before)
    if threshold.type == "absolute":
        return change > threshold.threshold
    return before == 0 or change / abs(before) * 100 > threshold.threshold


def _watchable(metrics: Mapping[str, object]) -> dict[str, object]:
    return {canonical(path): value for path, value in flatten(metrics).items()}


def _rule(path: str, rules: Mapping[str, Threshold]) -> Threshold | None:
    """The rule of the path itself, or of the nearest branch above it."""
    while path not in rules:
        path, dot, _ = path.rpartition(".")
        if not dot:
            return None
    return rules[path]


def _number(value: object) -> float | None:
    """The value as a number that can be reckoned with; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int beyond all floats
        return None
    return number if math.isfinite(number) else None


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
