"""Search services, instances, tenants and locks by name."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
import urllib.parse
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from mooring.errors import StoreError
from mooring.hub import Hub
from mooring.locks.inspect import LockInfo
from mooring.model import Instance
from mooring.server.api.endpoint import ApiCall, EndpointList
from mooring.server.api.tenants import TenantSummary, read_tenants
from mooring.server.auth.authorization import READING
from mooring.server.http.response import Response
from mooring.server.live.summary import masked_metadata
from mooring.tenants.keys import TenantKeys

log = logging.getLogger(__name__)

T = TypeVar("T")

endpoints = EndpointList()

MAX_AGE = 2.0
"""Seconds for which tenants and locks are cached, because people search while they type."""
_MAX_SEARCHED = 1000  # characters of a text
_MAX_RETURNED = 200

SearchKind = Literal["service", "instance", "tenant", "lock"]
MatchKind = Literal["exact", "prefix", "substring"]
_MATCHES: tuple[MatchKind, ...] = ("exact", "prefix", "substring")
_KINDS: tuple[SearchKind, ...] = ("service", "tenant", "lock", "instance")


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    q: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    """Case is ignored."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    kind: SearchKind
    name: str
    """The service, the lock, the id of the instance, or the name of the tenant."""
    service: str | None = None
    """The service of an instance."""
    tenant: int | None = None
    """The id of a tenant."""
    field: str
    """The field that matches: name, id, host, code, by, `metadata.KEY`…"""
    text: str
    """The text of that field."""
    match: MatchKind
    path: str
    """The path in the API."""


class HubCache(Generic[T]):
    """A value read from a hub, cached for a moment. Concurrent callers share one read."""

    def __init__(self, read: Callable[[Hub], Awaitable[T]]) -> None:
        self._read = read
        self._values: weakref.WeakKeyDictionary[Hub, tuple[float, T]] = weakref.WeakKeyDictionary()
        self._locks: weakref.WeakKeyDictionary[Hub, asyncio.Lock] = weakref.WeakKeyDictionary()

    async def get(self, hub: Hub) -> T:
        async with self._locks.setdefault(hub, asyncio.Lock()):
            cached = self._values.get(hub)
            if cached is None or time.monotonic() - cached[0] > MAX_AGE:
                cached = self._values[hub] = (time.monotonic(), await self._read(hub))
            return cached[1]


_TENANTS = HubCache(lambda hub: read_tenants(hub.store, TenantKeys(hub.tenants_namespace)))
_LOCKS: HubCache[list[LockInfo]] = HubCache(lambda hub: hub.locks())


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An object with the texts that a query may match."""

    kind: SearchKind
    name: str
    service: str | None = None
    tenant: int | None = None
    texts: tuple[tuple[str, str], ...]
    """Field and text; of equally good matches, the first is returned."""


def rank(text: str, folded_query: str) -> int | None:
    """How well a text matches: an index of `_MATCHES`, 0 being the best; None if it does not."""
    folded = text[:_MAX_SEARCHED].casefold()
    if folded == folded_query:
        return 0
    if folded.startswith(folded_query):
        return 1
    return 2 if folded_query in folded else None


def best_matches(candidates: Iterable[Candidate], query: str, limit: int) -> list[SearchResult]:
    """The best matches, in an order that does not depend on the order of the candidates."""
    folded = query.casefold()
    hits: list[tuple[tuple[int, int, str, str, int], Candidate, str, str]] = []
    for candidate in candidates:
        ranked = [
            (ranking, field, text)
            for field, text in candidate.texts
            if (ranking := rank(text, folded)) is not None
        ]
        if ranked:
            ranking, field, text = min(ranked, key=lambda match: match[0])
            order = (
                ranking,
                _KINDS.index(candidate.kind),
                candidate.name,
                candidate.service or "",
                candidate.tenant or 0,
            )
            hits.append((order, candidate, field, text))
    return [
        SearchResult(
            kind=candidate.kind,
            name=candidate.name[:_MAX_RETURNED],
            service=candidate.service,
            tenant=candidate.tenant,
            field=field[:_MAX_RETURNED],
            text=text[:_MAX_RETURNED],
            match=_MATCHES[order[0]],
            path=_path(candidate),
        )
        for order, candidate, field, text in heapq.nsmallest(limit, hits, key=lambda hit: hit[0])
    ]


def _path(candidate: Candidate) -> str:
    def segment(text: str) -> str:
        return urllib.parse.quote(text, safe="")

    match candidate.kind:
        case "service":
            return f"/admin/registry/services/{segment(candidate.name)}"
        case "instance":
            service = segment(candidate.service or "")
            return f"/admin/registry/services/{service}/instances/{segment(candidate.name)}"
        case "tenant":
            return f"/admin/tenants/{candidate.tenant}"
        case "lock":
            return f"/admin/locks/{segment(candidate.name)}"


@endpoints.add(
    "GET", "/admin/search", READING, query=SearchQuery, answers={200: list[SearchResult]}
)
async def search(call: ApiCall) -> Response:
    """Search services, instances, tenants and locks."""
    candidates = [*_registered(call)]
    missing: list[str] = []
    for name, read in (("tenants", _tenants), ("locks", _locks)):
        try:
            candidates += await read(call)
        except StoreError as error:
            log.warning("a search omits the %s: %s", name, error)
            missing.append(name)
    headers = {"X-Left-Out": ", ".join(missing)} if missing else {}
    query: SearchQuery = call.query
    return Response(best_matches(candidates, query.q, query.limit), headers=headers)


def _registered(call: ApiCall) -> Iterator[Candidate]:
    for known in call.server.fleet.services(call.principal.sees_service):
        yield Candidate(kind="service", name=known.name, texts=_service_texts(known.name))
        yield from map(_instance, known.instances.values())


def _service_texts(name: str) -> tuple[tuple[str, str], ...]:
    group, slash, bare = name.rpartition("/")
    return (("name", name), ("name", bare), ("group", group)) if slash else (("name", name),)


def _instance(instance: Instance) -> Candidate:
    metadata = masked_metadata(instance.metadata)
    labels = ((f"metadata.{key}", value) for key, value in metadata.items())
    texts = (("id", instance.id), ("host", instance.host), *labels)
    return Candidate(kind="instance", name=instance.id, service=instance.service, texts=texts)


async def _tenants(call: ApiCall) -> list[Candidate]:
    if not call.server.settings.has_store:
        return []
    tenants = await _TENANTS.get(call.server.hub)
    return [_tenant(tenant) for tenant in tenants if call.principal.sees_tenant(tenant.id)]


def _tenant(tenant: TenantSummary) -> Candidate:
    texts = (
        ("id", str(tenant.id)),
        ("code", tenant.code or ""),
        ("name", tenant.name or ""),
        *(("host", host) for host in tenant.hosts),
    )
    name = tenant.name or tenant.code or str(tenant.id)
    return Candidate(kind="tenant", name=name, tenant=tenant.id, texts=texts)


async def _locks(call: ApiCall) -> list[Candidate]:
    """Locks belong to no group or tenant, so only unscoped callers see them."""
    if not call.server.settings.has_store or not call.principal.unscoped:
        return []
    return [_lock(lock) for lock in await _LOCKS.get(call.server.hub)]


def _lock(lock: LockInfo) -> Candidate:
    contenders = (*lock.holders, *lock.waiting)
    processes = (("by", contender.by) for contender in contenders if contender.by)
    return Candidate(kind="lock", name=lock.name, texts=(("name", lock.name), *processes))
