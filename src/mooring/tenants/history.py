"""The history of a tenant: its changes with author and time, and rollbacks.

Entries are stored apart from the tenant's own keys and outlive them. Secrets in them are encrypted.
Without a key they are omitted; a rollback then keeps the stored secrets, or reports that it lost
them.
"""

from __future__ import annotations

import base64
import itertools
import logging
from collections.abc import Iterable, Sequence

import msgspec

from mooring.errors import NotConfigured, Undecipherable
from mooring.masking import is_secret
from mooring.messages import Message, message
from mooring.model import JSON, rewrite_maps, walk
from mooring.store.contract import Entry
from mooring.tenants.keys import Owner, field_of, named
from mooring.tenants.parts import PartDiff, Parts, Resent, UnreadablePart
from mooring.tenants.publish.merge import PASSWORD, password_fields
from mooring.tenants.secrets import Keyring

log = logging.getLogger(__name__)

UNREADABLE = "(unreadable)"
"""Stands for a value, or for the action of an entry, that cannot be decoded."""

_MARKS = _SEALED, _KEY_ID, _OMITTED, _RAW = "$sealed", "$keyId", "$omitted", "$raw"


class HistoryChange(msgspec.Struct, frozen=True, rename="camel"):
    """A part that changed; None: it did not exist. Secrets are encrypted or omitted."""

    path: str
    before: JSON = None
    after: JSON = None
    resent: tuple[str, ...] = ()
    """Secret fields that count as changed, although they may be the same."""

    def __repr__(self) -> str:
        return f"<change of {self.path}>"  # without the values, which may hold secrets


class HistoryEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One change of a tenant or of shared settings, as its history records it."""

    number: int
    """Counts up from 1 for each tenant."""
    at: str
    """The time in UTC."""
    by: str
    action: str
    """`publish`, `delete`, `rollback`, `rekey` or `migrate`."""
    changes: tuple[HistoryChange, ...]
    note: str = ""
    token: str = ""
    """Identifies the entry to the publisher that wrote it."""
    page: int = 1
    """A publish that took several commits has as many pages, all with the same number."""
    more: bool = False
    """Whether another page was to follow. In the last page: the publish was interrupted."""
    since: int = 0
    """The number of an earlier incomplete entry that this one completes or follows; 0: none."""

    def __repr__(self) -> str:
        return f"<{self.number} {self.at} {self.by} {self.action}>"


def decode_entry(entry: Entry) -> HistoryEntry:
    try:
        return msgspec.json.decode(entry.value, type=HistoryEntry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("%s cannot be decoded: %s", entry.key.decode(errors="replace"), error)
        number, _, page = entry.key.rpartition(b"/")[2].partition(b".")
        return HistoryEntry(int(number), "", "", UNREADABLE, (), page=int(page or 1))


def merge_pages(pages: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    """One entry for each publish, from all pages in order."""
    entries: list[HistoryEntry] = []
    for _, group in itertools.groupby(pages, key=lambda page: page.number):
        first, *more = own_pages = list(group)
        if not more:
            entries.append(first)
            continue
        changes: dict[str, HistoryChange] = {}
        for change in itertools.chain.from_iterable(page.changes for page in own_pages):
            earlier = changes.get(change.path, change)
            resent = tuple(dict.fromkeys((*earlier.resent, *change.resent)))
            changes[change.path] = HistoryChange(change.path, earlier.before, change.after, resent)
        complete = [page.page for page in own_pages] == list(range(1, len(own_pages) + 1))
        readable = complete and all(page.action != UNREADABLE for page in own_pages)
        entries.append(
            msgspec.structs.replace(
                first,
                action=first.action if readable else UNREADABLE,
                changes=tuple(changes.values()),
                page=len(own_pages),
                more=own_pages[-1].more,
            )
        )
    return entries


def versions(entries: Sequence[HistoryEntry]) -> list[int]:
    """The versions that a rollback may go to: those that are not in the middle of a publish."""
    if not entries:
        return []
    excluded = {
        number for entry in entries if entry.since for number in range(entry.since, entry.number)
    }
    excluded |= {entry.number for entry in entries if entry.more}
    known = [entries[0].number - 1, *(entry.number for entry in entries)]
    return [number for number in known if number not in excluded]


def entries_after(
    tenant: Owner, entries: Sequence[HistoryEntry], number: int
) -> list[HistoryEntry]:
    """The entries after a version, newest first. Raises `NotConfigured` if that version is not
    kept, or is in the middle of a publish."""
    kept = [entry.number for entry in entries]
    if not kept or not kept[0] - 1 <= number <= kept[-1]:
        first, last = (kept[0] - 1, kept[-1]) if kept else ("", "")
        problem = message("version_not_found", version=number, first=first, last=last)
        raise NotConfigured(message("of_owner", owner=named(tenant), problem=problem))
    allowed = versions(entries)
    if number not in allowed:
        near = [version for version in allowed if version < number][-1:]
        near += [version for version in allowed if version > number][:1]
        raise NotConfigured(
            message("version_in_publish", owner=named(tenant), version=number, near=near)
        )
    later = [entry for entry in reversed(entries) if entry.number > number]
    complete = number + len(later) == kept[-1]
    if not complete or any(entry.action == UNREADABLE for entry in later):
        raise incomplete_history(tenant, number)
    return later


def incomplete_history(tenant: Owner, number: int) -> NotConfigured:
    return NotConfigured(message("version_unreachable", owner=named(tenant), version=number))


def history_changes(diffs: Iterable[PartDiff], ring: Keyring) -> tuple[HistoryChange, ...]:
    return tuple(
        HistoryChange(
            diff.path,
            {_OMITTED: True} if diff.oversized else _recorded(diff.path, diff.before, ring),
            _recorded(diff.path, diff.after, ring),
            diff.resent,
        )
        for diff in diffs
    )


def loses_secrets(parts: Parts) -> bool:
    """Whether a history that is written without a key lacks secrets of these parts."""
    return any(_recorded(path, value, Keyring([])) != value for path, value in parts.items())


def _recorded(path: str, value: JSON | UnreadablePart, ring: Keyring) -> JSON:
    if isinstance(value, UnreadablePart):
        return {_RAW: _hidden(value.text, ring)}
    return _sealed(field_of(path), value, ring)


def _sealed(name: str, value: JSON, ring: Keyring) -> JSON:
    """The value of a field with its secrets encrypted."""
    if is_secret(name) and value not in (None, "") and name != "passwordEncrypted":
        return _hidden(value, ring)
    if isinstance(value, list):
        return [_sealed("", inner, ring) for inner in value]
    if not isinstance(value, dict):
        return value
    if not value.keys().isdisjoint(_MARKS):
        return _hidden(value, ring)  # so that it cannot be mistaken for our marks
    return {field: _sealed(field, inner, ring) for field, inner in value.items()}


def _hidden(value: JSON, ring: Keyring) -> JSON:
    if not ring.current:
        return {_OMITTED: True}
    sealed, key_id = ring.seal(msgspec.json.encode(value).decode())
    return {_SEALED: sealed, _KEY_ID: key_id}


def entry_diffs(entry: HistoryEntry, ring: Keyring) -> list[PartDiff]:
    """The changes of an entry. Secrets that cannot be decrypted stay sealed: see `is_sealed`."""

    def unsealed(fields: dict[str, JSON]) -> JSON:
        if not is_sealed(fields):
            return fields
        try:
            return _open(fields, fields, ring)
        except Undecipherable:
            return fields

    def side(value: JSON) -> JSON | UnreadablePart:
        unreadable = isinstance(value, dict) and _RAW in value
        return UnreadablePart(b"") if unreadable else rewrite_maps(value, unsealed)

    return [
        PartDiff(change.path, side(change.before), side(change.after), change.resent)
        for change in entry.changes
    ]


def resent(entries: Iterable[HistoryEntry]) -> Resent:
    """The secrets that count as changed when these entries are rolled back."""
    fields: dict[str, list[str]] = {}
    for entry in entries:
        for change in entry.changes:
            if change.resent:
                fields.setdefault(change.path, []).extend(change.resent)
    return {path: tuple(dict.fromkeys(names)) for path, names in fields.items()}


def is_sealed(value: object) -> bool:
    """Whether this stands for a secret that the history omits, or that no known key decrypts."""
    return isinstance(value, dict) and (_SEALED in value or _OMITTED in value)


def omits_secret(value: JSON) -> bool:
    """Whether the history omits a secret of this value: a rollback keeps the stored one."""
    return any(isinstance(inner, dict) and _OMITTED in inner for _, inner in walk(value))


class RollbackState(msgspec.Struct, frozen=True):
    parts: Parts
    lost: tuple[str, ...]
    """What cannot be restored: the history omits it, and there is no stored value to keep."""


def state_before(parts: Parts, entries: Sequence[HistoryEntry], ring: Keyring) -> RollbackState:
    """A tenant before these entries, newest first. Parts that they do not change stay. Raises
    `Undecipherable`."""
    target = dict(parts)
    lost: dict[str, list[str]] = {}
    for entry in entries:
        for change in entry.changes:
            stored = target.pop(change.path, None)
            stored = parts.get(change.path) if stored is None else stored
            lost[change.path] = []
            restored = None
            if change.before is not None:
                restored = _restored(change, stored, ring, lost[change.path])
            if restored is not None:
                target[change.path] = restored
    return RollbackState(target, tuple(sorted(itertools.chain.from_iterable(lost.values()))))


def _restored(
    change: HistoryChange, stored: object, ring: Keyring, lost: list[str]
) -> JSON | UnreadablePart:
    restored: JSON | UnreadablePart
    if isinstance(change.before, dict) and _RAW in change.before:
        raw = _open(change.before[_RAW], None, ring)
        kept = stored if isinstance(stored, UnreadablePart) else None
        restored = UnreadablePart(base64.b64decode(raw)) if isinstance(raw, str) else kept
    else:
        restored = _opened(change.path, change.before, stored, ring, lost)
    if restored is None:
        lost.append(change.path)
    return restored


def _opened(place: str, value: JSON, stored: object, ring: Keyring, lost: list[str]) -> JSON:
    if isinstance(value, list):
        return [_opened(place, inner, None, ring, lost) for inner in value]
    if not isinstance(value, dict):
        return value
    if is_sealed(value):
        return _open(value, stored, ring)
    kept = stored if isinstance(stored, dict) else {}
    fields: dict[str, JSON] = {}
    for name, sealed in value.items():
        inner = _opened(f"{place}.{name}", sealed, kept.get(name), ring, lost)
        if not is_sealed(sealed) or inner not in (None, ""):
            fields[name] = inner
        elif name in PASSWORD and (password := password_fields(kept)):
            fields |= password
        else:
            lost.append(f"{place}.{name}")
    return fields


def _open(sealed: JSON, stored: object, ring: Keyring) -> JSON:
    assert isinstance(sealed, dict)
    if _OMITTED in sealed:
        kept: JSON = stored  # type: ignore[assignment]
        return None if isinstance(stored, UnreadablePart) else kept
    text = ring.unseal(str(sealed[_SEALED]), str(sealed.get(_KEY_ID) or ""))
    value: JSON = msgspec.json.decode(text)
    return value


def resealed(entry: HistoryEntry, ring: Keyring) -> tuple[HistoryEntry | None, list[Message]]:
    """The entry with all secrets under the current key, None if they are already, and the problems
    of those that cannot be decrypted, which are left unchanged."""
    problems: list[Message] = []

    def renewed(fields: dict[str, JSON]) -> JSON:
        for text, id in ((_SEALED, _KEY_ID), ("passwordEncrypted", "passwordKeyId")):
            sealed, key_id = fields.get(text), fields.get(id)
            if isinstance(sealed, str) and sealed and key_id != ring.current:
                try:
                    fields[text], fields[id] = ring.seal(ring.unseal(sealed, str(key_id or "")))
                except Undecipherable as error:
                    problems.append(error.message)
        return fields

    changes = tuple(
        msgspec.structs.replace(
            change,
            before=rewrite_maps(change.before, renewed),
            after=rewrite_maps(change.after, renewed),
        )
        for change in entry.changes
    )
    changed = changes != entry.changes
    return msgspec.structs.replace(entry, changes=changes) if changed else None, problems
