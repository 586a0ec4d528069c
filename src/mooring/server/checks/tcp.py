"""TCP: somebody accepts the connection."""

from __future__ import annotations

from mooring.server.checks.connecting import attempt, connected
from mooring.server.checks.contract import Outcome, Target


class TCPChecker:
    async def check(self, target: Target, *, timeout: float) -> Outcome:
        async def connect() -> None:
            async with connected(target, None):
                pass

        return await attempt(connect, timeout=timeout)
