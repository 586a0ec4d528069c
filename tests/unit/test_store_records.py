"""Values in requests and results of a store do not appear in logs and tracebacks."""

from __future__ import annotations

from mooring.mirror import Change, Update
from mooring.store import Batch, Entry, Event, Put, Snapshot, created_at, has_value


def test_records_show_no_values():
    entry = Entry(b"/key", b"s3cret", 1, 2, 3, 4)
    records = [
        entry,
        Put(b"/key", b"s3cret", 7),
        has_value(b"/key", b"s3cret"),
        Snapshot((entry,), 9),
        Batch(9, (Event(b"/key", entry),)),
        Update(9, (Change(b"/key", None, entry),)),
    ]
    for record in records:
        assert "b'/key'" in repr(record)
        assert "6 bytes" in repr(record)
        assert "s3cret" not in repr(record)
    assert "modified=2" in repr(entry)
    assert "expected=7" in repr(created_at(b"/key", 7))
