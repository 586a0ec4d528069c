"""What the handlers of the API work with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mooring.server.health import Readiness

if TYPE_CHECKING:
    from mooring.hub import Hub
    from mooring.server.access.audit import Audit
    from mooring.server.access.limits import Limits
    from mooring.server.access.origins import Origins
    from mooring.server.access.sessions import Sessions
    from mooring.server.access.tokens import Tokens
    from mooring.server.fleet.live import Fleet
    from mooring.server.settings import ServerSettings


@dataclass(slots=True)
class Parts:
    settings: ServerSettings
    readiness: Readiness
    tokens: Tokens
    sessions: Sessions
    origins: Origins
    limits: Limits
    audit: Audit
    hub: Hub | None = field(default=None)
    """None until the store is open: the HTTP face is up before it."""
    fleet: Fleet | None = field(default=None)
