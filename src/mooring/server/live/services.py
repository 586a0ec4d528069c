"""The services that the fleet knows, and the JSON that is written of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from mooring.model import Instance, Time
from mooring.server.http.response import encode
from mooring.server.live.summary import (
    UNOBSERVED,
    Aggregate,
    HealthCounts,
    InstanceDetail,
    Observed,
    ServiceSummary,
    aggregates,
    count_health,
    instance_detail,
    service_summary,
)

Stamp = tuple[int, int]
"""What tells one state of a service from another: its changes, and what was found out beside."""

FORGOTTEN = 86_400.0
"""Seconds after which a service is forgotten that has no instances and is not described."""
FORGOTTEN_IN_ORDER = 3_600.0
"""The same of one whose last instance left in order."""


class ServiceRecord(msgspec.Struct, frozen=True):
    """A service as a server last saw it."""

    emptied: Time | None = None
    """When its last instance went; None while it has some."""
    lost: bool = False
    """Whether that one was lost, and did not leave in order."""


class KnownService:
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


_ANSWERS = 500
_ANSWERED_BYTES = 32 * 1024 * 1024
"""What whole answers take at the most."""


class _RenderedInstance(NamedTuple):
    instance: Instance
    observed: Observed
    text: bytes


class _RenderedService:
    """What was last written of a service."""

    __slots__ = ("aggregates", "instances", "summary", "tally", "text")

    def __init__(self) -> None:
        self.aggregates: tuple[int, dict[str, Aggregate]] = (-1, {})
        self.summary: tuple[Stamp, ServiceSummary] | None = None
        self.text: tuple[Stamp, bytes] | None = None
        self.tally: tuple[Stamp, HealthCounts] | None = None
        self.instances: dict[str, _RenderedInstance] = {}


class RenderedPage(NamedTuple):
    body: bytes
    headers: Mapping[str, str]


class RenderCache:
    def __init__(self, observed: Callable[[str], Mapping[str, Observed]]) -> None:
        self._observed = observed
        self._services: dict[str, _RenderedService] = {}
        self._pages: OrderedDict[Hashable, tuple[Hashable, RenderedPage]] = OrderedDict()
        self._bytes = 0

    def forget(self, service: str) -> None:
        self._services.pop(service, None)

    def leave(self, service: str, id: str) -> None:
        """An instance is gone."""
        if (written := self._services.get(service)) is not None:
            written.instances.pop(id, None)

    def _of(self, known: KnownService) -> _RenderedService:
        written = self._services.get(known.name)
        if written is None:
            written = self._services[known.name] = _RenderedService()
        return written

    def summary(self, known: KnownService) -> ServiceSummary:
        written, stamp = self._of(known), known.stamp
        if written.summary is None or written.summary[0] != stamp:
            if written.aggregates[0] != known.version:
                written.aggregates = known.version, aggregates(known.instances.values())
            told = service_summary(
                known.name,
                known.instances,
                self._observed(known.name),
                changed=known.changed,
                metrics=written.aggregates[1],
            )
            written.summary = stamp, told
        return written.summary[1]

    def summary_text(self, known: KnownService) -> bytes:
        """As JSON."""
        written, stamp = self._of(known), known.stamp
        if written.text is None or written.text[0] != stamp:
            written.text = stamp, encode(self.summary(known))
        return written.text[1]

    def counts(self, known: KnownService) -> HealthCounts:
        written, stamp = self._of(known), known.stamp
        if written.tally is None or written.tally[0] != stamp:
            written.tally = stamp, count_health(known.instances, self._observed(known.name))
        return written.tally[1]

    def instance_text(self, known: KnownService, id: str) -> bytes:
        """As JSON. Raises `KeyError` where there is none."""
        instance = known.instances[id]
        observed = self._observed(known.name).get(id, UNOBSERVED)
        written = self._of(known).instances
        shown = written.get(id)
        if shown is None or shown.instance is not instance or shown.observed is not observed:
            text = _written(instance_detail(instance, observed))
            shown = written[id] = _RenderedInstance(instance, observed, text)
        return shown.text

    def detail_text(self, known: KnownService) -> bytes:
        """A service with its instances, as JSON."""
        instances = array(self.instance_text(known, id) for id in sorted(known.instances))
        return b'%s,"instances":%s}' % (self.summary_text(known)[:-1], instances)

    def page(
        self, what: Hashable, stamp: Hashable, write: Callable[[], RenderedPage]
    ) -> RenderedPage:
        """A whole answer to `what`, written anew when the stamp is another."""
        found = self._pages.get(what)
        if found is not None and found[0] == stamp:
            self._pages.move_to_end(what)
            return found[1]
        page = write()
        self._drop(what)
        self._pages[what] = stamp, page
        self._bytes += len(page.body)
        while self._bytes > _ANSWERED_BYTES or len(self._pages) > _ANSWERS:
            self._drop(next(iter(self._pages)))
        return page

    def _drop(self, what: Hashable) -> None:
        if (found := self._pages.pop(what, None)) is not None:
            self._bytes -= len(found[1].body)


def _written(detail: InstanceDetail) -> bytes:
    try:
        return encode(detail)
    except RecursionError:  # one that nests what it says a thousand deep hides nobody else
        return encode(msgspec.structs.replace(detail, metrics={}, config={}))


def array(texts: Iterable[bytes]) -> bytes:
    """A JSON array of what is JSON already."""
    return b"[%s]" % b",".join(texts)
