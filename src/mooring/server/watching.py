"""What lives on the fleet while the server runs: what is wrong, the stream, and who is told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

from mooring.server.alerts.alarms import StoreAlarms
from mooring.server.alerts.duty import Duty, DutyOnRedis, DutyOnStore
from mooring.server.alerts.outlook import Outlook
from mooring.server.alerts.running import Alerts
from mooring.server.fleet.service_history import ServiceHistory, scope_of
from mooring.server.parts import Parts
from mooring.server.stream import Shapes, Stream
from mooring.store.url import REDIS

if TYPE_CHECKING:
    from mooring.registry.redis.registry import RedisRegistry


def _duty(parts: Parts) -> Duty:
    """The duty lies where the registry is."""
    if parts.settings.registry_url().scheme in REDIS:
        return DutyOnRedis(cast("RedisRegistry", parts.hub.registry).leader())
    return DutyOnStore(parts.hub)


@contextlib.asynccontextmanager
async def watching(parts: Parts) -> AsyncIterator[str]:
    """From the parts' fleet, which is open; the host that alerts go to, empty for none."""
    fleet, alerts = parts.fleet, parts.settings.alerts
    async with contextlib.AsyncExitStack() as stack:
        if parts.settings.url().scheme not in REDIS:
            parts.alarms = await stack.enter_async_context(StoreAlarms(parts.hub.store))
        outlook = Outlook(fleet, alerts.patience, alarms=parts.alarms)
        parts.outlook = outlook
        parts.stream = await stack.enter_async_context(Stream(fleet, Shapes(fleet, outlook)))
        if parts.shared is not None:
            scope = scope_of(parts.hub.scope if parts.settings.registry_apart else "")
            history = ServiceHistory(fleet, parts.shared.store, scope)
            await stack.enter_async_context(history)
        if alerts.webhook:
            duty = await stack.enter_async_context(_duty(parts))
            await stack.enter_async_context(Alerts(outlook, alerts, duty))
        try:
            yield alerts.host
        finally:
            parts.outlook = parts.stream = parts.alarms = None
