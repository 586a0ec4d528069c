"""`mooring tenant list` and `mooring tenant show`, and the changes of a tenant as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
import yaml

from mooring.cli.commands.tenant.options import TenantArgument
from mooring.cli.io import output as printing
from mooring.cli.io.connect import open_hub, run_command
from mooring.cli.io.options import JSONOption, NamespaceOption, RevealOption, StoreOption
from mooring.cli.io.output import (
    as_text,
    count_of,
    note,
    open_output,
    print_stderr,
    progress,
    show_json,
    warn,
)
from mooring.errors import NotConfigured, Undecipherable
from mooring.formatting import printable, quoted
from mooring.masking import cleartext_secrets, is_hidden, is_split_key, masked
from mooring.model import JSON
from mooring.store.contract import Entry
from mooring.tenants.diff import UNREADABLE, Action, FieldChange, action_of, changed_fields
from mooring.tenants.document import JSON_SUFFIXES, to_document
from mooring.tenants.history import is_sealed
from mooring.tenants.keys import MAX_ID, NAMESPACE, PartOf, TenantKeys, field_of, kind_of, name_of
from mooring.tenants.model import Part, Tenant, UnreadableValue, decode, parse_part
from mooring.tenants.parts import PartDiff, Parts, StoredParts, UnreadablePart, stored_parts
from mooring.tenants.secrets import Keyring
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


def lines(difference: PartDiff) -> Iterator[tuple[Action, str]]:
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
    if is_sealed(change.before) or is_sealed(change.after):
        return _CLOSED if change.action == "change" else _SENSITIVE[change.action]
    if change.secret:
        return _SENSITIVE[change.action]
    before, after = _text(change.before), _text(change.after)
    return f"{before} → {after}" if before != after else _SENSITIVE["change"]


def _shown(name: str, value: JSON) -> str:
    return "(sensitive value)" if is_hidden(name) or is_sealed(value) else _text(value)


def _text(value: JSON | UnreadablePart) -> str:
    if isinstance(value, UnreadablePart):
        return UNREADABLE
    return "(none)" if value is None else json.dumps(masked(value), ensure_ascii=False)


def _repeats(path: str, field: str) -> bool:
    """Whether a field says again what the part's place says."""
    return field in IDENTITY and not (kind_of(path) == "database" and field == "username")


def counted(differences: Iterable[PartDiff], *, done: bool = False) -> str:
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


def print_changes(differences: Sequence[PartDiff]) -> None:
    for difference in differences:
        for action, line in lines(difference):
            sign, colour = _SIGNS[action]
            sign = " " if line.startswith(" ") else typer.style(sign, fg=colour)
            typer.echo(f"{sign} {printable(line)}")


_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # written in C, if it is there
_STATUSES = ("active", "inactive", "suspended")


