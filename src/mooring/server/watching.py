"""What lives on the fleet while the server runs: what is wrong, the stream, and who is told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from mooring.server.alerts.outlook import Outlook
from mooring.server.alerts.running import Alerts
from mooring.server.parts import Parts
from mooring.server.stream import Shapes, Stream


@contextlib.asynccontextmanager
async def watching(parts: Parts) -> AsyncIterator[str]:
    """From the parts' fleet, which is open; the host that alerts go to, empty for none."""
    fleet, alerts = parts.fleet, parts.settings.alerts
    outlook = Outlook(fleet, alerts.patience)
    async with contextlib.AsyncExitStack() as stack:
        parts.outlook = outlook
        parts.stream = await stack.enter_async_context(Stream(fleet, Shapes(fleet, outlook)))
        if alerts.webhook:
            await stack.enter_async_context(Alerts(outlook, alerts))
        try:
            yield alerts.host
        finally:
            parts.outlook = parts.stream = None
