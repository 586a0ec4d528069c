"""What the doctor makes of what it sees."""

from __future__ import annotations

import pytest

from mooring.doctor import judge_clock, judge_member, judge_status
from mooring.store import Member, Status


@pytest.mark.parametrize(
    ("member", "level", "says"),
    [
        (Member("h:1", "3.5.9", 0.001, leader=True), "ok", "3.5.9, leader"),
        (Member("h:1", "3.5.1", 0.001), "warning", "upgrade"),
        (Member("h:1", "3.3.0", 0.001), "warning", "3.4"),
        (Member("h:1", "3.6.0-rc.1", 0.001), "ok", "3.6.0-rc.1"),
        (Member("h:1", "3.5.9", 0.5), "warning", "slow"),
        (Member("h:1", problem="nothing listens"), "error", "nothing listens"),
    ],
)
def test_a_member(member: Member, level: str, says: str):
    finding = judge_member(member)
    assert finding.level == level
    assert says in finding.text


@pytest.mark.parametrize(
    ("ahead", "level", "says"),
    [
        ((-0.5, 0.6), "ok", "agrees"),
        ((3599.0, 3600.0), "warning", "at least 59m59s ahead"),
        ((-7.0, -6.0), "warning", "at least 6s behind"),
        (None, "ok", "not measured"),
    ],
)
def test_a_clock(ahead: tuple[float, float] | None, level: str, says: str):
    finding = judge_clock(Member("h:1", "3.5.9", 0.001, clock_ahead=ahead))
    assert finding is not None
    assert finding.level == level
    assert says in finding.text


def test_a_dead_member_has_no_clock():
    assert judge_clock(Member("h:1", problem="gone")) is None


def test_alarms_and_mixed_versions_and_no_leader():
    members = (Member("a:1", "3.5.9", 0.1), Member("b:1", "3.4.23", 0.1))
    findings = list(judge_status(Status("etcd", 5, members, ("NOSPACE: full",))))
    assert [finding.about for finding in findings] == ["leader", "versions", "alarm"]
