"""Who counts as alive to a consumer. Pure: the scripts decide about eviction.

A consumer leaves out who gave no sign of life within its own timeout, unless the brake holds. After
a break nobody is dropped for a while: that an instance is not there may be the doing of the break
(a failover that lost its record, a Redis that stood still), and it will be back within a heartbeat.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import NamedTuple

from mooring.model import Instance


class Brake(NamedTuple):
    """Why expiry of a service is paused."""

    silent: int
    total: int
    since: int
    """On the server's clock, in ms, as is `until`."""
    until: int

    @property
    def unheard(self) -> bool:
        """Redis itself takes no writes, and so hears nobody."""
        return not self.total

    def __str__(self) -> str:
        if self.unheard:
            return (
                "Redis takes no writes (a replica without its master, or too few replicas): it "
                "hears no heartbeat, and the last list is kept until it does"
            )
        return (
            f"{self.silent} of {self.total} instances are silent at once: the fault is likely "
            "elsewhere, and the last list is kept until they beat again"
        )


def brake_of(told: Mapping[str, str]) -> Brake | None:
    """The brake that holds, as its hash tells it; None where none does."""
    if told.get("state") != "holding":
        return None

    def number(name: str) -> int:
        try:
            return max(int(float(told.get(name, "0"))), 0)
        except (ValueError, OverflowError):
            return 0

    return Brake(number("silent"), number("total"), number("since"), number("until"))


def overdue(scores: Mapping[str, float], now: int, timeout: float) -> set[str]:
    """Those whose last heartbeat is older than `timeout` seconds."""
    oldest = now - timeout * 1000
    return {id for id, score in scores.items() if score < oldest}


def standing(
    listed: Mapping[str, Instance],
    late: Set[str],
    *,
    held: Mapping[str, Instance],
    braked: bool,
    grace: bool,
    gone: Collection[str],
) -> dict[str, Instance]:
    """The instances to show: `listed` are in Redis, `late` those of them that are overdue, `held`
    was shown before, `gone` are known to have left."""
    shown = {
        id: instance
        for id, instance in listed.items()
        if braked or id not in late or not instance.ephemeral or (grace and id in held)
    }
    if grace:
        missing = held.keys() - listed.keys() - set(gone)
        shown.update((id, held[id]) for id in missing)
    return shown
