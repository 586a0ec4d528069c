"""`mooring tenant history` and `rollback`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from mooring.cli.commands.tenant.changes import print_changes, show_diff, show_published, summary
from mooring.cli.io.connect import TenantTarget
from mooring.cli.io.options import (
    EntryArgument,
    EntryFilter,
    JSONOption,
    TenantArgument,
    WriteOptions,
    YesOption,
    tenant_id,
)
from mooring.cli.io.streams import confirm, note
from mooring.cli.io.tables import show, show_json
from mooring.errors import NotConfigured
from mooring.formatting import count_of
from mooring.model import JSON
from mooring.tenants.diff import changes_to_json
from mooring.tenants.history import HistoryEntry, entry_diffs
from mooring.tenants.keys import Owner, named
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring


def history(
    target: TenantTarget,
    tenant: Annotated[
        int | None, typer.Argument(metavar="ID", parser=tenant_id, help="id of the tenant")
    ] = None,
    number: EntryFilter = 0,
    purge: Annotated[
        bool, typer.Option("--purge", help="delete entries instead of showing them")
    ] = False,
    yes: YesOption = False,
    as_json: JSONOption = False,
) -> None:
    """Show the history of a tenant, oldest entry first.

    The history of a deleted tenant is kept. --purge deletes all entries of a deleted tenant, and
    all but the newest of any other tenant. Without an ID, it does so for all tenants, but only for
    entries older than 90 days.
    """
    if purge:
        return _purge(target, tenant or 0, number, yes, as_json)
    if tenant is None:
        raise typer.BadParameter("give the id of a tenant", param_hint="ID")

    async def read(publisher: Publisher) -> list[HistoryEntry]:
        entries = await publisher.history(tenant)
        if not entries and not await publisher.read(tenant):
            raise NotConfigured(f"tenant {tenant} not found, and its history is empty")
        return entries

    show_history(tenant, target.run(read), number, as_json)


def show_history(owner: Owner, entries: Sequence[HistoryEntry], number: int, as_json: bool) -> None:
    """Print all entries, or the changes of one entry."""
    ring = Keyring.from_environment()
    if not number:
        show(
            entries,
            {
                "number": lambda entry: str(entry.number),
                "at": lambda entry: entry.at,
                "by": lambda entry: entry.by,
                "action": lambda entry: entry.action,
                "what": lambda entry: ", ".join(step.path for step in entry.changes),
                "note": lambda entry: ", ".join(
                    filter(None, ["interrupted" if entry.more else "", entry.note])
                ),
            },
            lambda entry: _record(entry, ring),
            as_json=as_json,
        )
        return
    entry = next((entry for entry in entries if entry.number == number), None)
    if entry is None:
        kept = f"{entries[0].number} to {entries[-1].number}" if entries else "none"
        raise NotConfigured(f"{named(owner)}: no entry {number} in the history (available: {kept})")
    if as_json:
        show_json(_record(entry, ring))
        return
    changes = entry_diffs(entry, ring)
    print_changes(changes)
    reason = f": {entry.note}" if entry.note else ""
    note(
        f"{named(owner)}: {summary(changes, done=True)}; {entry.action} by {entry.by} at "
        f"{entry.at}{reason}"
    )


def _purge(target: TenantTarget, tenant: int, number: int, yes: bool, as_json: bool) -> None:
    if number:
        raise typer.BadParameter("cannot be combined with --purge", param_hint="NUMBER")
    if tenant:
        confirm(f"Delete the history of tenant {tenant}?", yes)
    count = target.run(
        lambda publisher: publisher.purge(tenant) if tenant else publisher.sweeper.everything()
    )
    if as_json:
        show_json({"tenant": tenant or None, "entries": count})
    else:
        typer.echo(f"{count_of(count, 'entry', 'entries')} deleted")


def _record(entry: HistoryEntry, ring: Keyring) -> Mapping[str, JSON]:
    return {
        "number": entry.number,
        "at": entry.at,
        "by": entry.by,
        "action": entry.action,
        "note": entry.note or None,
        "interrupted": entry.more,
        "changes": changes_to_json(entry_diffs(entry, ring)),
    }


def rollback(
    tenant: TenantArgument,
    number: EntryArgument,
    write: WriteOptions,
    target: TenantTarget,
    yes: YesOption = False,
    as_json: JSONOption = False,
) -> None:
    """Restore the state that a tenant had after an entry of its history.

    NUMBER 0 restores the state before the first entry. Shows the changes and asks for
    confirmation; without a terminal, --yes is required.
    """
    roll_back(tenant, number, write, target, yes, as_json)


def roll_back(
    owner: Owner, number: int, write: WriteOptions, target: TenantTarget, yes: bool, as_json: bool
) -> None:
    """Show what a rollback changes, ask for confirmation, and roll back."""
    changes = target.run(lambda publisher: publisher.diff_rollback(owner, number))
    if not as_json:
        show_diff(owner, changes, as_json)
    if changes:
        confirm(f"Roll {named(owner)} back to version {number}?", yes)
    result = target.run(
        lambda publisher: publisher.rollback(
            owner, number, note=write.note, require=write.require(owner)
        ),
        write.by,
    )
    if as_json:
        show_published(result, as_json)
    elif result.changes:
        note(f"{named(owner)}: restored version {number} as version {result.number}")