def list_tenants(
    status: Annotated[
        str, typer.Option("--status", metavar="STATUS", help="active, inactive or suspended")
    ] = "",
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """List the tenants, by id."""
    if status not in ("", *_STATUSES):
        raise typer.BadParameter(f"{quoted(status)} is none of {', '.join(_STATUSES)}")
    found = run_command(_all(TenantKeys(namespace), store))
    printing.show(
        [tenant for tenant in found if status in ("", _status(tenant))],
        {
            "id": lambda tenant: str(tenant.id),
            "code": lambda tenant: tenant.meta.code if tenant.meta else "",
            "name": lambda tenant: tenant.meta.name if tenant.meta else "",
            "status": _status,
            "domain": lambda tenant: tenant.domain.primary,
            "databases": lambda tenant: str(len(tenant.databases)),
            "ftp users": lambda tenant: str(len(tenant.ftp)),
        },
        _record,
        as_json=as_json,
        spare=("ftp users", "databases"),
    )


async def _all(keys: TenantKeys, store: str) -> list[Tenant]:
    async with open_hub(store, "tree") as hub:
        entries = (await hub.store.read(keys.all)).entries
    parts: dict[int, list[tuple[str, Part]]] = {}
    for entry in entries:
        place = keys.understand(entry.key)
        if isinstance(place, PartOf):
            part = _understood(place, entry)
            parts.setdefault(place.tenant, []).extend([] if part is None else [(place.path, part)])
    return [Tenant(id).changed(found) for id, found in sorted(parts.items())]


def _understood(place: PartOf, entry: Entry) -> Part | None:
    try:
        value = decode(place.path, entry.value)
        return parse_part(place.tenant, place.path, value, Keyring([]))
    except UnreadableValue as error:
        warn(f"tenant {place.tenant}: {place.path} cannot be understood: {error}")
        return None


def _status(tenant: Tenant) -> str:
    return tenant.meta.status if tenant.meta else ""


def _record(tenant: Tenant) -> Mapping[str, JSON]:
    return {
        "id": tenant.id,
        "code": tenant.meta.code if tenant.meta else None,
        "name": tenant.meta.name if tenant.meta else None,
        "status": tenant.meta.status if tenant.meta else None,
        "primaryDomain": tenant.domain.primary or None,
        "databases": len(tenant.databases),
        "ftpUsers": len(tenant.ftp),
    }


class Row(NamedTuple):
    part: str
    field: str
    value: str


def show(
    tenant: TenantArgument,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="as a file for `publish`, without its secrets")
    ] = False,
    reveal: RevealOption = False,
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Show all that is configured for a tenant. Secrets are masked.

    With --reveal, exits with 1 if one of them cannot be decrypted.
    """
    if as_yaml and (reveal or as_json):
        raise typer.BadParameter("--yaml goes neither with --reveal nor with --json")
    ring = Keyring.from_environment() if reveal else Keyring([])
    found = run_command(_one(tenant, TenantKeys(namespace), store))
    parts = found.parts
    if as_yaml:
        warn_of_unreadable(parts)
        typer.echo(f"# revision: {found.revision}")
        typer.echo(as_document(to_document(tenant, parts)), nl=False)
        return
    problems: list[str] = []
    shown: dict[str, JSON] = {}
    for path, value in parts.items():
        if isinstance(value, UnreadablePart):
            shown[path] = UNREADABLE
        else:
            shown[path] = _revealed(path, value, ring, problems) if reveal else masked(value)
    if reveal:
        note(f"tenant {tenant}: its secrets are shown in clear text")
    if as_json:
        show_json(_nested(tenant, shown) | {"revision": found.revision})
    else:
        printing.show(
            list(_rows(shown)),
            {
                "part": lambda row: row.part,
                "field": lambda row: row.field,
                "value": lambda row: row.value,
            },
            lambda row: row._asdict(),
            as_json=False,
        )
    for problem in problems:
        warn(f"tenant {tenant}: {problem}")
    if problems:
        raise typer.Exit(1)


def as_document(document: dict[str, JSON]) -> str:
    """YAML, in any letters unless some of them are not printable: a terminal may act on those."""
    text = yaml.dump(document, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    if all(line.isprintable() for line in text.split("\n")):
        return str(text)
    return str(yaml.dump(document, Dumper=_DUMPER, sort_keys=False))


async def _one(tenant: int, keys: TenantKeys, store: str) -> StoredParts:
    async with open_hub(store, "tree") as hub:
        entries = (await hub.store.read(keys.parts(tenant))).entries
    found = stored_parts(keys, tenant, entries)
    for strange in found.strange:
        warn(f"{strange.decode(errors='backslashreplace')} is no part of a tenant")
    if not found.parts:
        raise NotConfigured(f"there is no tenant {tenant}")
    return found


def warn_of_unreadable(parts: Parts) -> None:
    for path, value in parts.items():
        if isinstance(value, UnreadablePart):
            warn(f"{path} cannot be understood and is left out: to publish this may remove it")


def _revealed(path: str, value: JSON, ring: Keyring, problems: list[str]) -> JSON:
    """A part with its password as plain text, where it can be decrypted."""
    if not isinstance(value, dict) or not value.get("passwordEncrypted"):
        return value
    sealed, of = str(value["passwordEncrypted"]), str(value.get("passwordKeyId") or "")
    rest = {
        name: inner
        for name, inner in value.items()
        if name not in ("passwordEncrypted", "passwordKeyId")
    }
    try:
        return rest | {"password": ring.unseal(sealed, of)}
    except Undecipherable as error:
        problems.append(f"{path}: {error}")
        return masked(value)


def _nested(tenant: int, parts: Mapping[str, JSON]) -> dict[str, JSON]:
    """By section, as in a tenant's file."""
    record: dict[str, JSON] = {"id": tenant}
    for path, value in parts.items():
        kind, name = kind_of(path), name_of(path)
        section = record.setdefault(kind, {}) if name else record
        assert isinstance(section, dict)
        section[name or kind] = value
    return record


