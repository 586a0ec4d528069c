"""What is to be done, as data: for each old key, how the new ones stand to it. Pure.

A plan predicts. What is written is decided once more for each unit, from what is in the store at
that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from mooring.migrate.jxt.format import SENTINEL, OldIndex, same_name
from mooring.migrate.jxt.ledger import Phase
from mooring.migrate.jxt.translation import Finding
from mooring.migrate.jxt.view import View
from mooring.model import JSON
from mooring.tenants.indexing import Claim, claims
from mooring.tenants.keys import Keys
from mooring.tenants.publishing import Unread
from mooring.tenants.secrets import Keyring

Verdict: TypeAlias = Literal[
    "missing",
    "differs",
    "surplus",
    "blocked",
    "index",
    "equal",
    "newer",
    "superseded",
    "stray",
    "taken",
    "refused",
    "unreadable",
    "orphan",
    "foreign",
]

IN_WORDS: Mapping[Verdict, str] = {
    "missing": "it is not among the new keys",
    "differs": "the new key says something else, and is older",
    "surplus": "the new key is a copy of what is gone from the old ones",
    "blocked": "the new key holds something that cannot be read",
    "index": "it leads to what was not copied yet",
    "equal": "the new keys say the same",
    "newer": "the new key was changed since",
    "superseded": "of the generation before: a later key has it",
    "stray": "written after the cut-over: it no longer counts",
    "taken": "it belongs to another tenant",
    "refused": "it cannot be written today",
    "unreadable": "it cannot be understood",
    "orphan": "it leads to nothing",
    "foreign": "it is none of the old keys",
}

WRITTEN: frozenset[Verdict] = frozenset({"missing", "differs", "surplus"})
"""What a copy changes."""
DIFFERENT: frozenset[Verdict] = WRITTEN | {"blocked"}
"""What keeps the old keys from being given up."""
DELETABLE: frozenset[Verdict] = frozenset({"equal", "newer", "superseded"})
"""What may go in the end. Everything else is told, and stays."""

_WORST: tuple[Verdict, ...] = (
    "missing",
    "differs",
    "blocked",
    "stray",
    "unreadable",
    "refused",
    "taken",
    "newer",
)
"""What is said of a key that gives several parts: first what is still to be done."""


class Step(msgspec.Struct, frozen=True):
    """An old key; or a new one, where that is `surplus`."""

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


class Lost(msgspec.Struct, frozen=True):
    """A part that lays claim to what is another tenant's."""

    claim: str
    holder: int

    def __str__(self) -> str:
        return f"{self.claim} is tenant {self.holder}'s"


Lots: TypeAlias = Mapping[int, Mapping[str, Lost]]
"""Which parts of which units cannot be written, for they lay claim to what is another's."""


def lots(keys: Keys, views: Iterable[View], ring: Keyring) -> Lots:
    """Who gets what several tenants lay claim to once all is copied: who has it already, else the
    one with the lowest id."""
    wanted: dict[bytes, list[tuple[bool, int, Claim]]] = {}
    for each in views:
        if each.unit:
            there = claims(keys, each.unit, each.new)
            for name, claim in claims(keys, each.unit, copied(each, ring)).items():
                wanted.setdefault(name, []).append((name not in there, each.unit, claim))
    lost: dict[int, dict[str, Lost]] = {}
    for rivals in wanted.values():
        (_, winner, _), *others = sorted(rivals, key=lambda rival: rival[:2])
        for _, unit, claim in others:
            lost.setdefault(unit, {}).setdefault(claim.path, Lost(str(claim), winner))
    return lost


def copied(here: View, ring: Keyring) -> dict[str, JSON | Unread]:
    """What the new keys of a unit are after a copy."""
    parts = dict(here.new)
    for path in here.paths:
        move = here.decide(path, ring).move
        if move == "to new":
            parts[path] = here.told.parts[path].value
        elif move == "out of new":
            del parts[path]
    return parts


def compared(keys: Keys, here: View, ring: Keyring, *, phase: Phase, lost: Lots) -> list[Step]:
    """How the new keys of a unit stand to its old ones."""
    steps = [
        Step(here.unit, finding.key, *_of_key(here, finding, ring, phase, lost), finding.modified)
        for finding in here.told.findings.values()
    ]
    if phase == "both":
        gone = [path for path in here.paths if here.decide(path, ring).move == "out of new"]
        steps += [Step(here.unit, place_of(keys, here.unit, path), "surplus") for path in gone]
    return steps


