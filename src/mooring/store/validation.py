"""What makes no sense on any store, refused before anything is sent: every backend asks here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mooring.errors import InvalidRequest
from mooring.formatting import quoted, readable
from mooring.store.contract import MAX_TTL, Check, Delete, Put, Query, Range, Write, check_key


def check_query(query: Query, at: int | None = None) -> None:
    """Raise `InvalidRequest` where a query makes no sense on any store."""
    if not isinstance(query, Query):
        raise InvalidRequest(f"{quoted(query)} is no query: write Query(prefix(…))")
    check_range(query.range)
    if at is not None:
        check_number("revision", at, least=1)
    check_number("limit", query.limit)
    if query.order not in ("key", "created"):
        raise InvalidRequest(f"order {quoted(query.order)} is not known: use 'key' or 'created'")
    if query.created_before is not None:
        check_number("created_before", query.created_before, least=2)


def check_watch(range: Range, after: int | None) -> None:
    """Raise `InvalidRequest` where a watch makes no sense on any store."""
    check_range(range)
    if after is not None:
        check_number("revision", after)


def check_commit(writes: Sequence[Write], checks: Sequence[Check], reads: Sequence[Query]) -> None:
    """Raise `InvalidRequest` where a commit makes no sense on any store."""
    put: set[bytes] = set()
    deleted: list[Range] = []
    for write in writes:
        if isinstance(write, Put):
            check_key(write.key)
            _check_value(write.key, write.value)
            check_number("lease", write.lease)
            if write.key in put:
                raise InvalidRequest(f"{readable(write.key)} is written twice in one commit")
            put.add(write.key)
        elif isinstance(write, Delete):
            check_range(write.range)
            deleted.append(write.range)
        else:
            raise InvalidRequest(f"{quoted(write)} is no write: use Put or Delete")
    for range in deleted:
        alone = range.end == range.start + b"\0"
        for name in put & {range.start} if alone else put:
            if name in range:
                raise InvalidRequest(f"{readable(name)} is both written and deleted in one commit")
    for check in checks:
        _check_check(check)
    for query in reads:
        check_query(query)


def _check_check(check: Check) -> None:
    if not isinstance(check, Check):
        raise InvalidRequest(f"{quoted(check)} is no check: use absent(), unchanged() and the like")
    check_key(check.key)
    if check.field == "value":
        _check_value(check.key, check.expected)
    elif check.field in ("created", "modified", "lease"):
        check_number(check.field, check.expected)
    else:
        raise InvalidRequest(f"a check of {quoted(check.field)} is not known")


def _check_value(name: bytes, value: object) -> None:
    if not isinstance(value, bytes):
        raise InvalidRequest(
            f"the value of {readable(name)} must be bytes, not {type(value).__name__}"
        )


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
        raise InvalidRequest(
            f"{quoted(range)} is no range: make one with key(), prefix() or between()"
        )
    check_key(range.start, "start of a range")
    if not isinstance(range.end, bytes):
        raise InvalidRequest(f"the end of a range must be bytes, not {type(range.end).__name__}")


def check_number(what: str, number: object, *, least: int = 0) -> None:
    """Raise `InvalidRequest` where something is no revision, lease or count."""
    if not isinstance(number, int) or not least <= number < 2**63:
        raise InvalidRequest(
            f"{what} {quoted(number)} is not possible: it is a number from {least} up"
        )
