"""What people and programs are told of a tenant's changes."""

from __future__ import annotations

import json

from mooring.cli.commands.tenant.changes import lines, summary
from mooring.model import JSON
from mooring.tenants.diff import change_to_json
from mooring.tenants.history import HistoryEntry, entry_diffs, history_changes
from mooring.tenants.parts import PartDiff, UnreadablePart
from mooring.tenants.secrets import Keyring

RING, OTHER = Keyring([b"k" * 32]), Keyring([b"j" * 32])


def told(path: str, before: JSON | UnreadablePart, after: JSON | UnreadablePart) -> list[str]:
    return [line for _, line in lines(PartDiff(path, before, after))]


def test_a_field_that_changes_is_named_with_what_it_was():
    before: JSON = {"name": "a", "gone": 1, "deep": {"x": 1, "y": [1]}}
    after: JSON = {"name": "b", "new": True, "deep": {"x": 1, "y": [2]}}
    assert told("meta", before, after) == [
        'meta.name: "a" → "b"',
        "meta.gone: 1 → (none)",
        "meta.deep.y: [1] → [2]",
        "meta.new: (none) → true",
    ]


def test_a_secret_is_said_to_change_and_never_shown():
    assert told("ftp/a", {"passwordHash": "hunter2"}, {"passwordHash": "hunter3"}) == [
        "ftp/a.passwordHash: (sensitive value changes)"
    ]
    assert told("ftp/a", {}, {"passwordHash": "hunter2"}) == [
        "ftp/a.passwordHash: (sensitive value is set)"
    ]
    assert told("ftp/a", {"passwordHash": "hunter2"}, {}) == [
        "ftp/a.passwordHash: (sensitive value is removed)"
    ]
    inner: JSON = {"extra": [{"apiToken": "hunter2"}], "secrets": {"a": "hunter2"}}
    other: JSON = {"extra": [{"apiToken": "hunter3"}], "secrets": {"a": "hunter3"}}
    assert told("ftp/a", inner, other) == [
        "ftp/a.extra: (sensitive value changes)",
        "ftp/a.secrets.a: (sensitive value changes)",
    ]
    for before, after in ((None, inner), (inner, None), (inner, other)):
        assert "hunter" not in str(told("ftp/a", before, after))
        assert "hunter" not in json.dumps(change_to_json(PartDiff("ftp/a", before, after)))


def test_a_password_that_gets_sealed_is_one_change():
    before: JSON = {"password": "hunter2"}
    after: JSON = {"passwordEncrypted": "c2VhbGVk", "passwordKeyId": "12345678"}
    assert told("database/a", before, after) == [
        "database/a.password: (sensitive value changes)",
        'database/a.passwordKeyId: (none) → "12345678"',
    ]


def test_what_cannot_be_understood_is_said_to_be_so():
    raw = UnreadablePart(b"hunter2")
    assert told("ftp/a", raw, {"status": "x"}) == ['ftp/a: (unreadable) → {"status": "x"}']
    assert told("ftp/a", raw, None) == ["ftp/a: (unreadable)"]
    assert change_to_json(PartDiff("ftp/a", raw, None))["before"] == "(unreadable)"


def test_a_whole_part_that_comes_shows_its_fields_but_not_those_of_its_place():
    database: JSON = {"tenantId": 1, "serviceCode": "a", "username": "u", "password": "hunter2"}
    assert told("database/a", None, database) == [
        "database/a",
        '    username: "u"',
        "    password: (sensitive value)",
    ]
    assert told("domain/primary", "a.example", None) == ['domain/primary: "a.example"']


def test_changes_are_counted_by_part():
    found = [
        PartDiff("meta", None, {}),
        PartDiff("ftp/a", {"x": 1}, {"x": 2}),
        PartDiff("ftp/b", {}, None),
        PartDiff("ftp/c", {}, None),
    ]
    assert summary(found) == "1 to add, 1 to change, 2 to remove"
    assert summary(found, done=True) == "1 added, 1 changed, 2 removed"
    assert summary([]) == "nothing to change"


def test_an_entry_of_a_history_is_told_as_far_as_it_can_be_opened():
    before: JSON = {"status": "a", "passwordHash": "hunter2"}
    after: JSON = {"status": "b", "passwordHash": "hunter2"}
    kept = history_changes([PartDiff("ftp/a", before, after)], RING)
    entry = HistoryEntry(1, "", "", "publish", kept)
    (opened,) = entry_diffs(entry, RING)
    assert told(opened.path, opened.before, opened.after) == ['ftp/a.status: "a" → "b"']
    (closed,) = entry_diffs(entry, OTHER)
    assert told(closed.path, closed.before, closed.after) == [
        'ftp/a.status: "a" → "b"',
        "ftp/a.passwordHash: (sensitive value, which may have changed: its key is not known here)",
    ]
    assert change_to_json(closed)["sensitive"] == ["passwordHash"]
    (omitted,) = entry_diffs(
        HistoryEntry(
            1, "", "", "publish", history_changes([PartDiff("ftp/a", before, after)], Keyring([]))
        ),
        RING,
    )
    assert told(omitted.path, omitted.before, omitted.after) == ['ftp/a.status: "a" → "b"']
