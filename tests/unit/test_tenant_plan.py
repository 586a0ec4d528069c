"""Which writes lead from the stored to the wanted parts of a tenant, on a model of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.errors import TooLarge
from mooring.model import JSON
from mooring.store.contract import MAX_OPERATIONS, Check, Entry, Put, Write, unchanged
from mooring.tenants.keys import PartOf, TenantKeys
from mooring.tenants.parts import (
    COMMIT_BYTES,
    PartDiff,
    Parts,
    StoredParts,
    UnreadablePart,
    claims,
    diff_parts,
    holder,
    stored_parts,
    unclear_kinds,
)
from mooring.tenants.publish.plan import (
    COMMIT_OPERATIONS,
    MAX_STAGE_ALIASES,
    Unit,
    batches,
    check_stages,
    conflicting_claims,
    next_stage,
    plan_units,
    unnormalized_keys,
)

KEYS = TenantKeys()


class Model:
    """A store in a dictionary: checks, then writes, at one revision."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.revision = 1

    def commit(self, writes: Sequence[Write], checks: Sequence[Check]) -> None:
        for check in checks:
            entry = self.entries.get(check.key)
            assert check.field == "modified"
            assert (entry.modified if entry else 0) == check.expected
        self.revision += 1
        touched: set[bytes] = set()
        for write in writes:
            if isinstance(write, Put):
                names = [write.key]
                self.entries[write.key] = Entry(write.key, write.value, 1, self.revision, 1)
            else:
                names = [name for name in self.entries if name in write.range]
                for name in names:
                    del self.entries[name]
                names = names or [write.range.start]
            assert touched.isdisjoint(names)
            touched.update(names)

    def stored(self, tenant: int) -> StoredParts:
        mine = [entry for name, entry in self.entries.items() if name in KEYS.parts(tenant)]
        return stored_parts(KEYS, tenant, mine)

    def index(self) -> dict[bytes, Entry]:
        return {name: entry for name, entry in self.entries.items() if name in KEYS.indexes}

    def tenants(self) -> set[int]:
        places = (KEYS.understand(name) for name in self.entries)
        return {place.tenant for place in places if isinstance(place, PartOf)}

    def publish(
        self, tenant: int, wanted: Parts, *, room: int = COMMIT_OPERATIONS, alone: bool = True
    ) -> list[list[Unit]]:
        """Publish as the committer does; return nothing if the publish is refused."""
        stored = self.stored(tenant)
        now, former = claims(KEYS, tenant, wanted), claims(KEYS, tenant, stored.parts)
        read = {*now, *former, *unnormalized_keys(KEYS, stored.parts, wanted)}
        index = {name: entry for name, entry in self.index().items() if name in read}
        for claim, _, other in conflicting_claims(tenant, now, KEYS, index):
            if self.stored(other).may_claim(KEYS, other, claim):
                return []
        made = batches(tenant, plan_units(KEYS, tenant, stored, wanted, index), room=room)
        for part in made:
            self.commit(
                [write for unit in part for write in unit.writes],
                [check for unit in part for check in unit.checks],
            )
            if alone:
                self.assert_whole(exactly=part is made[-1])
        return made

    def assert_whole(self, *, exactly: bool = True) -> None:
        wanted: dict[bytes, tuple[int, bytes]] = {}
        for tenant in self.tenants():
            for claim in claims(KEYS, tenant, self.stored(tenant).parts).values():
                assert claim.key not in wanted
                wanted[claim.key] = (tenant, claim.value)
        indexed = {name: (holder(e.value), e.value) for name, e in self.index().items()}
        if exactly:
            assert indexed == wanted
        # Between two commits of a publish, fields of an index may be older, but not its target.
        assert {k: v[0] for k, v in indexed.items()} == {k: v[0] for k, v in wanted.items()}


