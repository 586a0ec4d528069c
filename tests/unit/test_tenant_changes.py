"""Changes of a tenant as they are printed and returned."""

from __future__ import annotations

import json

from mooring.cli.commands.tenant.changes import lines, summary
from mooring.model import JSON
from mooring.tenants.diff import change_to_json
from mooring.tenants.history import HistoryEntry, entry_diffs, history_changes
from mooring.tenants.parts import PartDiff, UnreadablePart
from mooring.tenants.secrets import Keyring

RING, OTHER = Keyring([b"k" * 32]), Keyring([b"j" * 32])


def diff_lines(path: str, before: JSON | UnreadablePart, after: JSON | UnreadablePart) -> list[str]:
    return [line for _, line in lines(PartDiff(path, before, after))]


def test_a_changed_field_is_named_with_both_values():
    before: JSON = {"name": "a", "gone": 1, "deep": {"x": 1, "y": [1]}}
    after: JSON = {"name": "b", "new": True, "deep": {"x": 1, "y": [2]}}
    assert diff_lines("meta", before, after) == [
        'meta.name: "a" → "b"',
        "meta.gone: 1 → (none)",
        "meta.deep.y: [1] → [2]",
        "meta.new: (none) → true",
    ]


def test_a_changed_secret_is_reported_but_never_shown():
    assert diff_lines("ftp/a", {"passwordHash": "hunter2"}, {"passwordHash": "hunter3"}) == [
        "ftp/a.passwordHash: (sensitive value changes)"
    ]
    assert diff_lines("ftp/a", {}, {"passwordHash": "hunter2"}) == [
        "ftp/a.passwordHash: (sensitive value is set)"
    ]
    assert diff_lines("ftp/a", {"passwordHash": "hunter2"}, {}) == [
        "ftp/a.passwordHash: (sensitive value is removed)"
    ]
    inner: JSON = {"extra": [{"apiToken": "hunter2"}], "secrets": {"a": "hunter2"}}
    other: JSON = {"extra": [{"apiToken": "hunter3"}], "secrets": {"a": "hunter3"}}
    assert diff_lines("ftp/a", inner, other) == [
        "ftp/a.extra: (sensitive value changes)",
        "ftp/a.secrets.a: (sensitive value changes)",
    ]
    for before, after in ((None, inner), (inner, None), (inner, other)):
        assert "hunter" not in str(diff_lines("ftp/a", before, after))
        assert "hunter" not in json.dumps(change_to_json(PartDiff("ftp/a", before, after)))


def test_sealing_a_password_is_one_change():
    before: JSON = {"password": "hunter2"}
    after: JSON = {"passwordEncrypted": "c2VhbGVk", "passwordKeyId": "12345678"}
    assert diff_lines("database/a", before, after) == [
        "database/a.password: (sensitive value changes)",
        'database/a.passwordKeyId: (none) → "12345678"',
    ]


def test_an_unreadable_part_is_marked_as_such():
    raw = UnreadablePart(b"hunter2")
    assert diff_lines("ftp/a", raw, {"status": "x"}) == ['ftp/a: (unreadable) → {"status": "x"}']
    assert diff_lines("ftp/a", raw, None) == ["ftp/a: (unreadable)"]
    assert change_to_json(PartDiff("ftp/a", raw, None))["before"] == "(unreadable)"


def test_a_new_part_shows_its_fields_except_those_of_its_key():
    database: JSON = {"tenantId": 1, "serviceCode": "a", "username": "u", "password": "hunter2"}
    assert diff_lines("database/a", None, database) == [
        "database/a",
        '    username: "u"',
        "    password: (sensitive value)",
    ]
    assert diff_lines("domain/primary", "a.example", None) == ['domain/primary: "a.example"']


def test_changes_are_counted_by_part():
    diffs = [
        PartDiff("meta", None, {}),
        PartDiff("ftp/a", {"x": 1}, {"x": 2}),
        PartDiff("ftp/b", {}, None),
        PartDiff("ftp/c", {}, None),
    ]
    assert summary(diffs) == "1 to add, 1 to change, 2 to remove"
    assert summary(diffs, done=True) == "1 added, 1 changed, 2 removed"
    assert summary([]) == "nothing to change"


def test_a_history_entry_is_shown_as_far_as_it_can_be_decrypted():
    before: JSON = {"status": "a", "passwordHash": "hunter2"}
    after: JSON = {"status": "b", "passwordHash": "hunter2"}
    kept = history_changes([PartDiff("ftp/a", before, after)], RING)
    entry = HistoryEntry(1, "", "", "publish", kept)
    (opened,) = entry_diffs(entry, RING)
    assert diff_lines(opened.path, opened.before, opened.after) == ['ftp/a.status: "a" → "b"']
    (closed,) = entry_diffs(entry, OTHER)
    assert diff_lines(closed.path, closed.before, closed.after) == [
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
    assert diff_lines(omitted.path, omitted.before, omitted.after) == ['ftp/a.status: "a" → "b"']
