"""A service as the fleet knows it, and for how long it is remembered without instances."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from mooring.model import Instance, Time
from mooring.server.live.rendering import Stamp

FORGOTTEN = 86_400.0
"""Seconds after which a service is forgotten that has no instances and is not described."""
FORGOTTEN_IN_ORDER = 3_600.0
"""The same of one whose last instance left in order."""


class Remembered(msgspec.Struct, frozen=True):
    """A service as a server last saw it."""

    emptied: Time | None = None
    """When its last instance went; None while it has some."""
    lost: bool = False
    """Whether that one was lost, and did not leave in order."""


class Known:
    """A service that is known."""

    __slots__ = (
        "_instances",
        "absent",
        "changed",
        "emptied",
        "kept",
        "lost",
        "name",
        "remembered",
        "sampled",
        "since",
        "version",
    )

    def __init__(self, name: str, since: Time, version: int = 0) -> None:
        self.name = name
        self.since = since
        """Since when this server knows it."""
        self.changed = since
        self.emptied: Time | None = None
        """When its last instance went; None while it has some, or if it never had one."""
        self.lost = False
        """Whether that one was lost, and did not leave in order."""
        self.absent = False
        """Whether it had no instance when this server started, and none since."""
        self.remembered = False
        """Whether it had instances when a server last saw it, but none since this one started."""
        self.kept = False
        """Whether the registry kept its name since it has no instances: if it does no longer, the
        service was forgotten, by whichever server."""
        self.version = version
        """Goes up with each change of it."""
        self.sampled = 0
        """Goes up with what is found out of it without a change: silence, response times."""
        self._instances: dict[str, Instance] = {}

    @property
    def instances(self) -> Mapping[str, Instance]:
        return MappingProxyType(self._instances)

    @property
    def stamp(self) -> Stamp:
        """Another one whenever something else is shown of it."""
        return self.version, self.sampled

    @property
    def lasts(self) -> float:
        """Seconds for which it is remembered while it has no instances and is not described; none
        if it was described while it had none: an operator removed that."""
        if self.kept:
            return 0.0
        return FORGOTTEN if self.emptied is None or self.lost else FORGOTTEN_IN_ORDER
