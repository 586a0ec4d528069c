"""Who gets what several tenants lay claim to once all is copied. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from mooring.migrate.jxt.unit import View
from mooring.tenants.keys import Keys
from mooring.tenants.publish.claims import Claim, claims
from mooring.tenants.secrets import Keyring


class Lost(msgspec.Struct, frozen=True):
    """A part that lays claim to what is another tenant's."""

    claim: str
    holder: int

    def __str__(self) -> str:
        return f"{self.claim} is tenant {self.holder}'s"


Lots: TypeAlias = Mapping[int, Mapping[str, Lost]]
"""Which parts of which units cannot be written, for they lay claim to what is another's."""

_Claims: TypeAlias = Mapping[str, Mapping[bytes, Claim]]
"""What each part of a tenant lays claim to: a host may stand in several."""


class _Claimant(msgspec.Struct):
    unit: int
    had: _Claims
    """By what is among the new keys now."""
    moved: _Claims
    """By parts that come from the old keys."""
    gone: set[str]
    """Parts that go."""

    def keeps(self, lost: Iterable[str]) -> dict[bytes, Claim]:
        """What it has and still wants, if these parts do not come."""
        changed = self.moved.keys() - set(lost) | self.gone
        wants = _names(path_claims for path, path_claims in self.moved.items() if path in changed)
        there = {name: claim for each in self.had.values() for name, claim in each.items()}
        stays = _names(each for path, each in self.had.items() if path not in changed)
        return {name: claim for name, claim in there.items() if name in stays | wants}


def _names(of: Iterable[Mapping[bytes, Claim]]) -> set[bytes]:
    return {name for each in of for name in each}


def lots(keys: Keys, views: Iterable[View], ring: Keyring) -> Lots:
    """Who gets what several lay claim to: who has it already, else the one with the lowest id. A
    part that cannot come lays claim to nothing, and what was to make room for it stays."""
    ordered = sorted((each for each in views if each.unit), key=lambda each: each.unit)
    claimants = [_claimant(keys, each, ring) for each in ordered]
    stuck: dict[int, dict[str, Lost]] = {}
    while True:
        lost = {unit: dict(each) for unit, each in stuck.items()}
        _share_out(claimants, lost)
        again = False
        for each in claimants:
            # What it was to give up, it keeps: others must not count on it.
            for path, reason in lost.get(each.unit, {}).items():
                if path in each.had and path not in stuck.get(each.unit, {}):
                    stuck.setdefault(each.unit, {})[path] = reason
                    again = True
        if not again:
            return lost


def _share_out(claimants: Iterable[_Claimant], lost: dict[int, dict[str, Lost]]) -> None:
    """One round, from the lowest id to the highest; `lost` grows."""
    holders: dict[bytes, int] = {}
    for each in claimants:
        for name in each.keeps(lost.get(each.unit, ())):
            holders.setdefault(name, each.unit)
    for each in claimants:
        for path, wanted in each.moved.items():
            if path in lost.get(each.unit, {}):
                continue
            for name, claim in wanted.items():
                if (holder := holders.get(name, each.unit)) != each.unit:
                    lost.setdefault(each.unit, {})[path] = Lost(str(claim), holder)
                    break
            else:
                holders.update(dict.fromkeys(wanted, each.unit))


def _claimant(keys: Keys, here: View, ring: Keyring) -> _Claimant:
    moves = {path: here.decide(path, ring).move for path in here.paths}
    comes = {path: here.told.parts[path].value for path, move in moves.items() if move == "to new"}
    return _Claimant(
        here.unit,
        {path: each for path, each in _by_part(keys, here.unit, here.new).items() if each},
        _by_part(keys, here.unit, comes),
        {path for path, move in moves.items() if move == "out of new"},
    )


def _by_part(keys: Keys, unit: int, parts: Mapping[str, object]) -> _Claims:
    return {path: claims(keys, unit, {path: value}) for path, value in parts.items()}
