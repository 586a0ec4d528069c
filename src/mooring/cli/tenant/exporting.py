"""`mooring tenant export`: tenants as files that `publish` takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from mooring.cli.options import JSONOption, NamespaceOption, StoreOption
from mooring.cli.printing import count_of
from mooring.cli.progress import progress
from mooring.cli.reaching import reach, run_command
from mooring.cli.stdout import writing
from mooring.cli.telling import say, warn
from mooring.cli.tenant.looking import as_document, warn_of_unreadable
from mooring.errors import NotConfigured
from mooring.model import JSON
from mooring.store.contract import Entry
from mooring.tenants.document import written
from mooring.tenants.files import JSON_SUFFIXES
from mooring.tenants.hiding import clear_secrets
from mooring.tenants.keys import MAX_ID, NAMESPACE, Keys
from mooring.tenants.publishing import Held, Unread, held


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
    entries = run_command(_read(Keys(namespace), store, tenants or []))
    found = _grouped(Keys(namespace), entries)
    for tenant in tenants or []:
        if tenant not in found:
            raise NotConfigured(f"there is no tenant {tenant}")
    with writing(target, mode=0o600) as output, progress("exported") as report:
        for number, (tenant, there) in enumerate(sorted(found.items())):
            report(number, len(found))
            document = written(tenant, there.parts, secrets=True)
            if lines:
                output.write(f"{json.dumps(document, ensure_ascii=False)}\n")
            else:
                output.write(f"---\n{as_document(document)}")
    say(count_of(len(found), "tenant"))
    if clear := sum(_clear_secrets(there) for there in found.values()):
        secrets = count_of(clear, "secret")
        warn(f"the export has {secrets} in clear text, as stored: keep it safe")
    if sum(_warned(tenant, there) for tenant, there in sorted(found.items())):
        raise typer.Exit(1)


async def _read(keys: Keys, store: str, tenants: list[int]) -> list[Entry]:
    async with reach(store, "tree") as hub:
        ranges = [keys.parts(tenant) for tenant in dict.fromkeys(tenants)] or [keys.all]
        return [entry for each in ranges for entry in (await hub.store.read(each)).entries]


def _grouped(keys: Keys, entries: list[Entry]) -> dict[int, Held]:
    found: dict[int, Held] = {}
    for tenant, group in groupby(entries, lambda entry: keys.tenant(entry.key)):
        there = held(keys, tenant, group)
        if tenant and there.parts:
            found[tenant] = there
    return found


def _clear_secrets(there: Held) -> int:
    fields = (field for value in there.parts.values() for field in _clear(value))
    return sum(field not in ("passwordEncrypted", "passwordHash") for field in fields)


def _clear(value: JSON | Unread) -> Iterator[str]:
    return iter(()) if isinstance(value, Unread) else clear_secrets(value)


def _warned(tenant: int, there: Held) -> bool:
    for strange in there.strange:
        warn(f"{strange.decode(errors='backslashreplace')} is no part of a tenant: left out")
    unread = any(isinstance(value, Unread) for value in there.parts.values())
    if unread:
        warn(f"tenant {tenant} is not exported in full:")
        warn_of_unreadable(there.parts)
    return unread or bool(there.strange)
