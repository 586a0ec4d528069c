"""Between etcd's messages and the engine's records: headers, keys with their values, ranges."""

from __future__ import annotations

from typing import Any

from mooring.store.contract import Entry, Range
from mooring.store.etcd.proto import KeyValue, ResponseHeader

# One node that is always its own leader: constants, so that they are the same after a restart.
MEMBER_ID = int.from_bytes(b"mooring\1")
RAFT_TERM = 2
"""What a lone etcd member has once it has elected itself."""


def header(revision: int) -> Any:
    """The header of an answer, but for the cluster's id: `RpcHandlers` adds that."""
    return ResponseHeader(member_id=MEMBER_ID, revision=revision, raft_term=RAFT_TERM)


def inner_header(revision: int) -> Any:
    """The header of an answer within a transaction's: etcd fills in nothing but the revision."""
    return ResponseHeader(revision=revision)


def key_value(entry: Entry, *, keys_only: bool = False) -> Any:
    return KeyValue(
        key=entry.key,
        create_revision=entry.created,
        mod_revision=entry.modified,
        version=entry.version,
        value=b"" if keys_only else entry.value,
        lease=entry.lease,
    )


def range_of(key: bytes, end: bytes) -> Range:
    """etcd's way of writing ranges: no end for one key, a zero byte for all from `key` on.

    An end that comes before the start makes an empty range, which is no error.
    """
    if not end:
        return Range(key, key + b"\0")
    if end == b"\0":
        return Range(key, b"")
    return Range(key, max(key, end))