def place_of(keys: Keys, unit: int, path: str) -> bytes:
    """Where a part of a unit is today."""
    if unit:
        return keys.part(unit, path)
    return keys.sentinel if path == SENTINEL else keys.common_part(path)


def _of_key(
    here: View, finding: Finding, ring: Keyring, phase: Phase, lost: Lots
) -> tuple[Verdict, str]:
    """The worst that can be said of what a key gives."""
    if not finding.readable:
        return "unreadable", "; ".join(finding.problems)
    if finding.superseded:
        return "superseded", ""
    said: list[tuple[Verdict, str]] = [("refused", problem) for problem in finding.problems]
    said += [_of_part(here, path, ring, phase, lost) for path in finding.paths]
    found = {verdict for verdict, _ in said}
    for verdict in _WORST:
        if verdict in found:
            return verdict, "; ".join(why for _, why in said if why)
    return "equal", "" if said else "it is empty"


def _of_part(here: View, path: str, ring: Keyring, phase: Phase, lost: Lots) -> tuple[Verdict, str]:
    if path not in here.told.parts:
        return "unreadable", f"{path} cannot be told: a later key of it cannot be read"
    if isinstance(here.new.get(path), Unread):
        return "blocked", ""
    if path == SENTINEL and path in here.new:
        return "equal", ""  # it beats on both sides
    decision, rival = here.decide(path, ring), lost.get(here.unit, {}).get(path)
    if decision.move == "to new" and rival is not None:
        return "taken", str(rival)
    if phase != "both":
        following = here.decide_after(path, ring)
        if following.stray and not following.move:
            return "stray", ""
        return ("newer", "") if following.move else ("equal", "")
    if decision.move == "to new":
        if path not in here.new:
            return "missing", "deleted there, changed here" if decision.conflict else ""
        return "differs", "both were changed: this is the later" if decision.conflict else ""
    if decision.move:
        return "newer", "both were changed: the new key is the later" if decision.conflict else ""
    return "equal", ""


class Index(msgspec.Struct, frozen=True):
    """An old key that leads to a tenant."""

    place: OldIndex
    key: bytes
    modified: int
    holder: int
    """The tenant; 0: it does not say."""


def compared_index(
    keys: Keys, index: Iterable[Index], here: View | None, steps: Sequence[Step]
) -> Iterator[Step]:
    """How the old indexes of a tenant stand to what it has. They are not copied: the new ones
    follow from the data. One goes with what it leads to."""
    verdicts = {step.key: step.verdict for step in steps}
    if here is None:
        yield from (
            Step(each.holder, each.key, "orphan", _nobody(each.holder), each.modified)
            for each in index
        )
        return
    old = {path: part.value for path, part in here.told.parts.items()}
    before, after = (list(claims(keys, here.unit, each).values()) for each in (old, here.new))
    for each in index:
        paths = [claim.path for claim in before if _leads(each.place, claim, old)]
        owner = next((here.told.parts[path].key for path in paths), b"")
        if verdicts.get(owner) in DELETABLE or (
            not paths and any(_leads(each.place, claim, here.new) for claim in after)
        ):
            yield Step(here.unit, each.key, "equal", "it follows from the data", each.modified)
        elif paths:
            why = "" if verdicts.get(owner) in DIFFERENT else "it leads to what is not copied"
            yield Step(here.unit, each.key, "index", why, each.modified)
        else:
            why = f"tenant {here.unit} has nothing of that name"
            yield Step(here.unit, each.key, "orphan", why, each.modified)


def _nobody(holder: int) -> str:
    return f"there is no tenant {holder}" if holder else "it does not say to whom it leads"


def _leads(place: OldIndex, claim: Claim, parts: Mapping[str, JSON | Unread]) -> bool:
    if place.kind != claim.kind:
        return False
    meta = parts.get("meta")
    code = meta.get("code") if isinstance(meta, dict) else None
    if place.kind == "by-name" and place.name == code:
        return True  # some publishers wrote the code there
    return same_name(place.kind, place.name, claim.name)


def counted(steps: Iterable[Step]) -> dict[Verdict, int]:
    """How many of each, in the order of `IN_WORDS`."""
    found = [step.verdict for step in steps]
    return {verdict: found.count(verdict) for verdict in IN_WORDS if verdict in found}
