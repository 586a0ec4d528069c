"""What changes of a tenant, in lines for people and in records for programs. Secrets are masked:
that one changes is said, what it is is not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import typer

from mooring.cli.telling import printable
from mooring.model import JSON
from mooring.tenants.history import is_closed
from mooring.tenants.keys import kind_of
from mooring.tenants.publishing import Difference, Unread
from mooring.tenants.rules import IDENTITY
from mooring.tenants.secrets import is_secret, masked

Action = Literal["add", "change", "remove"]

_SIGNS: dict[Action, tuple[str, str]] = {
    "add": ("+", "green"),
    "change": ("~", "yellow"),
    "remove": ("-", "red"),
}
_DONE: dict[Action, str] = {"add": "added", "change": "changed", "remove": "removed"}

UNREADABLE = "(unreadable)"
_SENSITIVE: dict[Action, str] = {
    "add": "(sensitive value is set)",
    "change": "(sensitive value changes)",
    "remove": "(sensitive value is removed)",
}
_CLOSED = "(sensitive value, which may have changed: its key is not known here)"


class FieldChange(NamedTuple):
    field: str
    """By its names from the outside in, with dots; empty for a part that is one value."""
    before: JSON | Unread
    after: JSON | Unread

    @property
    def action(self) -> Action:
        return _action(self.before, self.after)

    @property
    def secret(self) -> bool:
        return any(is_secret(name) for name in self.field.split("."))


def _action(before: object, after: object) -> Action:
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


def _within(place: str, before: JSON | Unread, after: JSON | Unread) -> Iterator[FieldChange]:
    if before == after and not isinstance(before, Unread):
        return
    maps = isinstance(before, dict) and isinstance(after, dict)
    if not maps or is_closed(before) or is_closed(after):
        yield FieldChange(place, before, after)
        return
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    for name in {**before, **after}:
        inner = f"{place}.{name}" if place else name
        yield from _within(inner, before.get(name), after.get(name))


def lines(difference: Difference) -> Iterator[tuple[Action, str]]:
    """What to print of a difference: a line for each field that changes, or for a whole part."""
    path, before, after = difference.path, difference.before, difference.after
    action = _action(before, after)
    if action == "change":
        for each in field_changes(before, after):
            name = f"{path}.{each.field}" if each.field else path
            yield "change", f"{name}: {_told(each)}"
    elif action == "add" and isinstance(after, dict):
        yield "add", path
        for name, inner in after.items():
            if not _repeats(path, name) and inner is not None:
                yield "add", f"    {name}: {_shown(name, inner)}"
    else:
        value = before if after is None else after
        yield action, path if isinstance(value, dict) else f"{path}: {_text(value)}"


def _told(change: FieldChange) -> str:
    if is_closed(change.before) or is_closed(change.after):
        return _CLOSED if change.action == "change" else _SENSITIVE[change.action]
    if change.secret:
        return _SENSITIVE[change.action]
    before, after = _text(change.before), _text(change.after)
    return f"{before} → {after}" if before != after else _SENSITIVE["change"]


def _shown(name: str, value: JSON) -> str:
    return "(sensitive value)" if is_secret(name) or is_closed(value) else _text(value)


def _text(value: JSON | Unread) -> str:
    if isinstance(value, Unread):
        return UNREADABLE
    return "(none)" if value is None else json.dumps(masked(value), ensure_ascii=False)


def _repeats(path: str, field: str) -> bool:
    """Whether a field says again what the part's place says."""
    return field in IDENTITY and not (kind_of(path) == "database" and field == "username")


def counted(differences: Iterable[Difference], *, done: bool = False) -> str:
    """`3 to add, 1 to change`, or `3 added, 1 changed`."""
    counts: dict[Action, int] = {"add": 0, "change": 0, "remove": 0}
    for each in differences:
        counts[_action(each.before, each.after)] += 1
    if not any(counts.values()):
        return "nothing to change"
    return ", ".join(
        f"{count} {_DONE[action]}" if done else f"{count} to {action}"
        for action, count in counts.items()
    )


def print_changes(differences: Sequence[Difference]) -> None:
    for difference in differences:
        for action, line in lines(difference):
            sign, colour = _SIGNS[action]
            sign = " " if line.startswith(" ") else typer.style(sign, fg=colour)
            typer.echo(f"{sign} {printable(line)}")


def record(difference: Difference) -> Mapping[str, JSON]:
    before, after = difference.before, difference.after
    was: JSON | Unread = {} if before is None and isinstance(after, dict) else before
    is_now: JSON | Unread = {} if after is None and isinstance(before, dict) else after
    sensitive = [each.field for each in field_changes(was, is_now) if each.secret]
    return {
        "path": difference.path,
        "action": _action(before, after),
        "before": _for_programs(before),
        "after": _for_programs(after),
        "sensitive": list[JSON](sensitive),
    }


def records(differences: Iterable[Difference]) -> list[JSON]:
    return [dict(record(each)) for each in differences]


def _for_programs(value: JSON | Unread) -> JSON:
    return UNREADABLE if isinstance(value, Unread) else masked(value)
