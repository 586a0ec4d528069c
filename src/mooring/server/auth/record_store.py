"""Where a server keeps its tokens, sessions, login links and audit log: in its store, shared by all
servers with the same key, or in a file of its own.

It uses a file of its data folder if the store is not durable (`memory://`), if there is only Redis,
and if the records of the store are authenticated with another key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Self, TypeVar

from mooring.backends import open_store
from mooring.errors import AccessDenied, InvalidRequest, StoreError
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
"""Seconds that the start of the server waits for the store."""
_SHARE_INTERVAL = 1.0
"""Seconds between two checks whether the other servers know the admin token."""
LOCAL = "records"
"""The file for records that are not shared."""


class RecordStore:
    """Entering waits a few seconds until the records are read. If the store is unavailable for
    longer, only the admin token is accepted until they are."""

    def __init__(
        self,
        folder: DataDir,
        tokens: Tokens,
        sessions: Sessions,
        audit: Audit,
        store: Store | None,
    ) -> None:
        """`store` is the store of the hub, if it has one."""
        self._folder, self._tokens, self._sessions = folder, tokens, sessions
        self._audit = audit
        self.audit: AuditStore | None = None
        """The audit log of all servers, once the records are read."""
        self._store = store if store is not None and store.guarantees.durable else None
        self._key = ServerKey(folder.server_key())
        self._ended = None if self._store is None else EndedRecords(folder)
        self._opened = contextlib.AsyncExitStack()
        self._running = Tasks()
        self._records: Store | None = None
        """The store of the records, once it is decided."""
        self._decided = asyncio.Event()

    async def store(self) -> Store:
        """The store of the records; waits until it is decided."""
        await self._decided.wait()
        assert self._records is not None
        return self._records

    @property
    def shared(self) -> bool:
        """Whether the other servers of the store have the same records."""
        return self._records is not None and self._records is self._store

    async def __aenter__(self) -> Self:
        opening = self._running.start(self._open(), name="shared records")
        await asyncio.wait([opening], timeout=_WAIT)
        if opening.done() and (error := opening.exception()) is not None:
            await self.__aexit__()
            raise error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()
        await self._opened.aclose()
        if self._ended is not None:
            await self._ended.aclose()

    async def _open(self) -> None:
        store, problem = self._store, ""
        if store is not None:
            try:
                if not await _retried(partial(is_key_of, store, self._key)):
                    problem = (
                        f"the tokens and sessions in {store.url} are authenticated with another "
                        "key than that of this server, which therefore has tokens and sessions of "
                        f"its own. To share them, copy the file {SERVER_KEY} from the data folder "
                        f"of another server, or set the same {SERVER_KEY_VARIABLE}, and restart "
                        "this server"
                    )
            except AccessDenied as error:
                problem = (
                    f"this server may not write below {ROOT} in {store.url}, so it has tokens and "
                    f"sessions of its own: {error}"
                )
            store = None if problem else store
        if store is None:
            url = StoreURL("sqlite", str(self._folder.path / LOCAL))
            store = await self._opened.enter_async_context(open_store(url))
        await self._attach(store)
        self.audit = await self._opened.enter_async_context(AuditStore(store, self._audit))
        self._records = store
        self._decided.set()
        if problem:
            log.error("%s", problem)
        if self.shared:
            self._running.start(self._share_admin(), name="shared admin token")

    async def _attach(self, store: Store) -> None:
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
            await records.mirror.ready()
        self._tokens.attach(tokens)
        self._sessions.attach(sessions, codes)

    async def _share_admin(self) -> None:
        """Share the admin token repeatedly, because its file may be replaced at any time."""
        server, failing = self._folder.server_id(), False
        while True:
            try:
                await self._tokens.share_admin(server)
                failing = False
            except (StoreError, InvalidRequest) as error:
                if not failing:
                    log.warning("the admin token cannot be shared with other servers: %s", error)
                failing = True
            await asyncio.sleep(_SHARE_INTERVAL)


async def _retried(read: Callable[[], Awaitable[T]]) -> T:
    """The result of `read`, retried until the store is available."""
    backoff, failing = Backoff(0.2, 2.0), False
    while True:
        try:
            return await read()
        except AccessDenied:
            raise
        except StoreError as error:
            if not failing:
                log.warning("only the admin token is accepted until the store answers: %s", error)
            failing = True
        await asyncio.sleep(backoff.next())