def _rows(parts: Mapping[str, JSON]) -> Iterator[Row]:
    for path, value in sorted(parts.items(), key=lambda part: (part[0] != "meta", part[0])):
        if isinstance(value, dict) and value:
            yield from (Row(path, field, as_text(inner)) for field, inner in value.items())
        else:
            yield Row(path, "", as_text(value))


def export(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="default, or -: standard output")
    ] = None,
    tenants: Annotated[
        list[int] | None,
        typer.Option("--tenant", metavar="ID", min=1, max=MAX_ID, help="only this one; repeatable"),
    ] = None,
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Write all tenants as YAML documents, or as JSON lines, for `publish`.

    Secrets are written as they are stored: encrypted passwords stay encrypted, and those in clear
    text are in clear text, with a warning. JSON lines are
    written with --json, or if the file is called .json, .jsonl or .ndjson. Exits with 1 if a part
    of a tenant cannot be read and is left out.
    """
    target = None if file == Path("-") else file
    lines = as_json or (target is not None and target.suffix in JSON_SUFFIXES)
    entries = run_command(_read(TenantKeys(namespace), store, tenants or []))
    found = _grouped(TenantKeys(namespace), entries)
    for tenant in tenants or []:
        if tenant not in found:
            raise NotConfigured(f"there is no tenant {tenant}")
    with open_output(target, mode=0o600) as output, progress("exported") as report:
        for number, (tenant, there) in enumerate(sorted(found.items())):
            report(number, len(found))
            document = to_document(tenant, there.parts, secrets=True)
            if lines:
                output.write(f"{json.dumps(document, ensure_ascii=False)}\n")
            else:
                output.write(f"---\n{as_document(document)}")
    print_stderr(count_of(len(found), "tenant"))
    if clear := sum(_clear_secrets(there) for there in found.values()):
        secrets = count_of(clear, "secret")
        warn(f"the export has {secrets} in clear text, as stored: keep it safe")
    if sum(_warned(tenant, there) for tenant, there in sorted(found.items())):
        raise typer.Exit(1)


async def _read(keys: TenantKeys, store: str, tenants: list[int]) -> list[Entry]:
    async with open_hub(store, "tree") as hub:
        ranges = [keys.parts(tenant) for tenant in dict.fromkeys(tenants)] or [keys.all]
        return [entry for each in ranges for entry in (await hub.store.read(each)).entries]


def _grouped(keys: TenantKeys, entries: list[Entry]) -> dict[int, StoredParts]:
    found: dict[int, StoredParts] = {}
    for tenant, group in groupby(entries, lambda entry: keys.tenant(entry.key)):
        there = stored_parts(keys, tenant, group)
        if tenant and there.parts:
            found[tenant] = there
    return found


def _clear_secrets(there: StoredParts) -> int:
    fields = (field for value in there.parts.values() for field in _clear(value))
    return sum(field not in ("passwordEncrypted", "passwordHash") for field in fields)


def _clear(value: JSON | UnreadablePart) -> Iterator[str]:
    return iter(()) if isinstance(value, UnreadablePart) else cleartext_secrets(value)


def _warned(tenant: int, there: StoredParts) -> bool:
    for strange in there.strange:
        warn(f"{strange.decode(errors='backslashreplace')} is no part of a tenant: left out")
    unread = any(isinstance(value, UnreadablePart) for value in there.parts.values())
    if unread:
        warn(f"tenant {tenant} is not exported in full:")
        warn_of_unreadable(there.parts)
    return unread or bool(there.strange)
