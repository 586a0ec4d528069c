"""`mooring tenant diff`, `publish` and `delete`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from mooring.cli.commands.tenant.options import (
    BaseOption,
    ByOption,
    NoteOption,
    TenantArgument,
    YesOption,
    called,
    expecting,
    how_to_roll_back,
    must_agree,
    publishing,
)
from mooring.cli.commands.tenant.show import counted, print_changes
from mooring.cli.io.options import JSONOption, NamespaceOption, StoreOption
from mooring.cli.io.output import count_of, note, progress, show_json, warn
from mooring.errors import (
    Conflict,
    InvalidRequest,
    MooringError,
    NotConfigured,
    OutcomeUnknown,
    Taken,
    TenantError,
    TooLarge,
)
from mooring.formatting import printable
from mooring.masking import is_secret
from mooring.model import JSON
from mooring.tenants.diff import changes_to_json
from mooring.tenants.document import SUFFIXES, Document, load_all, read_all
from mooring.tenants.history import versions
from mooring.tenants.keys import NAMESPACE, Owner, named
from mooring.tenants.parts import PartDiff, Parts
from mooring.tenants.publish.committer import PublishResult
from mooring.tenants.publish.publisher import Publisher, Require
from mooring.tenants.secrets import CURRENT, Keyring

FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE", help="of tenants, YAML, JSON or JSON lines; a folder; -: standard input"
    ),
]
_WOULD_CHANGE = 3
_AT_ONCE = 16  # tenants that are published at the same time


def diff(
    files: FilesArgument,
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Show what `publish` would change. Nothing is written.

    Exits with 0 if nothing would change, with 3 if something would.
    """
    documents = _documents(files)
    found = publishing(partial(_diff, documents), store, namespace)
    for document, differences in found:
        show_differences(document.tenant, differences, as_json)
    if any(differences for _, differences in found):
        raise typer.Exit(_WOULD_CHANGE)


async def _diff(
    documents: Sequence[NamedDocument], publisher: Publisher
) -> list[tuple[Document, list[PartDiff]]]:
    return [(each.document, await publisher.diff(each.document)) for each in documents]


def show_differences(tenant: Owner, differences: Sequence[PartDiff], as_json: bool) -> None:
    if as_json:
        show_json({"tenant": tenant, "changes": changes_to_json(differences)})
    else:
        print_changes(differences)
        typer.echo(f"{named(tenant)}: {counted(differences)}")


