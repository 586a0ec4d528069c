"""Which instances may be called at all: what a caller asks for, and what speaks against one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mooring.formatting import describe
from mooring.messages import Message, message
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


def objection(instance: Instance, wanted: Wanted, *, last_resort: bool = False) -> Message | None:
    """Why an instance is never called; None if it may be. `last_resort`: a draining one may be
    called too, since no other can."""
    if not instance.enabled:
        return message("disabled_by_operator")
    state = instance.status.state
    if state != "up" and not (last_resort and state == "draining"):
        return message("is_draining" if state == "draining" else "is_down")
    if not instance.weight:
        return message("no_weight")
    if wanted.version and instance.version != wanted.version:
        return message("other_version", version=instance.version, wanted=wanted.version)
    for name, value in wanted.tags.items():
        if (has := instance.metadata.get(name)) != value:
            if has is None:
                return message("no_tag", name=name, wanted=value)
            return message("other_tag", name=name, value=has, wanted=value)
    if wanted.zone_only and instance.zone != wanted.zone:
        if not instance.zone:
            return message("unknown_zone", wanted=wanted.zone)
        return message("outside_zone", zone=instance.zone, wanted=wanted.zone)
    if wanted.where is not None:
        try:
            meets = wanted.where(instance)
        except Exception as error:  # noqa: BLE001 - the caller's own code
            return message("condition_failed", error=describe(error))
        if not meets:
            return message("condition_unmet")
    return None


def callable_now(instances: Iterable[Instance], wanted: Wanted | None = None) -> list[Instance]:
    """Those that may be called, whatever their health; those that drain if there is no other."""
    wanted, listed = wanted or Wanted(), list(instances)
    up = [each for each in listed if not objection(each, wanted)]
    return up or [each for each in listed if not objection(each, wanted, last_resort=True)]
