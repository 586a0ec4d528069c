"""Checks of arguments, which raise `InvalidRequest`. Backends call them before sending anything."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mooring.errors import InvalidRequest
from mooring.formatting import quoted, readable
from mooring.store.contract import MAX_TTL, Check, Delete, Put, Query, Range, Write, check_key


def check_query(query: Query, at: int | None = None) -> None:
    if not isinstance(query, Query):
        raise InvalidRequest(f"{quoted(query)} is not a query: write Query(prefix(…))")
    check_range(query.range)
    if at is not None:
        check_number("revision", at, least=1)
    check_number("limit", query.limit)
    if query.order not in ("key", "created"):
        raise InvalidRequest(f"order {quoted(query.order)} is unknown: use 'key' or 'created'")
    if query.created_before is not None:
        check_number("created_before", query.created_before, least=2)


def check_watch(range: Range, after: int | None) -> None:
    check_range(range)
    if after is not None:
        check_number("revision", after)


def check_commit(writes: Sequence[Write], checks: Sequence[Check], reads: Sequence[Query]) -> None:
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
            raise InvalidRequest(f"{quoted(write)} is not a write: use Put or Delete")
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
        raise InvalidRequest(f"{quoted(check)} is not a check: use absent(), unchanged() etc.")
    check_key(check.key)
    if check.field == "value":
        _check_value(check.key, check.expected)
    elif check.field in ("created", "modified", "lease"):
        check_number(check.field, check.expected)
    else:
        raise InvalidRequest(f"a check of {quoted(check.field)} is unknown")


def _check_value(name: bytes, value: object) -> None:
    if not isinstance(value, bytes):
        raise InvalidRequest(
            f"the value of {readable(name)} must be bytes, not {type(value).__name__}"
        )


def check_ttl(ttl: float) -> int:
    """The TTL in whole seconds. Raises `InvalidRequest` for an invalid one."""
    try:
        possible = 0 < ttl <= MAX_TTL  # not a number fails here too
    except TypeError:
        possible = False
    if not possible:
        raise InvalidRequest(f"a TTL of {ttl} s is invalid: it must be above 0 and up to 9e9 s")
    return math.ceil(ttl)


def check_range(range: Range) -> None:
    if not isinstance(range, Range):
        raise InvalidRequest(
            f"{quoted(range)} is not a range: make one with key(), prefix() or between()"
        )
    check_key(range.start, "start of a range")
    if not isinstance(range.end, bytes):
        raise InvalidRequest(f"the end of a range must be bytes, not {type(range.end).__name__}")


def check_number(what: str, number: object, *, least: int = 0) -> None:
    """Raise `InvalidRequest` unless this is a valid revision, lease or count."""
    if not isinstance(number, int) or not least <= number < 2**63:
        raise InvalidRequest(
            f"{what} {quoted(number)} is invalid: it must be an integer of at least {least}"
        )
