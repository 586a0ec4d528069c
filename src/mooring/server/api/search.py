"""Finding anything by name: services, instances, tenants, locks."""

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
from mooring.server.api.lookup import store_of
from mooring.server.api.tenant_list import TenantSummary, read_tenants
from mooring.server.auth.authorization import READING
from mooring.server.http.request import ApiCall
from mooring.server.http.response import HTTPError, Response
from mooring.server.http.routing import ApiRoute
from mooring.server.live.summary import metadata_shown
from mooring.tenants.keys import TenantKeys

log = logging.getLogger(__name__)

T = TypeVar("T")

AGE = 2.0
"""Seconds for which what was read of tenants and locks is good enough to be searched: people type
letter by letter."""
_LONGEST = 1000  # characters of a text that are looked at
_SHOWN = 200

Kind = Literal["service", "instance", "tenant", "lock"]
Match = Literal["exact", "prefix", "substring"]
_MATCHES: tuple[Match, ...] = ("exact", "prefix", "substring")
_KINDS: tuple[Kind, ...] = ("service", "tenant", "lock", "instance")


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    q: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    """In whatever case."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20


class Found(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    name: str
    """The service, the lock, the instance's id, or the tenant's name."""
    service: str | None = None
    """Of an instance."""
    tenant: int | None = None
    """The tenant's id."""
    field: str
    """Where it was found: name, id, host, code, by, `metadata.KEY`…"""
    text: str
    """What was found there."""
    match: Match
    path: str
    """Where the API has it."""


class Recent(Generic[T]):
    """What was last read of a hub, for a moment; those who ask at the same time share one read."""

    def __init__(self, read: Callable[[Hub], Awaitable[T]]) -> None:
        self._read = read
        self._held: weakref.WeakKeyDictionary[Hub, tuple[float, T]] = weakref.WeakKeyDictionary()
        self._reading: weakref.WeakKeyDictionary[Hub, asyncio.Lock] = weakref.WeakKeyDictionary()

    async def get(self, hub: Hub) -> T:
        async with self._reading.setdefault(hub, asyncio.Lock()):
            held = self._held.get(hub)
            if held is None or time.monotonic() - held[0] > AGE:
                held = self._held[hub] = (time.monotonic(), await self._read(hub))
            return held[1]


async def _read_tenants(hub: Hub) -> list[TenantSummary]:
    return await read_tenants(hub.store, TenantKeys(hub.tenants_namespace))


async def _read_locks(hub: Hub) -> list[LockInfo]:
    return await hub.locks()


_TENANTS = Recent(_read_tenants)
_LOCKS = Recent(_read_locks)


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What may be meant, and under what it may be known."""

    kind: Kind
    name: str
    service: str | None = None
    tenant: int | None = None
    texts: tuple[tuple[str, str], ...]
    """Field and text; the first that matches best is told."""


def rank(text: str, wanted: str) -> int | None:
    """How well a text matches, 0 being best; None where it does not. `wanted` is casefolded."""
    folded = text[:_LONGEST].casefold()
    if folded == wanted:
        return 0
    if folded.startswith(wanted):
        return 1
    return 2 if wanted in folded else None


def best(candidates: Iterable[Candidate], q: str, limit: int) -> list[Found]:
    """Those that match best, in an order that does not depend on the one in which they came."""
    wanted = q.casefold()
    hits: list[tuple[tuple[int, int, str, str, int], Candidate, str, str]] = []
    for each in candidates:
        found: tuple[int, str, str] | None = None
        for field, text in each.texts:
            at = rank(text, wanted)
            if at is not None and (found is None or at < found[0]):
                found = at, field, text
                if at == 0:
                    break
        if found is not None:
            place = _KINDS.index(each.kind)
            order = (found[0], place, each.name, each.service or "", each.tenant or 0)
            hits.append((order, each, found[1], found[2]))
    top = heapq.nsmallest(limit, hits, key=lambda hit: hit[0])
    return [
        Found(
            kind=each.kind,
            name=each.name[:_SHOWN],
            service=each.service,
            tenant=each.tenant,
            field=field[:_SHOWN],
            text=text[:_SHOWN],
            match=_MATCHES[order[0]],
            path=_path(each),
        )
        for order, each, field, text in top
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


async def search(call: ApiCall) -> Response:
    candidates = [*_registered(call)]
    left_out: list[str] = []
    for what, read in (("tenants", _tenants), ("locks", _locks)):
        try:
            candidates += await read(call)
        except StoreError as error:
            log.warning("a search leaves out the %s: %s", what, error)
            left_out.append(what)
    headers = {"X-Left-Out": ", ".join(left_out)} if left_out else {}
    return Response(best(candidates, call.query.q, call.query.limit), headers=headers)


def _registered(call: ApiCall) -> Iterator[Candidate]:
    fleet = call.server.fleet
    for name in fleet.names():
        if not call.principal.sees_service(name):
            continue
        yield Candidate(kind="service", name=name, texts=_service_texts(name))
        known = fleet.service(name)
        for instance in known.instances.values() if known is not None else ():
            yield _instance(instance)


def _service_texts(name: str) -> tuple[tuple[str, str], ...]:
    group, slash, bare = name.rpartition("/")
    return (("name", name), ("name", bare), ("group", group)) if slash else (("name", name),)


def _instance(instance: Instance) -> Candidate:
    said = ((f"metadata.{key}", value) for key, value in metadata_shown(instance.metadata).items())
    texts = (("id", instance.id), ("host", instance.host), *said)
    return Candidate(kind="instance", name=instance.id, service=instance.service, texts=texts)


async def _tenants(call: ApiCall) -> list[Candidate]:
    if _no_store(call):
        return []
    return [
        _tenant(each)
        for each in await _TENANTS.get(call.server.hub)
        if call.principal.sees_tenant(each.id)
    ]


def _tenant(tenant: TenantSummary) -> Candidate:
    hosts = (("host", host) for host in tenant.hosts)
    texts = (
        ("id", str(tenant.id)),
        ("code", tenant.code or ""),
        ("name", tenant.name or ""),
        *hosts,
    )
    name = tenant.name or tenant.code or str(tenant.id)
    return Candidate(kind="tenant", name=name, tenant=tenant.id, texts=texts)


async def _locks(call: ApiCall) -> list[Candidate]:
    """They belong to no group and to no tenant: only who sees everything sees them."""
    who = call.principal
    if _no_store(call) or who.groups is not None or who.tenants is not None:
        return []
    return [_lock(each) for each in await _LOCKS.get(call.server.hub)]


def _lock(lock: LockInfo) -> Candidate:
    who = (("by", each.by) for each in (*lock.holders, *lock.waiting) if each.by)
    return Candidate(kind="lock", name=lock.name, texts=(("name", lock.name), *who))


def _no_store(call: ApiCall) -> bool:
    """Whether there is Redis alone, which has neither tenants nor locks."""
    try:
        store_of(call)
    except HTTPError:
        return True
    return False


ENDPOINTS = (
    ApiRoute(
        "GET",
        "/admin/search",
        READING,
        search,
        "Search services, instances, tenants and locks",
        query=Asked,
        answers={200: list[Found]},
    ),
)
