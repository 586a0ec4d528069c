"""Which instances may be called at all: what a caller asks for, and what speaks against one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mooring.formatting import describe, quoted
from mooring.model import Instance


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller asks for."""

    version: str = ""
    """This version alone; empty: any."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Metadata that an instance must have."""
    zone: str = ""
    """The caller's own zone: preferred."""
    zone_only: bool = False
    """Never leave the zone."""
    where: Callable[[Instance], bool] | None = None
    """Any other condition."""


def objection(instance: Instance, wanted: Wanted, *, last_resort: bool = False) -> str:
    """Why an instance is never called, in words; empty if it may be. `last_resort`: one that drains
    may be called too, since no other can."""
    if not instance.enabled:
        return "disabled by an operator"
    state = instance.status.state
    if state != "up" and not (last_resort and state == "draining"):
        return f"it is {state}"
    if not instance.weight:
        return "its weight is 0"
    if wanted.version and instance.version != wanted.version:
        return f"its version is {instance.version}, not {wanted.version}"
    for name, value in wanted.tags.items():
        if (has := instance.metadata.get(name)) != value:
            return f"its {name} is {quoted(has)}, not {quoted(value)}"
    if wanted.zone_only and instance.zone != wanted.zone:
        return f"its zone is {instance.zone or 'not known'}, not {wanted.zone}"
    if wanted.where is not None:
        try:
            meets = wanted.where(instance)
        except Exception as error:  # noqa: BLE001 - the caller's own code
            return f"the caller's condition fails on it: {describe(error)}"
        if not meets:
            return "it does not meet the caller's condition"
    return ""


def callable_now(instances: Iterable[Instance], wanted: Wanted | None = None) -> list[Instance]:
    """Those that may be called, whatever their health; those that drain if there is no other."""
    wanted, listed = wanted or Wanted(), list(instances)
    up = [each for each in listed if not objection(each, wanted)]
    return up or [each for each in listed if not objection(each, wanted, last_resort=True)]
