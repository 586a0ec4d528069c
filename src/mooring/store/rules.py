"""What makes no sense on any store, refused before anything is sent: every backend asks here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mooring.errors import InvalidRequest
from mooring.store.contract import (
    MAX_TTL,
    Check,
    Delete,
    Put,
    Query,
    Range,
    Write,
    check_key,
)


def check_query(query: Query, at: int | None = None) -> None:
    """Raise `InvalidRequest` where a query makes no sense on any store."""
    check_range(query.range)
    if at is not None and not 1 <= at < 2**63:
        raise InvalidRequest(f"revision {at} cannot be read: revisions start at 1")
    if not 0 <= query.limit < 2**63:
        raise InvalidRequest(f"limit {query.limit} is no limit: use 0 for all")
    if query.order not in ("key", "created"):
        raise InvalidRequest(f"order {query.order!r} is not known: use 'key' or 'created'")
    if query.created_before is not None and not 2 <= query.created_before < 2**63:
        raise InvalidRequest("created_before must be 2 or more: no key is created before that")


def check_commit(writes: Sequence[Write], checks: Sequence[Check], reads: Sequence[Query]) -> None:
    """Raise `InvalidRequest` where a commit makes no sense on any store."""
    put: set[bytes] = set()
    deleted: list[Range] = []
    for write in writes:
        if isinstance(write, Put):
            check_key(write.key)
            if not isinstance(write.value, bytes):
                raise InvalidRequest(
                    f"the value of {write.key!r} must be bytes, not {type(write.value).__name__}"
                )
            if write.key in put:
                raise InvalidRequest(f"{write.key!r} is written twice in one commit")
            _check_number("lease", write.lease)
            put.add(write.key)
        elif isinstance(write, Delete):
            check_range(write.range)
            deleted.append(write.range)
        else:
            raise InvalidRequest(f"{write!r} is no write: use Put or Delete")
    for range in deleted:
        for name in put:
            if name in range:
                raise InvalidRequest(f"{name!r} is both written and deleted in one commit")
    for check in checks:
        check_key(check.key)
        if check.field != "value":
            _check_number(check.field, check.expected)
    for query in reads:
        check_query(query)


def check_ttl(ttl: float) -> int:
    """The whole seconds to ask of a store for `ttl`, or `InvalidRequest`."""
    try:
        possible = 0 < ttl <= MAX_TTL  # not a number fails here too
    except TypeError:
        possible = False
    if not possible:
        raise InvalidRequest(f"a TTL of {ttl} s is not possible: it must be above 0, up to 9e9 s")
    return math.ceil(ttl)


def check_range(range: Range) -> None:
    """Raise `InvalidRequest` where something is no range."""
    if not isinstance(range, Range):
        raise InvalidRequest(f"{range!r} is no range: make one with key(), prefix() or between()")


def _check_number(what: str, number: int | bytes) -> None:
    if not isinstance(number, int) or not 0 <= number < 2**63:
        raise InvalidRequest(f"{what} {number!r} is not possible: it is a number from 0 up")
