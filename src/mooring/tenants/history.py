"""Who changed what of a tenant, when, from what to what; and back again.

Entries lie away from the tenant's own keys and outlive it. Secrets in them are sealed; without a
key they are left out, and a rollback keeps what is there, or says that there is none.
"""

from __future__ import annotations

import base64
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from mooring.errors import Undecipherable
from mooring.masking import is_secret, masked_field
from mooring.model import JSON, walk
from mooring.store.contract import Entry
from mooring.tenants.keys import field_of
from mooring.tenants.parts import PartDiff, Parts, Resent, UnreadablePart
from mooring.tenants.publish.merge import PASSWORD
from mooring.tenants.secrets import Keyring

log = logging.getLogger(__name__)

UNREADABLE = "(unreadable)"
"""The action of an entry that cannot be understood."""

_MARKS = _SEALED, _KEY_ID, _OMITTED, _RAW = "$sealed", "$keyId", "$omitted", "$raw"


class HistoryChange(msgspec.Struct, frozen=True, rename="camel"):
    """One part that changed; None: it was not there. Secrets are sealed or left out."""

    path: str
    before: JSON = None
    after: JSON = None
    resent: tuple[str, ...] = ()
    """Secret fields that count as changed, although they may be the same."""

    def __repr__(self) -> str:
        return f"<{self.path}: {self._shown(self.before)!r} → {self._shown(self.after)!r}>"

    def _shown(self, value: JSON) -> JSON:
        return masked_side(self.path, value)


class HistoryEntry(msgspec.Struct, frozen=True, rename="camel"):
    number: int
    """Counts up from 1 for each tenant."""
    at: str
    """When, in UTC."""
    by: str
    action: str
    """`publish`, `delete`, `rollback`, `rekey` or `migrate`."""
    changes: tuple[HistoryChange, ...]
    note: str = ""
    token: str = ""
    """By which a publisher knows its own entry again."""
    page: int = 1
    """A publish that took several transactions has as many pages, each with the same number."""
    more: bool = False
    """Whether another page was to follow. In the last page: the publish was interrupted."""
    since: int = 0
    """The number of an earlier entry that this one completes, or found incomplete; 0: none."""

    def __repr__(self) -> str:
        return f"<{self.number} {self.at} {self.by} {self.action}>"


