"""The limit of connections of one address."""

from __future__ import annotations

from mooring.connection_limit import ConnectionLimit


def test_each_address_has_its_own_limit():
    limit = ConnectionLimit(2)
    assert limit.accept(("192.0.2.1", 1)) == "192.0.2.1"
    assert limit.accept(("::ffff:192.0.2.1", 2, 0, 0)) == "192.0.2.1", "the same, mapped to IPv6"
    assert limit.accept(("192.0.2.1", 3)) is None
    assert limit.accept(("192.0.2.2", 1)) is not None
    limit.release("192.0.2.1")
    assert limit.accept(("192.0.2.1", 4)) is not None
    assert limit.accept(("192.0.2.1", 5)) is None


def test_an_ipv6_site_is_one_address():
    limit = ConnectionLimit(1)
    assert limit.accept(("2001:db8::1", 1, 0, 0)) == "2001:db8::/64"
    assert limit.accept(("2001:db8::2", 1, 0, 0)) is None
    assert limit.accept(("2001:db8:0:1::1", 1, 0, 0)) is not None
    assert limit.accept(("fe80::1%eth0", 1, 0, 2)) is not None


def test_loopback_and_exempt_networks_have_no_limit():
    limit = ConnectionLimit(1, exempt=("127.0.0.0/8", "::1", "10.0.0.5"))
    for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.5"):
        assert all(limit.accept((host, port)) == "" for port in range(5)), host
    assert limit.accept("/run/socket") == ""


def test_zero_is_no_limit():
    limit = ConnectionLimit(0)
    assert all(limit.accept(("192.0.2.1", port)) == "" for port in range(2000))
