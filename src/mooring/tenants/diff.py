"""The changes of a tenant field by field, and its document with secrets masked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from mooring.errors import Undecipherable
from mooring.masking import (
    MASK,
    holds_secret,
    is_hidden,
    is_split_key,
    masked,
    masked_field,
    masked_fields,
    masked_names,
    masked_text,
)
from mooring.messages import Message, message
from mooring.model import JSON
from mooring.tenants.document import Document, hidden_extra, to_document
from mooring.tenants.history import UNREADABLE, is_sealed
from mooring.tenants.keys import field_of, kind_of, name_of
from mooring.tenants.parts import PartDiff, Parts, UnreadablePart
from mooring.tenants.publish.merge import PASSWORD
from mooring.tenants.secrets import Keyring
from mooring.tenants.validation import EXTRA, FIELDS

DiffAction = Literal["add", "change", "remove"]


class FieldChange(NamedTuple):
    field: str
    """Its path, with dots; empty for a part that is a single value."""
    before: JSON | UnreadablePart
    after: JSON | UnreadablePart
    hidden: bool = False
    """Whether the whole value is secret, regardless of its name."""

    @property
    def action(self) -> DiffAction:
        return action_of(self.before, self.after)

    @property
    def secret(self) -> bool:
        """Whether masking hides the change, or part of it."""
        if self.hidden or any(is_hidden(name) for name in self.field.split(".")):
            return True
        if isinstance(self.before, UnreadablePart) or isinstance(self.after, UnreadablePart):
            return False
        return masked(self.before) == masked(self.after)


def action_of(before: object, after: object) -> DiffAction:
    if before is None:
        return "add"
    return "remove" if after is None else "change"


def changed_fields(diff: PartDiff) -> list[FieldChange]:
    """The changes within a part field by field, including secrets that count as changed. A password
    that is in clear text on one side and encrypted on the other is one change."""
    before, after, resent = diff.before, diff.after, diff.resent
    if is_hidden(field_of(diff.path)):
        return [FieldChange("", before, after, hidden=True)]
    if before is None and isinstance(after, dict):
        before = {}
    if after is None and isinstance(before, dict):
        after = {}
    changes = {change.field: change for change in _compare("", before, after)}
    plain, sealed = changes.get("password"), changes.get("passwordEncrypted")
    if plain and sealed:
        del changes["passwordEncrypted"]
        changes["password"] = FieldChange(
            "password", plain.before or sealed.before, plain.after or sealed.after
        )
    others = [change for field, change in changes.items() if not _is_resent(field, resent)]
    return [*others, *(FieldChange(field, MASK, MASK) for field in resent)]


def _is_resent(field: str, resent: Sequence[str]) -> bool:
    """Whether a field belongs to a secret that counts as changed, which is reported in the same way
    whether or not it changed."""
    field = "password" if field == "passwordEncrypted" else field
    return any(not name or field == name or field.startswith(f"{name}.") for name in resent)


def _compare(
    place: str, before: JSON | UnreadablePart, after: JSON | UnreadablePart
) -> Iterator[FieldChange]:
    if before == after and not isinstance(before, UnreadablePart):
        return
    split = is_split_key(before) or is_split_key(after)
    whole = is_sealed(before) or is_sealed(after) or (split and place)
    if whole or not isinstance(before, dict) or not isinstance(after, dict):
        yield FieldChange(place, before, after)
        return
    for name, shown in masked_names({**before, **after}).items():
        inner = f"{place}.{shown}" if place else shown
        for change in _compare(inner, before.get(name), after.get(name)):
            yield change._replace(hidden=True) if split else change


def change_to_json(diff: PartDiff) -> dict[str, JSON]:
    before, after = diff.before, diff.after
    sensitive = [change.field for change in changed_fields(diff) if change.secret]
    return {
        "path": diff.path,
        "action": action_of(before, after),
        "before": masked_part(diff.path, before),
        "after": masked_part(diff.path, after),
        "sensitive": list[JSON](sensitive),
    }


def changes_to_json(diffs: Iterable[PartDiff]) -> list[JSON]:
    return [change_to_json(diff) for diff in diffs]


def masked_part(path: str, value: JSON | UnreadablePart) -> JSON:
    return UNREADABLE if isinstance(value, UnreadablePart) else masked_field(field_of(path), value)


class MaskedDocument(NamedTuple):
    document: dict[str, JSON]
    """In the format of a tenant's file."""
    problems: list[Message]
    """Parts that cannot be decoded or decrypted, and are left out or stay masked."""

    def __repr__(self) -> str:
        return f"<{', '.join(self.document)}>"


