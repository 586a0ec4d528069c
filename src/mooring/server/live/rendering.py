"""What is shown of the fleet, written once for each state of it: thousands may ask for the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from mooring.model import Instance
from mooring.server.http.response import encode
from mooring.server.live.summary import (
    UNOBSERVED,
    Aggregate,
    InstanceDetail,
    Observed,
    ServiceSummary,
    Tally,
    aggregates,
    instance_detail,
    service_summary,
    tally,
)

if TYPE_CHECKING:
    from mooring.server.live.services import Known

_ANSWERS = 500
_ANSWERED_BYTES = 32 * 1024 * 1024
"""What whole answers take at the most."""

Stamp = tuple[int, int]
"""What tells one state of a service from another: its changes, and what was found out beside."""


class _Shown(NamedTuple):
    instance: Instance
    observed: Observed
    text: bytes


class _Service:
    """What was last written of a service."""

    __slots__ = ("aggregates", "instances", "summary", "tally", "text")

    def __init__(self) -> None:
        self.aggregates: tuple[int, dict[str, Aggregate]] = (-1, {})
        self.summary: tuple[Stamp, ServiceSummary] | None = None
        self.text: tuple[Stamp, bytes] | None = None
        self.tally: tuple[Stamp, Tally] | None = None
        self.instances: dict[str, _Shown] = {}


class Page(NamedTuple):
    body: bytes
    headers: Mapping[str, str]


class Rendering:
    def __init__(self, observed: Callable[[str], Mapping[str, Observed]]) -> None:
        self._observed = observed
        self._services: dict[str, _Service] = {}
        self._pages: OrderedDict[Hashable, tuple[Hashable, Page]] = OrderedDict()
        self._bytes = 0

    def forget(self, service: str) -> None:
        self._services.pop(service, None)

    def leave(self, service: str, id: str) -> None:
        """An instance is gone."""
        if (written := self._services.get(service)) is not None:
            written.instances.pop(id, None)

    def _of(self, known: Known) -> _Service:
        written = self._services.get(known.name)
        if written is None:
            written = self._services[known.name] = _Service()
        return written

    def summary(self, known: Known) -> ServiceSummary:
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

    def summary_text(self, known: Known) -> bytes:
        """As JSON."""
        written, stamp = self._of(known), known.stamp
        if written.text is None or written.text[0] != stamp:
            written.text = stamp, encode(self.summary(known))
        return written.text[1]

    def tally(self, known: Known) -> Tally:
        written, stamp = self._of(known), known.stamp
        if written.tally is None or written.tally[0] != stamp:
            written.tally = stamp, tally(known.instances, self._observed(known.name))
        return written.tally[1]

    def instance_text(self, known: Known, id: str) -> bytes:
        """As JSON. Raises `KeyError` where there is none."""
        instance = known.instances[id]
        observed = self._observed(known.name).get(id, UNOBSERVED)
        written = self._of(known).instances
        shown = written.get(id)
        if shown is None or shown.instance is not instance or shown.observed is not observed:
            text = _written(instance_detail(instance, observed))
            shown = written[id] = _Shown(instance, observed, text)
        return shown.text

    def detail_text(self, known: Known) -> bytes:
        """A service with its instances, as JSON."""
        instances = array(self.instance_text(known, id) for id in sorted(known.instances))
        return b'%s,"instances":%s}' % (self.summary_text(known)[:-1], instances)

    def page(self, what: Hashable, stamp: Hashable, write: Callable[[], Page]) -> Page:
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
