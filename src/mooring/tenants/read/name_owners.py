"""Who a code, a name, a host or an FTP user leads to, also where several tenants claim one.

A publisher lets each be taken once. What older ones wrote may clash: then the tenant with the
lowest id has it, in whatever order the claims came, and the next one when that one gives it up.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from immutables import Map, MapMutation

from mooring.formatting import quoted
from mooring.tenants.cooperative import Paced, slices

Claim = tuple[str, int]
"""What is claimed, and by which tenant."""

Contested = MapMutation[str, Map[int, None]]


class Contest(msgspec.Struct, frozen=True):
    """A claim that stands against another."""

    kind: str
    name: str
    holder: int
    """Whom it leads to."""
    claimant: int
    """Who claims it, too."""

    def __str__(self) -> str:
        return (
            f"the {self.kind} {quoted(self.name)} is claimed by tenant {self.claimant}, too: "
            f"it leads to tenant {self.holder}"
        )


class Claims(msgspec.Struct, frozen=True):
    """All claims of one kind."""

    kind: str
    """For people: `host`."""
    holders: Map[str, int] = Map()
    """Whom each leads to."""
    contested: Map[str, Map[int, None]] = Map()
    """All who claim it, of those with several."""

    def changing(
        self, gone: Iterable[Claim], news: Iterable[Claim]
    ) -> Paced[tuple[Claims, tuple[Contest, ...]]]:
        """The same with other claims, and those of the new ones that stand against another.

        What is `gone` must have been there, what is new must not.
        """
        holders, contested = self.holders.mutate(), self.contested.mutate()
        for some in slices(gone):
            for name, tenant in some:
                _give_up(name, tenant, holders, contested)
            yield
        clashes: list[Claim] = []
        for some in slices(news):
            clashes += [each for each in some if _clashes(*each, holders, contested)]
            yield
        told: list[Contest] = []
        for some in slices(clashes):
            for name, tenant in some:
                holder = holders[name]
                rival = _rival(tenant, holder, contested[name])
                told.append(Contest(self.kind, name, holder, rival))
            yield
        return Claims(self.kind, holders.finish(), contested.finish()), tuple(told)


def _give_up(name: str, tenant: int, holders: MapMutation[str, int], contested: Contested) -> None:
    rivals = contested.get(name)
    if rivals is None:
        del holders[name]
        return
    rivals = rivals.delete(tenant)
    holders[name] = min(rivals) if holders[name] == tenant else holders[name]
    if len(rivals) > 1:
        contested[name] = rivals
    else:
        del contested[name]


def _clashes(name: str, tenant: int, holders: MapMutation[str, int], contested: Contested) -> bool:
    """Whether the new claim stands against another."""
    holder = holders.get(name)
    if holder is None:
        holders[name] = tenant
        return False
    rivals = contested.get(name)
    contested[name] = (Map({holder: None}) if rivals is None else rivals).set(tenant, None)
    holders[name] = min(holder, tenant)
    return True


def _rival(tenant: int, holder: int, rivals: Map[int, None]) -> int:
    """The other one, where the newcomer is the holder."""
    return tenant if tenant != holder else min(each for each in rivals if each != holder)
