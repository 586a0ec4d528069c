"""What changes of a tenant, in lines for people. Secrets are masked: that one changes is said, what
it is is not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import typer

from mooring.cli.io.stderr import printable
from mooring.masking import is_hidden, is_split_key, masked
from mooring.model import JSON
from mooring.tenants.diff import UNREADABLE, Action, FieldChange, action_of, changed_fields
from mooring.tenants.history import is_closed
from mooring.tenants.keys import field_of, kind_of
from mooring.tenants.publish.plan import Difference, Unread
from mooring.tenants.validation import IDENTITY

_SIGNS: dict[Action, tuple[str, str]] = {
    "add": ("+", "green"),
    "change": ("~", "yellow"),
    "remove": ("-", "red"),
}
_DONE: dict[Action, str] = {"add": "added", "change": "changed", "remove": "removed"}

_SENSITIVE: dict[Action, str] = {
    "add": "(sensitive value is set)",
    "change": "(sensitive value changes)",
    "remove": "(sensitive value is removed)",
}
_CLOSED = "(sensitive value, which may have changed: its key is not known here)"


def lines(difference: Difference) -> Iterator[tuple[Action, str]]:
    """What to print of a difference: a line for each field that changes, or for a whole part."""
    path, before, after = difference.path, difference.before, difference.after
    action = action_of(before, after)
    if action == "change":
        for each in changed_fields(difference):
            name = f"{path}.{each.field}" if each.field else path
            yield "change", f"{name}: {_told(each)}"
    elif is_hidden(field_of(path)):
        yield action, f"{path}: {_SENSITIVE[action]}"
    elif action == "add" and isinstance(after, dict):
        yield "add", path
        split = is_split_key(after)
        for name, inner in after.items():
            if not _repeats(path, name) and inner is not None:
                shown = "(sensitive value)" if split else _shown(name, inner)
                yield "add", f"    {name}: {shown}"
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
    return "(sensitive value)" if is_hidden(name) or is_closed(value) else _text(value)


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
        counts[action_of(each.before, each.after)] += 1
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
