"""The old keys of tenants: how they are parsed and written back, and which side wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.cli.commands.migrate.output import verdict_counts
from mooring.errors import InvalidRequest, MigrationError, StoreError
from mooring.migrate import verified_file
from mooring.migrate.jxt.format import (
    OldIndex,
    OldIndexEntry,
    OldKeys,
    OldPart,
    digest,
    is_spelling_of,
)
from mooring.migrate.jxt.indexes import (
    compare_new_indexes,
    compare_old_indexes,
    find_gaps,
    missing_old_indexes,
    old_index_claims,
    write_index_changes,
)
from mooring.migrate.jxt.merge_rule import (
    NO_BASE,
    Base,
    MergeDecision,
    Side,
    decide,
    decide_after_cutover,
)
from mooring.migrate.jxt.migration import (
    FORMAT,
    JxtHeader,
    VerifiedKey,
    VerifiedKeys,
    without_deleted,
)
from mooring.migrate.jxt.name_conflicts import name_conflicts
from mooring.migrate.jxt.plan import REASONS, Criteria, PartPlan, compare
from mooring.migrate.jxt.state import (
    CutoverMarker,
    LedgerKeys,
    SyncedState,
    UnitState,
    parse_cutover,
    parse_ledger,
    unit_state,
)
from mooring.migrate.jxt.translation import (
    Translation,
    is_same,
    translate,
    translate_back,
    why_locked,
)
from mooring.migrate.verified_file import Verified
from mooring.model import JSON
from mooring.store import Delete, Entry, Put
from mooring.tenants.keys import TenantKeys
from mooring.tenants.secrets import Keyring
from mooring.tenants.validation import FIELDS

KEYS = TenantKeys("jxt")
OLD = OldKeys(KEYS)
RING = Keyring([b"k" * 32])
NO_RING = Keyring()


def entry(name: str, value: object, modified: int = 5) -> Entry:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Entry(name.encode(), raw, 1, modified, 1)


def read(*entries: Entry, unit: int = 1) -> Translation:
    return translate(OLD, unit, entries)


def values(translation: Translation) -> dict[str, JSON]:
    return {path: part.value for path, part in translation.parts.items()}


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("jxt//jxt/config/tenants/1/services/a-b/database", OldPart(1, "database/a-b")),
        ("jxt//jxt/config/tenants/1/services/meta/database", OldPart(1, "database/meta")),
        ("jxt//jxt/config/tenants/1/services/a/b/database", OldPart(1, "database/a/b")),
        ("jxt//tenants/12/meta", OldPart(12, "meta")),
        ("jxt//tenants/1/domain/primary", OldPart(1, "domain/primary")),
        ("jxt//tenants/1/domain/aliases", OldPart(1, "domain/aliases")),
        ("jxt//tenants/1/domain/internal", OldPart(1, "domain/internal")),
        ("jxt//tenants/1/ftp", OldPart(1, "ftp")),
        ("jxt//tenants/1/storage", OldPart(1, "storage")),
        ("jxt//tenants/by-code/meta", OldIndex("by-code", "meta")),
        ("jxt//tenants/by-name/A/B 分部/meta", OldIndex("by-name", "A/B 分部/meta")),
        ("jxt//ftp-users/meta", OldIndex("ftp-user", "meta")),
        ("jxt//hosts/www.example.com", OldIndex("host", "www.example.com")),
        ("jxt//common/resolver", OldPart(0, "common/resolver")),
        ("jxt//common/storage-directory", OldPart(0, "common/storage-directory")),
        ("jxt//_health/sentinel", OldPart(0, "_health/sentinel")),
        ("jxt//platform/configs/a/b", OldPart(0, "platform/configs/a/b")),
        ("jxt/tenants/1/database", OldPart(1, "database", previous=True)),
        ("jxt/tenants/1/ftp", OldPart(1, "ftp", previous=True)),
    ],
)
def test_every_old_key_is_understood(key: str, place: OldPart | OldIndex):
    assert OLD.parse(key.encode()) == place


@pytest.mark.parametrize(
    "key",
    [
        *("jxt/tenants/1/meta", "jxt/tenants/1/database/a", "jxt/tenants/1/ftp/bob", "jxt/x/ftp"),
        *("jxt//tenants/1/", "jxt//tenants/1/metadata", "jxt//tenants/0/meta", "jxt//tenants/"),
        *("jxt//tenants/01/meta", "jxt//tenants/x/meta", "jxt//tenants/1/ftp/bob", "jxt//hosts/"),
        *("jxt//platform/configs/", "jxt//platform/configs//a", "jxt///tenants/1/meta", "jxt//"),
        *("jxt//jxt/config/tenants/1/services//database", "jxt2//tenants/1/meta", "jxt", "x"),
        *("jxt//jxt/config/tenants/1/services/a", "jxt//jxt/config/tenants/1/database"),
    ],
)
def test_other_keys_are_foreign(key: str):
    assert OLD.parse(key.encode()) is None


def test_a_key_that_is_not_utf_8_is_foreign():
    assert OLD.parse(b"jxt//tenants/1/\xff") is None


@pytest.mark.parametrize(
    "value",
    [
        {"ftpConfigs": [{"username": "meta"}, {"username": "b.c"}]},
        [{"username": "meta"}, {"username": "b.c", "tenantId": 9}],
    ],
)
def test_users_are_separate_parts(value: object):
    translation = read(entry("jxt//tenants/1/ftp", value))
    assert values(translation) == {
        "ftp/meta": {"username": "meta", "tenantId": 1},
        "ftp/b.c": {"username": "b.c", "tenantId": 1},
    }


@pytest.mark.parametrize("value", [b"null", b"[]", b'{"ftpConfigs": null}', b'{"ftpConfigs": []}'])
def test_an_empty_list_of_users_is_no_problem(value: bytes):
    translation = read(entry("jxt//tenants/1/ftp", value))
    (finding,) = translation.keys.values()
    assert (values(translation), finding.problems, finding.readable) == ({}, (), True)


@pytest.mark.parametrize(
    "value", [b"{", b"7", b'"text"', b"{}", b'{"ftpConfigs": 1}', b"\xff", b"[" * 100_000]
)
def test_an_unreadable_list_of_users_hides_all_users(value: bytes):
    translation = read(
        entry("jxt//tenants/1/ftp", value), entry("jxt/tenants/1/ftp", {"username": "a"})
    )
    assert translation.hides("ftp/anybody")
    assert translation.hides("ftp/a"), "an older key does not take its place"
    assert not translation.hides("meta")
    assert not translation.keys[b"jxt//tenants/1/ftp"].readable


def test_only_the_user_without_a_name_is_skipped():
    translation = read(
        entry("jxt//tenants/1/ftp", [{"username": "a"}, {}, {"username": "no good"}, 5])
    )
    assert list(translation.parts) == ["ftp/a"]
    (finding,) = translation.keys.values()
    assert len(finding.problems) == 3
    assert finding.readable


def test_the_later_generation_wins():
    later = "jxt//jxt/config/tenants/1/services/a/database"
    translation = read(
        entry("jxt/tenants/1/database", {"serviceCode": "a", "driver": "old"}),
        entry(later, {"driver": "new"}),
    )
    assert translation.parts["database/a"].key == later.encode()
    assert translation.keys[b"jxt/tenants/1/database"].superseded


def test_a_database_without_a_service_belongs_to_the_default_service():
    translation = read(entry("jxt/tenants/1/database", {"driver": "old"}))
    assert list(translation.parts) == ["database/default"]


def test_an_unreadable_later_key_hides_the_former():
    translation = read(
        entry("jxt/tenants/1/database", {"serviceCode": "a"}),
        entry("jxt//jxt/config/tenants/1/services/a/database", b"{"),
    )
    assert values(translation) == {}
    assert translation.hides("database/a")


def test_an_unreadable_former_key_hides_what_no_later_key_defines():
    translation = read(
        entry("jxt/tenants/1/database", b"{"),
        entry("jxt//jxt/config/tenants/1/services/a/database", {"driver": "x"}),
    )
    assert not translation.hides("database/a")
    assert translation.hides("database/b")


def test_the_key_and_not_the_value_names_the_owner():
    translation = read(
        entry("jxt//tenants/1/meta", {"id": 7, "code": "a"}),
        entry("jxt//tenants/2/meta", {"id": 1, "code": "b"}),
        entry("jxt//jxt/config/tenants/1/services/s/database", {"tenantId": 3, "serviceCode": "x"}),
    )
    assert values(translation) == {
        "meta": {"id": 1, "code": "a"},
        "database/s": {"tenantId": 1, "serviceCode": "s"},
    }


def test_storage_in_bytes_is_converted():
    translation = read(entry("jxt//tenants/1/storage", {"quotaBytes": 3 * 2**29, "ours": 1}))
    assert values(translation) == {"storage": {"tenantId": 1, "uploadQuotaGb": 1.5, "ours": 1}}


@pytest.mark.parametrize(
    ("value", "translated"),
    [
        ({"quotaBytes": 1_500_000_000}, {"quotaBytes": 1_500_000_000}),
        ({"maxFileSizeBytes": 1_234_567}, {"maxFileSizeBytes": 1_234_567}),
        (
            {"quotaBytes": 2**30, "maxFileSizeBytes": 2**19},
            {"uploadQuotaGb": 1, "maxFileSizeMb": 0.5},
        ),
        ({"quotaBytes": 5, "uploadQuotaGb": 7}, {"uploadQuotaGb": 7}),
        ({"quotaBytes": None}, {}),
    ],
)
def test_bytes_that_are_not_whole_gigabytes_stay(
    value: dict[str, JSON], translated: dict[str, JSON]
):
    translation = read(entry("jxt//tenants/1/storage", value))
    assert values(translation) == {"storage": {"tenantId": 1, **translated}}
    assert values(after(translation, {"storage": {"tenantId": 1, **translated}})) == values(
        translation
    )


@pytest.mark.parametrize(
    "beside", [{"passivePorts": "40000-40100"}, {"tenantId": 2}, {"username": "b"}]
)
def test_unknown_fields_beside_the_users_keep_their_key(beside: dict[str, JSON]):
    translation = read(entry("jxt//tenants/1/ftp", {"ftpConfigs": [{"username": "a"}], **beside}))
    (finding,) = translation.keys.values()
    assert (finding.paths, finding.readable) == (("ftp/a",), True)
    assert next(iter(beside)) in finding.problems[0]


def test_empty_fields_beside_the_users_are_no_problem():
    translation = read(entry("jxt//tenants/1/ftp", {"ftpConfigs": [], "tenantId": 1, "note": None}))
    (finding,) = translation.keys.values()
    assert finding.problems == ()


@pytest.mark.parametrize("raw", [b"a.example.com", b'"a.example.com"', b" a.example.com\n"])
def test_a_domain_is_plain_text_or_json(raw: bytes):
    assert values(read(entry("jxt//tenants/1/domain/primary", raw))) == {
        "domain/primary": "a.example.com"
    }


@pytest.mark.parametrize("raw", [b'""', b"", b"null", b" null\n"])
def test_an_empty_domain_is_no_domain(raw: bytes):
    translation = read(entry("jxt//tenants/1/domain/primary", raw))
    assert values(translation) == {}
    assert translation.keys[b"jxt//tenants/1/domain/primary"].problems == ()
    assert not translation.hides("domain/primary")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("jxt//tenants/1/meta", {"code": "no good"}),
        ("jxt//tenants/1/meta", {"code": "a", "name": "a\nb"}),
        ("jxt//tenants/1/meta", {"code": 5}),
        ("jxt//tenants/1/domain/primary", b"not a host"),
        ("jxt//tenants/1/domain/aliases", ["a.b", "_"]),
        ("jxt//tenants/1/storage", {"uploadQuotaGb": "many"}),
        ("jxt//tenants/1/storage", {"quotaBytes": "x"}),
        ("jxt//tenants/1/storage", {"uploadQuotaGb": 1, "maxFileSizeBytes": True}),
        ("jxt//jxt/config/tenants/1/services/A/database", {}),
        ("jxt//jxt/config/tenants/1/services/a/b/database", {}),
        ("jxt//jxt/config/tenants/1/services/a/database", {"port": "x"}),
    ],
)
def test_values_that_are_invalid_today_are_refused(key: str, value: object):
    translation = read(entry(key, value))
    (finding,) = translation.keys.values()
    assert values(translation) == {}
    assert finding.problems
    assert finding.readable


@pytest.mark.parametrize(
    ("path", "value"),
    [("resolver", {"httpType": "nonsense"}), ("storage-directory", {"directory": 5})],
)
def test_unknown_common_settings_are_refused(path: str, value: object):
    translation = read(entry(f"jxt//common/{path}", value), unit=0)
    (finding,) = translation.keys.values()
    assert finding.problems
    assert values(translation) == {}


NAME = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True).filter(lambda name: len(name) < 30)
USER = st.from_regex(r"[A-Za-z0-9._-]+", fullmatch=True).filter(lambda name: len(name) < 30)
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
HOST = st.builds(
    lambda a, b: f"{a}.{b}", *[st.from_regex(r"[a-z][a-z0-9]{0,9}", fullmatch=True)] * 2
)
OWN = st.dictionaries(
    TEXT.map("own{}".format), st.one_of(st.none(), st.booleans(), TEXT), max_size=2
)


@st.composite
def tenants(draw: st.DrawFn) -> dict[str, Any]:
    """The parts of a tenant."""
    parts: dict[str, Any] = {}
    if draw(st.booleans()):
        code = draw(st.from_regex(r"[A-Za-z0-9_]+", fullmatch=True))[:30]
        name = draw(TEXT.map(str.strip).filter(lambda name: not FIELDS["meta"]["name"](name)))
        parts["meta"] = {"id": 1, "code": code, "name": name, **draw(OWN)}
    for path in ("domain/primary", "domain/internal"):
        if draw(st.booleans()):
            parts[path] = draw(HOST)
    if draw(st.booleans()):
        parts["domain/aliases"] = draw(st.lists(HOST, max_size=3))
    for service in draw(st.sets(NAME | st.just("meta"), max_size=3)):
        fields = {"tenantId": 1, "serviceCode": service, "driver": "mysql", **draw(OWN)}
        secret = draw(st.sampled_from(["", "plain", "sealed"]))
        if secret == "plain":
            fields["password"] = draw(TEXT)
        if secret == "sealed":
            sealed, of = RING.seal(draw(TEXT))
            fields |= {"passwordEncrypted": sealed, "passwordKeyId": of}
        parts[f"database/{service}"] = fields
    for user in draw(st.sets(USER | st.just("meta"), max_size=3)):
        parts[f"ftp/{user}"] = {"tenantId": 1, "username": user, **draw(OWN)}
    if draw(st.booleans()):
        parts["storage"] = {"tenantId": 1, "uploadQuotaGb": draw(st.integers(0, 9999)) / 8}
    return parts


NOTHING = translate(OLD, 1, [])


def after(translation: Translation, changes: dict[str, Any], ring: Keyring = RING) -> Translation:
    raw = {**translation.raw, **translate_back(OLD, translation, changes, ring)}
    return translate(
        OLD, 1, [Entry(key, value, 1, 5, 1) for key, value in raw.items() if value is not None]
    )


@given(tenants())
def test_a_round_trip_through_the_old_keys_changes_nothing(parts: dict[str, Any]):
    translation = after(NOTHING, parts)
    assert values(translation) == parts
    assert all(not finding.problems for finding in translation.keys.values())


@given(tenants(), tenants(), st.sampled_from(["list", "object", "former"]), st.booleans())
def test_a_change_is_applied_in_any_old_form(
    before: dict[str, Any], wanted: dict[str, Any], form: str, plain: bool
):
    translation = in_old_form(before, form, plain)
    assert values(translation).keys() == before.keys()
    changes: dict[str, Any] = {
        path: wanted.get(path)
        for path in {*before, *wanted}
        if path not in wanted
        or path not in before
        or not is_same(1, path, translation.parts[path].value, wanted[path], RING)
    }
    changed = after(translation, changes)
    assert changed.parts.keys() == wanted.keys()
    for path, value in wanted.items():
        assert is_same(1, path, changed.parts[path].value, value, RING), path
    for path in before.keys() - changes.keys():
        assert changed.parts[path].value == translation.parts[path].value, "unchanged parts stay"


def in_old_form(parts: dict[str, Any], form: str, plain: bool) -> Translation:
    """The same parts in the old keys, written in another form."""
    entries = []
    users = [value for path, value in parts.items() if path.startswith("ftp/")]
    if users and form == "former":
        entries.append(entry("jxt/tenants/1/ftp", users.pop()))
    if users:
        entries.append(
            entry("jxt//tenants/1/ftp", users if form == "list" else {"ftpConfigs": users, "v": 2})
        )
    for path, value in parts.items():
        if path.startswith("ftp/"):
            continue
        if path == "storage" and plain:
            value = {"quotaBytes": round(value["uploadQuotaGb"] * 2**30), "maxFileSizeBytes": 2**30}
        if path.startswith("database/") and plain:
            value = {**value, "password": "in the clear"}
            value.pop("passwordEncrypted", None)
            value.pop("passwordKeyId", None)
        if path == "domain/primary" and not plain:
            value = value.encode()
        entries.append(entry(OLD.part(1, path).decode(), value))
    return read(*entries)


def test_entries_that_are_not_users_stay_in_a_list():
    translation = read(
        entry("jxt//tenants/1/ftp", [{"strange": 1}, {"username": "a"}, {"username": "b"}])
    )
    changed = translate_back(OLD, translation, {"ftp/a": None, "ftp/c": {"username": "c"}}, NO_RING)
    assert json.loads(changed[b"jxt//tenants/1/ftp"] or b"") == [
        {"strange": 1},
        {"username": "b"},
        {"username": "c"},
    ]


def test_the_last_user_is_deleted_with_its_key():
    translation = read(entry("jxt//tenants/1/ftp", {"ftpConfigs": [{"username": "a"}]}))
    assert translate_back(OLD, translation, {"ftp/a": None}, NO_RING) == {
        b"jxt//tenants/1/ftp": None
    }


def test_a_deletion_also_removes_the_former_generation():
    translation = read(
        entry("jxt/tenants/1/database", {"serviceCode": "a"}),
        entry("jxt//jxt/config/tenants/1/services/a/database", {}),
    )
    assert set(translate_back(OLD, translation, {"database/a": None}, NO_RING).values()) == {None}
    assert values(after(translation, {"database/a": None})) == {}


def test_a_password_in_clear_text_stays_so_in_the_old_keys():
    key = "jxt//jxt/config/tenants/1/services/a/database"
    translation = read(entry(key, {"password": "before"}))
    sealed, of = RING.seal("after")
    new: JSON = {"passwordEncrypted": sealed, "passwordKeyId": of}
    assert json.loads(
        translate_back(OLD, translation, {"database/a": new}, RING)[key.encode()] or b""
    ) == {"password": "after"}
    assert why_locked(OLD, translation, "database/a", new, RING) == ""
    assert of in why_locked(OLD, translation, "database/a", new, NO_RING), (
        "the password cannot be read"
    )
    sealed_there = read(entry(key, {"passwordEncrypted": "x"}))
    assert why_locked(OLD, sealed_there, "database/a", new, NO_RING) == ""


def test_a_password_is_the_same_sealed_or_in_clear_text():
    sealed, of = RING.seal("s3cret")
    plain: JSON = {"password": "s3cret"}
    assert is_same(1, "database/a", plain, {"passwordEncrypted": sealed, "passwordKeyId": of}, RING)
    assert not is_same(1, "database/a", plain, {"passwordEncrypted": sealed}, NO_RING)
    assert not is_same(1, "database/a", plain, {"password": "other"}, RING)
    assert not is_same(1, "database/a", plain, {}, RING)


@pytest.mark.parametrize(
    ("old", "new", "base", "decision"),
    [
        (Side(), Side(), NO_BASE, MergeDecision()),
        (Side(), Side(), Base("a", "a"), MergeDecision()),
        (Side("a", 1), Side(), NO_BASE, MergeDecision("to new")),
        (Side(), Side("a", 1), NO_BASE, MergeDecision("to old")),
        (Side("b", 3), Side("a", 2), Base("a", "a"), MergeDecision("to new")),
        (Side("a", 1), Side("b", 3), Base("a", "a"), MergeDecision("to old")),
        (Side(), Side("a", 2), Base("a", "a"), MergeDecision("out of new")),
        (Side("a", 1), Side(), Base("a", "a"), MergeDecision("out of old")),
        (Side("b", 3), Side("c", 4), Base("a", "a"), MergeDecision("to old", conflict=True)),
        (Side("b", 4), Side("c", 3), Base("a", "a"), MergeDecision("to new", conflict=True)),
        (Side("b", 4), Side("c", 3), NO_BASE, MergeDecision("to new", conflict=True)),
        (Side(), Side("c", 3), Base("a", "a"), MergeDecision("to old", conflict=True)),
        (Side("b", 3), Side(), Base("a", "a"), MergeDecision("to new", conflict=True)),
        (Side("a", 1), Side("sealed", 2), Base("a", "sealed"), MergeDecision()),
    ],
)
def test_which_side_wins(old: Side, new: Side, base: Base, decision: MergeDecision):
    assert decide(old, new, base, same=old.digest == new.digest) == decision


DIGEST = st.sampled_from(["", "a", "b", "c"])
SIDE = st.builds(Side, DIGEST, st.integers(1, 9))


@given(SIDE, SIDE, st.builds(Base, DIGEST, DIGEST))
def test_a_decision_levels_both_sides_and_deletes_no_new_writes(old: Side, new: Side, base: Base):
    move, *_ = decide(old, new, base, same=old.digest == new.digest)
    if move == "out of new":
        assert base.old, "without a base nothing is deleted"
        assert new.digest == base.new
    if move == "out of old":
        assert base.new
        assert old.digest == base.old
    if not move:
        return
    level = {"to new": old, "to old": new}.get(move, Side())
    assert decide(level, level, Base(level.digest, level.digest), same=True) == MergeDecision()


@given(SIDE, SIDE, st.builds(Base, DIGEST, DIGEST))
def test_the_old_side_never_wins_after_the_cut_over(old: Side, new: Side, base: Base):
    move, _, late = decide_after_cutover(old, new, base, same=old.digest == new.digest)
    assert move in ("", "to old", "out of old")
    if old.digest != new.digest and old.digest != base.old:
        assert late
    if new.digest == base.new:
        assert move == ""


def test_a_digest_does_not_depend_on_the_order_of_fields():
    assert digest({"a": 1, "b": [1, {"c": 2, "d": 3}]}) == digest(
        {"b": [1, {"d": 3, "c": 2}], "a": 1}
    )
    assert digest({"a": 1}) != digest({"a": 2})


def test_the_ledger_is_read_as_it_was_written():
    ledger = LedgerKeys(KEYS)
    bases = {"meta": Base("a", "b"), "ftp/名": Base("c", "c")}
    known = SyncedState(bases, {"jxt//ftp-users/名".encode(): "ftp/名"})
    put = ledger.write(7, known)
    assert isinstance(put, Put)
    assert put.key == b"jxt/_migration/jxt/7"
    assert parse_ledger(Entry(put.key, put.value, 1, 1, 1)) == known
    assert parse_ledger(None) == parse_ledger(Entry(put.key, b"{", 1, 1, 1)) == SyncedState()
    assert isinstance(ledger.write(7, SyncedState(indexes=known.indexes)), Put)
    assert isinstance(ledger.write(7, SyncedState()), Delete)
    assert [ledger.unit(name) for name in (put.key, ledger.entry(0), ledger.marker)] == [7, 0, None]


def test_an_unreadable_cut_over_marker_is_an_error():
    marker = CutoverMarker("2026-02-03T00:00:00.000Z", "alice", 7)
    raw = json.dumps({"at": marker.at, "by": marker.by, "revision": 7}).encode()
    cutover = parse_cutover(Entry(b"jxt/_migration/jxt/cutover", raw, 1, 9, 1))
    assert (cutover.marker, cutover.revision) == (marker, 9)
    assert [parse_cutover(None).phase, cutover.phase] == ["both", "cut over"]
    with pytest.raises(StoreError, match="cut-over was made"):
        parse_cutover(Entry(b"jxt/_migration/jxt/cutover", b"{", 1, 1, 1))


def seen(
    unit: int,
    old: list[Entry],
    new: list[Entry],
    bases: dict[str, Base] | None = None,
    led: dict[bytes, str] | None = None,
) -> UnitState:
    put = LedgerKeys(KEYS).write(unit, SyncedState(bases or {}, led or {}))
    ledger = Entry(put.key, put.value, 1, 5, 1) if isinstance(put, Put) else None
    return unit_state(KEYS, OLD, unit, old, new, ledger)


def verdicts(here: UnitState, *others: UnitState) -> dict[str, str]:
    lost = name_conflicts(KEYS, [here, *others], NO_RING)
    steps = compare(KEYS, here, Criteria(NO_RING, "both", conflicts=lost.get(here.unit, {})))
    return {step.name: step.verdict for step in steps}


def test_the_owner_of_a_name_that_several_units_claim():
    def aliases(unit: int) -> UnitState:
        return seen(unit, [entry(f"jxt//tenants/{unit}/domain/aliases", ["a.b"])], [])

    first, second = aliases(3), aliases(20)
    assert verdicts(first, second) == {"jxt//tenants/3/domain/aliases": "missing"}
    assert verdicts(second, first) == {"jxt//tenants/20/domain/aliases": "taken"}
    owner = seen(99, [], [entry("jxt/tenants/99/domain/primary", b"a.b")])
    assert verdicts(first, owner) == {"jxt//tenants/3/domain/aliases": "taken"}, (
        "the current owner keeps it"
    )
    gives_up = seen(
        99,
        [entry("jxt//tenants/99/domain/primary", b"other.b", modified=9)],
        [entry("jxt/tenants/99/domain/primary", b"a.b")],
    )
    assert verdicts(first, gives_up) == {"jxt//tenants/3/domain/aliases": "missing"}


def test_a_host_that_occurs_twice_in_a_tenant_is_lost_twice():
    first = seen(1, [entry("jxt//tenants/1/domain/primary", b"shop.com")], [])
    second = seen(
        2,
        [
            entry("jxt//tenants/2/domain/primary", b"shop.com"),
            entry("jxt//tenants/2/domain/aliases", ["shop.com", "www.shop2.com"]),
        ],
        [],
    )
    assert set(verdicts(first, second).values()) == {"missing"}
    assert set(verdicts(second, first).values()) == {"taken"}


def test_a_part_that_cannot_be_migrated_claims_nothing():
    def meta(unit: int, code: str, name: str) -> UnitState:
        return seen(unit, [entry(f"jxt//tenants/{unit}/meta", {"code": code, "name": name})], [])

    two, three, four = meta(2, "a", "two"), meta(3, "a", "three"), meta(4, "d", "three")
    assert list(verdicts(two, three, four).values()) == ["missing"]
    assert list(verdicts(three, two, four).values()) == ["taken"]
    assert list(verdicts(four, two, three).values()) == ["missing"], "tenant 3 does not get it"


def test_a_unit_that_cannot_move_frees_no_name():
    def moves(unit: int, now: bytes, wanted: bytes) -> UnitState:
        return seen(
            unit,
            [entry(f"jxt//tenants/{unit}/domain/primary", wanted, modified=9)],
            [entry(f"jxt/tenants/{unit}/domain/primary", now)],
        )

    keeper = seen(9, [], [entry("jxt/tenants/9/domain/primary", b"c.d")])
    waits, stuck = moves(1, b"a.b", b"b.b"), moves(2, b"b.b", b"c.d")
    assert list(verdicts(stuck, keeper, waits).values()) == ["taken"]
    assert list(verdicts(waits, keeper, stuck).values()) == ["taken"], "tenant 2 keeps it"
    assert list(verdicts(waits, stuck).values()) == ["differs"], "without the keeper both move"


def test_a_deleted_new_key_is_a_difference_unless_a_publisher_deleted_it():
    storage: JSON = {"tenantId": 1, "uploadQuotaGb": 1}
    bases = {"storage": Base(digest(storage), digest(storage))}
    here = seen(1, [entry("jxt//tenants/1/storage", {"uploadQuotaGb": 1})], [], bases)
    (step,) = compare(KEYS, here, Criteria(NO_RING, "both"))
    assert step.verdict == "deleted"
    (step,) = compare(KEYS, here, Criteria(NO_RING, "both", removed={"storage"}))
    assert step.verdict == "newer"


@pytest.mark.parametrize(
    ("bases", "modified", "verdict"),
    [
        (True, 9, "late"),
        (False, 9, "late"),
        (True, 7, "late"),  # the new side did not change: this is no longer what was verified
        (False, 7, "newer"),
    ],
)
def test_writes_after_the_cut_over_never_pass_for_older(bases: bool, modified: int, verdict: str):
    new: JSON = {"tenantId": 1, "uploadQuotaGb": 1}
    here = seen(
        1,
        [entry("jxt//tenants/1/storage", {"uploadQuotaGb": 500}, modified=modified)],
        [entry("jxt/tenants/1/storage", new)],
        {"storage": Base(digest(new), digest(new))} if bases else None,
    )
    (step,) = compare(KEYS, here, Criteria(NO_RING, "cut over", compared_at=8))
    assert step.verdict == verdict


def test_only_the_entries_of_the_last_old_key_are_forgotten():
    base = Base("a", "a")
    here = seen(
        1,
        [
            entry("jxt//tenants/1/meta", {"code": "a"}),
            entry("jxt//tenants/1/ftp", [{"username": "a"}]),
            entry("jxt//jxt/config/tenants/1/services/a/database", {}),
            entry("jxt/tenants/1/database", b"{"),
        ],
        [],
        dict.fromkeys(("meta", "ftp/a", "storage", "database/a", "database/x"), base),
        {b"jxt//tenants/by-code/a": "meta", b"jxt//ftp-users/a": "ftp/a"},
    )
    gone = [b"jxt//tenants/1/ftp", b"jxt//jxt/config/tenants/1/services/a/database"]
    left = without_deleted(OLD, here, gone)
    assert left.bases == {"meta": base, "database/x": base}, "which only the last key may give"
    assert left.indexes == {b"jxt//tenants/by-code/a": "meta"}
    assert without_deleted(OLD, here, list(here.old.raw)) == SyncedState()


META = {"id": 1, "code": "acme", "name": "A/B"}


def test_new_indexes_that_are_missing_wrong_or_astray():
    one = seen(1, [], [entry("jxt/tenants/1/meta", META), entry("jxt/tenants/1/ftp/u", {})])
    two = seen(2, [], [entry("jxt/tenants/2/ftp/u2", {}), entry("jxt/tenants/2/ftp/u", {})])
    hidden = seen(3, [], [entry("jxt/tenants/3/domain/primary", b"\xff")])
    index = {
        new_entry.key: new_entry
        for new_entry in (
            entry("jxt/tenants/_index/by-name/A%2FB", {"id": 7}),
            entry("jxt/tenants/_index/by-name/A/B", {"id": 1}),  # as it should be, unescaped
            entry("jxt/tenants/_index/ftp-user/u", {"tenantId": 2}),
            entry("jxt/tenants/_index/ftp-user/u2", {"tenantId": 2}),
            entry("jxt/tenants/_index/host/ghost.b", {"tenantId": 1}),
            entry("jxt/tenants/_index/host/who.b", b"{"),
            entry("jxt/tenants/_index/host/hidden.b", {"tenantId": 3}),
            entry("jxt/tenants/_index/strange/x", {"tenantId": 1}),
        )
    }
    steps = list(compare_new_indexes(KEYS, {1: one, 2: two, 3: hidden}, index))
    root = "jxt/tenants/_index/"
    assert {(step.unit, step.name.removeprefix(root)): step.verdict for step in steps} == {
        (1, "by-code/acme"): "unindexed",
        (1, "by-name/A%2FB"): "unindexed",
        (1, "ftp-user/u"): "contested",
        (1, "host/ghost.b"): "dangling",
        (0, "host/who.b"): "orphan",
    }
    assert {step.why for step in steps} >= {
        "the code 'acme' is tenant 1's: it refers to no tenant",
        "tenant 1 has the FTP user 'u' too, and it refers to tenant 2",
    }


def test_missing_old_indexes_are_reported_only_of_kinds_in_use():
    old = [entry("jxt//tenants/1/meta", META), entry("jxt//tenants/1/ftp", [{"username": "u"}])]
    here = seen(1, old, [], {"meta": Base("a", "a"), "ftp/u": Base("a", "a")})
    index = [OldIndexEntry(OldIndex("by-name", "acme"), b"jxt//tenants/by-name/acme", 5, 1)]
    missing = list(missing_old_indexes(KEYS, OLD, here, index, {"by-code", "by-name"}))
    assert [step.name for step in missing] == ["jxt//tenants/by-code/acme"]
    assert {step.verdict for step in missing} == {"index-missing"}
    fresh = seen(1, old, [])
    assert list(missing_old_indexes(KEYS, OLD, fresh, [], {"by-code", "by-name"})) == [], (
        "it never was level"
    )


def test_an_old_index_is_mislaid_if_no_index_leads_to_a_tenant():
    has = old_index_claims(KEYS, OLD, 1, {"meta": META, "domain/primary": "a.b", "ftp/u": {}})
    variants = {
        name: OLD.index_variants(claim.kind, claim.name, "acme") for name, claim in has.items()
    }
    entries = {
        old_entry.key: old_entry
        for old_entry in (
            entry("jxt//tenants/by-name/A%2FB", {"id": 1}),
            entry("jxt//hosts/a.b", {"tenantId": 2}),
            entry("jxt//ftp-users/u", b"{"),
        )
    }
    gaps = find_gaps(1, has, variants, entries)
    assert gaps == {b"jxt//tenants/by-code/acme": None, b"jxt//hosts/a.b": 2}


def test_correct_old_indexes_are_not_written_again():
    before = old_index_claims(KEYS, OLD, 1, {"meta": {"code": "a", "name": "a"}, "ftp/u": {}})
    after = old_index_claims(KEYS, OLD, 1, {"meta": {"code": "b", "name": "b"}, "ftp/u": {}})
    entries: dict[bytes, Entry] = {name: entry(name.decode(), {"id": 1}) for name in before}
    for room in (2, 2, 1):
        changes = write_index_changes(1, before, after, entries)
        assert changes.gone == before.keys() - after.keys()
        for write in changes.writes[:2]:
            if isinstance(write, Put):
                entries[write.key] = Entry(write.key, write.value, 1, 6, 1)
            else:
                del entries[write.range.start]
        assert len(changes.writes[:2]) == room
    assert write_index_changes(1, before, after, entries).writes == []
    assert entries.keys() == after.keys()


def test_a_part_is_level_if_both_sides_hold_the_same_or_nothing():
    old = [entry("jxt//tenants/1/meta", META), entry("jxt//tenants/1/ftp", b"[{")]
    here = seen(1, old, [entry("jxt/tenants/1/meta", META), entry("jxt/tenants/1/storage", {})])
    levels = {
        path: here.is_in_sync(path, NO_RING) for path in ("meta", "storage", "database/a", "ftp/a")
    }
    assert levels == {"meta": True, "storage": False, "database/a": True, "ftp/a": False}


def test_an_index_is_removed_with_the_part_it_leads_to():
    index = [
        OldIndexEntry(OldIndex("by-name", name), f"jxt//tenants/by-name/{name}".encode(), 5, 1)
        for name in ("A/B", "A%2FB", "acme", "other")
    ]
    meta = {"id": 1, "code": "acme", "name": "A/B"}
    here = seen(1, [entry("jxt//tenants/1/meta", meta)], [])
    (step,) = compare(KEYS, here, Criteria(NO_RING, "both"))
    assert [
        comparison.verdict for comparison in compare_old_indexes(KEYS, index, here, [step])
    ] == [*("index", "index", "index", "abandoned")]
    here = seen(1, [entry("jxt//tenants/1/meta", meta)], [entry("jxt/tenants/1/meta", meta)])
    (step,) = compare(KEYS, here, Criteria(NO_RING, "both"))
    assert [
        comparison.verdict for comparison in compare_old_indexes(KEYS, index, here, [step])
    ] == [*("equal", "equal", "equal", "abandoned")]


def test_names_of_indexes():
    assert is_spelling_of("R&D/QA", "R&D%2FQA", "by-name")
    assert is_spelling_of("www.A.b", "WWW.a.b", "host")
    assert is_spelling_of("acme", "ACME", "by-code")
    assert not is_spelling_of("bob", "Bob", "ftp-user")


def test_steps_are_counted_in_order():
    steps = [PartPlan(1, b"a", "equal"), PartPlan(1, b"b", "missing"), PartPlan(1, b"c", "equal")]
    assert verdict_counts(steps, REASONS) == "1 missing, 2 equal"


def read_verified(path: Path) -> VerifiedKeys:
    return verified_file.read(path, JxtHeader, VerifiedKey, format=FORMAT)


def test_a_verified_file_is_read_as_it_was_written(tmp_path: Path):
    verified: VerifiedKeys = Verified(
        JxtHeader("etcd://x", "jxt"), [VerifiedKey(1, "jxt//hosts/名", 5), VerifiedKey(0, "b", 6)]
    )
    verified_file.write(tmp_path / "file", verified)
    assert read_verified(tmp_path / "file") == verified
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]", "x", '{"store": "a", "namespace": "b", "format": "other"}', "\xff"],
)
def test_another_file_is_refused(tmp_path: Path, content: str):
    (tmp_path / "file").write_text(content)
    with pytest.raises((InvalidRequest, MigrationError), match="verify"):
        read_verified(tmp_path / "file")
    with pytest.raises(MigrationError, match="run `verify` first"):
        read_verified(tmp_path / "none")
