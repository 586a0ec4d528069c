"""One contender's place in a line: it waits there for its turn, and hears when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mooring.display import readable
from mooring.errors import InvalidRequest, LockLost
from mooring.locks.line import Mark, Rule
from mooring.store.contract import Check, created_at


class Place:
    """One contender's place in a line. Made by `Queue.join`."""

    def __init__(
        self, key: bytes, created: int, lease: int, rule: Rule, *, fresh: bool = True
    ) -> None:
        self.key, self.token, self.lease = key, created, lease
        self.rule = rule
        self.fresh = fresh
        """Whether it was taken just now; else it stood already, for the same lease."""
        self.gone = ""
        """Why it is gone, where it is."""
        self.refused = ""
        """Why it cannot stand in this line, where it cannot."""
        self.on_gone: Callable[[str], None] | None = None
        self._turn: asyncio.Future[None] | None = None
        self._admitted = False

    @property
    def mark(self) -> Mark:
        return (self.token, self.key)

    @property
    def check(self) -> Check:
        """Holds for as long as the place stands."""
        return created_at(self.key, self.token)

    @property
    def admitted(self) -> bool:
        return self._admitted

    async def turn(self) -> None:
        """Wait until it may go ahead. Raises `LockLost` where the place is gone, and
        `InvalidRequest` where the line is one of another kind."""
        if not (self._admitted or self.gone or self.refused):
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn
        if self.gone:
            raise LockLost(f"the place {readable(self.key)} in the line is gone: {self.gone}")
        if self.refused:
            raise InvalidRequest(self.refused)

    def admit(self) -> None:
        self._admitted = True
        self._wake()

    def refuse(self, reason: str) -> None:
        self.refused = reason
        self._wake()

    def lose(self, reason: str) -> None:
        if not self.gone:
            self.gone = reason
            self._wake()
            if self.on_gone is not None:
                self.on_gone(reason)

    def _wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
