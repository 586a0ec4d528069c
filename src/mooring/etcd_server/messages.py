"""etcd's messages, converted from and to the records of the engine."""

from __future__ import annotations

from typing import Any

from mooring.store.contract import Entry, Range
from mooring.store.etcd.proto import KeyValue, ResponseHeader

# A single node that is always the leader. Constants, so that they survive a restart.
MEMBER_ID = int.from_bytes(b"mooring\1")
RAFT_TERM = 2
"""The term of a single etcd member after its first election."""


def header(revision: int) -> Any:
    """The header of a response, without the id of the cluster, which `RpcHandlers` adds."""
    return ResponseHeader(member_id=MEMBER_ID, revision=revision, raft_term=RAFT_TERM)


def key_value(entry: Entry, *, keys_only: bool = False) -> Any:
    """An entry of the engine as etcd's message."""
    return KeyValue(
        key=entry.key,
        create_revision=entry.created,
        mod_revision=entry.modified,
        version=entry.version,
        value=b"" if keys_only else entry.value,
        lease=entry.lease,
    )


def range_of(key: bytes, end: bytes) -> Range:
    """Decode etcd's ranges: an empty end for one key, a zero byte for all keys from `key` on, and
    an end before the start for an empty range."""
    if not end:
        return Range(key, key + b"\0")
    if end == b"\0":
        return Range(key, b"")
    return Range(key, max(key, end))
