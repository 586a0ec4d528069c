"""The plan of a migration as data: what to copy, and what differs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

import msgspec

from mooring.migrate.jxt.state import Phase, UnitState
from mooring.migrate.jxt.translation import TranslatedKey
from mooring.tenants.keys import SENTINEL, TenantKeys
from mooring.tenants.parts import UnreadablePart
from mooring.tenants.secrets import Keyring

KeyVerdict: TypeAlias = Literal[
    "missing",
    "differs",
    "surplus",
    "deleted",
    "blocked",
    "unindexed",
    "dangling",
    "contested",
    "index",
    "equal",
    "newer",
    "superseded",
    "late",
    "taken",
    "refused",
    "unreadable",
    "abandoned",
    "orphan",
    "index-missing",
    "foreign",
]

REASONS: Mapping[KeyVerdict, str] = {
    "missing": "it is not among the new keys",
    "differs": "the new key has another value, and is older",
    "surplus": "the new key is a copy of an old key that no longer exists",
    "deleted": "the new key was deleted outside the history: publish it again, or delete this key",
    "blocked": "the new key has a value that cannot be parsed",
    "unindexed": "the new index does not refer to its tenant",
    "dangling": "the new index refers to a tenant without this name",
    "contested": "two tenants have this name among the new keys",
    "index": "it refers to a part that is not copied yet",
    "equal": "the new keys have the same value",
    "newer": "the new key was changed after this one",
    "superseded": "of the oldest format: a key with two slashes replaces it",
    "late": "written after the cut-over: it no longer counts",
    "taken": "it belongs to another tenant",
    "refused": "it is invalid in the new format",
    "unreadable": "it cannot be parsed",
    "abandoned": "an old index of a name that its tenant has given up",
    "orphan": "it refers to nothing",
    "index-missing": "this old index is missing",
    "foreign": "it is not one of the old keys",
}

WRITTEN: frozenset[KeyVerdict] = frozenset(
    {"missing", "differs", "surplus", "unindexed", "dangling"}
)
"""A copy writes these."""
DIFFERENT: frozenset[KeyVerdict] = WRITTEN | {"deleted", "blocked", "contested"}
"""These prevent the deletion of the old keys."""
DELETABLE: frozenset[KeyVerdict] = frozenset({"equal", "newer", "superseded", "abandoned"})
"""Keys that may be deleted in the end. All others are reported, and stay."""
LEFT: frozenset[KeyVerdict] = frozenset({"taken", "refused", "unreadable", "late"})
"""Values that are not among the new keys."""

_MOST_URGENT: tuple[KeyVerdict, ...] = (
    "missing",
    "differs",
    "deleted",
    "blocked",
    "late",
    "unreadable",
    "refused",
    "taken",
    "newer",
)
"""The verdict of a key with several parts is the first of these."""


class PartPlan(msgspec.Struct, frozen=True):
    """The plan for an old key, or for a new one if it is `surplus` or a wrong index."""

    unit: int
    """The tenant; 0 for common settings, and if unknown."""
    key: bytes
    verdict: KeyVerdict
    why: str = ""
    modified: int = 0

    @property
    def name(self) -> str:
        return self.key.decode(errors="backslashreplace")

    def __str__(self) -> str:
        return self.why or REASONS[self.verdict]


class Criteria(msgspec.Struct, frozen=True):
    ring: Keyring
    phase: Phase
    compared_at: int = 0
    """The revision of the comparison before the cut-over."""
    conflicts: Mapping[str, str] = {}
    removed: Collection[str] = frozenset()
    """Parts that a publisher deleted from the new keys."""


def compare(keys: TenantKeys, state: UnitState, criteria: Criteria) -> list[PartPlan]:
    unit = state.unit
    steps = [
        PartPlan(unit, old_key.key, *_compare_key(state, old_key, criteria), old_key.modified)
        for old_key in state.old.keys.values()
    ]
    if criteria.phase == "both":
        moves = {path: state.decide(path, criteria.ring).move for path in state.paths}
        surplus = [path for path, move in moves.items() if move == "out of new"]
        steps += [PartPlan(unit, new_key(keys, unit, path), "surplus") for path in surplus]
    return steps


def deleted_in_new(state: UnitState, ring: Keyring) -> set[str]:
    """Parts that are no longer among the new keys, and have not changed among the old ones."""
    return {path for path in state.paths if state.decide(path, ring).move == "out of old"}


def new_key(keys: TenantKeys, unit: int, path: str) -> bytes:
    if unit:
        return keys.part(unit, path)
    return keys.sentinel if path == SENTINEL else keys.common_part(path)


def _compare_key(
    state: UnitState, old_key: TranslatedKey, criteria: Criteria
) -> tuple[KeyVerdict, str]:
    """The most urgent verdict on the parts of a key."""
    if not old_key.readable:
        return "unreadable", "; ".join(old_key.problems)
    if old_key.superseded:
        return "superseded", ""
    results: list[tuple[KeyVerdict, str]] = [("refused", problem) for problem in old_key.problems]
    results += [_compare_part(state, path, criteria) for path in old_key.paths]
    verdicts = {verdict for verdict, _ in results}
    for verdict in _MOST_URGENT:
        if verdict in verdicts:
            return verdict, "; ".join(why for _, why in results if why)
    return "equal", "" if results else "it is empty"


def _compare_part(state: UnitState, path: str, criteria: Criteria) -> tuple[KeyVerdict, str]:
    if path not in state.old.parts:
        return "unreadable", f"{path} is unknown: another key that may contain it is unreadable"
    if isinstance(state.new.get(path), UnreadablePart):
        return "blocked", ""
    if path == SENTINEL and path in state.new:
        return "equal", ""  # both sides update it all the time
    decision, conflict = state.decide(path, criteria.ring), criteria.conflicts.get(path)
    if decision.move == "to new" and conflict is not None:
        return "taken", conflict
    if criteria.phase != "both":
        return _compare_after_cutover(state, path, criteria)
    if decision.move == "out of old":
        return ("newer", "removed there") if path in criteria.removed else ("deleted", "")
    if decision.move == "to new":
        verdict: KeyVerdict = "differs" if path in state.new else "missing"
    else:
        verdict = "newer" if decision.move else "equal"
    return verdict, _CONFLICTS[verdict] if decision.conflict else ""


_CONFLICTS: Mapping[KeyVerdict, str] = {
    "missing": "deleted there, changed here",
    "differs": "both were changed: this is the later",
    "newer": "both were changed: the new key is the later",
}
"""Why a part has a verdict if both sides were changed."""


def _compare_after_cutover(
    state: UnitState, path: str, criteria: Criteria
) -> tuple[KeyVerdict, str]:
    """A value that was written later exists only in the old key, so it must not count as older."""
    decision = state.decide(path, criteria.ring, criteria.phase)
    changed = state.old.parts[path].modified > criteria.compared_at
    if decision.late and (changed or not decision.move):
        return "late", ""
    return ("newer", "") if decision.move else ("equal", "")
