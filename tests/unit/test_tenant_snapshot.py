"""Snapshots of tenants depend on the current keys, not on their history."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from mooring.store import Entry
from mooring.tasks import run_now, slices
from mooring.tenants.keys import TenantKeys
from mooring.tenants.model import Domain, Ftp, Meta, Resolver, StorageDirectory, Tenant
from mooring.tenants.read.parser import SnapshotParser, SnapshotUpdate
from mooring.tenants.read.snapshot import ClaimConflict, ClaimIndex, TenantSnapshot
from mooring.tenants.secrets import Keyring

KEYS = TenantKeys()
READING = SnapshotParser(KEYS, Keyring())


def entry(key: bytes, value: bytes, revision: int = 1) -> Entry:
    return Entry(key, value, revision, revision, 1)


def built(values_by_key: Mapping[bytes, bytes]) -> TenantSnapshot:
    """A snapshot built from these keys at once."""
    return READING.apply(
        TenantSnapshot(), [(k, entry(k, v)) for k, v in values_by_key.items()]
    ).snapshot


def applied(snapshot: TenantSnapshot, changes: Mapping[bytes, bytes | None]) -> SnapshotUpdate:
    return READING.apply(
        snapshot, [(k, None if v is None else entry(k, v)) for k, v in changes.items()]
    )


def unkept(snapshot: TenantSnapshot) -> TenantSnapshot:
    """The snapshot without the last good values that it keeps for broken keys."""
    fields = {field: None for key, field, _, _ in SETTINGS if key.decode() in snapshot.problems}
    good = {
        key: kept for key, kept in snapshot.good.items() if key.decode() not in snapshot.problems
    }
    return msgspec.structs.replace(snapshot, good=Map(good), **fields)


words = st.sampled_from(["a", "B", "b", "某"])
hosts = st.sampled_from(["a.example", "A.example", "b.example", "", "c.example"])
meta = st.builds(lambda code, name, status: {"code": code, "name": name, "status": status},
                 words, words, st.sampled_from(["active", "inactive", "odd"]))  # fmt: skip
values = {
    "meta": meta.map(json.dumps),
    "domain/primary": hosts,
    "domain/aliases": st.lists(hosts, max_size=3).map(json.dumps),
    "domain/internal": hosts.map(json.dumps),
    "database/one": st.sampled_from(['{"port": 1}', '{"port": "2"}', '{"port": []}']),
    "database/meta": st.just("{}"),
    "ftp/meta": st.sampled_from(["{}", '{"status": "inactive"}', '{"status": "active"}']),
    "ftp/bob": st.sampled_from(["{}", "[]", "rubbish"]),
    "storage": st.sampled_from(["{}", '{"quotaBytes": 1073741824}', '{"uploadQuotaGb": "x"}']),
    "unknown": st.just("{}"),
}
broken = st.sampled_from([b"", b"{", b"\xff", b"[" * 100_000, b"null", b"1", b'{"extra": 1}'])
commons = {
    b"jxt/common/resolver": st.sampled_from(['{"httpType": "host"}', '{"httpType": "odd"}']),
    b"jxt/common/storage-directory": st.just('{"directory": "d"}'),
    b"jxt/platform/configs/a": st.sampled_from(["null", "1", "{", '{"b": []}']),
    b"jxt/_health/sentinel": st.sampled_from(['{"updatedAt": "2024-05-06T07:08:09Z"}', "{}"]),
}


@st.composite
def part_changes(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    if draw(st.integers(0, 9)) == 0:
        key = draw(st.sampled_from([*commons]))
        text = draw(commons[key])
    else:
        path = draw(st.sampled_from([*values]))
        key = f"jxt/tenants/{draw(st.sampled_from([1, 2, 3, 10]))}/{path}".encode()
        text = draw(values[path])
    return key, draw(st.none() | st.just(text.encode()) | broken)


KNOWN = (
    *commons,
    *(f"jxt/tenants/{id}/{path}".encode() for id in (1, 2, 3, 10) for path in values),
)
revisions = st.lists(st.lists(part_changes(), max_size=4).map(dict), max_size=25)


@given(revisions)
def test_changes_in_any_order_lead_to_the_snapshot_of_a_fresh_start(
    history: list[dict[bytes, bytes | None]],
):
    snapshot = TenantSnapshot()
    current: dict[bytes, bytes] = {}
    for changes in history:
        snapshot = applied(snapshot, changes).snapshot
        for key, value in changes.items():
            current.pop(key, None)
            if value is not None:
                current[key] = value
    assert unkept(snapshot) == unkept(built(current))
    backwards = TenantSnapshot()
    for key in reversed(current):
        backwards = applied(backwards, {key: current[key]}).snapshot
    assert unkept(snapshot) == unkept(backwards)


@given(revisions)
def test_exactly_the_differences_are_reported(history: list[dict[bytes, bytes | None]]):
    snapshot = TenantSnapshot()
    for changes in history:
        outcome = applied(snapshot, changes)
        before, after = snapshot.tenants, outcome.snapshot.tenants
        differing = {id for id in {*before, *after} if before.get(id) != after.get(id)}
        assert {change.tenant for change in outcome.changes} == differing
        for change in outcome.changes:
            assert change.kinds
            assert change.before == before.get(change.tenant)
            assert change.after == after.get(change.tenant)
            one, other = change.before or Tenant(0), change.after or Tenant(0)
            assert ("meta" in change.kinds) == (one.meta != other.meta)
            assert ("database" in change.kinds) == (one.databases != other.databases)
        snapshot = outcome.snapshot


@given(revisions)
def test_indexes_and_problems_depend_only_on_the_data(history: list[dict[bytes, bytes | None]]):
    current: dict[bytes, bytes] = {}
    for changes in history:
        current.update({key: value for key, value in changes.items() if value is not None})
    snapshot = built(current)
    tenants = snapshot.tenants
    assert {*snapshot.enabled} == {id for id, tenant_ in tenants.items() if tenant_.active}
    assert all(not tenant.empty for tenant in tenants.values())
    kinds: list[tuple[ClaimIndex, Callable[[Tenant], set[str]]]] = [
        (snapshot.hosts, lambda tenant: set(tenant.domain.hosts)),
        (snapshot.ftp_users, lambda tenant: set(tenant.ftp)),
        (snapshot.codes, lambda tenant: {tenant.meta.code.lower()} if tenant.meta else set()),
        (snapshot.names, lambda tenant: {tenant.meta.name} if tenant.meta else set()),
    ]
    for claims, claimed in kinds:
        all_of: dict[str, set[int]] = {}
        for id, tenant in tenants.items():
            for name in claimed(tenant) - {""}:
                all_of.setdefault(name, set()).add(id)
        assert dict(claims.holders) == {name: min(ids) for name, ids in all_of.items()}
        several = {name: ids for name, ids in all_of.items() if len(ids) > 1}
        assert {name: set(ids) for name, ids in claims.contested.items()} == several
    users = snapshot.ftp_users.holders.items()
    assert dict(snapshot.ftp) == {user: tenants[id].ftp[user] for user, id in users}
    assert {key.encode() for key in snapshot.problems} <= current.keys()


claims_of = st.dictionaries(st.integers(1, 6), st.sets(st.sampled_from("abc"), max_size=3))


@given(st.lists(claims_of, max_size=8))
def test_the_lowest_id_wins_after_any_history(history: list[dict[int, set[str]]]):
    claims = ClaimIndex("letter")
    before: dict[int, set[str]] = {}
    for after in history:
        ids = {*before, *after}
        gone = [(n, i) for i in ids for n in before.get(i, set()) - after.get(i, set())]
        news = [(n, i) for i in ids for n in after.get(i, set()) - before.get(i, set())]
        claims, contests = run_now(claims.changing(gone, news))
        for name in "abc":
            claimants = {id for id, names in after.items() if name in names}
            assert claims.holders.get(name) == min(claimants, default=None)
            conflicts = {contest for contest in contests if contest.name == name}
            assert bool(conflicts) <= (len(claimants) > 1)
            assert all(contest.holder == min(claimants) for contest in conflicts)
            assert all(contest.claimant in claimants - {contest.holder} for contest in conflicts)
        before = after
    gone = [(n, i) for i, names in before.items() for n in names]
    assert run_now(claims.changing(gone, []))[0] == ClaimIndex("letter")


def tenant(id: int, *names: str) -> Tenant:
    return Tenant(id, Meta(id=id, code=f"c{id}", name=f"n{id}"), Domain(aliases=names))


def test_a_change_does_not_affect_other_tenants():
    before, _ = run_now(
        TenantSnapshot().changing({id: tenant(id, f"h{id}") for id in range(1, 200)})
    )
    after, _ = run_now(before.changing({7: tenant(7, "other"), 8: None}))
    for id in range(1, 200):
        if id not in (7, 8):
            assert after.tenants[id] is before.tenants[id]
            assert after.hosts.holders[f"h{id}"] == id
    assert before.hosts.holders.get("h7") == 7, "the old one stays as it was"
    assert 8 not in after.tenants
    assert after.codes is not before.codes
    assert after.ftp_users is before.ftp_users


def test_a_moved_host_is_no_conflict():
    before, contests = run_now(TenantSnapshot().changing({1: tenant(1, "h"), 2: tenant(2)}))
    assert contests == ()
    after, contests = run_now(before.changing({2: tenant(2, "h"), 1: tenant(1)}))
    assert contests == ()
    assert after.hosts.holders["h"] == 2


def test_a_conflict_is_reported_and_the_next_claimant_takes_over():
    one, contests = run_now(TenantSnapshot().changing({2: tenant(2, "h"), 5: tenant(5, "h")}))
    assert contests == (ClaimConflict("host", "h", 2, 5),)
    assert "tenant 5" in str(contests[0])
    two, contests = run_now(one.changing({1: tenant(1, "h")}))
    assert contests == (ClaimConflict("host", "h", 1, 2),)
    three, contests = run_now(two.changing({1: None, 2: None}))
    assert contests == ()
    assert three.hosts.holders["h"] == 5
    assert not three.hosts.contested


def test_an_equivalent_rewrite_changes_nothing():
    key = b"jxt/tenants/1/meta"
    one = applied(TenantSnapshot(), {key: b'{"code":"a"}'}).snapshot
    assert applied(one, {key: b'{"code": "a", "name": null}'}).changes == ()


def test_a_broken_value_is_omitted_until_it_is_repaired():
    key = b"jxt/tenants/1/database/one"
    one = applied(TenantSnapshot(), {key: b'{"port": 1}', b"jxt/tenants/1/meta": b"{}"}).snapshot
    outcome = applied(one, {key: b"{"})
    assert outcome.problems == {key.decode(): "not JSON"}
    assert outcome.snapshot.tenants[1].databases == {}
    assert applied(outcome.snapshot, {key: b"{"}).problems == {}, "it was reported before"
    mended = applied(outcome.snapshot, {key: b'{"port": 2}'}).snapshot
    assert not mended.problems
    assert mended.tenants[1].databases["one"].port == 2
    gone = applied(outcome.snapshot, {key: None}).snapshot
    assert not gone.problems


def test_a_tenant_cannot_be_changed_in_place():
    copied_tenant = applied(TenantSnapshot(), {b"jxt/tenants/1/ftp/bob": b"{}"}).snapshot.tenants[1]
    with pytest.raises(TypeError, match="in place"):
        copied_tenant.ftp["eve"] = copied_tenant.ftp["bob"]  # type: ignore[index]
    with pytest.raises(TypeError):
        del copied_tenant.databases["x"]  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="in place"):
        copied_tenant.ftp["bob"].extra["x"] = 1
    with pytest.raises(AttributeError):
        copied_tenant.meta = None  # type: ignore[misc]


def test_nested_values_cannot_be_changed_in_place():
    made = applied(
        TenantSnapshot(),
        {
            b"jxt/tenants/1/ftp/bob": b'{"new": {"a": {}}, "list": [{"b": 1}]}',
            b"jxt/platform/configs/smtp": b'{"login": {"user": "u"}}',
        },
    ).snapshot
    extra: Any = made.tenants[1].ftp["bob"].extra
    for inner in (extra["new"], extra["new"]["a"], extra["list"][0]):
        with pytest.raises(TypeError, match="in place"):
            inner["x"] = 1
    smtp: Any = made.platform["smtp"]
    for inner in (smtp, smtp["login"]):
        with pytest.raises(TypeError, match="in place"):
            inner["x"] = 1
    assert msgspec.json.encode(smtp) == b'{"login":{"user":"u"}}'
    assert json.loads(json.dumps(extra)) == {"new": {"a": {}}, "list": [{"b": 1}]}


def test_no_representation_shows_a_secret():
    made = applied(
        TenantSnapshot(),
        {
            b"jxt/tenants/1/ftp/bob": b'{"passwordHash": "s3cret", "new": [{"token": "s3cret"}]}',
            b"jxt/tenants/1/database/one": b'{"password": "s3cret"}',
            b"jxt/tenants/1/meta": b'{"new": {"apiKey": "s3cret"}}',
            b"jxt/platform/configs/smtp": b'{"login": {"password": "s3cret"}}',
            b"jxt/platform/configs/note": b'"s3cret"',
            b"jxt/common/resolver": b'{"secret": "s3cret"}',
        },
    )
    snapshot = made.snapshot
    assert "1 tenants" in repr(snapshot)
    bob = snapshot.tenants[1].ftp["bob"].extra["new"]
    meta = snapshot.tenants[1].meta
    smtp: Any = snapshot.platform["smtp"]
    assert meta is not None
    shown = [snapshot, made, snapshot.tenants, bob, meta.extra["new"], smtp, smtp["login"]]
    assert "s3cret" not in repr([*shown, snapshot.good, snapshot.ftp])


def test_values_that_python_calls_equal_are_different():
    """`1 == 1.0 == True` in Python, but a reader can distinguish them."""
    key = b"jxt/tenants/1/storage"
    for one, other in (("1", "true"), ("1", "1.0"), ("[0]", "[false]"), ('{"a":1}', '{"a":true}')):
        for field in ("new", "uploadQuotaGb"):
            first, then = (b'{"%s":%s}' % (field.encode(), v.encode()) for v in (one, other))
            before = applied(TenantSnapshot(), {key: first}).snapshot
            after = applied(before, {key: then})
            truth = built({key: then}).tenants.get(1)
            assert repr(after.snapshot.tenants.get(1)) == repr(truth)
            changed = repr(before.tenants.get(1)) != repr(truth)
            assert [{*change.kinds} for change in after.changes] == [{"storage"}] * changed


def test_a_deeply_nested_value_does_not_hide_others():
    deep, other = b"jxt/tenants/1/database/q", b"jxt/tenants/2/meta"
    for depth in (90, *range(850, 1000), 5000):
        snapshot = TenantSnapshot()
        for text in ("one", "two"):
            value = b'{"driver":"%s","x":%s}' % (text.encode(), b"[" * depth + b"]" * depth)
            code = b'{"code":"%s"}' % text.encode()
            snapshot = applied(snapshot, {deep: value, other: code}).snapshot
            assert snapshot.codes.holders.get(text) == 2


@given(revisions, revisions)
def test_a_reload_leads_to_the_same_snapshot_as_the_missed_changes(
    history: list[dict[bytes, bytes | None]], missed: list[dict[bytes, bytes | None]]
):
    shown = TenantSnapshot()
    current: dict[bytes, Entry] = {}

    def note(changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            current.pop(key, None)
            if value is not None:
                current[key] = entry(key, value)

    for changes in history:
        shown = applied(shown, changes).snapshot
        note(changes)
    for changes in missed:
        note(changes)
    rebuilt = run_now(READING.rebuild(shown, current))
    net = dict.fromkeys(KNOWN) | current
    direct = READING.apply(shown, net.items())
    assert rebuilt.snapshot == direct.snapshot
    assert rebuilt.changes == direct.changes
    assert rebuilt.problems == direct.problems
    again = run_now(READING.rebuild(rebuilt.snapshot, current))
    assert again.snapshot == rebuilt.snapshot
    assert not again.changes
    assert not again.problems
    assert not again.conflicts, "it was reported before"


def test_a_tenant_can_be_copied():
    paths = {b"jxt/tenants/1/ftp/bob": b'{"new": [1]}', b"jxt/tenants/1/meta": b"{}"}
    original = applied(TenantSnapshot(), paths).snapshot.tenants[1]
    copied = copy.deepcopy(original)
    assert copied == original
    assert copied.ftp["bob"].extra == {"new": [1]}


def test_active_users_exclude_inactive_ones():
    users = {
        name: Ftp(tenant_id=1, username=name, status=status)
        for name, status in (("a", ""), ("b", "active"), ("c", "inactive"))
    }
    assert set(Tenant(1, ftp=users).active_ftp) == {"a", "b"}
    assert set(Tenant(1).changed(("ftp/" + n, f) for n, f in users.items()).active_ftp) == {
        "a",
        "b",
    }


def test_many_changes_are_applied_in_slices():
    current = {
        b"jxt/tenants/%d/%s" % (n, path): value
        for n in range(1, 1001)
        for path, value in (
            (b"meta", b'{"code":"c%d","name":"n%d"}' % (n, n)),
            (b"ftp/u%d" % n, b"{}"),
            (b"domain/primary", b"h%d.example" % (n % 900)),
            (b"storage", b"{" if n % 7 == 0 else b"{}"),
        )
    }
    changes = [(key, entry(key, value)) for key, value in current.items()]
    work, pauses = READING.apply_in_slices(TenantSnapshot(), slices(changes)), 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            outcome = end.value
            break
        pauses += 1
    assert outcome == READING.apply(TenantSnapshot(), changes)
    values, tenants = len(changes) // 250, 1000 // 250
    assert pauses >= values + 2 * tenants + 4 * 2 * tenants, "values, tenants, and four claims each"


@given(revisions, revisions)
def test_settings_can_change_while_tenants_are_read(
    history: list[dict[bytes, bytes | None]], more: list[dict[bytes, bytes | None]]
):
    base = TenantSnapshot()
    for changes in history:
        base = applied(base, changes).snapshot
    parts: dict[bytes, bytes | None] = {}
    settings: dict[bytes, bytes | None] = {}
    for changes in more:
        for key, value in changes.items():
            (settings if key in commons else parts)[key] = value
    meanwhile = applied(base, settings).snapshot
    late, direct = applied(base, parts).onto(meanwhile), applied(meanwhile, parts)
    assert late.snapshot == direct.snapshot
    assert (late.changes, late.problems, {*late.resolved}) == (
        direct.changes,
        direct.problems,
        {*direct.resolved},
    )


SETTINGS = [
    (b"jxt/common/resolver", "resolver", b'{"httpType": "host"}', Resolver()),
    (
        b"jxt/common/storage-directory",
        "storage_directory",
        b'{"directory":"d"}',
        StorageDirectory(),
    ),
]


@pytest.mark.parametrize(("key", "field", "value", "default"), SETTINGS)
def test_an_unreadable_setting_never_becomes_the_default(
    key: bytes, field: str, value: bytes, default: object
):
    assert getattr(TenantSnapshot(), field) == default
    never = applied(TenantSnapshot(), {key: b"{"}).snapshot
    assert getattr(never, field) is None
    assert dict(never.problems) == {key.decode(): "not JSON"}
    assert getattr(applied(never, {key: None}).snapshot, field) == default

    good = applied(never, {key: value}).snapshot
    expected = getattr(good, field)
    assert expected not in (None, default)
    for broken in (b"{", b"[]", b'{"httpType": "odd", "directory": []}'):
        kept = applied(good, {key: broken}).snapshot
        assert getattr(kept, field) == expected
        assert key.decode() in kept.problems
        gone = applied(kept, {key: None}).snapshot
        assert getattr(gone, field) == default
        assert not gone.problems
        assert getattr(applied(gone, {key: broken}).snapshot, field) is None


def test_an_empty_setting_equals_a_missing_one():
    key = b"jxt/common/resolver"
    value = b'{"httpType":"query","httpHostMode":"","httpQueryParam":"","ftpType":"","new":""}'
    made = applied(TenantSnapshot(), {key: value}).snapshot
    assert made.resolver == Resolver(http_type="query")
    assert not made.problems
    assert applied(made, {key: b'{"httpType": ""}'}).snapshot.resolver == Resolver()
    key = b"jxt/common/storage-directory"
    made = applied(TenantSnapshot(), {key: b'{"directory": ""}'}).snapshot
    assert made.storage_directory == StorageDirectory()
