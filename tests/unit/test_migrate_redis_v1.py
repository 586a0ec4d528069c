"""Version 1.0 of the Redis registry: how it is parsed, compared with v2 and bridged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest, MigrationError
from mooring.migrate import verified_file
from mooring.migrate.redis_v1 import migration
from mooring.migrate.redis_v1.bridge import BridgePlan, SeenHeartbeat, plan_bridge
from mooring.migrate.redis_v1.format import (
    INCARNATION,
    V1Keys,
    V1Record,
    V1Service,
    is_v2_key,
    parse_keyspace,
    parse_record,
    v1_fields,
)
from mooring.migrate.redis_v1.plan import InstancePlan, V2Service, compare, tolerate_delay
from mooring.migrate.verified_file import Verified
from mooring.model import Config, Instance, Status
from mooring.registry.redis.layout import RedisKeys, encode

NOW = 1_700_000_000_000
TIMEOUT = 120_000
V2 = RedisKeys("registry")
PLAIN = {"host": "10.0.0.1", "port": "80", "timestamp": str(NOW - 60_000)}


def read(**fields: str) -> V1Record:
    return parse_record("svc", "a", {**PLAIN, **fields}, limit=65536)


def v1_service(*ids: str, at: float = NOW - 1000, **fields: str) -> V1Service:
    return V1Service(
        "svc",
        {id: {**PLAIN, **fields} for id in ids},
        frozenset(ids),
        dict.fromkeys(ids, at),
    )


def copied(id: str = "a", **fields: str) -> dict[str, str]:
    """What a copy of `v1_service(id)` is in v2."""
    record = parse_record("svc", id, {**PLAIN, **fields}, limit=65536)
    return {**record.fields, "heartbeat": "1", "registrationTime": "1", "lastMetadataUpdate": "1"}


def v2_record(
    id: str = "a", *, registered: int = NOW - 50_000, **options: object
) -> dict[str, str]:
    """The record of a process that uses v2."""
    instance = Instance("svc", "10.0.0.9", 90, id=id, incarnation="unique", **options)  # type: ignore[arg-type]
    return {**encode(instance), "registrationTime": str(registered)}


def v2_service(records: dict[str, dict[str, str]] | None = None, **options: object) -> V2Service:
    records = records or {}
    given: dict[str, object] = {
        "scores": dict.fromkeys(records, float(NOW - 1000)),
        "listed": True,
        **options,
    }
    return V2Service(NOW, records, **given)  # type: ignore[arg-type]


def verdicts(one: V1Service, other: V2Service) -> dict[str, str]:
    steps = compare(one, other, timeout=TIMEOUT, limit=65536)
    return {step.id: step.verdict for step in steps}


def test_the_keys_are_those_that_the_documentation_lists():
    keys, plain = V1Keys("app"), V1Keys()
    assert keys.instance("svc", "a:1") == "app:services:svc:a:1"
    assert keys.instances("svc") == "app:service_instances:svc"
    assert keys.heartbeats("svc") == "app:heartbeat:svc"
    assert keys.channel("svc") == "app:service_change:svc"
    assert plain.instance("svc", "a") == "services:svc:a"


def test_keys_of_both_versions_are_distinguished_under_one_prefix():
    v1 = V1Keys("registry")
    service = V2.of("svc")
    other = ("name", "base", "services", "cluster")
    ours = [value for name, value in vars(service).items() if name not in other]
    ours += [service.instance("a"), f"{service.base}:persistent"]
    assert all(is_v2_key(V2, key) for key in ours)
    theirs = [v1.instance("svc", "a"), v1.instance("svc", "10.0.0.1:80"), v1.heartbeats("svc")]
    assert not any(is_v2_key(V2, key) for key in theirs)
    assert parse_keyspace([*ours, *theirs], v1, V2).services == {"svc": {"a", "10.0.0.1:80"}}


def test_keys_of_both_versions_are_distinguished_on_a_cluster():
    cluster = RedisKeys("registry", cluster=True)
    keys = [cluster.of("svc").instance("a"), cluster.of("svc").brake, "registry:services:svc:a"]
    assert parse_keyspace(keys, V1Keys("registry"), cluster).services == {"svc": {"a"}}


def test_a_service_with_a_colon_is_recognized_by_its_set():
    keys = ["service_instances:a:b", "services:a:b:1", "services:c:10.0.0.1:80", "services:stray"]
    keyspace = parse_keyspace(keys, V1Keys(), V2)
    assert keyspace.services == {"a:b": {"1"}, "c": {"10.0.0.1:80"}}
    assert keyspace.strays == ("services:stray",)


@pytest.mark.parametrize(
    ("text", "metadata"),
    [
        ("", {}),
        ("{}", {}),
        ('{"a": "x", "b": 123456789012345678}', {"a": "x", "b": "123456789012345678"}),
        ('{"a": null, "b": true}', {"a": "null", "b": "true"}),
        ('{"a": {"b": [1.50, true]}}', {"a": '{"b": [1.50, true]}'}),
        ('{"数": "\\u4e00"}', {"数": "一"}),
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("{a=1, b=x=y}", {"a": "1", "b": "x=y"}),
        ("just words", {"metadata": "just words"}),
        ("[1, 2]", {"metadata": "[1, 2]"}),
        ('{"broken": ', {"metadata": '{"broken": '}),
        ("a=1,a=2", {"metadata": "a=1,a=2"}),
    ],
)
def test_metadata(text: str, metadata: dict[str, str]):
    record = read(metadata=text)
    assert record.instance.metadata == metadata
    assert bool(record.notes) == ("metadata" in metadata)


def test_missing_fields_have_defaults():
    record = read()
    assert record.instance == Instance(
        "svc", "10.0.0.1", 80, id="a", incarnation=INCARNATION, status=Status(healthy=True)
    )
    assert record.registered == NOW - 60_000
    assert record.notes == ()


def test_unknown_fields_of_v1_are_kept():
    record = read(protocol="HTTP", version="1.2", zone="z", owner="me", metadata='{"a":"1"}')
    instance = record.instance
    assert (instance.protocol, instance.version, instance.zone) == ("http", "1.2", "z")
    assert instance.metadata == {"owner": "me", "a": "1"}


def test_a_timestamp_can_be_in_seconds():
    assert read(timestamp="1700000000").registered == NOW
    assert read(timestamp="1700000000.25").registered == NOW + 250
    garbage = read(timestamp="yesterday")
    assert garbage.registered == 0
    assert "timestamp 'yesterday'" in garbage.notes[0]


def test_invalid_values_of_optional_fields_are_noted():
    record = read(weight="heavy", healthy="perhaps")
    assert (record.instance.weight, record.instance.status.healthy) == (1.0, False)
    assert len(record.notes) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"host": ""},
        {"port": ""},
        {"port": "eighty"},
        {"port": "99999"},
        {"host": "two words"},
        {"metadata": "x" * 70_000},
    ],
)
def test_a_record_without_a_valid_address_is_refused(fields: dict[str, str]):
    with pytest.raises(InvalidRequest):
        read(**fields)


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=30), max_size=8))
def test_any_hash_is_parsed_or_refused(fields: dict[str, str]):
    for record_fields in (fields, PLAIN | fields):
        try:
            record = parse_record("svc", "a", record_fields, limit=65536)
        except InvalidRequest:
            continue
        assert record.fields["host"]


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5), st.booleans())
def test_a_record_of_the_bridge_is_read_back_unchanged(metadata: dict[str, str], seconds: bool):
    instance = Instance("svc", "h", 1, id="a", weight=2.5, metadata=metadata)
    fields = v1_fields(instance, NOW, in_seconds=seconds)
    record = parse_record("svc", "a", fields, limit=65536)
    assert record.bridged
    assert record.registered == NOW
    assert (record.instance.metadata, record.instance.weight) == (metadata, 2.5)
    assert not parse_record("svc", "a", fields | {"timestamp": "5"}, limit=65536).bridged


def test_every_verdict():
    assert verdicts(v1_service("a"), v2_service()) == {"a": "missing"}
    assert verdicts(v1_service("a"), v2_service({"a": copied()})) == {"a": "equal"}
    assert verdicts(v1_service("a", at=NOW), v2_service({"a": copied()})) == {"a": "behind"}
    assert verdicts(v1_service("a", weight="5"), v2_service({"a": copied()})) == {"a": "differs"}
    assert verdicts(v1_service("a"), v2_service({"a": copied()}, scores={})) == {"a": "half"}
    assert verdicts(v1_service("a"), v2_service(scores={"a": NOW})) == {"a": "half"}
    assert verdicts(v1_service("a"), v2_service({"a": copied()}, listed=False)) == {"a": "half"}
    assert verdicts(v1_service("a"), v2_service({"a": v2_record()})) == {"a": "own"}
    assert verdicts(v1_service("a", at=NOW - TIMEOUT), v2_service()) == {"a": "expired"}
    assert verdicts(v1_service("a"), v2_service(removed={"a": NOW - 5000})) == {"a": "removed"}
    assert verdicts(v1_service("a", bridged=PLAIN["timestamp"]), v2_service()) == {"a": "bridged"}
    assert verdicts(v1_service("a", port="x"), v2_service()) == {"a": "unreadable"}
    assert verdicts(V1Service("svc", {"a": None}), v2_service()) == {"a": "unreadable"}
    assert verdicts(V1Service("svc", members=frozenset("a")), v2_service()) == {"a": "remnant"}
    assert verdicts(V1Service("svc", scores={"a": NOW}), v2_service()) == {"a": "remnant"}
    assert verdicts(V1Service("svc", {"a": PLAIN}), v2_service()) == {"a": "remnant"}
    assert verdicts(V1Service("svc"), v2_service({"a": copied()})) == {"a": "surplus"}
    assert verdicts(V1Service("svc"), v2_service({"a": v2_record()})) == {}
    dead = NOW - TIMEOUT
    assert verdicts(v1_service("\udcff"), v2_service()) == {"\udcff": "stranded"}
    assert verdicts(v1_service("\udcff", at=dead), v2_service()) == {"\udcff": "unreadable"}
    assert verdicts(v1_service("a", metadata="x" * 70_000), v2_service()) == {"a": "stranded"}
    spoilt = v2_service({"b": copied("b")}, wrong_type=frozenset("a"))
    assert verdicts(v1_service("a", "b"), spoilt) == {"a": "stranded", "b": "equal"}
    assert verdicts(v1_service("a", at=dead), v2_service(wrong_type=frozenset("a"))) == {
        "a": "unreadable"
    }


def test_a_difference_shows_both_values():
    (step,) = compare(
        v1_service("a", weight="5", metadata="k=v"),
        v2_service({"a": copied()}),
        timeout=TIMEOUT,
        limit=65536,
    )
    differences = {
        difference.field: (difference.v1, difference.v2) for difference in step.differences
    }
    assert differences == {"weight": ("5", "1"), "metadataJson": ('{"k":"v"}', "{}")}


def test_heartbeats_in_seconds_and_from_a_clock_that_is_ahead():
    assert verdicts(v1_service("a", at=NOW / 1000 - 1), v2_service({"a": copied()})) == {
        "a": "equal"
    }
    assert v1_service("a", at=NOW + 3_600_000).heartbeat("a", read(), NOW) == NOW


def test_without_a_heartbeat_the_registration_time_counts():
    alone = V1Service("svc", {"a": PLAIN}, frozenset("a"))
    assert verdicts(alone, v2_service()) == {"a": "missing"}
    assert verdicts(
        V1Service("svc", {"a": {**PLAIN, "timestamp": ""}}, frozenset("a")), v2_service()
    ) == {"a": "expired"}


def test_an_expired_record_of_v2_does_not_block_v1():
    old = {"a": float(NOW - TIMEOUT)}
    assert verdicts(v1_service("a"), v2_service({"a": v2_record()}, scores=old)) == {"a": "differs"}
    stays = v2_record(ephemeral=False)
    assert verdicts(v1_service("a"), v2_service({"a": stays}, scores=old)) == {"a": "own"}


def test_an_evicted_instance_returns_when_its_process_restarts():
    removed = v2_service(removed={"a": NOW - 5000})
    started = v1_service("a", timestamp=str(NOW - 3000))
    assert verdicts(started, removed) == {"a": "missing"}, "it registered, and beat since"
    moving = v1_service("a", timestamp=str(NOW - 1000))
    assert verdicts(moving, removed) == {"a": "removed"}, "its timestamp may move with its beats"


def test_a_heartbeat_in_the_meantime_is_no_difference():
    late = InstancePlan("svc", "a", "behind", heartbeat=NOW - 20_000)
    assert tolerate_delay(late, NOW).verdict == "behind"
    assert (
        tolerate_delay(InstancePlan("svc", "a", "behind", heartbeat=NOW - 500), NOW).verdict
        == "equal"
    )


def look(
    one: V1Service, other: V2Service, before: dict[str, SeenHeartbeat] | None = None
) -> BridgePlan:
    return plan_bridge(one, other, {}, before or {}, timeout=TIMEOUT, limit=65536)


def test_a_registration_in_v1_is_copied_only_to_v2():
    due = look(v1_service("a"), v2_service())
    assert due.copy["a"][1] == NOW - 1000
    assert (due.mirror, due.withdraw, due.deregister) == ({}, [], [])
    assert look(v1_service("a"), v2_service({"a": copied()})).copy == {}, "it exists already"


def test_skipped_instances_are_reported_and_do_not_affect_others():
    due = look(v1_service("a", "b"), v2_service(wrong_type=frozenset("a")))
    assert list(due.copy) == ["b"]
    assert due.problems == ["a: its key in v2 is not a hash: check what it contains"]
    broken = {**v2_record("b"), "metadataJson": "{"}
    due = look(V1Service("svc"), v2_service({"b": broken, "c": v2_record("c")}))
    assert list(due.mirror) == ["c"]
    assert "b, of v2," in due.problems[0]


def test_a_heartbeat_that_advanced_counts_as_of_now_despite_its_clock():
    before = {"a": SeenHeartbeat(1000.0, NOW - 30_000)}
    hour = 3_600_000
    for at in (float(NOW - hour), float(NOW + hour), NOW / 1000 - 3600):
        assert look(v1_service("a", at=at), v2_service({"a": copied()}), before).copy["a"][1] == NOW


def test_a_heartbeat_that_does_not_advance_ages():
    ahead = float(NOW + 3_600_000)
    before = {"a": SeenHeartbeat(ahead, NOW - 60_000)}
    due = look(v1_service("a", at=ahead), v2_service({"a": copied()}), before)
    assert due.copy == {}
    dead = {"a": SeenHeartbeat(ahead, NOW - TIMEOUT)}
    due = look(v1_service("a", at=ahead), v2_service(), dead)
    assert due.copy == {}, "v2 has taken it out, and out it stays"


def test_a_deregistration_in_v1_is_repeated_in_v2():
    before = {"a": SeenHeartbeat(1.0, NOW)}
    assert look(V1Service("svc"), v2_service({"a": copied()}), before).deregister == ["a"]
    half = V1Service("svc", {"a": PLAIN}, frozenset(), {"a": NOW})
    assert look(half, v2_service({"a": copied()}), before).deregister == ["a"]
    assert look(V1Service("svc"), v2_service({"a": v2_record()}), before).deregister == [], (
        "it belongs to v2 now"
    )
    assert look(V1Service("svc"), v2_service({"a": copied()})).deregister == [], (
        "a bridge that just began"
    )


def test_an_instance_of_v2_is_mirrored_only_to_v1():
    due = look(V1Service("svc"), v2_service({"b": v2_record("b")}))
    assert due.mirror["b"]["host"] == "10.0.0.9"
    assert due.heartbeats == {"b": NOW - 1000}
    assert (due.copy, due.deregister, due.withdraw) == ({}, [], [])
    mirrored = V1Service("svc", {"b": due.mirror["b"]}, frozenset("b"), due.heartbeats)
    again = look(mirrored, v2_service({"b": v2_record("b")}))
    assert (again.mirror, again.heartbeats, again.copy) == ({}, {}, {})


def test_the_bridge_writes_times_in_the_unit_of_v1():
    seconds = v1_service("a", at=NOW // 1000)
    due = look(seconds, v2_service({"b": v2_record("b")}))
    assert due.heartbeats == {"b": (NOW - 1000) // 1000}
    assert due.mirror["b"]["timestamp"] == str((NOW - 50_000) // 1000)


def test_disabled_and_draining_instances_are_unhealthy_in_v1():
    config = {"b": Config(enabled=False), "": Config(weight=7)}
    due = plan_bridge(
        V1Service("svc"),
        v2_service({"b": v2_record("b")}),
        config,
        {},
        timeout=TIMEOUT,
        limit=65536,
    )
    assert (due.mirror["b"]["healthy"], due.mirror["b"]["weight"]) == ("false", "7")
    leaving = v2_record("b", status=Status(state="draining"))
    assert look(V1Service("svc"), v2_service({"b": leaving})).mirror["b"]["healthy"] == "false"


def test_an_instance_that_left_or_expired_in_v2_leaves_v1():
    mirror = v1_fields(Instance("svc", "h", 1, id="b"), NOW, in_seconds=False)
    mirrored = V1Service("svc", {"b": mirror}, frozenset("b"), {"b": NOW})
    assert look(mirrored, v2_service()).withdraw == ["b"]
    silent = v2_service({"b": v2_record("b")}, scores={"b": float(NOW - 91_000)})
    assert look(mirrored, silent).withdraw == ["b"]


def test_an_instance_that_an_operator_evicted_in_v2_leaves_v1_for_good():
    due = look(v1_service("a"), v2_service(removed={"a": NOW - 500}))
    assert (due.withdraw, due.copy) == (["a"], {})


def test_a_process_that_moved_to_v2_replaces_its_record_in_v1():
    silent = v1_service("a", at=NOW - 55_000)
    due = look(silent, v2_service({"a": v2_record(registered=NOW - 50_000)}))
    assert "a" in due.mirror
    beating = v1_service("a", at=NOW - 10_000)
    due = look(beating, v2_service({"a": v2_record(registered=NOW - 50_000)}))
    assert due.mirror == {}, "both live: each keeps its own"
    assert due.copy == {}


def test_an_instance_that_left_v2_is_not_revived_by_an_older_heartbeat_in_v1():
    beating = v1_service("a", at=NOW - 10_000)
    seen = look(beating, v2_service({"a": v2_record(registered=NOW - 50_000)})).seen
    assert look(beating, v2_service(), seen).copy == {}
    again = v1_service("a", at=NOW)
    later = V2Service(NOW + 5000, {}, {}, {}, True)
    assert "a" in look(again, later, seen).copy, "a process of v1 lives there"


@given(st.data())
def test_a_bridge_settles(data: st.DataObject):
    """For any state of v1 and v2: after the bridge did what was due, nothing more is due."""
    ids = ["a", "b", "c"]
    at = st.sampled_from([NOW - 1000.0, NOW - 100_000.0, NOW - 200_000.0, NOW + 9e6, NOW / 1000])
    mirror = v1_fields(Instance("svc", "h", 1, id="a"), NOW - 7, in_seconds=False)
    hashes = data.draw(
        st.dictionaries(st.sampled_from(ids), st.sampled_from([PLAIN, mirror, {"port": "x"}]))
    )
    one = V1Service(
        "svc",
        hashes,
        frozenset(data.draw(st.sets(st.sampled_from(ids)))),
        data.draw(st.dictionaries(st.sampled_from(ids), at)),
    )
    records = {
        id: copied(id) if kind == "copy" else v2_record(id)
        for id, kind in data.draw(
            st.dictionaries(st.sampled_from(ids), st.sampled_from(["copy", "own"]))
        ).items()
    }
    scores = {id: data.draw(st.sampled_from([NOW - 1.0, NOW - 95_000.0])) for id in records}
    other = v2_service(records, scores=scores)
    due = look(one, other)
    after_v1, after_v2 = done(one, other, due)
    again = look(after_v1, after_v2, due.seen)
    assert (again.copy, again.deregister, again.mirror, again.heartbeats, again.withdraw) == (
        ({}, [], {}, {}, [])
    )


def done(one: V1Service, other: V2Service, due: BridgePlan) -> tuple[V1Service, V2Service]:
    """Both sides after the bridge did what was due."""
    gone = set(due.withdraw)
    v1 = one.only(set(one.ids) - gone)
    hashes = {**v1.hashes, **due.mirror}
    v1 = V1Service("svc", hashes, v1.members | due.mirror.keys(), {**v1.scores, **due.heartbeats})
    records = {id: fields for id, fields in other.records.items() if id not in due.deregister}
    brought = {id: dict(record.fields) for id, (record, _) in due.copy.items()}
    heartbeats = {id: float(time) for id, (_, time) in due.copy.items()}
    scores = {id: score for id, score in other.scores.items() if id in records}
    scores |= {id: max(time, scores.get(id, 0)) for id, time in heartbeats.items()}
    return v1, V2Service(NOW, {**records, **brought}, scores, other.removed, True)


HEADER = migration.RedisV1Header("127.0.0.1:6379", "", "registry")


def read_verified(path: Path) -> migration.VerifiedServices:
    return verified_file.read(path, migration.RedisV1Header, V1Service, format=migration.FORMAT)


def test_the_verified_file_keeps_every_byte(tmp_path: Path):
    path = tmp_path / "verified"
    odd = V1Service("svc", {"\udcff": {"k\udcfe": "数"}}, frozenset({"\udcff"}), {"\udcff": 1.5})
    verified_file.write(path, Verified(HEADER, [odd]))
    assert read_verified(path) == Verified(HEADER, [odd])
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", json.dumps({"format": "other"})])
def test_another_file_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "verified"
    with pytest.raises(MigrationError, match="does not exist"):
        read_verified(path)
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="was not written by `verify`"):
        read_verified(path)


def test_changes_since_the_verification_are_listed():
    before = v1_service("a", "b")

    def since(after: V1Service) -> list[str]:
        steps = compare(after, v2_service(), timeout=TIMEOUT, limit=65536)
        return migration.changes_since(before, after, steps)

    assert since(before) == []
    assert since(V1Service("svc")) == [], "deletions do not matter"
    assert since(v1_service("a", "b", "c")) == ["svc c was added"]
    assert since(v1_service("a", "b", weight="3"))[0] == "svc a was registered again, or changed"
    assert since(v1_service("a", "b", at=NOW))[0] == "svc a sent a heartbeat"


def test_unreadable_records_are_never_deleted():
    one = V1Service(
        "svc", {"a": PLAIN, "b": {"port": "x"}, "c": None}, frozenset("abc"), {"a": NOW}
    )
    steps = compare(one, v2_service({"a": copied()}), timeout=TIMEOUT, limit=65536)
    steps = [tolerate_delay(step, NOW) for step in steps]
    assert migration.deletable(one, steps).ids == ["a"]
