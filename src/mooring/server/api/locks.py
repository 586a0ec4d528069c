"""Locks: list and show holders and waiters, and release a lock forcibly."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mooring.locks.inspect import Contender, LockInfo, find_lock, locks, release
from mooring.server.api.endpoint import NO_STORE, ApiCall, EndpointList
from mooring.server.auth.authorization import need
from mooring.server.http.request import PageQuery
from mooring.server.http.response import HTTPError, Response, digest, encode
from mooring.store.contract import Store

endpoints = EndpointList(fails=(NO_STORE,))

READ_LOCKS = need("viewer", "everything")

LOCK = "/admin/locks/{name}"
_MAX_LEASES = 20  # holders whose remaining lease time is read


class LocksQuery(PageQuery, frozen=True, kw_only=True):
    prefix: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """The prefix of the names; without one, the whole store is read."""


class ContenderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A holder or a waiter."""

    lease: str
    """In hexadecimal, as in the key."""
    token: int
    """The fencing token; it increases with each contender."""
    kind: str | None
    """lock, read, place or party; null for other clients: etcdctl, an election."""
    by: str | None
    """The process, `host:pid`, if known."""
    value: str | None
    """The value of a candidate of an election."""


class LockSummary(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    holders: list[ContenderInfo]
    waiting: list[ContenderInfo]
    """In order."""


class LockLease(msgspec.Struct, frozen=True, kw_only=True):
    ttl: float
    """Seconds that the lease lives after each renewal."""
    remaining: float
    """Seconds until it expires without a renewal."""


class LockDetail(LockSummary, frozen=True, kw_only=True):
    leases: dict[str, LockLease]
    """The times of the holders' leases. A holder that does not renew its lease loses the lock."""


class ReleaseQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    holder: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,16}$")]
    """The lease of the holder; if another client holds the lock by now, nothing is released."""
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    """For the audit log."""
    token: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """The fencing token of the holder; 0: release whatever token the lease holds."""


@endpoints.add(
    "GET", "/admin/locks", READ_LOCKS, query=LocksQuery, answers={200: list[LockSummary]}
)
async def list_locks(call: ApiCall) -> Response:
    """List locks and elections with their holders and waiters. 409: the server has no store, only
    Redis."""
    infos = await locks(call.server.store, call.query.prefix)
    page, headers = call.page(infos, lambda lock: lock.name)
    return Response([_summary(lock) for lock in page], headers=headers)


@endpoints.add("GET", LOCK, READ_LOCKS, answers={200: LockDetail})
async def get_lock(call: ApiCall) -> Response:
    """Get a lock with its holders, its waiters in order, and the remaining lease times."""
    store = call.server.store
    lock = await _lock(store, call.path["name"])
    leases: dict[str, LockLease] = {}
    for holder in lock.holders[:_MAX_LEASES]:
        if (lease := await store.remaining(holder.lease)) is not None:
            leases[f"{holder.lease:x}"] = LockLease(ttl=lease.ttl, remaining=lease.remaining)
    summary = _summary(lock)
    detail = LockDetail(**msgspec.structs.asdict(summary), leases=leases)
    return Response(detail, etag=digest(encode(summary)))  # lease times change all the time


@endpoints.add(
    "DELETE",
    LOCK,
    need("operator", "everything"),
    query=ReleaseQuery,
    answers={200: ContenderInfo},
)
async def release_lock(call: ApiCall) -> Response:
    """Release a lock forcibly; its holder is notified and the next waiter acquires it."""
    store, name, query = call.server.store, call.path["name"], call.query
    call.notes["reason"] = query.reason
    call.notes["holder"] = query.holder
    released = await release(store, name, int(query.holder, 16), token=query.token)
    if released is not None:
        call.notes["before"] = {"by": released.by, "token": released.token}
        return Response(_contender(released))
    lock = await _lock(store, name)
    raise HTTPError(
        409,
        "not_held",
        "lock_held_by_others",
        name=name,
        lease=query.holder,
        token=query.token or "",
        holders=[f"{holder.lease:x}:{holder.token}" for holder in lock.holders],
    )


async def _lock(store: Store, name: str) -> LockInfo:
    lock = await find_lock(store, name)
    if lock is None:
        raise HTTPError(404, "not_found", "lock_not_found", name=name)
    return lock


def _summary(lock: LockInfo) -> LockSummary:
    return LockSummary(
        name=lock.name,
        holders=[_contender(contender) for contender in lock.holders],
        waiting=[_contender(contender) for contender in lock.waiting],
    )


def _contender(contender: Contender) -> ContenderInfo:
    return ContenderInfo(
        lease=f"{contender.lease:x}",
        token=contender.token,
        kind=contender.kind or None,
        by=contender.by or None,
        value=contender.value.decode(errors="backslashreplace") or None,
    )