hosts = st.sampled_from(["a.example", "B.example", "b.example", "c.example", "d.example"])
codes = st.sampled_from(["one", "ONE", "two", "three", "four"])
names = st.sampled_from(["One", "a b", "a%20b", "默认", "x/y", "x//y"])
users = st.sampled_from(["meta", "bob", "Bob", "al.ice"])
metas = st.fixed_dictionaries({"code": codes, "name": names})
parts = st.fixed_dictionaries(
    {},
    optional={
        "meta": metas,
        "domain/primary": hosts,
        "domain/aliases": st.lists(hosts, max_size=4),
        "domain/internal": hosts,
        "database/query": st.fixed_dictionaries({"port": st.integers(1, 3)}),
        "storage": st.just({"uploadQuotaGb": 1}),
    },
)
ftps = st.dictionaries(
    users.map(lambda name: f"ftp/{name}"), st.fixed_dictionaries({"n": st.integers(0, 2)})
)
whole = st.tuples(parts, ftps).map(lambda both: {**both[0], **both[1]})


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 4), whole), max_size=12),
    st.sampled_from([20, 30, COMMIT_OPERATIONS]),
)
def test_the_indexes_agree_with_the_data(steps: list[tuple[int, Parts]], room: int):
    model = Model()
    for tenant, wanted in steps:
        made = model.publish(tenant, wanted, room=room)
        assert made == [] or dict(model.stored(tenant).parts) == wanted
        model.assert_whole()


@given(st.lists(st.tuples(st.integers(1, 3), whole), min_size=1, max_size=6))
def test_a_repeated_publish_writes_nothing(steps: list[tuple[int, Parts]]):
    model = Model()
    for tenant, wanted in steps:
        if model.publish(tenant, wanted):
            revision = model.revision
            assert model.publish(tenant, wanted) == []
            assert model.revision == revision


@given(whole, st.sets(names))
def test_raw_names_of_older_publishers_are_removed_with_their_names(wanted: Parts, raw: set[str]):
    model = Model()
    model.publish(1, {"meta": {"code": "one", "name": "a%20b"}})
    for name in raw:
        key = KEYS.as_written("by-name", name)
        if key not in model.entries:
            model.commit([Put(key, b'{"id":1}')], [])
    meta: dict[str, JSON] = {"code": "one", "name": "a b"}
    assert model.publish(1, {**wanted, "meta": meta}, alone=False)
    leading = {name for name in model.index() if b"/by-name/" in name}
    assert KEYS.index("by-name", "a b") in leading
    assert KEYS.index("by-name", "a%20b") not in leading


many: dict[str, JSON] = {f"ftp/user{n}": {"n": n} for n in range(300)}


def full(code: str) -> dict[str, JSON]:
    return {"meta": {"code": code, "name": code}, "domain/primary": f"{code}.example", **many}


def test_a_publish_that_exceeds_one_commit_is_split_by_object():
    model = Model()
    made = model.publish(1, full("one"))
    assert len(made) > 1
    for part in made:
        assert sum(unit.operations for unit in part) <= COMMIT_OPERATIONS < MAX_OPERATIONS
        for unit in part:
            for change in unit.changes:
                assert KEYS.part(1, change.path) in [w.key for w in unit.writes]  # type: ignore[union-attr]
    renamed = model.publish(1, full("two"))
    assert len(renamed) > 1
    first = [write.key for unit in renamed[0] for write in unit.writes if isinstance(write, Put)]
    assert KEYS.part(1, "meta") in first
    assert KEYS.index("by-code", "two") in first
    assert KEYS.index("host", "two.example") in first


def test_a_tenant_with_many_hosts_is_renamed_in_several_commits():
    model = Model()
    aliases: list[JSON] = [f"h{n}.example" for n in range(100)]
    more: list[JSON] = [*aliases, *(f"i{n}.example" for n in range(100))]
    meta: dict[str, JSON] = {"code": "one", "name": "One"}
    assert model.publish(1, {"meta": meta, "domain/aliases": aliases})
    assert model.publish(1, {"meta": meta, "domain/aliases": more})
    assert len(model.publish(1, {"meta": {**meta, "code": "two"}, "domain/aliases": more})) == 2


