"""How a channel chooses among instances, as `hub.discover` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict

from mooring.discovery.resilience import Resilience
from mooring.discovery.retention import Empty
from mooring.model import Instance

RESILIENCE = Resilience(retry_least=5.0)
"""What is done about instances that fail, where nothing else is said. The more generous retries are
for a process that dies with some fifty calls, where there were few before."""


class Discovery(TypedDict, total=False):
    """Which instances, and what is done about those that fail: as for `hub.discover`."""

    version: str
    tags: Mapping[str, str]
    zone: str
    zone_only: bool
    where: Callable[[Instance], bool]
    resilience: Resilience
    empty: Empty
    hold: float
