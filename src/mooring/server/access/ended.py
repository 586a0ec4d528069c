"""The tokens that ended, remembered in the data folder: a server that saw one end never accepts it
again.

The HMAC of a record covers numbers that the store counts, so that an old version cannot be put
back. They begin again if an etcd is made again, and under the same flags it has the same cluster
id. Then only a server that remembers can tell a record that was revoked from one that is valid.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec

from mooring.errors import InvalidRequest
from mooring.replacement import replacing
from mooring.server.access.folder import ENDED_TOKENS, Folder

log = logging.getLogger(__name__)

MOST = 100_000
"""Ended tokens of a store that are remembered; of more, the oldest are forgotten."""


class _Seen(msgspec.Struct):
    live: list[str] = []
    """The MACs of the records that were valid at the last look."""
    ended: list[str] = []
    """Those of records that were valid before, the oldest first."""


class Ended:
    """What this server knows of the records of each store, by the store's identity."""

    def __init__(self, folder: Folder) -> None:
        """Raises `InvalidRequest` for a file that cannot be used."""
        self._folder, self._file = folder, folder.path / ENDED_TOKENS
        try:
            text = folder.read(self._file, closed=0o022)
            self._stores = msgspec.json.decode(text, type=dict[str, _Seen])
        except FileNotFoundError:
            self._stores = {}
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidRequest(
                f"{self._file} is damaged: restore it from a backup of the folder, or remove it, "
                "which forgets the tokens that ended"
            ) from None
        self._ended = {store: set(seen.ended) for store, seen in self._stores.items()}

    def has(self, store: str, mac: str) -> bool:
        return mac in self._ended.get(store, ())

    def look(self, store: str, valid: Collection[str]) -> None:
        """Those that were valid at the last look and no longer are have ended."""
        seen = self._stores.setdefault(store, _Seen())
        live = set(seen.live)
        if live == set(valid):
            return
        gone = live.difference(valid)
        ended = [*seen.ended, *(mac for mac in seen.live if mac in gone)][-MOST:]
        self._stores[store] = _Seen(list(valid), ended)
        self._ended[store] = set(ended)
        try:
            with replacing(self._file) as out:
                out.write(msgspec.json.encode(self._stores))
        except OSError as error:
            log.error("which tokens ended is not remembered: %s", self._folder.unusable(error))
