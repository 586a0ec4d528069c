"""The tokens that ended, remembered in the data folder: a server that saw one end never accepts it
again.

The HMAC of a record covers numbers that the store counts, so that an old version cannot be put
back. They begin again if an etcd is made again, and under the same flags it has the same cluster
id. Then only a server that remembers can tell a record that was revoked from one that is valid.

A record has ended if the server saw the store delete it, or found a newer valid record in its
place. One that is only missing when the server reads all records has not: the etcd may be empty or
older for a while, and get its data back.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from mooring.atomic_file import replacing
from mooring.errors import InvalidRequest
from mooring.server.auth.data_dir import ENDED_TOKENS, Folder
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

MOST = 100_000
"""Ended tokens of a store that are remembered; of more, the oldest are forgotten."""
_LONGER = 7 * 86400
"""Seconds for which a token is remembered after it has expired, in case that a clock is wrong."""


class RecordVersion(msgspec.Struct, frozen=True, array_like=True):
    """What identifies a record."""

    mac: str
    created: int
    """The revision at which its key was created."""
    version: int
    until: float | None = None
    """From when on it grants nothing, in seconds since 1970; None: never."""


class _Seen(msgspec.Struct):
    live: dict[str, RecordVersion] = {}
    """The valid record that was last found, by id."""
    ended: dict[str, float | None] = {}
    """`until` of those that ended, by their MACs, the oldest first."""

    def without_expired(self) -> _Seen:
        now = time.time() - _LONGER
        return _Seen(
            {id: it for id, it in self.live.items() if it.until is None or it.until > now},
            {mac: until for mac, until in self.ended.items() if until is None or until > now},
        )


class Ended:
    """What this server knows of the records of each store, by the store's identity. It is written
    in the background; `aclose` waits for that."""

    def __init__(self, folder: Folder) -> None:
        """Raises `InvalidRequest` for a file that cannot be used."""
        self._folder, self._file = folder, folder.path / ENDED_TOKENS
        self._stores: dict[str, _Seen] = {}
        self._tasks, self._changed = Tasks(), False
        self._writing: asyncio.Task[object] | None = None
        try:
            text = folder.read(self._file, closed=0o022)
            stores = msgspec.json.decode(text, type=dict[str, _Seen])
        except FileNotFoundError:
            return
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidRequest(
                f"{self._file} is damaged: restore it from a backup of the folder, or remove it, "
                "which forgets the tokens that ended"
            ) from None
        self._stores = {store: seen.without_expired() for store, seen in stores.items()}

    def has(self, store: str, mac: str) -> bool:
        return store in self._stores and mac in self._stores[store].ended

    def found(self, store: str, id: str, record: RecordVersion) -> None:
        """A record is valid. An older one of its id has ended."""
        live = self._stores.setdefault(store, _Seen()).live
        before = live.get(id)
        if before == record:
            return
        if before and (before.created, before.version) < (record.created, record.version):
            self.gone(store, id)
        live[id] = record
        self._save()

    def gone(self, store: str, id: str) -> None:
        """A record was deleted or replaced, so it has ended."""
        seen = self._stores.get(store)
        if seen is None or (before := seen.live.pop(id, None)) is None:
            return
        seen.ended[before.mac] = before.until
        if len(seen.ended) > MOST:
            del seen.ended[next(iter(seen.ended))]
        self._save()

    async def aclose(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def _save(self) -> None:
        self._changed = True
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write_all(), name="memory of ended tokens")

    async def _write_all(self) -> None:
        while self._changed:
            self._changed = False
            stores = {
                store: _Seen(seen.live.copy(), seen.ended.copy())
                for store, seen in self._stores.items()
            }
            try:
                await asyncio.to_thread(self._write, stores)
            except OSError as error:
                log.error("which tokens ended is not remembered: %s", self._folder.unusable(error))

    def _write(self, stores: dict[str, _Seen]) -> None:
        with replacing(self._file) as out:
            out.write(msgspec.json.encode(stores))
