"""One leader at a time among the servers of a registry, by a lease on Redis.

Redis has no fencing, and a failover may forget a lease: for a moment there may be two leaders. That
is good enough for work that may be done twice.
"""

from __future__ import annotations

from mooring.registry.redis.connection import Connection
from mooring.registry.redis.layout import RedisKeys
from mooring.registry.redis.pipeline import LEAD, NOTE

_KEPT = 7 * 86400
"""Seconds for which the last leader's note is kept."""


class RedisLeaderLease:
    """The lease, and a note that the leader leaves to its successors."""

    def __init__(self, connection: Connection, keys: RedisKeys) -> None:
        self._connection = connection
        self._leader, self._note = keys.leader, keys.alerts

    async def lead(self, id: str, ttl: float) -> bool:
        """Whether this candidate leads for the next `ttl` seconds. Raises what a store raises."""
        done = await self._connection.run(
            LEAD, [self._leader], [id, int(ttl * 1000)], what="election of a leader"
        )
        return bool(done)

    async def resign(self, id: str) -> None:
        """Let another candidate lead. Raises what a store raises."""
        await self.lead(id, 0)

    async def note(self) -> bytes:
        """What the last leader left, or nothing. Raises what a store raises."""
        found: bytes | None = await self._connection.call(
            "GET", self._note, what=f"read of {self._note}"
        )
        return found or b""

    async def leave_note(self, id: str, note: bytes) -> bool:
        """Whether the note was left: not if another candidate leads. Raises what a store raises."""
        done = await self._connection.run(
            NOTE, [self._leader, self._note], [id, note, _KEPT], what=f"write of {self._note}"
        )
        return bool(done)
