"""What one client has received of one resource type, and what to send to it next. Pure.

Both protocols are here: *state of the world*, in which each response is self-contained, and
*incremental*, in which a response is a delta. A client acknowledges (ACK) or rejects (NACK) each
response; until then, it gets no other response of that type. So a slow client receives the latest
state when it is ready, and no backlog builds up. A rejected version is not sent again, but the next
change is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from mooring.xds.resources import Resource

RequestKind = Literal["subscribe", "ack", "nack", "stale"]

Lookup = Resource | Literal["absent", "unknown"]
"""A resource; `absent`: it does not exist; `unknown`: not known yet."""

FindResource = Callable[[str], Lookup]

WILDCARD = "*"


class PendingResponse(NamedTuple):
    resources: Mapping[str, Resource]
    removed: tuple[str, ...] = ()
    """In incremental streams only."""


class Subscription:
    """One resource type on one stream.

    `complete`: a response deletes the resources that it leaves out, as for listeners and clusters.
    Only these types support a wildcard.
    """

    def __init__(self, *, complete: bool) -> None:
        self.complete = complete
        self.names: set[str] = set()
        self.wildcard = False
        self.unacknowledged = ""
        """The nonce of the response that the client has not answered yet."""
        self._started = False
        self._nonce = ""
        self._owed: set[str] = set()
        """Newly requested names, to be sent even if the client already has the resource."""
        self._response_owed = False
        """Whether to respond even if there is nothing to send."""
        self._changed: set[str] = set()
        self._check_all = False
        """Whether to check all names, and not only the changed ones."""
        self._sent_versions: dict[str, str] = {}
        self._last_sent: set[str] = set()
        self._rejected: set[str] = set()
        """The names in rejected responses, any of which may be the cause of the rejection."""

    @property
    def pending(self) -> bool:
        """Whether there may be something to send."""
        return bool(self._changed or self._owed or self._check_all or self._response_owed)

    @property
    def owes(self) -> bool:
        """Whether the client waits for newly requested names."""
        return bool(self._owed)

    def mark_changed(self, names: Iterable[str]) -> None:
        self._changed.update(names)
        self._resend_rejected()

    def _resend_rejected(self) -> None:
        """Send all rejected resources again once one of them has changed."""
        if self._rejected & self._changed:
            self._owed |= self._rejected
            self._rejected.clear()

    def relist(self) -> None:
        """The resources of the wildcard may have changed."""
        self._check_all = self._check_all or self.wildcard

    def _wanted(self, listed: Collection[str] | None) -> set[str] | None:
        """All names of the subscription; None if not known yet."""
        if not self.wildcard:
            return self.names
        return None if listed is None else self.names.union(listed)

    def _settle(self, lookups: Mapping[str, Lookup]) -> tuple[dict[str, Resource], list[str]]:
        """What to send, and the names to report as removed. Only unknown names stay pending."""
        resources: dict[str, Resource] = {}
        removed: list[str] = []
        for name, lookup in lookups.items():
            if lookup == "unknown":
                continue
            sent = self._sent_versions.get(name)
            owed = name in self._owed
            if lookup == "absent":
                if owed or sent:
                    removed.append(name)
            elif owed or sent != lookup.version:
                resources[name] = lookup
            self._changed.discard(name)
            self._owed.discard(name)
        return resources, removed

    def mark_sent(self, nonce: str) -> None:
        self.unacknowledged = self._nonce = nonce

    def _response(
        self, resources: dict[str, Resource], removed: Iterable[str] = ()
    ) -> PendingResponse:
        self._last_sent = set(resources)
        self._sent_versions |= {name: resource.version for name, resource in resources.items()}
        for name in removed:
            self._sent_versions.pop(name, None)
        return PendingResponse(resources, tuple(removed))

    def _forget_unsubscribed(self) -> None:
        if not self.wildcard:
            for name in self._sent_versions.keys() - self.names:
                del self._sent_versions[name]

    def _acknowledge(self, nonce: str, error: str) -> RequestKind:
        if nonce != self.unacknowledged:
            return "subscribe"  # that response was already acknowledged
        self.unacknowledged = ""
        if error:
            self._rejected |= self._last_sent
            self._resend_rejected()
            return "nack"
        self._rejected -= self._last_sent
        return "ack"


def _look_up(
    names: Iterable[str], find: FindResource, wanted: Collection[str]
) -> dict[str, Lookup]:
    """The resources of these names; a name that is not wanted counts as absent."""
    return {name: find(name) if name in wanted else "absent" for name in sorted(names)}


class StateOfTheWorld(Subscription):
    def handle(self, names: Collection[str], nonce: str, error: str) -> RequestKind:
        """Apply a request.

        A request that acknowledges an older response is stale: the newer response stays
        unacknowledged, but the names count. A client that unsubscribes from a name and subscribes
        again has dropped the resource, even if both requests crossed a response.
        """
        kind: RequestKind = "stale"
        if nonce == self._nonce:
            kind = self._acknowledge(nonce, error) if nonce else "subscribe"
        requested = set(names)
        wildcard = self._requests_wildcard(requested)
        requested.discard(WILDCARD)
        new = requested - self.names
        self._owed |= new
        self._owed &= requested
        self._rejected &= requested
        self._response_owed |= bool(self.complete and (new or wildcard != self.wildcard))
        self._check_all |= self._response_owed or requested != self.names
        self.names, self.wildcard, self._started = requested, wildcard, True
        self._forget_unsubscribed()
        return kind

    def _requests_wildcard(self, requested: Collection[str]) -> bool:
        """Without names, the first request means a wildcard, and later ones do not change it."""
        if not self.complete:
            return False
        if not requested:
            return self.wildcard or not self._started
        return WILDCARD in requested

    def next(self, find: FindResource, listed: Collection[str] | None) -> PendingResponse | None:
        """The response to send now, if any. `listed` are the names of a wildcard; None if not
        known yet."""
        if self.unacknowledged or not self._started:
            return None
        return self._complete(find, listed) if self.complete else self._partial(find)

    def _complete(
        self, find: FindResource, listed: Collection[str] | None
    ) -> PendingResponse | None:
        wanted = self._wanted(listed)
        if wanted is None or not (self._check_all or self._changed):
            return None
        lookups = _look_up(wanted, find, wanted)
        if "unknown" in lookups.values():
            return None
        self._check_all = False
        self._changed.clear()
        resources = {name: one for name, one in lookups.items() if isinstance(one, Resource)}
        versions = {name: resource.version for name, resource in resources.items()}
        if not self._response_owed and versions == self._sent_versions:
            return None
        self._response_owed = False
        self._owed.clear()
        self._sent_versions.clear()
        return self._response(resources)

    def _partial(self, find: FindResource) -> PendingResponse | None:
        names = self._changed | self._owed
        resources, _ = self._settle(_look_up(names, find, self.names))
        return self._response(resources) if resources else None


class Incremental(Subscription):
    def handle(
        self,
        subscribe: Collection[str],
        unsubscribe: Collection[str],
        initial: Mapping[str, str],
        nonce: str,
        error: str,
    ) -> RequestKind:
        """Apply a request. `initial` are the versions that the client has from before."""
        kind: RequestKind = self._acknowledge(nonce, error) if nonce else "subscribe"
        requested, removed = set(subscribe), set(unsubscribe)
        if not self._started:
            self._started = True
            self.wildcard = self.complete and (not requested or WILDCARD in requested)
            self._response_owed = self._check_all = self.wildcard
            self._sent_versions.update(initial)
            self._changed |= initial.keys() | requested
            requested -= initial.keys()
        elif self.complete and WILDCARD in requested:
            self.wildcard = self._response_owed = self._check_all = True
        if WILDCARD in removed:
            self.wildcard = False
            self._forget_unsubscribed()
        self._changed |= set(subscribe) - {WILDCARD}
        self._owed |= requested - {WILDCARD}
        self.names |= set(subscribe) - {WILDCARD}
        self.names -= removed
        self._owed -= removed
        self._rejected -= removed
        for name in removed:
            self._sent_versions.pop(name, None)
        if self.wildcard:  # the wildcard may still include these names: the client expects a reply
            self._owed |= removed - {WILDCARD}
        return kind

    def next(self, find: FindResource, listed: Collection[str] | None) -> PendingResponse | None:
        if self.unacknowledged or not self._started or not self.pending:
            return None
        if (wanted := self._wanted(listed)) is None:
            return None
        names = self._changed | self._owed
        if self._check_all:
            names |= wanted | self._sent_versions.keys()
        lookups = _look_up(names, find, wanted)
        if self.wildcard and "unknown" in lookups.values():
            return None
        self._check_all = False
        resources, removed = self._settle(lookups)
        if not resources and not removed and not self._response_owed:
            return None
        self._response_owed = False
        return self._response(resources, removed)