def test_a_host_that_moves_between_parts_always_has_its_index():
    model = Model()
    first: dict[str, JSON] = {f"database/s{n}": {"n": n} for n in range(5)}
    domains: list[dict[str, JSON]] = [
        {"domain/aliases": ["a.example", "b.example"]},
        {"domain/primary": "a.example", "domain/internal": "b.example"},
        {"domain/primary": "b.example", "domain/aliases": ["a.example"]},
        {},
    ]
    for domain in domains:
        assert model.publish(1, {**first, **domain}, room=9)


def test_an_object_too_large_for_any_commit_is_refused_before_any_write():
    model = Model()
    with pytest.raises(TooLarge, match="storage"):
        model.publish(1, {**full("one"), "storage": {"x": "a" * COMMIT_BYTES}})
    with pytest.raises(TooLarge, match="domain/aliases"):
        model.publish(
            1, {"domain/aliases": [f"h{n}.example" for n in range(COMMIT_OPERATIONS + 1)]}
        )
    assert model.entries == {}


def entry(name: bytes, raw: bytes) -> Entry:
    return Entry(name, raw, 1, 5, 1)


class TestUnreadableParts:
    HAD = stored_parts(
        KEYS,
        2,
        [
            entry(KEYS.part(2, "meta"), b"{broken"),
            entry(KEYS.part(2, "domain/aliases"), b"[broken"),
            entry(KEYS.part(2, "domain/primary"), b"two.example"),
            entry(KEYS.part(2, "ftp/bob"), b"{}"),
        ],
    )
    LEADING: ClassVar = {
        name: entry(name, b'{"tenantId":2,"code":"two"}')
        for name in (
            KEYS.index("by-code", "two"),
            KEYS.index("by-name", "Two"),
            KEYS.index("host", "two.example"),
            KEYS.index("host", "www.two.example"),
            KEYS.index("ftp-user", "bob"),
        )
    }

    def written(self, wanted: Parts) -> set[bytes]:
        made = plan_units(KEYS, 2, self.HAD, wanted, self.LEADING)
        return {
            write.key if isinstance(write, Put) else write.range.start
            for unit in made
            for write in unit.writes
        }

    def test_an_unreadable_part_keeps_its_indexes(self):
        wanted: Parts = {**self.HAD.parts, "storage": {"uploadQuotaGb": 1}}
        assert self.written(wanted) == {KEYS.part(2, "storage")}

    def test_replacing_a_part_removes_only_indexes_that_it_may_have_claimed(self):
        wanted: Parts = {**self.HAD.parts, "domain/primary": "new.example"}
        assert self.written(wanted) == {
            KEYS.part(2, "domain/primary"),
            KEYS.index("host", "two.example"),
            KEYS.index("host", "new.example"),
        }
        wanted = {**self.HAD.parts, "domain/aliases": ["a.example"]}
        assert self.written(wanted) == {
            KEYS.part(2, "domain/aliases"),
            KEYS.index("host", "www.two.example"),
            KEYS.index("host", "a.example"),
        }

    def test_no_other_tenant_gets_its_names(self):
        wanted = claims(KEYS, 1, {"meta": {"code": "TWO", "name": "x"}, "ftp/al": {}})
        code, name, user = sorted(wanted.values(), key=lambda claim: claim.kind)
        assert self.HAD.may_claim(KEYS, 2, code)
        assert self.HAD.may_claim(KEYS, 2, name)
        assert not self.HAD.may_claim(KEYS, 2, user)

    def test_indexes_are_removed_in_as_many_commits_as_necessary(self):
        names = [KEYS.index("host", f"h{n}.example") for n in range(2 * COMMIT_OPERATIONS)]
        index = {name: entry(name, b'{"tenantId":2}') for name in names}
        wanted: Parts = {**self.HAD.parts, "domain/aliases": ["h0.example"]}
        made = batches(2, plan_units(KEYS, 2, self.HAD, wanted, index))
        assert len(made) > 1
        gone = {
            write.range.start
            for part in made
            for unit in part
            for write in unit.writes
            if not isinstance(write, Put)
        }
        assert gone == set(names[1:])


