"""Who counts as alive to a consumer. Pure: the scripts decide about eviction.

A consumer leaves out who gave no sign of life within its own timeout, unless the brake holds, or
there was a break: time that Redis stood still counts against nobody. Nobody leaves without a word,
for whatever takes an instance out says so in the same moment. Who is not there, and of whom nothing
was said, is missed rather than gone: a failover may have lost its record, and its next heartbeat
brings it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
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
                "Redis takes no writes (a replica without its master, too few replicas, or a disk "
                "that fails it): it hears no heartbeat, and the last list is kept until it does"
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
    missed: Iterable[str],
) -> dict[str, Instance]:
    """The instances to show: `listed` are in Redis, `late` those of them that are overdue, `held`
    was shown before, and `missed` are those of them that are kept though they are not listed."""
    shown = {
        id: instance
        for id, instance in listed.items()
        if braked or id not in late or not instance.ephemeral or (grace and id in held)
    }
    shown.update((id, held[id]) for id in missed)
    return shown
