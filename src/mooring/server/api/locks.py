"""Locks: who holds them, who waits, and taking one from its holder."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

from mooring.formatting import quoted
from mooring.locks.inspect import Contender, LockInfo, find_lock, release
from mooring.server.api.lookup import not_found, store_of
from mooring.server.auth.authorization import need
from mooring.server.http.request import ApiCall, Page, cut
from mooring.server.http.response import HTTPError, Response, encode
from mooring.server.http.routing import ApiRoute
from mooring.store.contract import Store

LOOKING = need("viewer", "everything")
OPERATING = need("operator", "everything")

LOCK = "/admin/locks/{name}"
_LEASES = 20  # of which it is asked how long they live


class Listed(Page, frozen=True, kw_only=True):
    prefix: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """Locks whose names start so; without one the whole store is read."""


class ContenderShown(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lock or waits for it."""

    lease: str
    """In hexadecimal, as it stands in the key."""
    token: int
    """The fencing token: who came earlier has the lower one."""
    kind: str | None
    """lock, read, place or party; null for somebody else's: etcdctl, an election."""
    by: str | None
    """Who it is, `host:pid`, where it says so."""
    value: str | None
    """What an election's candidate says of itself."""


class LockShown(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    holders: list[ContenderShown]
    waiting: list[ContenderShown]
    """In their order."""


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a lease."""

    ttl: float
    """Seconds that it lives after each sign of life."""
    remaining: float


class LockDetail(LockShown, frozen=True, kw_only=True):
    leases: dict[str, Life]
    """Of the holders, by lease: one that is not renewed ends by itself."""


class Releasing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    holder: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,16}$")]
    """The lease of the holder that is meant: nobody else loses anything."""
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    """Why, for the audit."""
    token: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """With its fencing token, only that very holding is ended; 0: whatever it holds now."""


async def list_locks(call: ApiCall) -> Response:
    store_of(call)
    found = await call.server.hub.locks(call.query.prefix)
    some, headers = cut(found, call.query, lambda each: each.name, path=call.here)
    return Response([_shown(each) for each in some], headers=headers)


async def show_lock(call: ApiCall) -> Response:
    store = store_of(call)
    found = await _found(store, call.path["name"])
    leases: dict[str, Life] = {}
    for holder in found.holders[:_LEASES]:
        if (life := await store.remaining(holder.lease)) is not None:
            leases[f"{holder.lease:x}"] = Life(ttl=life.ttl, remaining=life.remaining)
    told = _shown(found)
    return Response(
        LockDetail(name=told.name, holders=told.holders, waiting=told.waiting, leases=leases),
        etag=_mark(told),
    )


async def release_lock(call: ApiCall) -> Response:
    store, name, asked = store_of(call), call.path["name"], call.query
    call.notes["reason"] = asked.reason
    call.notes["holder"] = asked.holder
    lease = int(asked.holder, 16)
    released = await release(store, name, lease, token=asked.token)
    if released is not None:
        call.notes["before"] = {"by": released.by, "token": released.token}
        return Response(_contender(released))
    found = await _found(store, name)
    held = ", ".join(f"{each.lease:x} (token {each.token})" for each in found.holders)
    raise HTTPError(
        409,
        "not_held",
        f"{name} is not held by the lease {asked.holder}"
        f"{f' with the token {asked.token}' if asked.token else ''}: it is held by "
        f"{held or 'nobody'}. Look again, and name who holds it now",
    )


async def _found(store: Store, name: str) -> LockInfo:
    found = await find_lock(store, name)
    if found is None:
        raise not_found(f"nobody holds {quoted(name)} or waits for it", name, ())
    return found


def _mark(told: LockShown) -> str:
    """Changes with who contends, and what they say; the time of their leases goes on."""
    return hashlib.blake2b(encode(told), digest_size=12).hexdigest()


def _shown(info: LockInfo) -> LockShown:
    return LockShown(
        name=info.name,
        holders=[_contender(each) for each in info.holders],
        waiting=[_contender(each) for each in info.waiting],
    )


def _contender(contender: Contender) -> ContenderShown:
    return ContenderShown(
        lease=f"{contender.lease:x}",
        token=contender.token,
        kind=contender.kind or None,
        by=contender.by or None,
        value=contender.value.decode(errors="backslashreplace") or None,
    )


_NO_STORE = 409

ENDPOINTS = (
    ApiRoute(
        "GET",
        "/admin/locks",
        LOOKING,
        list_locks,
        (
            "List locks and elections with their holders and waiters. 409: the server has "
            "no store, only Redis"
        ),
        query=Listed,
        answers={200: list[LockShown]},
        fails=(_NO_STORE,),
    ),
    ApiRoute(
        "GET",
        LOCK,
        LOOKING,
        show_lock,
        ("Get a lock with its holders, its waiters in order, and the remaining lease times"),
        answers={200: LockDetail},
        fails=(_NO_STORE,),
    ),
    ApiRoute(
        "DELETE",
        LOCK,
        OPERATING,
        release_lock,
        ("Release a lock forcibly; its holder is notified and the next waiter acquires it"),
        query=Releasing,
        answers={200: ContenderShown},
    ),
)
