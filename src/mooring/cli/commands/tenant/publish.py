"""`mooring tenant diff`, `publish` and `delete`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from mooring.cli.commands.tenant.changes import show_diff, show_published
from mooring.cli.io.connect import TenantTarget
from mooring.cli.io.options import (
    DryRunOption,
    JSONOption,
    TenantArgument,
    WriteOptions,
    YesOption,
    read_stdin,
)
from mooring.cli.io.streams import confirm, note, progress, warn
from mooring.errors import InvalidRequest, NotConfigured
from mooring.formatting import count_of, printable
from mooring.tenants.document import SUFFIXES, Document, load_all, read_all
from mooring.tenants.history import loses_secrets, versions
from mooring.tenants.keys import default_namespace, joined
from mooring.tenants.parts import PartDiff, Parts
from mooring.tenants.publish.batch import PublishBatch
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.publish.result import PublishResult
from mooring.tenants.secrets import CURRENT, Keyring

FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="YAML, JSON or JSON lines; a folder of such files; - reads standard input",
    ),
]
_WOULD_CHANGE = 3


class NamedDocument(NamedTuple):
    name: str
    """The file, and the place in it."""
    document: Document


def diff(files: FilesArgument, target: TenantTarget, as_json: JSONOption = False) -> None:
    """Show what `publish` would change.

    Exits with 0 if nothing would change, and with 3 if something would.
    """
    documents = [named.document for named in _read_documents(files)]

    async def compare(publisher: Publisher) -> list[list[PartDiff]]:
        return [await publisher.diff(document) for document in documents]

    differences = target.run(compare)
    for document, changes in zip(documents, differences, strict=True):
        show_diff(document.tenant, changes, as_json)
    if any(differences):
        raise typer.Exit(_WOULD_CHANGE)


def publish(
    files: FilesArgument,
    write: WriteOptions,
    target: TenantTarget,
    dry_run: DryRunOption = False,
    as_json: JSONOption = False,
) -> None:
    """Publish tenants from files and print the changes.

    If one of the files is invalid, nothing is written. Each tenant is published in one transaction,
    unless it is too large for one. If one cannot be published, the others still are, and the exit
    code is 1.
    """
    documents = _read_documents(files)
    if write.base and len(documents) > 1:
        raise typer.BadParameter(
            f"applies to one tenant, but the files contain {len(documents)}", param_hint="--base"
        )
    require = write.require(documents[0].document.tenant) if documents else None
    batch = PublishBatch(
        [document for _, document in documents], write.note, require, dry_run=dry_run
    )

    async def run(publisher: Publisher) -> None:
        with progress("published") as report:
            await batch.run(publisher, report)

    try:
        target.run(run, write.by)
    finally:  # prints what was published even if the store became unavailable
        if len(documents) > 1:
            for index, error in sorted(batch.failures.items()):
                note(f"{documents[index].name}: {error}")
        for result in batch.results():
            if dry_run:
                show_diff(result.tenant, result.changes, as_json)
            else:
                show_published(result, as_json)
    if batch.failures:
        raise typer.Exit(1) if len(documents) > 1 else batch.failures[0]


def _read_documents(files: list[Path]) -> list[NamedDocument]:
    """Read all files, so that nothing is written if one is invalid."""
    documents: list[NamedDocument] = []
    sources: dict[int, str] = {}
    for file in _files(files):
        name = "standard input" if file == Path("-") else str(file)
        content = read_all(read_stdin(), of=name) if file == Path("-") else load_all(file)
        for number, document in enumerate(content, 1):
            source = f"{name}, document {number}" if len(content) > 1 else name
            if document.tenant in sources:
                raise InvalidRequest(
                    f"{source}: tenant {document.tenant} is already in {sources[document.tenant]}"
                )
            sources[document.tenant] = source
            documents.append(NamedDocument(source, document))
    return documents


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise InvalidRequest(f"{path} has no file that ends with {', '.join(SUFFIXES)}")
        yield from files


def delete(
    tenant: TenantArgument,
    write: WriteOptions,
    target: TenantTarget,
    yes: YesOption = False,
    as_json: JSONOption = False,
) -> None:
    """Delete a tenant. Its history is kept.

    Asks for confirmation; without a terminal, --yes is required.
    """
    parts = target.run(lambda publisher: publisher.read(tenant))
    if not parts:
        raise NotConfigured(f"tenant {tenant} not found")
    if not Keyring.from_environment().current and loses_secrets(parts):
        warn(
            f"tenant {tenant} has secrets that no rollback restores: {CURRENT[0]} is not set, and "
            "the history keeps no secrets in clear text"
        )
    confirm(f"Delete {_display_name(tenant, parts)} with its {_count_parts(parts)}?", yes)

    async def remove(publisher: Publisher) -> tuple[PublishResult, int | None]:
        result = await publisher.delete(tenant, note=write.note, require=write.require(tenant))
        known = versions(await publisher.history(tenant))
        return result, max((n for n in known if n < result.number), default=None)

    result, previous_version = target.run(remove, write.by)
    show_published(result, as_json)
    if previous_version is not None:
        note(f"to undo: {printable(rollback_command(tenant, previous_version, target.namespace))}")


def _display_name(tenant: int, parts: Parts) -> str:
    """`tenant 7 (acme, "Acme Ltd")`."""
    meta = parts.get("meta")
    fields = meta if isinstance(meta, dict) else {}
    known = [str(fields.get("code") or ""), f'"{fields["name"]}"' if fields.get("name") else ""]
    names = ", ".join(filter(None, known))
    return f"tenant {tenant} ({names})" if names else f"tenant {tenant}"


def _count_parts(parts: Parts) -> str:
    databases = count_of(sum(path.startswith("database/") for path in parts), "database")
    users = count_of(sum(path.startswith("ftp/") for path in parts), "FTP user")
    return f"{count_of(len(parts), 'part')}, including {databases} and {users}"


def rollback_command(tenant: int, number: int, namespace: str) -> str:
    is_default = joined(namespace) == joined(default_namespace())
    option = "" if is_default else f" --namespace {shlex.quote(namespace)}"
    return f"mooring tenant rollback {tenant} {number}{option}"
