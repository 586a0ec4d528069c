"""How long histories are kept: the sweep of what is too old, of whatever tenant.

A publish trims the history of its own tenant, by age and by number of entries. The others are swept
by age only, since their publishers may keep more entries: one at a time, by publishers beside their
own work, by `mooring serve`, and all at once by `mooring tenant history --purge`. Of a
tenant that exists the newest entry stays; of one that was deleted nothing does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from mooring.errors import Conflict, OutcomeUnknown, StoreError, Unavailable
from mooring.store.contract import Delete, Range, Store, Write, between, unchanged
from mooring.tasks import Backoff
from mooring.tenants.keys import Owner, TenantKeys, is_area, is_id
from mooring.tenants.publish.committer import Committer, StoredTenant

log = logging.getLogger(__name__)

_BESIDE = 1.0  # seconds between two histories that a publisher looks at beside its own work
_TRIES = 20  # lost races in a row with publishers of the same tenant
_PAUSE = 1.0  # seconds between two histories that `run` looks at
_LONGEST = 60.0  # seconds between two tries while the store fails
_ROUND = 3600.0  # seconds between two rounds of `run`


class Sweeper:
    """Sweeps the histories of one namespace."""

    def __init__(self, store: Store, keys: TenantKeys, committer: Committer) -> None:
        self._store, self._keys, self._committer = store, keys, committer
        # Publishers that live briefly begin anywhere, so that together they reach every tenant.
        self._after = f"{keys.namespace}/_history/{random.randrange(1, 10**6)}".encode()
        self._begun = False
        self._stepped = float("-inf")

    async def beside_a_publish(self) -> None:
        """Sweep the next history, unless that was done a moment ago. A failure is no error."""
        if time.monotonic() - self._stepped < _BESIDE:
            return
        self._stepped = time.monotonic()
        try:
            await self.step()
        except StoreError as error:
            log.debug("histories of tenants: not swept: %s", error)

    async def step(self) -> bool:
        """Sweep the next history; False at the end of a round. It costs a small read or two, and a
        commit if something is to go."""
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
            found = await self._store.read(
                Range(self._after, histories.end), keys_only=True, limit=1
            )
            if found.first is None:
                return None
            name = (
                found.first.key.removeprefix(histories.start).partition(b"/")[0].decode("latin-1")
            )
            if is_area(name) or is_id(name):
                return name if is_area(name) else int(name)
            self._after = found.first.key + b"\0"
        return None

    async def sweep(self, owner: Owner, *, purge: bool = False) -> int:
        """Delete what is too old, or with `purge` all that may go: how many entries."""
        gone, backoff = 0, Backoff()
        for _ in range(_TRIES):
            seen = await self._committer.look(owner)
            cut = self._cut(owner, seen, purge)
            if not seen.first or cut <= seen.first:
                return gone
            head = self._keys.history_head(owner)
            try:
                await self._store.commit(
                    self._deletion(owner, seen, cut), require=[unchanged(head, seen.head)]
                )
                gone += cut - seen.first
            except (Conflict, OutcomeUnknown):
                await asyncio.sleep(backoff.next())
        return gone

    def _cut(self, owner: Owner, seen: StoredTenant, purge: bool) -> int:
        """The first number that stays."""
        deleted = not is_area(owner) and not seen.stored.revisions and not seen.stored.strange
        cut = seen.last + 1 if purge else seen.aged + 1
        return cut if deleted else min(cut, seen.last)

    def _deletion(self, owner: Owner, seen: StoredTenant, cut: int) -> Write:
        if cut > seen.last:
            return Delete(self._keys.history_of(owner))
        return Delete(
            between(self._keys.history(owner, seen.first), self._keys.history(owner, cut))
        )

    async def everything(self, progress: Callable[[int], None] = lambda done: None) -> int:
        """Sweep all histories once: how many entries went."""
        self._after = self._keys.histories.start
        gone = done = 0
        while (owner := await self._next()) is not None:
            self._after = self._keys.history_of(owner).end
            while swept := await self.sweep(owner):  # it ends early if there are very many
                gone += swept
            done += 1
            progress(done)
        return gone

    async def run(self) -> None:
        """Sweep for ever, slowly."""
        whole = False  # the first round begins anywhere, and the rest follows at once
        backoff = Backoff(_PAUSE, _LONGEST)
        while True:
            try:
                more = await self.step()
            except StoreError as error:
                log.debug("histories of tenants: not swept: %s", error)
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            await asyncio.sleep(_PAUSE if more or not whole else _ROUND)
            whole = whole or not more
