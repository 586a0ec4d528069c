"""Where the tokens, sessions, login links and the audit of a server are: in its store, for all
servers that have the same key, or in a file of its own.

They are in a file of the data folder if the store keeps nothing over a restart (`memory://`), if
there is only Redis, and if the store's records are authenticated with a key that this server does
not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Self, TypeVar

from mooring.errors import AccessDenied, InvalidRequest, StoreError
from mooring.hub import open_store
from mooring.server.auth.audit import Audit
from mooring.server.auth.audit_store import AuditStore
from mooring.server.auth.data_dir import SERVER_KEY, SERVER_KEY_VARIABLE, DataDir
from mooring.server.auth.sessions import Login, Sessions
from mooring.server.auth.signed_records import (
    ROOT,
    EndedRecords,
    ServerKey,
    SignedRecords,
    is_key_of,
)
from mooring.server.auth.tokens import Token, Tokens
from mooring.store import Store
from mooring.store.url import StoreURL
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

T = TypeVar("T")

_WAIT = 5.0
"""Seconds that a start waits for the store to answer."""
_SHARE_INTERVAL = 1.0
"""Seconds between two looks at whether the others know our admin token."""
LOCAL = "records"
"""The file of a server that does not share."""


class CredentialStore:
    """Entering waits a few seconds until the records are read. If the store is away for longer,
    that happens when it is back; until then only the admin token is accepted."""

    def __init__(
        self,
        folder: DataDir,
        tokens: Tokens,
        sessions: Sessions,
        audit: Audit,
        store: Store | None,
    ) -> None:
        """`store` is that of the hub, if it has one."""
        self._folder, self._tokens, self._sessions = folder, tokens, sessions
        self._audit = audit
        self.audit: AuditStore | None = None
        """The audit of all servers, once the records are read."""
        self._store = store if store is not None and store.guarantees.durable else None
        self._key = ServerKey(folder.server_key())
        self._ended = None if self._store is None else EndedRecords(folder)
        self._opened = contextlib.AsyncExitStack()
        self._running = Tasks()
        self.records: Store | None = None
        """Where the records are, once that is known."""
        self._decided = asyncio.Event()
        self.problem = ""
        """Why they are not shared, though the store could keep them."""

    async def store(self) -> Store:
        """Where the records are; waits until that is known."""
        await self._decided.wait()
        assert self.records is not None
        return self.records

    @property
    def shared(self) -> bool:
        """Whether the other servers of the store have the same records."""
        return self.records is not None and self.records is self._store

    def _another_key(self, store: Store) -> str:
        return (
            f"the tokens and sessions in {store.url} are authenticated with another key than that "
            f"of this server, which has its own only. To share them, give it the file {SERVER_KEY} "
            f"of the data folder of another server, or the same {SERVER_KEY_VARIABLE}, and restart "
            "it"
        )

    async def __aenter__(self) -> Self:
        opening = self._running.start(self._open(), name="shared records")
        await asyncio.wait([opening], timeout=_WAIT)
        if opening.done() and (error := opening.exception()) is not None:
            await self.aclose()
            raise error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._running.aclose()
        await self._opened.aclose()
        if self._ended is not None:
            await self._ended.aclose()

    async def _open(self) -> None:
        store = self._store
        if store is not None:
            try:
                if not await _retried(partial(is_key_of, store, self._key)):
                    self.problem = self._another_key(store)
            except AccessDenied as error:
                self.problem = (
                    f"this server may not write below {ROOT} in {store.url}, so it has tokens and "
                    f"sessions of its own only: {error}"
                )
            store = None if self.problem else store
        if store is None:
            url = StoreURL("sqlite", str(self._folder.path / LOCAL))
            store = await self._opened.enter_async_context(open_store(url))
        await self._use(store)
        self.audit = await self._opened.enter_async_context(AuditStore(store, self._audit))
        self.records = store
        self._decided.set()
        if self.problem:
            log.error("%s", self.problem)
        if self.shared:
            self._running.start(self._share_admin(), name="shared admin token")

    async def _use(self, store: Store) -> None:
        ended = self._ended if store is self._store else None
        tokens = SignedRecords(
            store,
            self._key,
            "tokens",
            Token,
            changed=self._tokens.changed,
            ended=ended,
            until=Token.until,
        )
        sessions = SignedRecords(store, self._key, "sessions", Login)
        codes = SignedRecords(store, self._key, "login-links", Login)
        for records in (tokens, sessions, codes):
            await self._opened.enter_async_context(records)
        for records in (tokens, sessions, codes):
            await records.ready()
        await _retried(partial(self._tokens.attach, tokens))
        self._sessions.attach(sessions, codes)

    async def _share_admin(self) -> None:
        """The file may be replaced at any time."""
        server, known = self._folder.server_id(), ""
        while True:
            try:
                await self._tokens.share_admin(server)
                known = ""
            except (StoreError, InvalidRequest) as error:
                if not known:
                    known = str(error)
                    log.warning("the other servers do not know the admin token: %s", error)
            await asyncio.sleep(_SHARE_INTERVAL)


async def _retried(ask: Callable[[], Awaitable[T]]) -> T:
    """What the store answers, however long it is away."""
    backoff, known = Backoff(0.2, 2.0), False
    while True:
        try:
            return await ask()
        except AccessDenied:
            raise
        except StoreError as error:
            if not known:
                log.warning("only the admin token is accepted until the store answers: %s", error)
            known = True
        await asyncio.sleep(backoff.next())
