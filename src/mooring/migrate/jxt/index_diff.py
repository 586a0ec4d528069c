"""How what leads to tenants stands to what they have, in both formats. Pure.

Indexes are never copied: the new ones follow from the data. An old one goes with what it leads to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from mooring.migrate.jxt.format import OldIndex, OldKeys, same_name
from mooring.migrate.jxt.plan import DELETABLE, DIFFERENT, PartPlan, Verdict
from mooring.migrate.jxt.unit import View
from mooring.model import JSON
from mooring.store.contract import Entry
from mooring.tenants.keys import DOMAIN, IndexEntry, IndexKind, TenantKeys
from mooring.tenants.parts import Claim, UnreadablePart, claims, holder


class Index(msgspec.Struct, frozen=True):
    """An old key that leads to a tenant."""

    place: OldIndex
    key: bytes
    modified: int
    holder: int
    """The tenant; 0: it does not say."""


def compared_index(
    keys: TenantKeys, index: Iterable[Index], here: View | None, steps: Sequence[PartPlan]
) -> Iterator[PartPlan]:
    """How the old indexes of a tenant stand to what it has. They are not copied: the new ones
    follow from the data. One goes with what it leads to."""
    verdicts = {step.key: step.verdict for step in steps}
    if here is None:
        yield from (
            PartPlan(each.holder, each.key, "orphan", _nobody(each.holder), each.modified)
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
            yield PartPlan(here.unit, each.key, "equal", "it follows from the data", each.modified)
        elif paths:
            why = "" if verdicts.get(owner) in DIFFERENT else "it leads to what is not copied"
            yield PartPlan(here.unit, each.key, "index", why, each.modified)
        else:
            why = f"tenant {here.unit} has nothing of that name"
            verdict: Verdict = "orphan" if _may_hide(each.place, here) else "abandoned"
            yield PartPlan(here.unit, each.key, verdict, why, each.modified)


def _may_hide(place: OldIndex, here: View) -> bool:
    """Whether a part that cannot be understood may have what an index leads to."""
    paths = {"host": DOMAIN, "ftp-user": (f"ftp/{place.name}",)}.get(place.kind, ("meta",))
    return any(
        here.told.hides(path) or isinstance(here.new.get(path), UnreadablePart) for path in paths
    )


def _nobody(holder: int) -> str:
    return f"there is no tenant {holder}" if holder else "it does not say to whom it leads"


def _leads(place: OldIndex, claim: Claim, parts: Mapping[str, JSON | UnreadablePart]) -> bool:
    if place.kind != claim.kind:
        return False
    meta = parts.get("meta")
    code = meta.get("code") if isinstance(meta, dict) else None
    if place.kind == "by-name" and place.name == code:
        return True  # some publishers wrote the code there
    return same_name(place.kind, place.name, claim.name)


def unled(
    keys: TenantKeys,
    old_keys: OldKeys,
    here: View,
    index: Sequence[Index],
    kinds: Collection[IndexKind],
) -> Iterator[PartPlan]:
    """Old indexes that are not there, of parts that both formats have. Only such `kinds` count as
    somebody keeps at all."""
    level = {path: part.value for path, part in here.told.parts.items() if path in here.bases}
    for claim in claims(keys, here.unit, level).values():
        if claim.kind in kinds and not any(_leads(each.place, claim, level) for each in index):
            yield PartPlan(here.unit, old_keys.index(claim.kind, claim.name), "unled")


def amiss(
    keys: TenantKeys, views: Mapping[int, View], index: Mapping[bytes, Entry]
) -> Iterator[PartPlan]:
    """New indexes that do not lead where the new keys say."""
    owners: dict[bytes, dict[int, Claim]] = {}
    for unit in sorted(unit for unit in views if unit):
        for name, claim in claims(keys, unit, views[unit].new).items():
            owners.setdefault(name, {})[unit] = claim
    for name, those in owners.items():
        yield from _of_name(name, those, index.get(name))
    for name, entry in index.items():
        tenant, place = holder(entry.value), keys.understand(name)
        if name in owners or not isinstance(place, IndexEntry):
            continue
        if not tenant:
            yield PartPlan(0, name, "orphan", _nobody(0), entry.modified)
        elif not _raw_name(keys, place, tenant, owners) and not _obscure(views.get(tenant)):
            why = f"tenant {tenant} has nothing of that name"
            yield PartPlan(tenant, name, "astray", why, entry.modified)


def _of_name(name: bytes, owners: Mapping[int, Claim], entry: Entry | None) -> Iterator[PartPlan]:
    leads_to = 0 if entry is None else holder(entry.value)
    modified = 0 if entry is None else entry.modified
    if leads_to not in owners:
        first, claim = next(iter(owners.items()))
        where = f"it leads to tenant {leads_to}" if leads_to else "it leads nowhere"
        yield PartPlan(first, name, "unindexed", f"{claim} is tenant {first}'s: {where}", modified)
        leads_to = first
    for unit, claim in owners.items():
        if unit != leads_to:
            why = f"tenant {unit} has {claim}, too, and it leads to tenant {leads_to}"
            yield PartPlan(unit, name, "contested", why, modified)


def _raw_name(
    keys: TenantKeys, place: IndexEntry, tenant: int, owners: Mapping[bytes, Mapping[int, Claim]]
) -> bool:
    """Whether an older publisher wrote a name there, unescaped, and it is right."""
    return place.kind == "by-name" and tenant in owners.get(keys.index("by-name", place.name), {})


def _obscure(here: View | None) -> bool:
    """Whether what leads to a tenant cannot be told from its parts."""
    return here is not None and any(
        isinstance(here.new.get(path), UnreadablePart) for path in ("meta", *DOMAIN)
    )
