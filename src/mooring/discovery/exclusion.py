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
    return _mismatch(instance, selector)


def _mismatch(instance: Instance, selector: Selector) -> Message | None:
    """Why an instance does not match a selector; None if it does."""
    if selector.version and instance.version != selector.version:
        return message("other_version", version=instance.version, wanted=selector.version)
    for name, wanted in selector.tags.items():
        actual = instance.metadata.get(name)
        if actual is None:
            return message("no_tag", name=name, wanted=wanted)
        if actual != wanted:
            return message("other_tag", name=name, value=actual, wanted=wanted)
    if selector.zone_only and instance.zone != selector.zone:
        if not instance.zone:
            return message("unknown_zone", wanted=selector.zone)
        return message("outside_zone", zone=instance.zone, wanted=selector.zone)
    try:
        if selector.where is not None and not selector.where(instance):
            return message("condition_unmet")
    except Exception as error:  # noqa: BLE001 - the caller's own code
        return message("condition_failed", error=describe(error))
    return None


def callable_now(instances: Iterable[Instance]) -> list[Instance]:
    """The instances that may be called, regardless of health, or the draining ones."""
    selector, candidates = Selector(), list(instances)
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
