"""The services that the fleet knows, and a cache of the JSON that describes them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec

from mooring.model import Instance, Time
from mooring.server.http.response import encode
from mooring.server.live.summary import (
    NOT_OBSERVED,
    HealthCounts,
    InstanceDetail,
    Observation,
    ServiceSummary,
    aggregates,
    count_health,
    instance_detail,
    service_summary,
)

T = TypeVar("T")

Stamp = tuple[int, int]
"""Differs between any two states of a service: its version, and its number of samples."""

FORGET_LOST = 86_400.0
"""Seconds after which a service without instances is forgotten, unless it has a configuration."""
FORGET_DEREGISTERED = 3_600.0
"""The same if its last instance deregistered."""
_MAX_PAGES = 500
_MAX_PAGE_BYTES = 32 * 1024 * 1024


class ServiceRecord(msgspec.Struct, frozen=True):
    """A service as a server last saw it."""

    emptied: Time | None = None
    """When its last instance left; None while it has instances."""
    lost: bool = False
    """Whether that instance was lost, instead of deregistered."""


class _RenderedInstance(NamedTuple):
    instance: Instance
    observed: Observation
    text: bytes


@dataclass(slots=True, eq=False)
class KnownService:
    name: str
    since: Time
    """Since when this server knows it."""
    changed: Time
    version: int
    """Increases with each change."""
    sampled: int = 0
    """Increases with each sample that changes nothing: silence, response times."""
    emptied: Time | None = None
    """When its last instance left; None while it has instances, or if it never had one."""
    lost: bool = False
    """Whether that instance was lost, instead of deregistered."""
    absent: bool = False
    """Whether it had no instances when this server started, and none since."""
    remembered: bool = False
    """Whether it had instances when a server last saw it, but none since this server started."""
    kept: bool = False
    """Whether the registry lists it although it has no instances. Once the registry no longer lists
    it, an operator has removed it, on any server."""
    instances: dict[str, Instance] = field(default_factory=dict)
    observations: dict[str, Observation] = field(default_factory=dict)
    """By instance; those of which nothing was observed are missing."""
    rendered: dict[str, tuple[Hashable, Any]] = field(default_factory=dict)
    """What `RenderCache` last computed for it, with the state that it was computed from."""
    rendered_instances: dict[str, _RenderedInstance] = field(default_factory=dict)

    def add(self, id: str, instance: Instance) -> None:
        self.instances[id] = instance
        self.emptied = None
        self.absent = self.remembered = self.kept = False

    def observed_instances(self) -> Iterator[tuple[Instance, Observation]]:
        """Each instance with what was observed of it."""
        for id, instance in self.instances.items():
            yield instance, self.observations.get(id, NOT_OBSERVED)

    @property
    def stamp(self) -> Stamp:
        return self.version, self.sampled

    @property
    def retention(self) -> float:
        """Seconds for which it is remembered while it has no instances and no configuration."""
        if self.kept:
            return 0.0
        return FORGET_LOST if self.emptied is None or self.lost else FORGET_DEREGISTERED


class RenderedPage(NamedTuple):
    body: bytes
    headers: Mapping[str, str]


class RenderCache:
    """JSON of services, instances and whole responses, encoded once for each of their states:
    thousands of clients may request the same."""

    def __init__(self) -> None:
        self._pages: OrderedDict[Hashable, tuple[Hashable, RenderedPage]] = OrderedDict()
        self._bytes = 0

    def summary(self, known: KnownService) -> ServiceSummary:
        instances = known.instances
        metrics = _cached(known, "metrics", known.version, lambda: aggregates(instances.values()))
        return service_summary(
            known.name, instances, known.observations, changed=known.changed, metrics=metrics
        )

    def summary_text(self, known: KnownService) -> bytes:
        return _cached(known, "text", known.stamp, lambda: encode(self.summary(known)))

    def counts(self, known: KnownService) -> HealthCounts:
        return _cached(
            known, "counts", known.stamp, lambda: count_health(known.instances, known.observations)
        )

    def instance_text(self, known: KnownService, id: str) -> bytes:
        """Raises `KeyError` for an unknown instance."""
        instance = known.instances[id]
        observed = known.observations.get(id, NOT_OBSERVED)
        rendered = known.rendered_instances.get(id)
        if (
            rendered is None
            or rendered.instance is not instance
            or rendered.observed is not observed
        ):
            text = _encoded(instance_detail(instance, observed))
            rendered = _RenderedInstance(instance, observed, text)
            known.rendered_instances[id] = rendered
        return rendered.text

    def detail_text(self, known: KnownService) -> bytes:
        """A service with its instances."""
        instances = array(self.instance_text(known, id) for id in sorted(known.instances))
        return b'%s,"instances":%s}' % (self.summary_text(known)[:-1], instances)

    def page(
        self, request: Hashable, stamp: Hashable, render: Callable[[], RenderedPage]
    ) -> RenderedPage:
        """The response to `request`, rendered again if the stamp differs from that of the last."""
        cached = self._pages.get(request)
        if cached is not None and cached[0] == stamp:
            self._pages.move_to_end(request)
            return cached[1]
        page = render()
        self._drop(request)
        self._pages[request] = stamp, page
        self._bytes += len(page.body)
        while self._bytes > _MAX_PAGE_BYTES or len(self._pages) > _MAX_PAGES:
            self._drop(next(iter(self._pages)))
        return page

    def _drop(self, request: Hashable) -> None:
        if (cached := self._pages.pop(request, None)) is not None:
            self._bytes -= len(cached[1].body)


def _cached(known: KnownService, what: str, stamp: Hashable, compute: Callable[[], T]) -> T:
    cached = known.rendered.get(what)
    if cached is None or cached[0] != stamp:
        cached = known.rendered[what] = stamp, compute()
    value: T = cached[1]
    return value


def _encoded(detail: InstanceDetail) -> bytes:
    try:
        return encode(detail)
    except RecursionError:  # metrics nested a thousand deep must not hide the other instances
        return encode(msgspec.structs.replace(detail, metrics={}, config={}))


def array(texts: Iterable[bytes]) -> bytes:
    """A JSON array of encoded values."""
    return b"[%s]" % b",".join(texts)