def publish(
    files: FilesArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would change, and write nothing")
    ] = False,
    base: BaseOption = "",
    by: ByOption = "",
    text: NoteOption = "",
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Make tenants what files say, and print what that changed.

    If one of the files is invalid, nothing is written. Each tenant is written whole or not at all.
    One that cannot be published does not stop the others; the exit code is 1 then.
    """
    documents = _documents(files)
    if base and len(documents) > 1:
        raise typer.BadParameter(
            f"it is the revision of one tenant, and the files hold {len(documents)}",
            param_hint="--base",
        )
    require = expecting(documents[0].document.tenant, base) if documents else None
    batch = Batch(documents, text, require, dry_run=dry_run)
    try:
        publishing(partial(_publish, batch), store, namespace, by)
    finally:  # what was published is shown, also if the store went away
        for done in batch.in_order():
            if dry_run:
                show_differences(done.tenant, done.changes, as_json)
            else:
                show_published(done, as_json)
    if batch.failures:
        raise typer.Exit(1)


class Batch:
    """Tenants that are published, some of them at the same time."""

    def __init__(
        self,
        documents: Sequence[NamedDocument],
        text: str,
        require: Require | None,
        *,
        dry_run: bool,
    ) -> None:
        self._documents, self._text, self._require = documents, text, require
        self._dry_run = dry_run
        self._done: dict[int, PublishResult] = {}
        self.failures: dict[int, MooringError] = {}
        """What went wrong, by the place of the document."""

    def in_order(self) -> list[PublishResult]:
        return [self._done[place] for place in sorted(self._done)]

    async def run(self, publisher: Publisher, report: Callable[[int, int | None], None]) -> None:
        """Publish all. A tenant whose name another one holds is tried again after the others:
        one of them may have given it up."""
        waiting = list(range(len(self._documents)))
        alone = len(waiting) == 1
        try:
            while waiting:
                before = len(self._done)
                await self._pass(publisher, waiting, report)
                taken = [n for n, error in self.failures.items() if isinstance(error, Taken)]
                waiting = sorted(taken) if len(self._done) > before and not self._dry_run else []
        finally:  # also if the store went away
            for place, error in sorted(self.failures.items()):
                if not alone:
                    note(f"{self._documents[place].name}: {error}")
        if self.failures and alone:
            raise self.failures[0]

    async def _pass(
        self,
        publisher: Publisher,
        places: Sequence[int],
        report: Callable[[int, int | None], None],
    ) -> None:
        queue = iter(places)
        stopped: list[MooringError] = []

        async def work() -> None:
            for place in queue:
                if stopped:
                    return
                self.failures.pop(place, None)
                try:
                    self._done[place] = await self._one(publisher, self._documents[place].document)
                except _OF_ONE_TENANT as error:
                    self.failures[place] = error
                except MooringError as error:
                    stopped.append(error)  # no tenant can be published: the store is away
                report(len(self._done), len(self._documents))

        report(len(self._done), len(self._documents))
        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        if stopped:
            raise stopped[0]

    async def _one(self, publisher: Publisher, document: Document) -> PublishResult:
        if not self._dry_run:
            return await publisher.apply(document, note=self._text, require=self._require)
        changes = await publisher.diff(document, require=self._require)
        return PublishResult(document.tenant, tuple(changes))


_OF_ONE_TENANT = (TenantError, InvalidRequest, TooLarge, Conflict, OutcomeUnknown)
"""Errors that say nothing about the other tenants."""


async def _publish(batch: Batch, publisher: Publisher) -> None:
    with progress("published") as report:
        await batch.run(publisher, report)


def show_published(published: PublishResult, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "tenant": published.tenant,
                "number": published.number or None,
                "transactions": published.transactions + published.aside,
                "changes": changes_to_json(published.changes),
                "lost": list[JSON](published.lost),
            }
        )
        return
    print_changes(published.changes)
    version = f" (version {published.number})" if published.number else ""
    about = counted(published.changes, done=True)
    typer.echo(f"{named(published.tenant)}: {about}{version}")


class NamedDocument(NamedTuple):
    name: str
    """Where it comes from."""
    document: Document


def _documents(files: list[Path]) -> list[NamedDocument]:
    """All of them, or an error: nothing is written before all are valid."""
    found: list[NamedDocument] = []
    seen: dict[int, str] = {}
    for file in _listed(files):
        name = "standard input" if file == Path("-") else str(file)
        held = read_all(_standard_input(), of=name) if file == Path("-") else load_all(file)
        for place, document in enumerate(held, 1):
            where = f"{name}, document {place}" if len(held) > 1 else name
            if document.tenant in seen:
                raise InvalidRequest(
                    f"{where}: {seen[document.tenant]} is of tenant {document.tenant}"
                )
            seen[document.tenant] = where
            found.append(NamedDocument(where, document))
    return found


def _listed(files: list[Path]) -> Iterator[Path]:
    for file in files:
        if not file.is_dir():
            yield file
            continue
        found = sorted(each for each in file.iterdir() if each.suffix in SUFFIXES)
        if not found:
            raise InvalidRequest(f"{file} has no file that ends with {', '.join(SUFFIXES)}")
        yield from found


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("standard input is no text in UTF-8") from error


def delete(
    tenant: TenantArgument,
    yes: YesOption = False,
    base: BaseOption = "",
    by: ByOption = "",
    text: NoteOption = "",
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Delete a tenant, with all that leads to it. Its history stays.

    In a terminal it asks first; elsewhere it needs --yes.
    """
    parts = publishing(lambda one: one.read(tenant), store, namespace)
    if not parts:
        raise NotConfigured(f"there is no tenant {tenant}")
    if not Keyring.from_environment().current and _has_open_secrets(parts):
        warn(
            f"tenant {tenant} has secrets that no rollback brings back, since {CURRENT[0]} is not "
            "set: the history keeps none in clear text"
        )
    must_agree(f"Delete {called(tenant, parts)} with its {_in_words(parts)}?", yes)
    work = partial(_delete, tenant, base, text)
    published, before = publishing(work, store, namespace, by)
    show_published(published, as_json)
    if before is not None:
        note(f"to undo: {printable(how_to_roll_back(tenant, before, namespace))}")


async def _delete(
    tenant: int, base: str, text: str, publisher: Publisher
) -> tuple[PublishResult, int | None]:
    """What it did, and the version before it; None if that is not kept."""
    published = await publisher.delete(tenant, note=text, require=expecting(tenant, base))
    known = versions(await publisher.history(tenant))
    return published, max((each for each in known if each < published.number), default=None)


def _in_words(parts: Parts) -> str:
    databases = sum(path.startswith("database/") for path in parts)
    users = sum(path.startswith("ftp/") for path in parts)
    of_them = f"{count_of(databases, 'database')} and {count_of(users, 'FTP user')}"
    return f"{count_of(len(parts), 'part')}, of them {of_them}"


def _has_open_secrets(value: object) -> bool:
    """Whether there are secrets that are not sealed in the store."""
    if isinstance(value, list):
        return any(_has_open_secrets(inner) for inner in value)
    if not isinstance(value, Mapping):
        return False
    return any(
        (is_secret(str(name)) and name != "passwordEncrypted" and bool(inner))
        or _has_open_secrets(inner)
        for name, inner in value.items()
    )
