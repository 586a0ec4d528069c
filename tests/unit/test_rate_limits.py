"""Rate limits: token buckets per client, bounded in memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.server.api.endpoint import ANONYMOUS
from mooring.server.auth.authorization import Principal
from mooring.server.auth.rate_limits import RateLimits, Rates, TokenBuckets, network
from mooring.server.http.response import HTTPError


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@given(
    st.floats(min_value=0.1, max_value=1000),
    st.integers(min_value=1, max_value=50),
    st.lists(st.floats(min_value=0, max_value=10), max_size=100),
)
def test_no_more_requests_pass_than_the_rate_and_the_burst(
    rate: float, burst: int, gaps: list[float]
):
    clock = Clock()
    buckets = TokenBuckets(rate, burst, clock=clock)
    taken = 0
    for gap in gaps:
        clock.seconds += gap
        taken += not buckets.take("a")
    assert taken <= burst + rate * clock.seconds + 1e-6


def test_after_the_wait_a_request_passes():
    clock = Clock()
    buckets = TokenBuckets(0.5, 1, clock=clock)
    assert buckets.take("a") == 0
    assert buckets.take("a") == pytest.approx(2)
    assert buckets.take("b") == 0
    clock.seconds = 2
    assert buckets.take("a") == 0


def test_a_rate_of_zero_means_no_limit():
    buckets = TokenBuckets(0, 0)
    assert not any(buckets.take("a") for _ in range(1000))
    assert len(buckets._left) == 0


def test_memory_is_bounded():
    buckets = TokenBuckets(1, 1, most=10)
    for n in range(1000):
        buckets.take(str(n))
    assert len(buckets._left) == 10


@pytest.mark.parametrize(
    ("client", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1:2", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_addresses_of_one_network_count_as_one_client(client: str, counted: str):
    assert network(client) == counted


def test_every_kind_of_request_has_its_own_limit():
    clock = Clock()
    limits = RateLimits(Rates(reads=1, writes=1, failures=60), clock=clock)
    ann, bob = Principal("ann", "viewer", token="a"), Principal("bob", "viewer", token="b")
    for _ in range(2):
        limits.check("x")
        limits.check_write(ann)
    with pytest.raises(HTTPError, match="your address") as refused:
        limits.check("x")
    assert refused.value.status == 429
    assert refused.value.headers["Retry-After"] == "1"
    with pytest.raises(HTTPError, match="ann"):
        limits.check_write(ann)
    limits.check("y")
    limits.check_write(bob)
    for _ in range(10):
        limits.check_write(ANONYMOUS)
    for _ in range(60):
        limits.count_failure("x")
    with pytest.raises(HTTPError, match="wrong tokens"):
        limits.count_failure("x")
    clock.seconds = 1
    limits.count_failure("x")


def test_by_default_thousands_of_reads_a_second_pass():
    clock = Clock()
    limits = RateLimits(Rates(), clock=clock)
    for n in range(50_000):
        clock.seconds = n / 9_000
        limits.check("x")
