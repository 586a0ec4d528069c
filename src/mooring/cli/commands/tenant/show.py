"""`mooring tenant list`, `show` and `export`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Annotated

import typer
import yaml

from mooring.cli.io.connect import TenantTarget, run_command
from mooring.cli.io.options import JSONOption, OutputFile, RevealOption, TenantArgument, tenant_id
from mooring.cli.io.streams import note, open_output, print_stderr, progress, warn
from mooring.cli.io.tables import as_text, show, show_json, show_rows
from mooring.errors import NotConfigured, Undecipherable
from mooring.formatting import count_of, quoted
from mooring.masking import cleartext_secrets
from mooring.model import JSON
from mooring.store.contract import Entry
from mooring.tenants.diff import masked_part
from mooring.tenants.document import JSON_SUFFIXES, to_document
from mooring.tenants.keys import PartOf, TenantKeys, kind_of, name_of
from mooring.tenants.model import Part, Tenant, UnreadableValue, decode, parse_part
from mooring.tenants.parts import Parts, StoredParts, UnreadablePart, read_parts, stored_parts
from mooring.tenants.publish.merge import unsealed
from mooring.tenants.secrets import Keyring

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # written in C, if available
_STATUSES = ("active", "inactive", "suspended")
_NOT_IN_CLEAR_TEXT = ("passwordEncrypted", "passwordHash")


async def list_tenants(
    target: TenantTarget,
    status: Annotated[
        str, typer.Option(metavar="STATUS", help="active, inactive or suspended")
    ] = "",
    as_json: JSONOption = False,
) -> None:
    """List tenants, ordered by id."""
    if status not in ("", *_STATUSES):
        raise typer.BadParameter(
            f"unknown status {quoted(status)}: use {', '.join(_STATUSES)}", param_hint="--status"
        )
    async with target.connect() as hub:
        entries = (await hub.store.read(target.keys.all)).entries
    show(
        [t for t in _tenants(target.keys, entries) if status in ("", _status(t))],
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


def _tenants(keys: TenantKeys, entries: Iterable[Entry]) -> list[Tenant]:
    parts: dict[int, list[tuple[str, Part]]] = {}
    for entry in entries:
        place = keys.understand(entry.key)
        if not isinstance(place, PartOf):
            continue
        tenant, path = place.tenant, place.path
        own_parts = parts.setdefault(tenant, [])
        try:
            part = parse_part(tenant, path, decode(path, entry.value), Keyring([]))
            own_parts.append((path, part))
        except UnreadableValue as error:
            warn(f"tenant {tenant}: {path} cannot be parsed: {error}")
    return [Tenant(id).changed(changes) for id, changes in sorted(parts.items())]


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


async def show_tenant(
    tenant: TenantArgument,
    target: TenantTarget,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="print a file for `publish`, without its secrets")
    ] = False,
    reveal: RevealOption = False,
    as_json: JSONOption = False,
) -> None:
    """Show the configuration of a tenant, with secrets masked.

    With --reveal, exits with 1 if a secret cannot be decrypted.
    """
    if as_yaml and (reveal or as_json):
        raise typer.BadParameter("cannot be combined with --reveal or --json", param_hint="--yaml")
    async with target.connect() as hub:
        stored = await read_parts(hub.store, target.keys, tenant)
    _warn_of_foreign_keys(stored)
    if not stored.parts:
        raise NotConfigured(f"tenant {tenant} not found")
    if as_yaml:
        _warn_of_unreadable(stored.parts)
        typer.echo(f"# revision: {stored.revision}")
        typer.echo(_to_yaml(to_document(tenant, stored.parts)), nl=False)
        return
    problems: list[str] = []
    values = {path: masked_part(path, value) for path, value in stored.parts.items()}
    if reveal:
        values |= _revealed_parts(stored.parts, problems)
        note(f"tenant {tenant}: its secrets are shown in clear text")
    if as_json:
        show_json(_by_section(tenant, values) | {"revision": stored.revision})
    else:
        show_rows(("part", "field", "value"), _rows(values))
    for problem in problems:
        warn(f"tenant {tenant}: {problem}")
    if problems:
        raise typer.Exit(1)


def _to_yaml(document: dict[str, JSON]) -> str:
    """The document as YAML. If a character is not printable, so that a terminal might act on it,
    everything beyond ASCII is escaped."""
    text = yaml.dump(document, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    if all(line.isprintable() for line in text.split("\n")):
        return str(text)
    return str(yaml.dump(document, Dumper=_DUMPER, sort_keys=False))


def _warn_of_foreign_keys(stored: StoredParts, consequence: str = "") -> None:
    for key in stored.unknown_keys:
        warn(f"{key.decode(errors='backslashreplace')} is not a part of a tenant{consequence}")


def _warn_of_unreadable(parts: Parts) -> None:
    for path, value in parts.items():
        if isinstance(value, UnreadablePart):
            warn(f"{path} cannot be parsed and is omitted: publishing this may remove it")


def _revealed_parts(parts: Parts, problems: list[str]) -> dict[str, JSON]:
    """The parts with their passwords decrypted. A part for which that fails is left out, and
    reported in `problems`."""
    ring, values = Keyring.from_environment(), dict[str, JSON]()
    for path, value in parts.items():
        if not isinstance(value, UnreadablePart):
            try:
                values[path] = unsealed(value, ring)
            except Undecipherable as error:
                problems.append(f"{path}: {error}")
    return values


def _by_section(tenant: int, parts: Mapping[str, JSON]) -> dict[str, JSON]:
    """The parts in sections, as in a tenant's file."""
    record: dict[str, JSON] = {"id": tenant}
    for path, value in parts.items():
        kind, name = kind_of(path), name_of(path)
        section = record.setdefault(kind, {}) if name else record
        assert isinstance(section, dict)
        section[name or kind] = value
    return record