def masked_document(tenant: int, parts: Parts, ring: Keyring | None = None) -> MaskedDocument:
    """The document of a tenant. Its secrets are masked, or in clear text if a `ring` is given."""
    document, problems = to_document(tenant, parts), list[Message]()
    for path, value in parts.items():
        if isinstance(value, UnreadablePart):
            problems.append(message("part_unreadable", path=path))
        if not isinstance(value, dict):
            continue
        kind, name = kind_of(path), name_of(path)
        place = document.get(kind)
        place = place.get(name) if name and isinstance(place, dict) else place
        if isinstance(place, dict):
            _add_secrets(place, kind, path, value, ring, problems)
    return MaskedDocument(document, problems)


def _add_secrets(
    place: dict[str, JSON],
    kind: str,
    path: str,
    value: Mapping[str, JSON],
    ring: Keyring | None,
    problems: list[Message],
) -> None:
    if value.get("password") or value.get("passwordEncrypted"):
        place["password"] = MASK if ring is None else _opened(path, value, ring, problems)
    extra = hidden_extra(kind, value)
    hidden = {
        name: inner
        for name, inner in value.items()
        if name not in PASSWORD
        and inner not in (None, "")
        and (name in extra or (name in FIELDS[kind] and holds_secret({name: inner})))
    }
    for name, inner in (hidden if ring is not None else masked_fields(hidden)).items():
        fields = place if name in FIELDS[kind] else place.setdefault(EXTRA, {})
        assert isinstance(fields, dict)
        fields[name] = inner


def _opened(path: str, value: Mapping[str, JSON], ring: Keyring, problems: list[Message]) -> JSON:
    sealed = value.get("passwordEncrypted")
    if not sealed:
        return value.get("password")
    try:
        return ring.unseal(str(sealed), str(value.get("passwordKeyId") or ""))
    except Undecipherable as error:
        problems.append(message("value_rejected_because", place=path, problem=error))
        return MASK


def unmask_document(document: Document, stored: Parts) -> Document:
    """The document with the stored values in place of its masks. A mask without a stored value
    stays, and is rejected when it is published."""
    sections = {
        section: {path: _unmask_part(value, stored.get(path)) for path, value in parts.items()}
        for section, parts in document.sections.items()
    }
    return msgspec.structs.replace(document, sections=sections)


def _unmask_part(value: JSON, stored: object) -> JSON:
    if not isinstance(value, dict):
        return value
    fields: dict[str, JSON] = {}
    for name, inner in value.items():
        if name in (*PASSWORD, "passwordHash") and inner == MASK and isinstance(stored, dict):
            continue  # a publish keeps these if they are left out
        kept = stored.get(name) if isinstance(stored, dict) else None
        fields[name] = unmask(inner, stored if name == EXTRA else kept)
    return fields


def unmask_part(path: str, value: JSON, stored: JSON) -> JSON:
    """Like `unmask`, for a part; one that is secret as a whole is kept or replaced as a whole."""
    if not is_hidden(field_of(path)):
        return unmask(value, stored)
    return stored if value == MASK and stored not in (None, "") else value


def unmask(value: JSON, stored: object) -> JSON:
    """A value with the stored values in place of its masks. A mask without a stored value stays,
    and so does a mask within a text that differs from the stored one."""
    if isinstance(value, dict):
        return _unmask_map(value, stored if isinstance(stored, dict) else {})
    if isinstance(value, list) and isinstance(stored, list) and len(value) == len(stored):
        split = is_split_key(stored)
        return [
            old if split and inner == MASK else unmask(inner, old)
            for inner, old in zip(value, stored, strict=True)
        ]
    if isinstance(value, str) and isinstance(stored, str) and value == masked_text(stored):
        return stored
    return value


def _unmask_map(value: dict[str, JSON], stored: dict[str, JSON]) -> dict[str, JSON]:
    split = is_split_key(stored)
    fields: dict[str, JSON] = {}
    for name, inner in value.items():
        old = stored.get(name)
        kept = inner == MASK and (split or is_hidden(name)) and old not in (None, "")
        fields[name] = old if kept else unmask(inner, old)
    return fields
