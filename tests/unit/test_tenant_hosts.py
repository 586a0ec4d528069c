"""One normal form of host names, for publishers, lookups and requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.tasks import run_now
from mooring.tenants.keys import host_of, normal_host, punycode
from mooring.tenants.model import Domain, Tenant
from mooring.tenants.read.snapshot import TenantSnapshot
from mooring.tenants.read.tenants import Tenants

KNOWN = {
    "bücher.example": "xn--bcher-kva.example",
    "BÜCHER.Example": "xn--bcher-kva.example",
    "bu\u0308cher.example": "xn--bcher-kva.example",
    "例え.テスト": "xn--r8jz45g.xn--zckzah",
    "www.例子.com": "www.xn--fsqu00a.com",
    # As IDNA 2008 and browsers write them; the codec of Python would make other domains of these.
    "straße.de": "xn--strae-oqa.de",
    "βόλος.com": "xn--nxasmm1c.com",
}


@pytest.mark.parametrize(("host", "written"), KNOWN.items())
def test_a_unicode_host_has_the_punycode_that_browsers_send(host: str, written: str):
    assert punycode(host) == written
    assert host_of(host) == host_of(f"{host}.:8080") == normal_host(host) == written


@pytest.mark.parametrize("host", ["☃.example", "a b.example", "ü..example", "ü" * 64, "ü\u202e.de"])
def test_a_host_that_no_request_can_carry_has_no_punycode(host: str):
    assert punycode(host) == ""
    assert host_of(host) is None


@given(st.text("àéîõüçñåæøþščžłęąőűğışабвгдежα", min_size=1, max_size=30))
def test_punycode_agrees_with_the_older_standard_on_ordinary_letters(label: str):
    assert punycode(f"{label}.example") == f"{label}.example".encode("idna").decode()


@pytest.mark.parametrize(
    "stored", ["shop.example", "SHOP.example", "shop.example.", "shop.example:80"]
)
@pytest.mark.parametrize(
    "asked",
    ["shop.example", "Shop.Example", "shop.example.", "shop.example:8443", " SHOP.EXAMPLE.:1"],
)
def test_a_lookup_accepts_a_host_as_requests_carry_it(stored: str, asked: str):
    """`stored` may come from another program: a publisher rejects a port and a trailing dot."""
    snapshot, _ = run_now(TenantSnapshot().changing({7: Tenant(7, domain=Domain(primary=stored))}))
    tenants = Tenants(snapshot)
    assert tenants.by_host(asked) == 7
    for other in ("", "example", "shop.example.com", "shop.example:http", "[::1]", "a b", "."):
        assert tenants.by_host(other) is None


def test_a_host_stored_in_unicode_by_another_program_matches_requests():
    snapshot, _ = run_now(
        TenantSnapshot().changing({7: Tenant(7, domain=Domain(aliases=("Bücher.example",)))})
    )
    tenants = Tenants(snapshot)
    assert tenants.by_host("xn--bcher-kva.example:443") == 7
    assert tenants.by_host("bücher.example") == 7
