"""What the doctor concludes from what it sees."""

from __future__ import annotations

import pytest

from mooring.cli.commands.doctor import (
    judge_clock,
    judge_coverage,
    judge_member,
    judge_sentinels,
    judge_server,
    judge_status,
)
from mooring.messages import verbatim
from mooring.registry.redis.server_info import Sentinels, ServerInfo, SlotCoverage
from mooring.store import Member, StoreStatus


@pytest.mark.parametrize(
    ("member", "level", "text"),
    [
        (Member("h:1", "3.5.9", 0.001, leader=True), "ok", "3.5.9, leader"),
        (Member("h:1", "3.5.1", 0.001), "warning", "upgrade"),
        (Member("h:1", "3.3.0", 0.001), "warning", "3.4"),
        (Member("h:1", "3.6.0-rc.1", 0.001), "ok", "3.6.0-rc.1"),
        (Member("h:1", "3.5.9", 0.5), "warning", "slow"),
        (Member("h:1", problem=verbatim("nothing listens")), "error", "nothing listens"),
    ],
)
def test_a_member(member: Member, level: str, text: str):
    finding = judge_member(member)
    assert finding.level == level
    assert text in finding.text


@pytest.mark.parametrize(
    ("ahead", "level", "text"),
    [
        ((-0.5, 0.6), "ok", "agrees"),
        ((3599.0, 3600.0), "warning", "at least 59m59s ahead"),
        ((-7.0, -6.0), "warning", "at least 6s behind"),
        (None, "ok", "not measured"),
    ],
)
def test_a_clock(ahead: tuple[float, float] | None, level: str, text: str):
    finding = judge_clock(Member("h:1", "3.5.9", 0.001, clock_ahead=ahead))
    assert finding is not None
    assert finding.level == level
    assert text in finding.text


def test_a_dead_member_has_no_clock():
    assert judge_clock(Member("h:1", problem=verbatim("gone"))) is None


def test_alarms_and_mixed_versions_and_no_leader():
    members = (Member("a:1", "3.5.9", 0.1), Member("b:1", "3.4.23", 0.1))
    findings = list(judge_status(StoreStatus("etcd", 5, members, (verbatim("NOSPACE: full"),))))
    assert [finding.about for finding in findings] == ["leader", "versions", "alarm"]


REDIS = {"redis_version": "7.0.15", "role": "master", "aof_enabled": "1"}


def by_subject(server: ServerInfo, *, alone: bool = True) -> dict[str, tuple[str, str]]:
    """The findings about a server by their subject; of two with one subject, the last."""
    findings = judge_server(server, alone=alone)
    return {finding.about: (finding.level, finding.text) for finding in findings}


@pytest.mark.parametrize(
    ("info", "about", "level", "text"),
    [
        ({"redis_version": "6.2.14"}, "version", "ok", "Redis 6.2.14, master"),
        ({"valkey_version": "9.1.2"}, "version", "ok", "Valkey 9.1.2"),
        ({"redis_version": "6.0.16"}, "version", "warning", "6.2"),
        ({"role": "slave", "master_host": "h", "master_port": "1"}, "", "error", "replica of h:1"),
        ({"redis_mode": "sentinel"}, "", "error", "redis+sentinel://h:1/NAME"),
        ({}, "memory", "ok", "without a limit"),
        ({"maxmemory": "9"}, "memory", "ok", "nothing is evicted"),
        ({"maxmemory": "9", "maxmemory_policy": "allkeys-lru"}, "memory", "warning", "registratio"),
        ({"maxmemory": "9", "maxmemory_policy": "volatile-ttl"}, "memory", "warning", "brakes"),
        ({"maxmemory": "100", "used_memory": "95"}, "memory", "warning", "nearly full"),
        ({}, "persistence", "ok", "append-only"),
        ({"aof_last_write_status": "err"}, "persistence", "error", "cannot be written"),
        ({"aof_enabled": "0"}, "persistence", "warning", "lost"),
        ({"aof_enabled": "0", "connected_slaves": "2"}, "persistence", "ok", "2 replicas"),
    ],
)
def test_a_redis(info: dict[str, str], about: str, level: str, text: str):
    server = ServerInfo("h:1", 0.001, info=REDIS | info, saves="", clock_ahead=(0.0, 0.0))
    if about == "version":
        finding = next(judge_server(server, alone=True))
        assert (finding.level, text in finding.text) == (level, True), finding
    else:
        outcome = by_subject(server)[f"h:1 {about}".rstrip()]
        assert (outcome[0], text in outcome[1]) == (level, True), outcome


def test_a_replica_is_fine_if_a_sentinel_names_the_master():
    server = ServerInfo("h:1", 0.001, info=REDIS | {"role": "slave"}, clock_ahead=(0.0, 0.0))
    assert {level for level, _ in by_subject(server, alone=False).values()} == {"ok"}


def test_a_redis_that_refuses_info_is_no_warning():
    findings = list(judge_server(ServerInfo("h:1", 0.001), alone=True))
    assert [finding.level for finding in findings] == ["ok", "ok"]
    assert "INFO is refused" in findings[0].text


@pytest.mark.parametrize(
    ("sentinels", "levels", "text"),
    [
        (Sentinels("m", (ServerInfo("s:1", 0.1),), "h:1"), ["ok"], "enough agree"),
        (
            Sentinels("m", (ServerInfo("s:1", 0.1),), "h:1", "NOQUORUM"),
            ["error"],
            "failover is impossible",
        ),
        (Sentinels("m", (ServerInfo("s:1", 0.1),)), ["error"], "no master 'm'"),
        (
            Sentinels("m", (ServerInfo("s:1", problem="gone"),)),
            ["warning", "error"],
            "0 of the 1",
        ),
    ],
)
def test_sentinels(sentinels: Sentinels, levels: list[str], text: str):
    findings = list(judge_sentinels(sentinels))
    assert [finding.level for finding in findings] == levels
    assert text in findings[-1].text


def test_a_cluster_is_covered_or_not():
    assert judge_coverage(SlotCoverage("ok", 16384, 3)).level == "ok"
    finding = judge_coverage(SlotCoverage("fail", 10923, 2))
    assert (finding.level, "10923 of 16384" in finding.text) == ("error", True)
