"""Publishes several tenants at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mooring.errors import (
    Conflict,
    InvalidRequest,
    MooringError,
    OutcomeUnknown,
    Taken,
    TenantError,
    TooLarge,
)
from mooring.tenants.document import Document
from mooring.tenants.publish.publisher import Publisher, Require
from mooring.tenants.publish.result import PublishResult

_CONCURRENCY = 16  # tenants that are published at the same time

_TENANT_ERRORS = (TenantError, InvalidRequest, TooLarge, Conflict, OutcomeUnknown)
"""Errors that concern one tenant only."""


class PublishBatch:
    """Tenants to publish, several at the same time."""

    def __init__(
        self,
        documents: Sequence[Document],
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
        have released it. Raises the error of a store that became unavailable."""
        pending = list(range(len(self._documents)))
        while pending:
            before = len(self._done)
            await self._pass(publisher, pending, report)
            taken = [n for n, error in self.failures.items() if isinstance(error, Taken)]
            pending = sorted(taken) if len(self._done) > before and not self._dry_run else []

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
                    self._done[index] = await self._publish_one(publisher, self._documents[index])
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
