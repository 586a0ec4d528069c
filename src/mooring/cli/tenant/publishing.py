"""`mooring tenant diff`, `publish` and `delete`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from mooring.cli.options import JSONOption, NamespaceOption, StoreOption
from mooring.cli.printing import show_json
from mooring.cli.progress import progress
from mooring.cli.reaching import run_command
from mooring.cli.telling import note, printable, warn
from mooring.cli.tenant.changes import counted, print_changes
from mooring.cli.tenant.options import (
    ByOption,
    NoteOption,
    TenantArgument,
    YesOption,
    called,
    how_to_roll_back,
    must_agree,
    publisher,
)
from mooring.errors import InvalidRequest, NotConfigured, TenantError, TooLarge
from mooring.tenants.changes import records
from mooring.tenants.document import Document
from mooring.tenants.files import load, read
from mooring.tenants.hiding import is_secret
from mooring.tenants.history import versions
from mooring.tenants.keys import NAMESPACE
from mooring.tenants.publishing import Difference, Parts
from mooring.tenants.scribe import Published
from mooring.tenants.secrets import CURRENT, Keyring

FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="of a tenant, YAML or JSON; a folder; -: standard input"),
]
_SUFFIXES = (".yaml", ".yml", ".json")
_WOULD_CHANGE = 2


def diff(
    files: FilesArgument,
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Show what `publish` would change. Nothing is written.

    Exits with 0 if nothing would change, with 2 if something would.
    """
    documents = dict(_documents(files))
    found = run_command(_diff(documents, store, namespace))
    for document, differences in found:
        if as_json:
            show_json({"tenant": document.tenant, "changes": records(differences)})
        else:
            print_changes(differences)
            typer.echo(f"tenant {document.tenant}: {counted(differences)}")
    if any(differences for _, differences in found):
        raise typer.Exit(_WOULD_CHANGE)


async def _diff(
    documents: Mapping[str, Document], store: str, namespace: str
) -> list[tuple[Document, list[Difference]]]:
    async with publisher(store, namespace) as publishing:
        return [(each, await publishing.diff(each)) for each in documents.values()]


def publish(
    files: FilesArgument,
    by: ByOption = "",
    text: NoteOption = "",
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Make tenants what files say, and print what that changed.

    Nothing is written where one of the files is wrong. Each tenant is written whole or not at all;
    of several, those that cannot be are told, and the others are. Exits with 1 then.
    """
    documents = dict(_documents(files))
    done: list[Published] = []
    try:
        failed = run_command(_publish(documents, done, by, text, store, namespace))
    finally:  # what was published is told, also where the store went away
        for published in done:
            _show(published, as_json)
    if failed:
        raise typer.Exit(1)


async def _publish(
    documents: Mapping[str, Document],
    done: list[Published],
    by: str,
    text: str,
    store: str,
    namespace: str,
) -> int:
    """How many could not be published."""
    failed = 0
    async with publisher(store, namespace, by) as publishing:
        with progress("published") as told:
            for number, (name, document) in enumerate(documents.items()):
                told(number, len(documents))
                try:
                    done.append(await publishing.apply(document, note=text))
                except (TenantError, InvalidRequest, TooLarge) as error:
                    if len(documents) == 1:
                        raise
                    note(f"{name}: {error}")
                    failed += 1
    return failed


def _show(published: Published, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "tenant": published.tenant,
                "number": published.number or None,
                "transactions": published.transactions + published.aside,
                "changes": records(published.changes),
            }
        )
        return
    print_changes(published.changes)
    version = f" (version {published.number})" if published.number else ""
    typer.echo(f"tenant {published.tenant}: {counted(published.changes, done=True)}{version}")


def _documents(files: list[Path]) -> Iterator[tuple[str, Document]]:
    """All of them, or an error: nothing is written before all can be understood."""
    seen: dict[int, str] = {}
    for file in _listed(files):
        name = "standard input" if file == Path("-") else str(file)
        document = read(_standard_input(), of=name) if file == Path("-") else load(file)
        if document.tenant in seen:
            raise InvalidRequest(f"{name}: {seen[document.tenant]} is of tenant {document.tenant}")
        seen[document.tenant] = name
        yield name, document


def _listed(files: list[Path]) -> Iterator[Path]:
    for file in files:
        if not file.is_dir():
            yield file
            continue
        found = sorted(each for each in file.iterdir() if each.suffix in _SUFFIXES)
        if not found:
            raise InvalidRequest(f"{file} has no file that ends with {', '.join(_SUFFIXES)}")
        yield from found


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("standard input is no text in UTF-8") from error


def delete(
    tenant: TenantArgument,
    yes: YesOption = False,
    by: ByOption = "",
    text: NoteOption = "",
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Delete a tenant, with all that leads to it. Its history stays.

    In a terminal it asks first; elsewhere it needs --yes.
    """
    parts = run_command(_look(tenant, store, namespace))
    if not Keyring.from_environment().current and _has_open_secrets(parts):
        warn(
            f"tenant {tenant} has secrets that no rollback brings back, since {CURRENT[0]} is not "
            "set: the history keeps none in clear text"
        )
    must_agree(f"Delete {called(tenant, parts)} with its {_in_words(parts)}?", yes)
    published, before = run_command(_delete(tenant, by, text, store, namespace))
    _show(published, as_json)
    if before is not None:
        note(f"to undo: {printable(how_to_roll_back(tenant, before, namespace))}")


async def _look(tenant: int, store: str, namespace: str) -> Parts:
    async with publisher(store, namespace) as publishing:
        parts = await publishing.read(tenant)
    if not parts:
        raise NotConfigured(f"there is no tenant {tenant}")
    return parts


async def _delete(
    tenant: int, by: str, text: str, store: str, namespace: str
) -> tuple[Published, int | None]:
    """What it did, and the version before it; None if that is not kept."""
    async with publisher(store, namespace, by) as publishing:
        published = await publishing.delete(tenant, note=text)
        known = versions(await publishing.history(tenant))
    return published, max((each for each in known if each < published.number), default=None)


def _in_words(parts: Parts) -> str:
    databases = sum(path.startswith("database/") for path in parts)
    users = sum(path.startswith("ftp/") for path in parts)
    return f"{len(parts)} parts, of them {databases} databases and {users} FTP users"


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