class TestNamesInCapitals:
    def test_a_code_or_a_host_is_taken_in_any_case(self):
        wanted = claims(KEYS, 2, {"meta": {"code": "acme", "name": "A"}, "domain/primary": "a.B"})
        for name in (KEYS.as_written("by-code", "ACME"), KEYS.as_written("host", "A.b")):
            index = {name: entry(name, b'{"tenantId":1}')}
            assert [conflict[1:] for conflict in conflicting_claims(2, wanted, KEYS, index)] == [
                (index[name], 1)
            ]
        other = KEYS.as_written("by-name", "a")
        assert conflicting_claims(2, wanted, KEYS, {other: entry(other, b'{"id":1}')}) == []

    def test_a_name_in_capitals_stays_while_correct_and_is_removed_with_the_name(self):
        meta: JSON = {"code": "ACME", "name": "A"}
        stored = stored_parts(KEYS, 1, [entry(KEYS.part(1, "meta"), b'{"code":"ACME","name":"A"}')])
        index = {
            claim.key: entry(claim.key, claim.value)
            for claim in claims(KEYS, 1, {"meta": meta}).values()
        }
        name = KEYS.as_written("by-code", "ACME")
        index[name] = entry(name, b'{"id":1}')
        assert plan_units(KEYS, 1, stored, {"meta": meta}, index) == []
        made = plan_units(KEYS, 1, stored, {"meta": {"code": "b", "name": "A"}}, index)
        gone = {w.range.start for unit in made for w in unit.writes if not isinstance(w, Put)}
        assert gone == {name, KEYS.index("by-code", "acme")}


def test_a_claim_is_guarded_in_the_commit_that_writes_it():
    wanted: Parts = {f"ftp/u{n}": {} for n in range(200)}
    now = claims(KEYS, 1, wanted)
    guards = {name: [unchanged(name + b"!", 7)] for name in now}
    made = batches(1, plan_units(KEYS, 1, StoredParts({}, {}), wanted, {}, guards))
    assert len(made) > 1
    for part in made:
        checks = [check for unit in part for check in unit.checks]
        assert len(checks) <= COMMIT_OPERATIONS
        for unit in part:
            for write in unit.writes:
                assert isinstance(write, Put)
                assert write.key not in now or guards[write.key][0] in checks


def test_steps_that_would_exceed_a_commit_are_refused_at_the_start():
    def hosts(count: int, size: int = 240) -> list[JSON]:
        return [f"{'a' * size}.h{n}" for n in range(count)]

    stored: Parts = {"domain/aliases": ["keep.example"]}
    for count, large in ((1_000, False), (2_500, True)):
        wanted: Parts = {"domain/aliases": hosts(count)}
        assert next_stage(stored, wanted) is not wanted
        limit, room = MAX_STAGE_ALIASES, COMMIT_OPERATIONS
        if large:
            with pytest.raises(TooLarge, match="domain/aliases"):
                check_stages(
                    KEYS, 1, stored, wanted, limit=MAX_STAGE_ALIASES, room=COMMIT_OPERATIONS
                )
        else:
            check_stages(KEYS, 1, stored, wanted, limit=limit, room=room)
            check_stages(KEYS, 1, wanted, stored, limit=limit, room=room)


def test_true_is_not_one():
    assert diff_parts({"storage": {"x": 1}}, {"storage": {"x": True}}) != []
    assert diff_parts({"storage": {"x": 1, "y": 2}}, {"storage": {"y": 2, "x": 1}}) == []


