"""What changes of a tenant, field by field, in records for programs. Secrets are masked: that one
changes is said, what it is is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from mooring.masking import MASK, is_hidden, is_split_key, masked, masked_field
from mooring.model import JSON
from mooring.tenants.history import is_closed
from mooring.tenants.keys import field_of
from mooring.tenants.publish.plan import Difference, Unread

Action = Literal["add", "change", "remove"]

UNREADABLE = "(unreadable)"


class FieldChange(NamedTuple):
    field: str
    """By its names from the outside in, with dots; empty for a part that is one value."""
    before: JSON | Unread
    after: JSON | Unread
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
        if isinstance(self.before, Unread) or isinstance(self.after, Unread):
            return False
        return masked(self.before) == masked(self.after)


def action_of(before: object, after: object) -> Action:
    if before is None:
        return "add"
    return "remove" if after is None else "change"


def field_changes(before: JSON | Unread, after: JSON | Unread) -> list[FieldChange]:
    """Field by field. A password that is plain on one side and sealed on the other is one."""
    found = {each.field: each for each in _within("", before, after)}
    plain, sealed = found.get("password"), found.get("passwordEncrypted")
    if plain and sealed:
        del found["passwordEncrypted"]
        found["password"] = FieldChange(
            "password", plain.before or sealed.before, plain.after or sealed.after
        )
    return list(found.values())


def changed_fields(difference: Difference) -> list[FieldChange]:
    """What changes within a part, with the secrets that count as changed."""
    before, after = difference.before, difference.after
    if is_hidden(field_of(difference.path)):
        return [FieldChange("", before, after, hidden=True)]
    was: JSON | Unread = {} if before is None and isinstance(after, dict) else before
    is_now: JSON | Unread = {} if after is None and isinstance(before, dict) else after
    resent = difference.resent
    found = [each for each in field_changes(was, is_now) if not _is_of(each.field, resent)]
    return [*found, *(FieldChange(field, MASK, MASK) for field in resent)]


def _is_of(field: str, resent: Sequence[str]) -> bool:
    """Whether a change is one of a secret that counts as changed: the same is said of it, in the
    same place, whether or not it changed."""
    field = "password" if field == "passwordEncrypted" else field
    return any(not each or field == each or field.startswith(f"{each}.") for each in resent)


def _within(place: str, before: JSON | Unread, after: JSON | Unread) -> Iterator[FieldChange]:
    if before == after and not isinstance(before, Unread):
        return
    maps = isinstance(before, dict) and isinstance(after, dict)
    split = is_split_key(before) or is_split_key(after)
    if not maps or is_closed(before) or is_closed(after) or (split and place):
        yield FieldChange(place, before, after)
        return
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    for name in {**before, **after}:
        inner = f"{place}.{name}" if place else name
        for change in _within(inner, before.get(name), after.get(name)):
            yield change._replace(hidden=True) if split else change


def record(difference: Difference) -> Mapping[str, JSON]:
    before, after = difference.before, difference.after
    sensitive = [each.field for each in changed_fields(difference) if each.secret]
    return {
        "path": difference.path,
        "action": action_of(before, after),
        "before": _for_programs(difference.path, before),
        "after": _for_programs(difference.path, after),
        "sensitive": list[JSON](sensitive),
    }


def records(differences: Iterable[Difference]) -> list[JSON]:
    return [dict(record(each)) for each in differences]


def _for_programs(path: str, value: JSON | Unread) -> JSON:
    return UNREADABLE if isinstance(value, Unread) else masked_field(field_of(path), value)
