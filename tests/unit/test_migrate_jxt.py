"""The old keys of tenants: how they are understood, written again, and which side counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest, StoreError
from mooring.migrate.jxt import verified
from mooring.migrate.jxt.decision import NO_BASE, Base, Decision, Side, decide, decide_after
from mooring.migrate.jxt.format import OldIndex, OldKeys, OldPart, digest, same_name
from mooring.migrate.jxt.ledger import LedgerKeys, Marker, bases_of, marker_of, phase_of
from mooring.migrate.jxt.plan import Index as OldIndexEntry
from mooring.migrate.jxt.plan import Step, compared, compared_index, counted, lots
from mooring.migrate.jxt.rewriting import rewritten
from mooring.migrate.jxt.translation import Translation, same, translated
from mooring.migrate.jxt.verified import Header, Listed, Verified
from mooring.migrate.jxt.view import View, view
from mooring.model import JSON
from mooring.store import Entry, Put
from mooring.tenants.keys import Keys
from mooring.tenants.secrets import Keyring

KEYS = Keys("jxt")
OLD = OldKeys(KEYS)
RING = Keyring([b"k" * 32])
NO_RING = Keyring()


def entry(name: str, value: object, modified: int = 5) -> Entry:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Entry(name.encode(), raw, 1, modified, 1)


def read(*entries: Entry, unit: int = 1) -> Translation:
    return translated(OLD, unit, entries)


def values(told: Translation) -> dict[str, JSON]:
    return {path: part.value for path, part in told.parts.items()}


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
        ("jxt/tenants/1/database", OldPart(1, "database", former=True)),
        ("jxt/tenants/1/ftp", OldPart(1, "ftp", former=True)),
    ],
)
def test_every_old_key_is_understood(key: str, place: OldPart | OldIndex):
    assert OLD.understand(key.encode()) == place


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
def test_nothing_else_is(key: str):
    assert OLD.understand(key.encode()) is None


def test_a_key_that_is_no_text_is_foreign():
    assert OLD.understand(b"jxt//tenants/1/\xff") is None


@pytest.mark.parametrize(
    "value",
    [
        {"ftpConfigs": [{"username": "meta"}, {"username": "b.c"}]},
        [{"username": "meta"}, {"username": "b.c", "tenantId": 9}],
    ],
)
def test_users_come_apart(value: object):
    told = read(entry("jxt//tenants/1/ftp", value))
    assert values(told) == {
        "ftp/meta": {"username": "meta", "tenantId": 1},
        "ftp/b.c": {"username": "b.c", "tenantId": 1},
    }


@pytest.mark.parametrize("value", [b"null", b"[]", b'{"ftpConfigs": null}', b'{"ftpConfigs": []}'])
def test_no_users_are_no_problem(value: bytes):
    told = read(entry("jxt//tenants/1/ftp", value))
    (finding,) = told.findings.values()
    assert (values(told), finding.problems, finding.readable) == ({}, (), True)


@pytest.mark.parametrize(
    "value", [b"{", b"7", b'"text"', b"{}", b'{"ftpConfigs": 1}', b"\xff", b"[" * 100_000]
)
def test_users_that_cannot_be_read_hide_all_users(value: bytes):
    told = read(entry("jxt//tenants/1/ftp", value), entry("jxt/tenants/1/ftp", {"username": "a"}))
    assert told.hides("ftp/anybody")
    assert told.hides("ftp/a"), "an older key does not take its place"
    assert not told.hides("meta")
    assert not told.findings[b"jxt//tenants/1/ftp"].readable


def test_a_user_without_a_name_costs_only_itself():
    told = read(entry("jxt//tenants/1/ftp", [{"username": "a"}, {}, {"username": "no good"}, 5]))
    assert list(told.parts) == ["ftp/a"]
    (finding,) = told.findings.values()
    assert len(finding.problems) == 3
    assert finding.readable


def test_a_later_generation_counts():
    later = "jxt//jxt/config/tenants/1/services/a/database"
    told = read(
        entry("jxt/tenants/1/database", {"serviceCode": "a", "driver": "old"}),
        entry(later, {"driver": "new"}),
    )
    assert told.parts["database/a"].key == later.encode()
    assert told.findings[b"jxt/tenants/1/database"].superseded


def test_a_database_of_a_whole_tenant_has_a_service():
    told = read(entry("jxt/tenants/1/database", {"driver": "old"}))
    assert list(told.parts) == ["database/default"]


def test_a_later_key_that_cannot_be_read_hides_the_former():
    told = read(
        entry("jxt/tenants/1/database", {"serviceCode": "a"}),
        entry("jxt//jxt/config/tenants/1/services/a/database", b"{"),
    )
    assert values(told) == {}
    assert told.hides("database/a")


def test_a_former_key_that_cannot_be_read_hides_what_no_later_one_gives():
    told = read(
        entry("jxt/tenants/1/database", b"{"),
        entry("jxt//jxt/config/tenants/1/services/a/database", {"driver": "x"}),
    )
    assert not told.hides("database/a")
    assert told.hides("database/b")


def test_the_key_says_whose_it_is():
    told = read(
        entry("jxt//tenants/1/meta", {"id": 7, "code": "a"}),
        entry("jxt//tenants/2/meta", {"id": 1, "code": "b"}),
        entry("jxt//jxt/config/tenants/1/services/s/database", {"tenantId": 3, "serviceCode": "x"}),
    )
    assert values(told) == {
        "meta": {"id": 1, "code": "a"},
        "database/s": {"tenantId": 1, "serviceCode": "s"},
    }


def test_storage_in_bytes_is_translated():
    told = read(entry("jxt//tenants/1/storage", {"quotaBytes": 3 * 2**29, "ours": 1}))
    assert values(told) == {"storage": {"tenantId": 1, "uploadQuotaGb": 1.5, "ours": 1}}


@pytest.mark.parametrize("raw", [b"a.example.com", b'"a.example.com"', b" a.example.com\n"])
def test_a_domain_may_be_text_or_json(raw: bytes):
    assert values(read(entry("jxt//tenants/1/domain/primary", raw))) == {
        "domain/primary": "a.example.com"
    }


def test_an_empty_domain_is_none():
    told = read(entry("jxt//tenants/1/domain/primary", b'""'))
    assert values(told) == {}
    assert not told.hides("domain/primary")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("jxt//tenants/1/meta", {"code": "no good"}),
        ("jxt//tenants/1/meta", {"code": "a", "name": "a\nb"}),
        ("jxt//tenants/1/meta", {"code": 5}),
        ("jxt//tenants/1/domain/primary", b"not a host"),
        ("jxt//tenants/1/domain/aliases", ["a.b", "_"]),
        ("jxt//tenants/1/storage", {"uploadQuotaGb": "many"}),
        ("jxt//jxt/config/tenants/1/services/A/database", {}),
        ("jxt//jxt/config/tenants/1/services/a/b/database", {}),
        ("jxt//jxt/config/tenants/1/services/a/database", {"port": "x"}),
    ],
)
def test_what_must_not_be_written_today_is_refused(key: str, value: object):
    told = read(entry(key, value))
    (finding,) = told.findings.values()
    assert values(told) == {}
    assert finding.problems
    assert finding.readable


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
        name = draw(TEXT.filter(str.strip))
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


NOTHING = translated(OLD, 1, [])


def after(told: Translation, changes: dict[str, Any], ring: Keyring = RING) -> Translation:
    raw = {**told.raw, **rewritten(OLD, told, changes, ring)}
    return translated(
        OLD, 1, [Entry(key, value, 1, 5, 1) for key, value in raw.items() if value is not None]
    )


@given(tenants())
def test_there_and_back_is_the_same(parts: dict[str, Any]):
    there = after(NOTHING, parts)
    assert values(there) == parts
    assert all(not finding.problems for finding in there.findings.values())


@given(tenants(), tenants(), st.sampled_from(["list", "object", "former"]), st.booleans())
def test_a_change_changes_what_it_should_in_whatever_form_it_is_kept(
    before: dict[str, Any], wanted: dict[str, Any], form: str, plain: bool
):
    told = _in_form(before, form, plain)
    assert values(told).keys() == before.keys()
    changes: dict[str, Any] = {
        path: wanted.get(path)
        for path in {*before, *wanted}
        if path not in wanted
        or path not in before
        or not same(1, path, told.parts[path].value, wanted[path], RING)
    }
    there = after(told, changes)
    assert there.parts.keys() == wanted.keys()
    for path, value in wanted.items():
        assert same(1, path, there.parts[path].value, value, RING), path
    for path in before.keys() - changes.keys():
        assert there.parts[path].value == told.parts[path].value, "what need not change did not"


def _in_form(parts: dict[str, Any], form: str, plain: bool) -> Translation:
    """The same in the old keys, written in another way."""
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


def test_whatever_is_no_user_stays_in_a_list():
    told = read(entry("jxt//tenants/1/ftp", [{"strange": 1}, {"username": "a"}, {"username": "b"}]))
    changed = rewritten(OLD, told, {"ftp/a": None, "ftp/c": {"username": "c"}}, NO_RING)
    assert json.loads(changed[b"jxt//tenants/1/ftp"] or b"") == [
        {"strange": 1},
        {"username": "b"},
        {"username": "c"},
    ]


def test_the_last_user_takes_the_key_along():
    told = read(entry("jxt//tenants/1/ftp", {"ftpConfigs": [{"username": "a"}]}))
    assert rewritten(OLD, told, {"ftp/a": None}, NO_RING) == {b"jxt//tenants/1/ftp": None}


def test_a_deletion_takes_the_former_generation_along():
    told = read(
        entry("jxt/tenants/1/database", {"serviceCode": "a"}),
        entry("jxt//jxt/config/tenants/1/services/a/database", {}),
    )
    assert set(rewritten(OLD, told, {"database/a": None}, NO_RING).values()) == {None}
    assert values(after(told, {"database/a": None})) == {}


def test_a_password_in_the_clear_stays_so_among_the_old_keys():
    key = "jxt//jxt/config/tenants/1/services/a/database"
    told = read(entry(key, {"password": "before"}))
    sealed, of = RING.seal("after")
    new: JSON = {"passwordEncrypted": sealed, "passwordKeyId": of}
    assert json.loads(rewritten(OLD, told, {"database/a": new}, RING)[key.encode()] or b"") == {
        "password": "after"
    }
    kept = json.loads(rewritten(OLD, told, {"database/a": new}, NO_RING)[key.encode()] or b"")
    assert kept == new, "without the key it can only be handed on"


def test_a_password_is_the_same_however_it_is_kept():
    sealed, of = RING.seal("s3cret")
    plain: JSON = {"password": "s3cret"}
    assert same(1, "database/a", plain, {"passwordEncrypted": sealed, "passwordKeyId": of}, RING)
    assert not same(1, "database/a", plain, {"passwordEncrypted": sealed}, NO_RING)
    assert not same(1, "database/a", plain, {"password": "other"}, RING)
    assert not same(1, "database/a", plain, {}, RING)


@pytest.mark.parametrize(
    ("old", "new", "base", "decision"),
    [
        (Side(), Side(), NO_BASE, Decision()),
        (Side(), Side(), Base("a", "a"), Decision()),
        (Side("a", 1), Side(), NO_BASE, Decision("to new")),
        (Side(), Side("a", 1), NO_BASE, Decision("to old")),
        (Side("b", 3), Side("a", 2), Base("a", "a"), Decision("to new")),
        (Side("a", 1), Side("b", 3), Base("a", "a"), Decision("to old")),
        (Side(), Side("a", 2), Base("a", "a"), Decision("out of new")),
        (Side("a", 1), Side(), Base("a", "a"), Decision("out of old")),
        (Side("b", 3), Side("c", 4), Base("a", "a"), Decision("to old", conflict=True)),
        (Side("b", 4), Side("c", 3), Base("a", "a"), Decision("to new", conflict=True)),
        (Side("b", 4), Side("c", 3), NO_BASE, Decision("to new", conflict=True)),
        (Side(), Side("c", 3), Base("a", "a"), Decision("to old", conflict=True)),
        (Side("b", 3), Side(), Base("a", "a"), Decision("to new", conflict=True)),
        (Side("a", 1), Side("sealed", 2), Base("a", "sealed"), Decision()),
    ],
)
def test_which_side_counts(old: Side, new: Side, base: Base, decision: Decision):
    assert decide(old, new, base, same=old.digest == new.digest) == decision


DIGEST = st.sampled_from(["", "a", "b", "c"])
SIDE = st.builds(Side, DIGEST, st.integers(1, 9))


@given(SIDE, SIDE, st.builds(Base, DIGEST, DIGEST))
def test_a_decision_makes_them_level_and_nothing_is_deleted_that_was_written(
    old: Side, new: Side, base: Base
):
    move, _ = decide(old, new, base, same=old.digest == new.digest)
    if move == "out of new":
        assert base.old, "without a base nothing is deleted"
        assert new.digest == base.new
    if move == "out of old":
        assert base.new
        assert old.digest == base.old
    if not move:
        return
    level = {"to new": old, "to old": new}.get(move, Side())
    assert decide(level, level, Base(level.digest, level.digest), same=True) == Decision()


@given(SIDE, SIDE, st.builds(Base, DIGEST, DIGEST))
def test_after_the_cut_over_the_old_side_is_never_followed(old: Side, new: Side, base: Base):
    move, stray = decide_after(old, new, base, same=old.digest == new.digest)
    assert move in ("", "to old", "out of old")
    if old.digest != new.digest and old.digest != base.old:
        assert stray
    if new.digest == base.new:
        assert move == ""


def test_a_digest_does_not_depend_on_the_order_of_fields():
    assert digest({"a": 1, "b": [1, {"c": 2, "d": 3}]}) == digest(
        {"b": [1, {"d": 3, "c": 2}], "a": 1}
    )
    assert digest({"a": 1}) != digest({"a": 2})


def test_the_ledger_keeps_what_it_is_told():
    ledger = LedgerKeys(KEYS)
    bases = {"meta": Base("a", "b"), "ftp/名": Base("c", "c")}
    put = ledger.written(7, bases)
    assert isinstance(put, Put)
    assert put.key == b"jxt/_migration/jxt/7"
    assert bases_of(Entry(put.key, put.value, 1, 1, 1)) == bases
    assert bases_of(None) == bases_of(Entry(put.key, b"{", 1, 1, 1)) == {}
    assert [ledger.unit(name) for name in (put.key, ledger.of(0), ledger.marker)] == [7, 0, None]


def test_a_marker_that_cannot_be_read_stops_everybody():
    marker = Marker("2026-02-03T00:00:00.000Z", "alice", 7)
    assert [phase_of(each) for each in (None, marker)] == ["both", "cut over"]
    with pytest.raises(StoreError, match="cut-over was made"):
        marker_of(Entry(b"jxt/_migration/jxt/cutover", b"{", 1, 1, 1))


def seen(unit: int, old: list[Entry], new: list[Entry]) -> View:
    return view(KEYS, OLD, unit, old, new, None)


def verdicts(here: View, *others: View) -> dict[str, str]:
    lost = lots(KEYS, [here, *others], NO_RING)
    steps = compared(KEYS, here, NO_RING, phase="both", lost=lost)
    return {step.name: step.verdict for step in steps}


def test_who_gets_what_several_lay_claim_to():
    def aliases(unit: int) -> View:
        return seen(unit, [entry(f"jxt//tenants/{unit}/domain/aliases", ["a.b"])], [])

    first, second = aliases(3), aliases(20)
    assert verdicts(first, second) == {"jxt//tenants/3/domain/aliases": "missing"}
    assert verdicts(second, first) == {"jxt//tenants/20/domain/aliases": "taken"}
    there = seen(99, [], [entry("jxt/tenants/99/domain/primary", b"a.b")])
    assert verdicts(first, there) == {"jxt//tenants/3/domain/aliases": "taken"}, (
        "who has it, has it"
    )
    gives_up = seen(
        99,
        [entry("jxt//tenants/99/domain/primary", b"other.b", modified=9)],
        [entry("jxt/tenants/99/domain/primary", b"a.b")],
    )
    assert verdicts(first, gives_up) == {"jxt//tenants/3/domain/aliases": "missing"}


def test_an_index_goes_with_what_it_leads_to():
    index = [
        OldIndexEntry(OldIndex("by-name", name), f"jxt//tenants/by-name/{name}".encode(), 5, 1)
        for name in ("A/B", "A%2FB", "acme", "other")
    ]
    meta = {"id": 1, "code": "acme", "name": "A/B"}
    here = seen(1, [entry("jxt//tenants/1/meta", meta)], [])
    (step,) = compared(KEYS, here, NO_RING, phase="both", lost={})
    assert [each.verdict for each in compared_index(KEYS, index, here, [step])] == [
        *("index", "index", "index", "orphan")
    ]
    here = seen(1, [entry("jxt//tenants/1/meta", meta)], [entry("jxt/tenants/1/meta", meta)])
    (step,) = compared(KEYS, here, NO_RING, phase="both", lost={})
    assert [each.verdict for each in compared_index(KEYS, index, here, [step])] == [
        *("equal", "equal", "equal", "orphan")
    ]


def test_names_of_indexes():
    assert same_name("by-name", "R&D%2FQA", "R&D/QA")
    assert same_name("host", "WWW.a.b", "www.A.b")
    assert same_name("by-code", "ACME", "acme")
    assert not same_name("ftp-user", "Bob", "bob")


def test_steps_are_counted_in_order():
    steps = [Step(1, b"a", "equal"), Step(1, b"b", "missing"), Step(1, b"c", "equal")]
    assert list(counted(steps).items()) == [("missing", 1), ("equal", 2)]


def test_what_was_verified_is_read_as_it_was_written(tmp_path: Path):
    told = Verified(Header("etcd://x", "jxt"), [Listed(1, "jxt//hosts/名", 5), Listed(0, "b", 6)])
    verified.write(tmp_path / "file", told)
    assert verified.read(tmp_path / "file") == told
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]", "x", '{"store": "a", "namespace": "b", "format": "other"}', "\xff"],
)
def test_another_file_is_refused(tmp_path: Path, content: str):
    (tmp_path / "file").write_text(content)
    with pytest.raises(InvalidRequest, match="verify"):
        verified.read(tmp_path / "file")
    with pytest.raises(InvalidRequest, match="before `verify`"):
        verified.read(tmp_path / "none")
