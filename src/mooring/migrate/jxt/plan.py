"""The plan of a migration as data: what to copy, what differs, what conflicts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from mooring.migrate.jxt.format import SENTINEL
from mooring.migrate.jxt.state import Phase
from mooring.migrate.jxt.translation import Finding
from mooring.migrate.jxt.unit import View
from mooring.tenants.keys import TenantKeys
from mooring.tenants.parts import Claim, UnreadablePart, claims
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


def lots(keys: TenantKeys, views: Iterable[View], ring: Keyring) -> Lots:
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


def _claimant(keys: TenantKeys, here: View, ring: Keyring) -> _Claimant:
    moves = {path: here.decide(path, ring).move for path in here.paths}
    comes = {path: here.told.parts[path].value for path, move in moves.items() if move == "to new"}
    return _Claimant(
        here.unit,
        {path: each for path, each in _by_part(keys, here.unit, here.new).items() if each},
        _by_part(keys, here.unit, comes),
        {path for path, move in moves.items() if move == "out of new"},
    )


def _by_part(keys: TenantKeys, unit: int, parts: Mapping[str, object]) -> _Claims:
    return {path: claims(keys, unit, {path: value}) for path, value in parts.items()}


Verdict: TypeAlias = Literal[
    "missing",
    "differs",
    "surplus",
    "gone",
    "blocked",
    "unindexed",
    "astray",
    "contested",
    "index",
    "equal",
    "newer",
    "superseded",
    "stray",
    "taken",
    "refused",
    "unreadable",
    "abandoned",
    "orphan",
    "unled",
    "foreign",
]

IN_WORDS: Mapping[Verdict, str] = {
    "missing": "it is not among the new keys",
    "differs": "the new key says something else, and is older",
    "surplus": "the new key is a copy of what is gone from the old ones",
    "gone": "the new key was deleted, and no history says so: publish it again, or delete this",
    "blocked": "the new key holds something that cannot be read",
    "unindexed": "the new index does not lead to who has it",
    "astray": "the new index leads to who has nothing of that name",
    "contested": "among the new keys another tenant has it, too",
    "index": "it leads to what was not copied yet",
    "equal": "the new keys say the same",
    "newer": "the new key was changed since",
    "superseded": "of the generation before: a later key has it",
    "stray": "written after the cut-over: it no longer counts",
    "taken": "it belongs to another tenant",
    "refused": "it cannot be written today",
    "unreadable": "it cannot be understood",
    "abandoned": "an old index of a name that its tenant has given up",
    "orphan": "it leads to nothing",
    "unled": "it is not there: nothing among the old keys leads to what has this name",
    "foreign": "it is none of the old keys",
}

WRITTEN: frozenset[Verdict] = frozenset({"missing", "differs", "surplus", "unindexed", "astray"})
"""What a copy changes."""
DIFFERENT: frozenset[Verdict] = WRITTEN | {"gone", "blocked", "contested"}
"""What keeps the old keys from being given up."""
DELETABLE: frozenset[Verdict] = frozenset({"equal", "newer", "superseded", "abandoned"})
"""What may go in the end. Everything else is told, and stays."""
LEFT: frozenset[Verdict] = frozenset({"taken", "refused", "unreadable", "stray"})
"""What somebody wrote, and nothing of the new keys says."""

_WORST: tuple[Verdict, ...] = (
    "missing",
    "differs",
    "gone",
    "blocked",
    "stray",
    "unreadable",
    "refused",
    "taken",
    "newer",
)
"""What is said of a key that gives several parts: first what is still to be done."""


class PartPlan(msgspec.Struct, frozen=True):
    """An old key; or a new one, where that is `surplus` or an index that is not as it should be."""

    unit: int
    """The tenant; 0: it concerns all, or none."""
    key: bytes
    verdict: Verdict
    why: str = ""
    modified: int = 0

    @property
    def name(self) -> str:
        return self.key.decode(errors="backslashreplace")

    def __str__(self) -> str:
        return self.why or IN_WORDS[self.verdict]


class _Terms(msgspec.Struct, frozen=True):
    """By what a unit is judged."""

    ring: Keyring
    phase: Phase
    cut: int
    lost: Mapping[str, Lost]
    removed: Collection[str]


def compared(
    keys: TenantKeys,
    here: View,
    ring: Keyring,
    *,
    phase: Phase,
    lost: Lots,
    cut: int = 0,
    removed: Collection[str] = (),
) -> list[PartPlan]:
    """How the new keys of a unit stand to its old ones. `cut`: the revision at which the cut-over
    was made. `removed`: parts that a publisher took out of the new keys."""
    terms = _Terms(ring, phase, cut, lost.get(here.unit, {}), removed)
    steps = [
        PartPlan(here.unit, finding.key, *_of_key(here, finding, terms), finding.modified)
        for finding in here.told.findings.values()
    ]
    if phase == "both":
        gone = [path for path in here.paths if here.decide(path, ring).move == "out of new"]
        steps += [PartPlan(here.unit, place_of(keys, here.unit, path), "surplus") for path in gone]
    return steps


def vanished(here: View, ring: Keyring) -> set[str]:
    """Parts that are gone from the new keys, and as they were among the old ones."""
    return {path for path in here.paths if here.decide(path, ring).move == "out of old"}


def place_of(keys: TenantKeys, unit: int, path: str) -> bytes:
    """Where a part of a unit is today."""
    if unit:
        return keys.part(unit, path)
    return keys.sentinel if path == SENTINEL else keys.common_part(path)


def _of_key(here: View, finding: Finding, terms: _Terms) -> tuple[Verdict, str]:
    """The worst that can be said of what a key gives."""
    if not finding.readable:
        return "unreadable", "; ".join(finding.problems)
    if finding.superseded:
        return "superseded", ""
    said: list[tuple[Verdict, str]] = [("refused", problem) for problem in finding.problems]
    said += [_of_part(here, path, terms) for path in finding.paths]
    found = {verdict for verdict, _ in said}
    for verdict in _WORST:
        if verdict in found:
            return verdict, "; ".join(why for _, why in said if why)
    return "equal", "" if said else "it is empty"


def _of_part(here: View, path: str, terms: _Terms) -> tuple[Verdict, str]:
    if path not in here.told.parts:
        return "unreadable", f"{path} cannot be told: a later key of it cannot be read"
    if isinstance(here.new.get(path), UnreadablePart):
        return "blocked", ""
    if path == SENTINEL and path in here.new:
        return "equal", ""  # it beats on both sides
    decision, rival = here.decide(path, terms.ring), terms.lost.get(path)
    if decision.move == "to new" and rival is not None:
        return "taken", str(rival)
    if terms.phase != "both":
        return _of_part_after(here, path, terms)
    if decision.move == "to new":
        if path not in here.new:
            return "missing", "deleted there, changed here" if decision.conflict else ""
        return "differs", "both were changed: this is the later" if decision.conflict else ""
    if decision.move == "out of old":
        return ("newer", "removed there") if path in terms.removed else ("gone", "")
    if decision.move:
        return "newer", "both were changed: the new key is the later" if decision.conflict else ""
    return "equal", ""


def _of_part_after(here: View, path: str, terms: _Terms) -> tuple[Verdict, str]:
    """The same after the cut-over. What was written since is nowhere else, so that it must never
    pass for something that the new keys have left behind."""
    following = here.decide_after(path, terms.ring)
    late = here.told.parts[path].modified > terms.cut
    if following.stray and (late or not following.move):
        return "stray", ""
    return ("newer", "") if following.move else ("equal", "")


def counted(steps: Iterable[PartPlan]) -> dict[Verdict, int]:
    """How many of each, in the order of `IN_WORDS`."""
    found = [step.verdict for step in steps]
    return {verdict: found.count(verdict) for verdict in IN_WORDS if verdict in found}