def _rows(parts: Mapping[str, JSON]) -> Iterator[tuple[str, str, str]]:
    """Part, field and value."""
    for path, value in sorted(parts.items(), key=lambda part: (part[0] != "meta", part[0])):
        if isinstance(value, dict) and value:
            yield from ((path, field, as_text(inner)) for field, inner in value.items())
        else:
            yield path, "", as_text(value)


def export(
    target: TenantTarget,
    file: OutputFile = None,
    tenants: Annotated[
        list[int] | None,
        typer.Option(
            "--tenant", metavar="ID", parser=tenant_id, help="only this tenant; repeatable"
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Write all tenants in the format that `publish` reads.

    The format is YAML, or JSON lines with --json or if the file name ends with .json, .jsonl or
    .ndjson.

    Secrets are written as they are stored: encrypted, or in clear text with a warning. Exits with
    1 if a part of a tenant cannot be read and is left out.
    """
    json_lines = as_json or (file is not None and file.suffix in JSON_SUFFIXES)
    entries = run_command(_read(target, tenants or []))
    stored = _by_tenant(target.keys, entries)
    for tenant in tenants or []:
        if tenant not in stored:
            raise NotConfigured(f"tenant {tenant} not found")
    with open_output(file, mode=0o600) as output, progress("exported") as report:
        for number, (tenant, parts) in enumerate(stored.items()):
            report(number, len(stored))
            document = to_document(tenant, parts.parts, secrets=True)
            if json_lines:
                output.write(f"{json.dumps(document, ensure_ascii=False)}\n")
            else:
                output.write(f"---\n{_to_yaml(document)}")
    print_stderr(count_of(len(stored), "tenant"))
    if clear := sum(map(_count_cleartext, stored.values())):
        secrets = count_of(clear, "secret")
        warn(f"the export has {secrets} in clear text, as stored: keep it safe")
    if sum(_warn_of_gaps(tenant, parts) for tenant, parts in stored.items()):
        raise typer.Exit(1)


async def _read(target: TenantTarget, tenants: list[int]) -> list[Entry]:
    keys = target.keys
    ranges = [keys.parts(tenant) for tenant in dict.fromkeys(tenants)] or [keys.all]
    async with target.connect() as hub:
        return [entry for range in ranges for entry in (await hub.store.read(range)).entries]


def _by_tenant(keys: TenantKeys, entries: list[Entry]) -> dict[int, StoredParts]:
    """The parts of each tenant, by id."""
    stored: dict[int, StoredParts] = {}
    for tenant, group in groupby(entries, lambda entry: keys.tenant(entry.key)):
        parts = stored_parts(keys, tenant, group)
        if tenant and parts.parts:
            stored[tenant] = parts
    return dict(sorted(stored.items()))


def _count_cleartext(stored: StoredParts) -> int:
    return sum(
        field not in _NOT_IN_CLEAR_TEXT
        for value in stored.parts.values()
        if not isinstance(value, UnreadablePart)
        for field in cleartext_secrets(value)
    )


def _warn_of_gaps(tenant: int, stored: StoredParts) -> bool:
    """Whether the export of a tenant is incomplete. Prints warnings."""
    _warn_of_foreign_keys(stored, ": left out")
    unreadable = any(isinstance(value, UnreadablePart) for value in stored.parts.values())
    if unreadable:
        warn(f"tenant {tenant} is not exported in full:")
        _warn_of_unreadable(stored.parts)
    return unreadable or bool(stored.unknown_keys)
