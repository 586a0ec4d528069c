"""Which instances may be called: a caller's selector, and the reasons that exclude an instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mooring.formatting import describe
from mooring.messages import Message, joined, message
from mooring.model import Instance


@dataclass(frozen=True, slots=True)
class Selector:
    """The instances that a caller selects."""

    version: str = ""
    """Only this version; empty: any."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Metadata that an instance must have."""
    zone: str = ""
    """The caller's own zone, which is preferred."""
    zone_only: bool = False
    """Never leave the zone."""
    where: Callable[[Instance], bool] | None = None
    """Any other condition."""


def exclusion(
    instance: Instance, selector: Selector, *, last_resort: bool = False
) -> Message | None:
    """Why an instance is never called; None if it may be. `last_resort`: a draining instance may be
    called too, because no other can."""
    if not instance.enabled:
        return message("disabled_by_operator")
    state = instance.status.state
    if state != "up" and not (last_resort and state == "draining"):
        return message("is_draining" if state == "draining" else "is_down")
    if not instance.weight:
        return message("no_weight")
    return (
        _version_mismatch(instance, selector)
        or _tag_mismatch(instance, selector)
        or _zone_mismatch(instance, selector)
        or _unmet_condition(instance, selector)
    )


def _version_mismatch(instance: Instance, selector: Selector) -> Message | None:
    if not selector.version or instance.version == selector.version:
        return None
    return message("other_version", version=instance.version, wanted=selector.version)


def _tag_mismatch(instance: Instance, selector: Selector) -> Message | None:
    for name, wanted in selector.tags.items():
        actual = instance.metadata.get(name)
        if actual is None:
            return message("no_tag", name=name, wanted=wanted)
        if actual != wanted:
            return message("other_tag", name=name, value=actual, wanted=wanted)
    return None


def _zone_mismatch(instance: Instance, selector: Selector) -> Message | None:
    if not selector.zone_only or instance.zone == selector.zone:
        return None
    if not instance.zone:
        return message("unknown_zone", wanted=selector.zone)
    return message("outside_zone", zone=instance.zone, wanted=selector.zone)


def _unmet_condition(instance: Instance, selector: Selector) -> Message | None:
    if selector.where is None:
        return None
    try:
        matches = selector.where(instance)
    except Exception as error:  # noqa: BLE001 - the caller's own code
        return message("condition_failed", error=describe(error))
    return None if matches else message("condition_unmet")


def callable_now(instances: Iterable[Instance], selector: Selector | None = None) -> list[Instance]:
    """The instances that may be called, regardless of health, or the draining ones."""
    selector, candidates = selector or Selector(), list(instances)
    up = [instance for instance in candidates if not exclusion(instance, selector)]
    return up or [
        instance for instance in candidates if not exclusion(instance, selector, last_resort=True)
    ]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an instance is or is not called."""

    instance: Instance
    called: bool
    messages: tuple[Message, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The messages in English."""
        return tuple(message.text for message in self.messages)

    def __str__(self) -> str:
        why = joined(self.messages) or ("in rotation" if self.called else "out of rotation")
        return f"{self.instance.id}: {'called' if self.called else 'not called'}: {why}"
