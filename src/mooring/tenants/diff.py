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
    masked_text,
)
from mooring.model import JSON
from mooring.tenants.document import Document, hidden_extra, to_document
from mooring.tenants.history import is_sealed
from mooring.tenants.keys import field_of, kind_of, name_of
from mooring.tenants.parts import PartDiff, Parts, UnreadablePart
from mooring.tenants.publish.merge import PASSWORD
from mooring.tenants.secrets import Keyring
from mooring.tenants.validation import EXTRA, FIELDS

Action = Literal["add", "change", "remove"]

UNREADABLE = "(unreadable)"


class FieldChange(NamedTuple):
    field: str
    """By its names from the outside in, with dots; empty for a part that is one value."""
    before: JSON | UnreadablePart
    after: JSON | UnreadablePart
    hidden: bool = False
    """Whether it is secret as a whole, whatever its name."""

    @property
    def action(self) -> Action:
        return action_of(self.before, self.after)

    @property
    def secret(self) -> bool:
        """Whether what changes is not shown, or not whole."""
        if self.hidden or any(is_hidden(name) for name in self.field.split(".")):
            return True
        if isinstance(self.before, UnreadablePart) or isinstance(self.after, UnreadablePart):
            return False
        return masked(self.before) == masked(self.after)


def action_of(before: object, after: object) -> Action:
    if before is None:
        return "add"
    return "remove" if after is None else "change"


def field_changes(before: JSON | UnreadablePart, after: JSON | UnreadablePart) -> list[FieldChange]:
    """Field by field. A password that is plain on one side and sealed on the other is one."""
    found = {each.field: each for each in _within("", before, after)}
    plain, sealed = found.get("password"), found.get("passwordEncrypted")
    if plain and sealed:
        del found["passwordEncrypted"]
        found["password"] = FieldChange(
            "password", plain.before or sealed.before, plain.after or sealed.after
        )
    return list(found.values())


def changed_fields(difference: PartDiff) -> list[FieldChange]:
    """What changes within a part, with the secrets that count as changed."""
    before, after = difference.before, difference.after
    if is_hidden(field_of(difference.path)):
        return [FieldChange("", before, after, hidden=True)]
    was: JSON | UnreadablePart = {} if before is None and isinstance(after, dict) else before
    is_now: JSON | UnreadablePart = {} if after is None and isinstance(before, dict) else after
    resent = difference.resent
    found = [each for each in field_changes(was, is_now) if not _is_of(each.field, resent)]
    return [*found, *(FieldChange(field, MASK, MASK) for field in resent)]


def _is_of(field: str, resent: Sequence[str]) -> bool:
    """Whether a change is one of a secret that counts as changed: the same is said of it, in the
    same place, whether or not it changed."""
    field = "password" if field == "passwordEncrypted" else field
    return any(not each or field == each or field.startswith(f"{each}.") for each in resent)


def _within(
    place: str, before: JSON | UnreadablePart, after: JSON | UnreadablePart
) -> Iterator[FieldChange]:
    if before == after and not isinstance(before, UnreadablePart):
        return
    maps = isinstance(before, dict) and isinstance(after, dict)
    split = is_split_key(before) or is_split_key(after)
    if not maps or is_sealed(before) or is_sealed(after) or (split and place):
        yield FieldChange(place, before, after)
        return
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    for name in {**before, **after}:
        inner = f"{place}.{name}" if place else name
        for change in _within(inner, before.get(name), after.get(name)):
            yield change._replace(hidden=True) if split else change


def change_to_json(difference: PartDiff) -> Mapping[str, JSON]:
    before, after = difference.before, difference.after
    sensitive = [each.field for each in changed_fields(difference) if each.secret]
    return {
        "path": difference.path,
        "action": action_of(before, after),
        "before": _for_programs(difference.path, before),
        "after": _for_programs(difference.path, after),
        "sensitive": list[JSON](sensitive),
    }


def changes_to_json(differences: Iterable[PartDiff]) -> list[JSON]:
    return [dict(change_to_json(each)) for each in differences]


def _for_programs(path: str, value: JSON | UnreadablePart) -> JSON:
    return UNREADABLE if isinstance(value, UnreadablePart) else masked_field(field_of(path), value)


class MaskedDocument(NamedTuple):
    document: dict[str, JSON]
    """As in a tenant's file."""
    problems: list[str]
    """What of the tenant cannot be understood or decrypted, and is left out or stays masked."""

    def __repr__(self) -> str:
        return f"<{', '.join(self.document)}>"


def masked_document(tenant: int, parts: Parts, ring: Keyring | None = None) -> MaskedDocument:
    """The document of a tenant. Its secrets are masked, or in clear text where a `ring` is given
    to open them with."""
    document, problems = to_document(tenant, parts), []
    for path, value in parts.items():
        if isinstance(value, UnreadablePart):
            problems.append(
                f"{path} cannot be understood and is left out: to publish may remove it"
            )
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
    problems: list[str],
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
        if name in FIELDS[kind]:
            place[name] = inner
        else:
            told = place.setdefault(EXTRA, {})
            assert isinstance(told, dict)
            told[name] = inner


def _opened(path: str, value: Mapping[str, JSON], ring: Keyring, problems: list[str]) -> JSON:
    sealed = value.get("passwordEncrypted")
    if not sealed:
        return value.get("password")
    try:
        return ring.unseal(str(sealed), str(value.get("passwordKeyId") or ""))
    except Undecipherable as error:
        problems.append(f"{path}: {error}")
        return MASK


def unmask_document(document: Document, there: Parts) -> Document:
    """The document with what is there in place of its masks. A mask of which nothing is there
    stays, and is refused where it is published."""
    sections = {
        section: {path: _restored(value, there.get(path)) for path, value in parts.items()}
        for section, parts in document.sections.items()
    }
    return msgspec.structs.replace(document, sections=sections)


def _restored(value: JSON, there: object) -> JSON:
    if not isinstance(value, dict):
        return value
    found: dict[str, JSON] = {}
    for name, inner in value.items():
        if name in (*PASSWORD, "passwordHash") and inner == MASK and isinstance(there, dict):
            continue  # what a document leaves out of these is kept
        held = there.get(name) if isinstance(there, dict) else None
        found[name] = unmask(inner, there if name == EXTRA else held)
    return found


def unmask_part(path: str, value: JSON, there: JSON) -> JSON:
    """The same for a part. One that is secret as a whole is kept or replaced as a whole."""
    if not is_hidden(field_of(path)):
        return unmask(value, there)
    return there if value == MASK and there not in (None, "") else value


def unmask(value: JSON, there: object) -> JSON:
    """A value with what is there in place of its masks. A mask of which nothing is there stays, and
    so does one within a text that is otherwise another."""
    if isinstance(value, dict):
        held = there if isinstance(there, dict) else {}
        split = is_split_key(held)
        return {
            name: held[name]
            if (split or is_hidden(name)) and inner == MASK and held.get(name) not in (None, "")
            else unmask(inner, held.get(name))
            for name, inner in value.items()
        }
    if isinstance(value, list) and isinstance(there, list) and len(value) == len(there):
        split = is_split_key(there)
        return [
            held if split and inner == MASK else unmask(inner, held)
            for inner, held in zip(value, there, strict=True)
        ]
    if isinstance(value, str) and isinstance(there, str) and value == masked_text(there):
        return there
    return value
