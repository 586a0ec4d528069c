"""`mooring tenant history`, `rollback` and `rekey`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import typer

from mooring.cli.commands.tenant.options import (
    BaseOption,
    ByOption,
    NoteOption,
    NumberArgument,
    TenantArgument,
    YesOption,
    expecting,
    must_agree,
    publishing,
)
from mooring.cli.commands.tenant.publish import show_differences, show_published
from mooring.cli.commands.tenant.show import counted, print_changes
from mooring.cli.io import output as printing
from mooring.cli.io.options import JSONOption, NamespaceOption, StoreOption
from mooring.cli.io.output import count_of, note, progress, show_json, warn
from mooring.errors import NotConfigured
from mooring.model import JSON
from mooring.tenants.diff import changes_to_json
from mooring.tenants.history import HistoryEntry, entry_diffs
from mooring.tenants.keys import MAX_ID, NAMESPACE, Owner, named
from mooring.tenants.publish.publisher import Publisher, RekeyResult
from mooring.tenants.secrets import FORMER, Keyring


def history(
    tenant: Annotated[
        int,
        typer.Argument(metavar="[ID]", min=0, max=MAX_ID, help="the number of the tenant"),
    ] = 0,
    number: Annotated[
        int, typer.Argument(metavar="[NUMBER]", min=0, help="show what that entry changed")
    ] = 0,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge",
            help="delete the history of the tenant, or of all tenants what is kept for too long",
        ),
    ] = False,
    yes: YesOption = False,
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Show who changed what of a tenant, oldest first; also of one that was deleted.

    With --purge, delete it: of a deleted tenant all entries, else all but the newest. Without
    an ID, delete the entries of all tenants that are older than 90 days.
    """
    if purge:
        return _purged(tenant, number, yes, store, namespace, as_json)
    if not tenant:
        raise typer.BadParameter("say whose history", param_hint="ID")
    entries = publishing(partial(_history, tenant), store, namespace)
    show_history(tenant, entries, number, as_json)


def show_history(owner: Owner, entries: Sequence[HistoryEntry], number: int, as_json: bool) -> None:
    """All entries, or what one of them changed."""
    ring = Keyring.from_environment()
    if not number:
        printing.show(
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
    found = [entry for entry in entries if entry.number == number]
    if not found:
        kept = f"{entries[0].number} to {entries[-1].number}" if entries else "none"
        raise NotConfigured(f"{named(owner)}: no entry {number} in the history (there are {kept})")
    if as_json:
        show_json(_record(found[0], ring))
        return
    changes = entry_diffs(found[0], ring)
    print_changes(changes)
    last = f"{found[0].action} by {found[0].by} at {found[0].at}"
    about = f": {found[0].note}" if found[0].note else ""
    note(f"{named(owner)}: {counted(changes, done=True)}; {last}{about}")


def _purged(tenant: int, number: int, yes: bool, store: str, namespace: str, as_json: bool) -> None:
    if number:
        raise typer.BadParameter("--purge deletes whole histories", param_hint="NUMBER")
    if tenant:
        must_agree(f"Delete the history of tenant {tenant}?", yes)
    gone = publishing(
        lambda one: one.purge(tenant) if tenant else one.sweeper.everything(), store, namespace
    )
    if as_json:
        show_json({"tenant": tenant or None, "entries": gone})
    else:
        typer.echo(f"{count_of(gone, 'entry', 'entries')} deleted")


async def _history(tenant: int, publisher: Publisher) -> list[HistoryEntry]:
    entries = await publisher.history(tenant)
    if not entries and not await publisher.read(tenant):
        raise NotConfigured(f"there is no tenant {tenant}, and never was as far as is known")
    return entries


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
    number: NumberArgument,
    yes: YesOption = False,
    base: BaseOption = "",
    by: ByOption = "",
    text: NoteOption = "",
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Make a tenant what it was after an entry of its history; 0: before the first.

    It shows what changes. In a terminal it asks first; elsewhere it needs --yes.
    """
    roll_back(tenant, number, yes, base, by, text, store, namespace, as_json)


def roll_back(
    owner: Owner,
    number: int,
    yes: bool,
    base: str,
    by: str,
    text: str,
    store: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Show what a rollback changes, ask, and do it."""
    changes = publishing(lambda one: one.diff_rollback(owner, number), store, namespace)
    if not as_json:
        show_differences(owner, changes, as_json)
    if changes:
        must_agree(f"Roll {named(owner)} back to version {number}?", yes)
    require = expecting(owner, base)
    published = publishing(
        lambda one: one.rollback(owner, number, note=text, require=require), store, namespace, by
    )
    if as_json:
        show_published(published, as_json)
    elif published.changes:
        note(f"{named(owner)}: as after {number}; this is version {published.number}")


def rekey(
    by: ByOption = "",
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Seal all passwords with the current key, of tenants and of their histories.

    It may be stopped and run again. Exits with 1 if something could not be decrypted.
    """
    rekeyed = publishing(_rekey, store, namespace, by)
    if as_json:
        show_json(
            {
                "tenants": rekeyed.tenants,
                "entries": rekeyed.entries,
                "problems": list[JSON](rekeyed.problems),
            }
        )
    else:
        entries = count_of(rekeyed.entries, "entry", "entries")
        typer.echo(f"{count_of(rekeyed.tenants, 'tenant')} and {entries} of histories sealed")
    for problem in rekeyed.problems:
        warn(problem)
    if rekeyed.problems:
        raise typer.Exit(1)
    note(f"all passwords are under the current key: {FORMER} may go once nobody else needs it")


async def _rekey(publisher: Publisher) -> RekeyResult:
    with progress("rekeyed") as report:
        return await publisher.rekey(report)
