"""Deletes history entries that are too old.

A publish trims the history of its own tenant, by age and by number of entries. The sweeper trims
all histories, by age only, since their publishers may keep more entries. `mooring serve` and
publishers sweep one history at a time in the background; `mooring tenant history --purge` sweeps
all at once. The newest entry of an existing tenant stays; a deleted tenant keeps none.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from mooring.errors import Conflict, OutcomeUnknown, StoreError, Unavailable
from mooring.store.contract import Delete, Range, Write, between, unchanged
from mooring.tasks import Backoff
from mooring.tenants.keys import Owner, is_area, is_id
from mooring.tenants.publish.committer import Committer, StoredTenant

log = logging.getLogger(__name__)

_PUBLISHER_PAUSE = 1.0  # seconds between two histories that a publisher sweeps
_TRIES = 20  # consecutive conflicts with publishers of the same tenant
_PAUSE = 1.0  # seconds between two histories that `run` sweeps
_MAX_BACKOFF = 60.0  # seconds between two attempts while the store fails
_ROUND_PAUSE = 3600.0  # seconds between two rounds of `run`


class Sweeper:
    """Sweeps the histories of one namespace."""

    def __init__(self, committer: Committer) -> None:
        self._store, self._keys, self._committer = committer.store, committer.keys, committer
        # Short-lived publishers start at a random place, so that together they reach every tenant.
        self._after = f"{self._keys.namespace}/_history/{random.randrange(1, 10**6)}".encode()
        self._begun = False
        self._stepped = float("-inf")

    async def beside_a_publish(self) -> None:
        """Sweep the next history, at a limited rate. A failure is only logged."""
        if time.monotonic() - self._stepped < _PUBLISHER_PAUSE:
            return
        self._stepped = time.monotonic()
        try:
            await self.step()
        except StoreError as error:
            log.debug("the histories of tenants were not swept: %s", error)

    async def step(self) -> bool:
        """Sweep the next history; False at the end of a round. Costs one or two small reads, and a
        commit if there is something to delete."""
        start = self._keys.histories.start
        owner = await self._next()
        if owner is None:
            begun, self._after = self._begun, start
            self._begun = True
            return False if begun else await self.step()
        self._begun = True
        before, self._after = self._after, self._keys.history_of(owner).end
        try:
            await self.sweep(owner)
        except Unavailable:
            self._after = before  # the next step resumes here
            raise
        return True

    async def _next(self) -> Owner | None:
        histories = self._keys.histories
        while self._after < histories.end:
            rest = Range(self._after, histories.end)
            first = (await self._store.read(rest, keys_only=True, limit=1)).first
            if first is None:
                return None
            name = first.key.removeprefix(histories.start).partition(b"/")[0].decode("latin-1")
            if is_area(name) or is_id(name):
                return name if is_area(name) else int(name)
            self._after = first.key + b"\0"
        return None

    async def sweep(self, owner: Owner, *, purge: bool = False) -> int:
        """Delete old entries, or with `purge` all that may be deleted; how many there were."""
        deleted, backoff = 0, Backoff()
        for _ in range(_TRIES):
            seen = await self._committer.read(owner)
            cut = self._cut(owner, seen, purge)
            if not seen.first or cut <= seen.first:
                return deleted
            head = self._keys.history_head(owner)
            try:
                await self._store.commit(
                    self._deletion(owner, seen, cut), require=[unchanged(head, seen.head)]
                )
                deleted += cut - seen.first
            except (Conflict, OutcomeUnknown):
                await asyncio.sleep(backoff.next())
        return deleted

    def _cut(self, owner: Owner, seen: StoredTenant, purge: bool) -> int:
        """The number of the first entry that stays."""
        deleted = not is_area(owner) and not seen.stored.revisions and not seen.stored.unknown_keys
        cut = seen.last + 1 if purge else seen.expired + 1
        return cut if deleted else min(cut, seen.last)

    def _deletion(self, owner: Owner, seen: StoredTenant, cut: int) -> Write:
        if cut > seen.last:
            return Delete(self._keys.history_of(owner))
        return Delete(
            between(self._keys.history(owner, seen.first), self._keys.history(owner, cut))
        )

    async def everything(self) -> int:
        """Sweep all histories once; how many entries were deleted."""
        self._after = self._keys.histories.start
        deleted = 0
        while (owner := await self._next()) is not None:
            self._after = self._keys.history_of(owner).end
            while swept := await self.sweep(owner):  # each call deletes a limited number of entries
                deleted += swept
        return deleted

    async def run(self) -> None:
        """Sweep continuously, at a limited rate."""
        complete = False  # the first round starts at a random place; the second follows at once
        backoff = Backoff(_PAUSE, _MAX_BACKOFF)
        while True:
            try:
                more = await self.step()
            except StoreError as error:
                log.debug("the histories of tenants were not swept: %s", error)
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            await asyncio.sleep(_PAUSE if more or not complete else _ROUND_PAUSE)
            complete = complete or not more
