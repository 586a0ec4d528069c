"""What a watch is told: the events of a batch as messages, put together to responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mooring.errors import Compacted
from mooring.etcd_server.messages import header, key_value
from mooring.store.contract import MAX_REQUEST_BYTES, Batch, Event, Range
from mooring.store.embedded.engine import Engine
from mooring.store.etcd import proto

_NUMBERS = 64  # bytes of an event beside its keys and values, at the most


@dataclass(frozen=True, slots=True)
class Options:
    """How a watch wants to be told."""

    puts: bool = True
    deletes: bool = True
    prev_kv: bool = False
    fragment: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """The events of one revision that a watch is told."""

    revision: int
    events: Sequence[Any]

    @property
    def size(self) -> int:
        return sum(map(_size, self.events))


def tell(engine: Engine, batch: Batch, options: Options) -> Told:
    """A batch, without what the watch does not want. The engine has the values from before."""
    events = [
        _message(engine, batch.revision, event, options.prev_kv)
        for event in batch.events
        if (options.puts if event.entry is not None else options.deletes)
    ]
    return Told(batch.revision, events)


def _message(engine: Engine, revision: int, event: Event, prev_kv: bool) -> Any:
    entry = event.entry
    if entry is None:
        # A deletion has nothing but its key and its revision.
        kv = proto.KeyValue(key=event.key, mod_revision=revision)
        message = proto.Event(type=proto.DELETE, kv=kv)
    else:
        message = proto.Event(kv=key_value(entry))
    if prev_kv and (entry is None or entry.created != revision):
        _add_previous(engine, revision, message)
    return message


def _add_previous(engine: Engine, revision: int, message: Any) -> None:
    """What the key was before; left out where that is compacted, as etcd leaves it out."""
    name = message.kv.key
    try:
        before = next(iter(engine.past(Range(name, name + b"\0"), revision - 1)), None)
    except Compacted:
        return
    if before is not None:
        message.prev_kv.CopyFrom(key_value(before))


def responses(watch_id: int, told: Sequence[Told], *, fragment: bool) -> Iterator[Any]:
    """Revisions in as few messages as fit the size of a request.

    A revision is never torn, but where it is larger than that by itself and the client puts
    fragments together. The header has the last revision that is told: whoever resumes after it
    misses nothing, though there may be more to come.
    """
    group: list[Told] = []
    size = 0
    for one in told:
        if not one.events:
            continue
        more = one.size
        if group and size + more > MAX_REQUEST_BYTES:
            yield from _response(watch_id, group, fragment and size > MAX_REQUEST_BYTES)
            group, size = [], 0
        group.append(one)
        size += more
    if group:
        yield from _response(watch_id, group, fragment and size > MAX_REQUEST_BYTES)


def _response(watch_id: int, group: Sequence[Told], torn: bool) -> Iterator[Any]:
    revision = group[-1].revision
    if not torn:
        events = [event for one in group for event in one.events]
        yield proto.WatchResponse(header=header(revision), watch_id=watch_id, events=events)
        return
    (one,) = group
    pieces = list(_pieces(one.events))
    for number, piece in enumerate(pieces, 1):
        yield proto.WatchResponse(
            header=header(revision),
            watch_id=watch_id,
            events=piece,
            fragment=number < len(pieces),
        )


def _pieces(events: Sequence[Any]) -> Iterator[list[Any]]:
    """Events cut so that each piece fits; one that does not fit by itself is a piece."""
    piece: list[Any] = []
    size = 0
    for event in events:
        more = _size(event)
        if piece and size + more > MAX_REQUEST_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(event)
        size += more
    yield piece


def _size(event: Any) -> int:
    kv, before = event.kv, event.prev_kv
    return len(kv.key) + len(kv.value) + len(before.key) + len(before.value) + _NUMBERS
