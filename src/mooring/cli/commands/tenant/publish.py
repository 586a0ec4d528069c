"""`mooring tenant diff`, `publish` and `delete`."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from mooring.cli.io.output import confirm, count_of, note, progress, warn
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
from mooring.tenants.document import SUFFIXES, Document, load_all, read_all
from mooring.tenants.history import versions
from mooring.tenants.keys import default_namespace, joined
from mooring.tenants.parts import PartDiff, Parts
from mooring.tenants.publish.publish_state import PublishResult
from mooring.tenants.publish.publisher import Publisher, Require
from mooring.tenants.secrets import CURRENT, Keyring

FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="YAML, JSON or JSON lines; a folder of such files; - reads standard input",
    ),
]
_WOULD_CHANGE = 3
_CONCURRENCY = 16  # tenants that are published at the same time


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

    If one of the files is invalid, nothing is written. Each tenant is published completely or not
    at all. If one cannot be published, the others still are, and the exit code is 1.
    """
    documents = _read_documents(files)
    if write.base and len(documents) > 1:
        raise typer.BadParameter(
            f"applies to one tenant, but the files contain {len(documents)}",
            param_hint="--base",
        )
    require = write.require(documents[0].document.tenant) if documents else None
    batch = PublishBatch(documents, write.note, require, dry_run=dry_run)

    async def run(publisher: Publisher) -> None:
        with progress("published") as report:
            await batch.run(publisher, report)

    try:
        target.run(run, write.by)
    finally:  # prints what was published even if the store became unavailable
        for result in batch.results():
            if dry_run:
                show_diff(result.tenant, result.changes, as_json)
            else:
                show_published(result, as_json)
    if batch.failures:
        raise typer.Exit(1)


class PublishBatch:
    """Tenants to publish, several at the same time."""

    def __init__(
        self,
        documents: Sequence[NamedDocument],
        reason: str,
        require: Require | None,
        *,
        dry_run: bool,
    ) -> None:
        self._documents, self._reason, self._require = documents, reason, require
        self._dry_run = dry_run
        self._done: dict[int, PublishResult] = {}
        self.failures: dict[int, MooringError] = {}
        """The errors, by the index of the document."""

    def results(self) -> list[PublishResult]:
        return [self._done[index] for index in sorted(self._done)]

    async def run(self, publisher: Publisher, report: Callable[[int, int | None], None]) -> None:
        """Publish all. If another tenant holds a name, retry after the others: one of them may
        have released it."""
        pending = list(range(len(self._documents)))
        single = len(pending) == 1
        try:
            while pending:
                before = len(self._done)
                await self._pass(publisher, pending, report)
                taken = [n for n, error in self.failures.items() if isinstance(error, Taken)]
                pending = sorted(taken) if len(self._done) > before and not self._dry_run else []
        finally:  # also if the store became unavailable
            for index, error in sorted(self.failures.items()):
                if not single:
                    note(f"{self._documents[index].name}: {error}")
        if self.failures and single:
            raise self.failures[0]

    async def _pass(
        self,
        publisher: Publisher,
        indexes: Sequence[int],
        report: Callable[[int, int | None], None],
    ) -> None:
        queue = iter(indexes)
        fatal: list[MooringError] = []

        async def work() -> None:
            for index in queue:
                if fatal:
                    return
                self.failures.pop(index, None)
                try:
                    document = self._documents[index].document
                    self._done[index] = await self._publish_one(publisher, document)
                except _TENANT_ERRORS as error:
                    self.failures[index] = error
                except MooringError as error:
                    fatal.append(error)  # the store is unavailable
                report(len(self._done), len(self._documents))

        report(len(self._done), len(self._documents))
        await asyncio.gather(*(work() for _ in range(_CONCURRENCY)))
        if fatal:
            raise fatal[0]

    async def _publish_one(self, publisher: Publisher, document: Document) -> PublishResult:
        if not self._dry_run:
            return await publisher.apply(document, note=self._reason, require=self._require)
        changes = await publisher.diff(document, require=self._require)
        return PublishResult(document.tenant, tuple(changes))


_TENANT_ERRORS = (TenantError, InvalidRequest, TooLarge, Conflict, OutcomeUnknown)
"""Errors that concern one tenant only."""


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
    if not Keyring.from_environment().current and _has_cleartext_secrets(parts):
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


def _has_cleartext_secrets(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_cleartext_secrets, value))
    if not isinstance(value, Mapping):
        return False
    return any(
        (is_secret(str(name)) and name != "passwordEncrypted" and bool(inner))
        or _has_cleartext_secrets(inner)
        for name, inner in value.items()
    )


def rollback_command(tenant: int, number: int, namespace: str) -> str:
    is_default = joined(namespace) == joined(default_namespace())
    option = "" if is_default else f" --namespace {shlex.quote(namespace)}"
    return f"mooring tenant rollback {tenant} {number}{option}"