def test_differences_name_both_sides_and_hide_secrets():
    before: dict[str, JSON | UnreadablePart] = {
        "meta": {"code": "a"},
        "storage": UnreadablePart(b"hunter2"),
    }
    after: dict[str, JSON] = {"meta": {"code": "b"}, "database/x": {"password": "hunter2"}}
    diffs = diff_parts(before, after)
    assert diffs == [
        PartDiff("meta", {"code": "a"}, {"code": "b"}),
        PartDiff("database/x", None, {"password": "hunter2"}),
        PartDiff("storage", UnreadablePart(b"hunter2"), None),
    ]
    stored = stored_parts(
        KEYS, 1, [Entry(KEYS.part(1, "database/x"), b'{"password":"hunter2"}', 1, 1, 1)]
    )
    for shown in (diffs, stored, plan_units(KEYS, 1, stored, after, {})):
        assert "hunter2" not in repr(shown)


def test_keys_below_a_tenant_that_are_not_parts_are_separate():
    stored = stored_parts(
        KEYS,
        1,
        [
            Entry(KEYS.part(1, "meta"), b"{", 1, 5, 1),
            Entry(b"jxt/tenants/1/database", b"{}", 1, 6, 1),
        ],
    )
    assert stored.parts == {"meta": UnreadablePart(b"{")}
    assert stored.revisions == {"meta": 5}
    assert stored.unknown_keys == (b"jxt/tenants/1/database",)
    assert unclear_kinds(stored.parts)


@pytest.mark.parametrize(
    ("raw", "tenant"),
    [
        (b'{"tenantId": 3}', 3),
        (b'{"id": 3, "code": "x"}', 3),
        (b'{"tenantId": null, "id": 3}', 3),
        (b'{"tenantId": -3}', 0),
        (b'{"id": true}', 0),
        (b'{"id": 1e3}', 0),
        (b'{"id": 99999999999999999999}', 0),
        (b"3", 0),
        (b"[]", 0),
        (b"{", 0),
        (b"", 0),
        (b"[" * 100_000, 0),
    ],
)
def test_the_holder_of_an_index(raw: bytes, tenant: int):
    assert holder(raw) == tenant


def test_index_values_are_those_in_the_documentation():
    claimed = claims(
        KEYS,
        1,
        {
            "meta": {"code": "default", "name": "默认租户"},
            "domain/primary": "example.com",
            "domain/aliases": ["www.example.com"],
            "domain/internal": "in.ternal",
            "ftp/bob": {},
        },
    )
    by_name = {
        claim.key.decode().removeprefix("jxt/tenants/_index/"): claim for claim in claimed.values()
    }
    frontend = b'{"tenantId":1,"code":"default","hostType":"frontend"}'
    assert {name: claim.value for name, claim in by_name.items()} == {
        "ftp-user/bob": '{"tenantId":1,"code":"default","name":"默认租户"}'.encode(),
        "host/example.com": frontend,
        "host/www.example.com": frontend,
        "host/in.ternal": b'{"tenantId":1,"code":"default","hostType":"internal"}',
        "by-code/default": '{"id":1,"code":"default","name":"默认租户"}'.encode(),
        "by-name/%E9%BB%98%E8%AE%A4%E7%A7%9F%E6%88%B7": (
            b'{"id":1,"code":"default","primaryDomain":"example.com"}'
        ),
    }
    without: Iterable[bytes] = (
        claim.value for claim in claims(KEYS, 1, {"meta": {"code": "a", "name": "A"}}).values()
    )
    assert b'{"id":1,"code":"a","primaryDomain":""}' in without


def test_unreadable_parts_claim_only_their_own_names():
    strange: Mapping[str, object] = {
        "meta": UnreadablePart(b"{"),
        "domain/primary": UnreadablePart(b"\xff"),
        "ftp/bob": UnreadablePart(b"{"),
    }
    assert [claim.kind for claim in claims(KEYS, 1, strange).values()] == ["ftp-user"]
