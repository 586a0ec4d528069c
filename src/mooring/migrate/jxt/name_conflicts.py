"""Which tenant gets a name that several tenants claim, among the old keys or the new ones. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from mooring.migrate.jxt.state import UnitState
from mooring.tenants.keys import TenantKeys
from mooring.tenants.parts import Claim, claims
from mooring.tenants.secrets import Keyring

NameConflicts: TypeAlias = Mapping[int, Mapping[str, str]]
"""Why parts that claim names of other tenants cannot be written, by unit and path."""

_Claims: TypeAlias = Mapping[str, Mapping[bytes, Claim]]
"""The claims of each part of a tenant; several parts may claim the same host."""


class _Claimant(msgspec.Struct):
    unit: int
    current: _Claims
    """Of the parts among the new keys."""
    incoming: _Claims
    """Of the parts to copy from the old keys."""
    outgoing: set[str]

    def kept(self, rejected: Iterable[str]) -> set[bytes]:
        """The current names that the tenant still claims if these parts are not copied."""
        changed = self.incoming.keys() - set(rejected) | self.outgoing
        wanted = _names(of_part for path, of_part in self.incoming.items() if path in changed)
        stays = _names(of_part for path, of_part in self.current.items() if path not in changed)
        return _names(self.current.values()) & (stays | wanted)


def _names(claims: Iterable[Mapping[bytes, Claim]]) -> set[bytes]:
    return {name for of_part in claims for name in of_part}


def name_conflicts(keys: TenantKeys, units: Iterable[UnitState], ring: Keyring) -> NameConflicts:
    """Names go to the current holder, else to the tenant with the lowest id. A part that cannot be
    copied claims nothing, and the part that it was to replace stays."""
    tenants = sorted((state for state in units if state.unit), key=lambda state: state.unit)
    claimants = [_claimant(keys, state, ring) for state in tenants]
    stuck: dict[int, dict[str, str]] = {}
    while True:
        conflicts = {unit: dict(of_unit) for unit, of_unit in stuck.items()}
        _assign(claimants, conflicts)
        again = False
        for claimant in claimants:
            # A tenant keeps the names of a part that is not replaced: others must not get them.
            for path, conflict in conflicts.get(claimant.unit, {}).items():
                if path in claimant.current and path not in stuck.get(claimant.unit, {}):
                    stuck.setdefault(claimant.unit, {})[path] = conflict
                    again = True
        if not again:
            return conflicts


def _assign(claimants: Iterable[_Claimant], conflicts: dict[int, dict[str, str]]) -> None:
    """One round, from the lowest id to the highest. Adds to `conflicts`."""
    holders: dict[bytes, int] = {}
    for claimant in claimants:
        for name in claimant.kept(conflicts.get(claimant.unit, ())):
            holders.setdefault(name, claimant.unit)
    for claimant in claimants:
        unit = claimant.unit
        for path, wanted in claimant.incoming.items():
            if path in conflicts.get(unit, {}):
                continue
            for name, claim in wanted.items():
                if (holder := holders.get(name, unit)) != unit:
                    conflicts.setdefault(unit, {})[path] = f"{claim.shown} is tenant {holder}'s"
                    break
            else:
                holders.update(dict.fromkeys(wanted, unit))


def _claimant(keys: TenantKeys, state: UnitState, ring: Keyring) -> _Claimant:
    moves = {path: state.decide(path, ring).move for path in state.paths}
    incoming = {
        path: state.old.parts[path].value for path, move in moves.items() if move == "to new"
    }
    current = _claims_by_part(keys, state.unit, state.new)
    return _Claimant(
        state.unit,
        {path: of_part for path, of_part in current.items() if of_part},
        _claims_by_part(keys, state.unit, incoming),
        {path for path, move in moves.items() if move == "out of new"},
    )


def _claims_by_part(keys: TenantKeys, unit: int, parts: Mapping[str, object]) -> _Claims:
    return {path: claims(keys, unit, {path: value}) for path, value in parts.items()}
