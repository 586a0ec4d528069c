"""Where the store is: asked once by all who ask together."""

from __future__ import annotations

import asyncio

from mooring.errors import AccessDenied
from mooring.store.contract import Store, key


class Revisions:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: asyncio.Future[int] | None = None

    async def present(self, name: bytes) -> int:
        """A revision that the store has reached. `name` is a key that may be read. Who asks while
        another does shares its answer, and its failure where that is not the other's own."""
        while self._asked is not None:
            asked = self._asked
            await asyncio.wait([asked])
            if not asked.cancelled() and not isinstance(asked.exception(), AccessDenied):
                return asked.result()
        asked = self._asked = asyncio.get_running_loop().create_future()
        try:
            asked.set_result((await self._store.read(key(name), keys_only=True)).revision)
        except Exception as error:
            asked.set_exception(error)
            asked.exception()  # seen, though nobody else may have asked
            raise
        finally:
            asked.cancel()  # where this was: the next of them asks
            self._asked = None
        return asked.result()
