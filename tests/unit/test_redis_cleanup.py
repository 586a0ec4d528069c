"""The report of a cleanup pass on Redis."""

from __future__ import annotations

from mooring.registry.contract import CleanupReport


def test_a_cleanup_pass_reports_all_that_it_did():
    one, two = ("echo", "a"), ("echo", "b")
    passed = CleanupReport(
        services=1, removed=[one, two], unhealthy=[one], orphans=[two], lowered=[one]
    )
    assert str(passed) == (
        "1 service looked at; 2 instances taken out; 1 marked unhealthy; 1 remains cleared away; "
        "1 heartbeat ahead of Redis' clock lowered"
    )