def decode_entry(entry: Entry) -> HistoryEntry:
    try:
        return msgspec.json.decode(entry.value, type=HistoryEntry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("%s cannot be understood: %s", entry.key.decode(errors="replace"), error)
        number, _, page = entry.key.rpartition(b"/")[2].partition(b".")
        return HistoryEntry(int(number), "", "", UNREADABLE, (), page=int(page or 1))


def merge_pages(pages: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    """One entry for each publish, from all pages in their order."""
    found: list[HistoryEntry] = []
    for number, group in itertools.groupby(pages, key=lambda page: page.number):
        first, *more = those = list(group)
        changes: dict[str, HistoryChange] = {}
        for step in itertools.chain.from_iterable(page.changes for page in those):
            earlier = changes.get(step.path, step)
            resent = dict.fromkeys((*earlier.resent, *step.resent))
            changes[step.path] = HistoryChange(step.path, earlier.before, step.after, tuple(resent))
        whole = [page.page for page in those] == list(range(1, len(those) + 1))
        readable = whole and all(page.action != UNREADABLE for page in those)
        found.append(
            msgspec.structs.replace(
                first,
                number=number,
                action=first.action if readable else UNREADABLE,
                changes=tuple(changes.values()),
                page=len(those),
                more=those[-1].more,
            )
            if more
            else first
        )
    return found


def versions(entries: Sequence[HistoryEntry]) -> list[int]:
    """The versions that a rollback may go to: none of them lies in the middle of a publish."""
    if not entries:
        return []
    within = {number for each in entries if each.since for number in range(each.since, each.number)}
    within |= {each.number for each in entries if each.more}
    known = [entries[0].number - 1, *(each.number for each in entries)]
    return [number for number in known if number not in within]


def history_changes(diffs: Iterable[PartDiff], ring: Keyring) -> tuple[HistoryChange, ...]:
    return tuple(
        HistoryChange(
            each.path,
            {_OMITTED: True} if each.unwieldy else _kept(each.path, each.before, ring),
            _kept(each.path, each.after, ring),
            each.resent,
        )
        for each in diffs
    )


def _kept(path: str, value: JSON | UnreadablePart, ring: Keyring) -> JSON:
    if isinstance(value, UnreadablePart):
        return {_RAW: _hidden(value.text, ring)}
    return _sealed_field(field_of(path), value, ring)


def _sealed_field(name: str, value: JSON, ring: Keyring) -> JSON:
    if is_secret(name) and value not in (None, "") and name != "passwordEncrypted":
        return _hidden(value, ring)
    return _sealed(value, ring)


def _sealed(value: JSON, ring: Keyring) -> JSON:
    if isinstance(value, list):
        return [_sealed(inner, ring) for inner in value]
    if not isinstance(value, dict):
        return value
    if not value.keys().isdisjoint(_MARKS):
        return _hidden(value, ring)  # nobody shall take it for ours
    return {name: _sealed_field(name, inner, ring) for name, inner in value.items()}


def _hidden(value: JSON, ring: Keyring) -> JSON:
    if not ring.current:
        return {_OMITTED: True}
    sealed, of = ring.seal(msgspec.json.encode(value).decode())
    return {_SEALED: sealed, _KEY_ID: of}


def masked_side(path: str, value: JSON) -> JSON:
    """A side of a step for people."""
    if isinstance(value, dict) and _RAW in value:
        return "(unreadable)"
    return masked_field(field_of(path), value)


def entry_diffs(entry: HistoryEntry, ring: Keyring) -> list[PartDiff]:
    """What an entry changed. A secret that cannot be opened stays sealed: see `is_sealed`."""

    def side(value: JSON) -> JSON | UnreadablePart:
        unreadable = isinstance(value, dict) and _RAW in value
        return UnreadablePart(b"") if unreadable else _as_far(value, ring)

    return [
        PartDiff(step.path, side(step.before), side(step.after), step.resent)
        for step in entry.changes
    ]


def resent(entries: Iterable[HistoryEntry]) -> Resent:
    """The secrets that count as changed when these entries are undone."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        for step in entry.changes:
            if step.resent:
                found.setdefault(step.path, []).extend(step.resent)
    return {path: tuple(dict.fromkeys(fields)) for path, fields in found.items()}


def _as_far(value: JSON, ring: Keyring) -> JSON:
    if is_sealed(value):
        try:
            return _open(value, value, ring)
        except Undecipherable:
            return value
    if isinstance(value, dict):
        return {name: _as_far(inner, ring) for name, inner in value.items()}
    return [_as_far(inner, ring) for inner in value] if isinstance(value, list) else value


def is_sealed(value: object) -> bool:
    """Whether this is a secret that was left out of the history, or that no known key opens."""
    return isinstance(value, dict) and (_SEALED in value or _OMITTED in value)


def omits_secret(value: JSON) -> bool:
    """Whether a secret was left out of a side of a step: a rollback keeps what is there."""
    return any(isinstance(inner, dict) and _OMITTED in inner for _, inner in walk(value))


class RollbackState(msgspec.Struct, frozen=True):
    """What a tenant was."""

    parts: Parts
    lost: tuple[str, ...]
    """What cannot be brought back: it was left out of the history, and nothing is there to keep."""


def state_before(parts: Parts, entries: Sequence[HistoryEntry], ring: Keyring) -> RollbackState:
    """What a tenant was before these entries, newest first. What they do not touch stays. Raises
    `Undecipherable`."""
    wanted = dict(parts)
    lost: dict[str, list[str]] = {}
    for entry in entries:
        for step in entry.changes:
            there = wanted.pop(step.path, None)
            there = parts.get(step.path) if there is None else there
            lost[step.path] = []
            found = None
            if step.before is not None:
                found = _restored(step.path, step.before, there, ring, lost[step.path])
            if found is not None:
                wanted[step.path] = found
    return RollbackState(wanted, tuple(sorted(name for names in lost.values() for name in names)))


def _restored(
    path: str, value: JSON, there: object, ring: Keyring, lost: list[str]
) -> JSON | UnreadablePart:
    found: JSON | UnreadablePart
    if isinstance(value, dict) and _RAW in value:
        raw = _open(value[_RAW], None, ring)
        kept = there if isinstance(there, UnreadablePart) else None
        found = UnreadablePart(base64.b64decode(raw)) if isinstance(raw, str) else kept
    else:
        found = _opened(path, value, there, ring, lost)
    if found is None:
        lost.append(path)
    return found


def _opened(place: str, value: JSON, there: object, ring: Keyring, lost: list[str]) -> JSON:
    if isinstance(value, list):
        return [_opened(place, inner, None, ring, lost) for inner in value]
    if not isinstance(value, dict):
        return value
    if _SEALED in value or _OMITTED in value:
        return _open(value, there, ring)
    held = there if isinstance(there, dict) else {}
    found: dict[str, JSON] = {}
    for name, hidden in value.items():
        inner = _opened(f"{place}.{name}", hidden, held.get(name), ring, lost)
        if not is_sealed(hidden) or inner not in (None, ""):
            found[name] = inner
        elif name in PASSWORD and any(held.get(each) for each in PASSWORD):
            found |= {each: held[each] for each in PASSWORD if held.get(each)}
        else:
            lost.append(f"{place}.{name}")
    return found


def _open(hidden: JSON, there: object, ring: Keyring) -> JSON:
    assert isinstance(hidden, dict)
    if _OMITTED in hidden:
        kept: JSON = there  # type: ignore[assignment]
        return None if isinstance(there, UnreadablePart) else kept
    text = ring.unseal(str(hidden[_SEALED]), str(hidden.get(_KEY_ID) or ""))
    value: JSON = msgspec.json.decode(text)
    return value


def resealed(
    entry: HistoryEntry, ring: Keyring, problem: Callable[[str], None]
) -> HistoryEntry | None:
    """The same with all that is sealed under the current key; None where it is so already. What
    cannot be opened stays as it is, and is told."""

    def renewed(sealed: JSON, of: JSON) -> tuple[str, str] | None:
        if of == ring.current:
            return None
        try:
            return ring.seal(ring.unseal(str(sealed), str(of or "")))
        except Undecipherable as error:
            problem(str(error))
            return None

    changes = tuple(
        HistoryChange(
            step.path, _again(step.before, renewed), _again(step.after, renewed), step.resent
        )
        for step in entry.changes
    )
    return msgspec.structs.replace(entry, changes=changes) if changes != entry.changes else None


_Renewed = Callable[[JSON, JSON], tuple[str, str] | None]


def _again(value: JSON, renewed: _Renewed) -> JSON:
    if isinstance(value, list):
        return [_again(inner, renewed) for inner in value]
    if not isinstance(value, dict):
        return value
    if _SEALED in value:
        fresh = renewed(value[_SEALED], value.get(_KEY_ID))
        return value if fresh is None else {_SEALED: fresh[0], _KEY_ID: fresh[1]}
    found = {name: _again(inner, renewed) for name, inner in value.items()}
    sealed, of = value.get("passwordEncrypted"), value.get("passwordKeyId")
    if isinstance(sealed, str) and sealed and (fresh := renewed(sealed, of)) is not None:
        found |= {"passwordEncrypted": fresh[0], "passwordKeyId": fresh[1]}
    return found
