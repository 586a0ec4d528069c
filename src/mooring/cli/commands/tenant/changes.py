"""The changes of a tenant or of shared settings, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import typer

from mooring.cli.io.tables import show_json
from mooring.formatting import printable
from mooring.masking import is_hidden, is_split_key, masked
from mooring.model import JSON
from mooring.tenants.diff import DiffAction, FieldChange, action_of, changed_fields, changes_to_json
from mooring.tenants.history import UNREADABLE, is_sealed
from mooring.tenants.keys import Owner, field_of, kind_of, named
from mooring.tenants.parts import PartDiff, UnreadablePart
from mooring.tenants.publish.result import PublishResult
from mooring.tenants.validation import repeats_key

_SIGNS: dict[DiffAction, tuple[str, str]] = {
    "add": ("+", "green"),
    "change": ("~", "yellow"),
    "remove": ("-", "red"),
}
_DONE: dict[DiffAction, str] = {"add": "added", "change": "changed", "remove": "removed"}

_SENSITIVE: dict[DiffAction, str] = {
    "add": "(sensitive value is set)",
    "change": "(sensitive value changes)",
    "remove": "(sensitive value is removed)",
}
_SEALED = "(sensitive value, which may have changed: its key is not known here)"


def show_diff(owner: Owner, differences: Sequence[PartDiff], as_json: bool) -> None:
    """Print what would change."""
    if as_json:
        show_json({"tenant": owner, "changes": changes_to_json(differences)})
        return
    print_changes(differences)
    typer.echo(f"{named(owner)}: {summary(differences)}")


def show_published(result: PublishResult, as_json: bool) -> None:
    """Print what has changed."""
    if as_json:
        show_json(
            {
                "tenant": result.tenant,
                "number": result.number or None,
                "transactions": result.transactions,
                "changes": changes_to_json(result.changes),
                "lost": list[JSON](result.lost),
            }
        )
        return
    print_changes(result.changes)
    version = f" (version {result.number})" if result.number else ""
    typer.echo(f"{named(result.tenant)}: {summary(result.changes, done=True)}{version}")


def print_changes(differences: Sequence[PartDiff]) -> None:
    for difference in differences:
        for action, line in lines(difference):
            sign, colour = _SIGNS[action]
            sign = " " if line.startswith(" ") else typer.style(sign, fg=colour)
            typer.echo(f"{sign} {printable(line)}")


def summary(differences: Iterable[PartDiff], *, done: bool = False) -> str:
    """`3 to add, 1 to change`, or `3 added, 1 changed`."""
    counts: dict[DiffAction, int] = {"add": 0, "change": 0, "remove": 0}
    for difference in differences:
        counts[action_of(difference.before, difference.after)] += 1
    if not any(counts.values()):
        return "nothing to change"
    return ", ".join(
        f"{count} {_DONE[action]}" if done else f"{count} to {action}"
        for action, count in counts.items()
    )


def lines(difference: PartDiff) -> Iterator[tuple[DiffAction, str]]:
    """A line for each field that changes, or one for a whole part."""
    path, before, after = difference.path, difference.before, difference.after
    action = action_of(before, after)
    if action == "change":
        for change in changed_fields(difference):
            name = f"{path}.{change.field}" if change.field else path
            yield "change", f"{name}: {_change_text(change)}"
    elif is_hidden(field_of(path)):
        yield action, f"{path}: {_SENSITIVE[action]}"
    elif action == "add" and isinstance(after, dict):
        yield "add", path
        for field in _added_fields(path, after):
            yield "add", f"    {field}"
    else:
        whole = before if after is None else after
        yield action, path if isinstance(whole, dict) else f"{path}: {_text(whole)}"


def _added_fields(path: str, part: Mapping[str, JSON]) -> Iterator[str]:
    split = is_split_key(part)
    for name, value in part.items():
        if value is not None and not repeats_key(kind_of(path), name):
            is_secret = split or is_hidden(name) or is_sealed(value)
            yield f"{name}: {'(sensitive value)' if is_secret else _text(value)}"


def _change_text(change: FieldChange) -> str:
    if is_sealed(change.before) or is_sealed(change.after):
        return _SEALED if change.action == "change" else _SENSITIVE[change.action]
    if change.secret:
        return _SENSITIVE[change.action]
    before, after = _text(change.before), _text(change.after)
    return f"{before} → {after}" if before != after else _SENSITIVE["change"]


def _text(value: JSON | UnreadablePart) -> str:
    if isinstance(value, UnreadablePart):
        return UNREADABLE
    return "(none)" if value is None else json.dumps(masked(value), ensure_ascii=False)
