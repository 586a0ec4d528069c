"""The report of a cleanup pass on Redis."""

from __future__ import annotations

from mooring.registry.evictions import CleanupReport


def test_a_cleanup_pass_reports_all_that_it_did():
    one, two = ("echo", "a"), ("echo", "b")
    passed = CleanupReport(
        services=1, removed=[one, two], unhealthy=[one], orphans=[two], lowered=[one]
    )
    assert str(passed) == (
        "1 service checked; 2 instances evicted; 1 marked unhealthy; 1 incomplete record deleted; "
        "1 heartbeat ahead of Redis' clock lowered"
    )
