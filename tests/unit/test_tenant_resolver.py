"""Which tenant a request is for: every way to name one, and every malformed request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest, NotConfigured, Unavailable
from mooring.messages import message
from mooring.tasks import run_now
from mooring.tenants import acting_for, current, current_or_none
from mooring.tenants.keys import host_of
from mooring.tenants.model import Domain, Meta, Resolver, Tenant
from mooring.tenants.read.snapshot import TenantSnapshot
from mooring.tenants.read.tenants import Tenants
from mooring.tenants.resolver import (
    UNAVAILABLE,
    UNRESOLVED,
    Admission,
    TenantReference,
    TenantRejection,
    tenant_reference,
)


class Request(msgspec.Struct):
    path: str = "/"
    query: str = ""
    headers: Mapping[str, Sequence[str]] = {}

    def header(self, name: str) -> Sequence[str]:
        return self.headers.get(name.lower(), ())


def host(*values: str, path: str = "/") -> Request:
    return Request(path, headers={"host": values})


def header(*values: str) -> Request:
    return Request(headers={"x-tenant-id": values})


def tenant(id: int, code: str, *hosts: str, status: str = "active") -> Tenant:
    return Tenant(id, Meta(id=id, code=code, status=status), Domain(aliases=hosts))


DOCS = Path(__file__).parents[2] / "docs/tenants.md"

ACME = tenant(7, "Acme", "acme.example.com", "shop.example.org")
TENANTS = [
    ACME,
    tenant(8, "inert", status="inactive"),
    tenant(9, "broke", "broke.example.com", status="suspended"),
    tenant(10, "odd", status="on holiday"),
    tenant(11, "123"),
    Tenant(12, None, Domain(primary="early.example.com")),
]


def all_of(tenants: Sequence[Tenant], resolver: Resolver | None = None) -> Tenants:
    snapshot, _ = run_now(
        TenantSnapshot(resolver=resolver or Resolver()).changing({t.id: t for t in tenants})
    )
    return Tenants(snapshot)


def decide(resolver: Resolver, request: Request, **settings: object) -> object:
    """The id of the tenant, None, or the status and code of the refusal."""
    admission = Admission(resolver=resolver, **settings)  # type: ignore[arg-type]
    decided = admission.decide(all_of(TENANTS), request)
    if isinstance(decided, TenantRejection):
        return decided.status, decided.code
    return decided and decided.id


HEADER = Resolver()
QUERY = Resolver(http_type="query", http_query_param="who")
PATH = Resolver(http_type="path", http_path_index=1)
NUMERIC = Resolver(http_type="host", http_host_mode="numeric")
DOMAIN = Resolver(http_type="host", http_host_mode="domain")
BY_CODE = Resolver(http_type="host", http_host_mode="code")

MISSING, AMBIGUOUS, MALFORMED, UNKNOWN = (
    (400, "tenant_missing"),
    (400, "tenant_ambiguous"),
    (400, "tenant_malformed"),
    (404, "tenant_unknown"),
)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (header("7"), 7),
        (header(" 7\t"), 7),
        (header("acme"), 7),
        (header("ACME"), 7),
        (header("acme", "Acme"), 7),
        (header("acme,acme, "), 7),
        (header("7", "7"), 7),
        (header(), MISSING),
        (header(""), MISSING),
        (header(" , "), MISSING),
        (header("7", "8"), AMBIGUOUS),
        (header("7,8"), AMBIGUOUS),
        (header("7", "acme"), AMBIGUOUS),
        (header("0"), UNKNOWN),
        (header("-7"), UNKNOWN),
        (header("07"), UNKNOWN),
        (header("٧"), UNKNOWN),
        (header("123"), UNKNOWN),  # digits are an id, although there is such a code
        (header("9" * 30), UNKNOWN),
        (header("9" * 100_000), MALFORMED),
        (header("a" * 256), MALFORMED),
        (header("a\x00b"), MALFORMED),
        (header("\ud800"), MALFORMED),
        (header("\ufffd"), UNKNOWN),
        (header("12"), UNKNOWN),  # it has a domain but no meta yet
        (header("8"), (403, "tenant_inactive")),
        (header("broke"), (403, "tenant_suspended")),
        (header("odd"), (403, "tenant_inactive")),
    ],
)
def test_tenant_from_a_header(request_: Request, expected: object):
    assert decide(HEADER, request_) == expected


def test_the_name_of_the_header_is_configurable():
    resolver = Resolver(http_header_name="X-Org")
    assert decide(resolver, Request(headers={"x-org": ["7"]})) == 7
    assert decide(resolver, header("7")) == MISSING
    assert decide(Resolver(http_header_name=""), header("7")) == 7


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("who=7", 7),
        ("a=b&who=AcMe&c", 7),
        ("who=%61cme", 7),
        ("w%68o=7", 7),
        ("who=7&who=7&who=", 7),
        ("", MISSING),
        ("who", MISSING),
        ("who=", MISSING),
        ("Who=7", MISSING),
        ("whose=7", MISSING),
        ("who=7&who=8", AMBIGUOUS),
        ("who=%37&who=8", AMBIGUOUS),
        ("who=+7", UNKNOWN),
        ("who=%2537", UNKNOWN),
        ("who=%ff%fe", UNKNOWN),
        ("who=%", UNKNOWN),
        ("who=a%0d%0ab", MALFORMED),
        ("who=" + "x" * 300, MALFORMED),
    ],
)
def test_tenant_from_a_query_parameter(query: str, expected: object):
    assert decide(QUERY, Request(query=query)) == expected


def test_the_query_parameter_has_a_default_name():
    assert decide(Resolver(http_type="query", http_query_param=""), Request(query="tenant=7")) == 7


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/7", 7),
        ("/api/acme/orders/8", 7),
        ("//api///ACME/", 7),
        ("api/7", 7),
        ("/", MISSING),
        ("", MISSING),
        ("/7", MISSING),
        ("/api/", MISSING),
        ("/api/ 7", UNKNOWN),
        ("/api/..", UNKNOWN),
        ("/api/" + "7" * 1000, MALFORMED),
    ],
)
def test_tenant_from_a_path_segment(path: str, expected: object):
    assert decide(PATH, Request(path)) == expected


def test_path_segments_are_counted_from_0_and_never_from_the_end():
    assert decide(Resolver(http_type="path", http_path_index=0), Request("/7/x")) == 7
    assert decide(Resolver(http_type="path", http_path_index=-1), Request("/x/7")) == MISSING
    assert decide(Resolver(http_type="path", http_path_index=2**70), Request("/x/7")) == MISSING


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("acme.example.com", 7),
        ("ACME.Example.Com", 7),
        ("acme.example.com.", 7),
        ("acme.example.com:8080", 7),
        ("acme.example.com.:8080", 7),
        ("acme.example.com:", 7),
        (" shop.example.org ", 7),
        ("other.example.com", UNKNOWN),
        ("example.com", UNKNOWN),
        ("127.0.0.1:80", UNKNOWN),
        ("[::1]:80", UNKNOWN),
        ("early.example.com", UNKNOWN),
        ("broke.example.com", (403, "tenant_suspended")),
        ("", MISSING),
        (":80", MISSING),
        ("acme.example.com:http", MALFORMED),
        ("acme.example.com:80:80", MALFORMED),
        ("acme.example.com,shop.example.org", MALFORMED),
        ("me@acme.example.com", MALFORMED),
        ("acme.example.com/x", MALFORMED),
        ("acme..example.com", MALFORMED),
        ("a\u212aacme.example.com", MALFORMED),
        ("[::1", MALFORMED),
        ("[acme]", MALFORMED),
        ("a." * 1000, MALFORMED),
        ("acme.example.com\x00", MALFORMED),
    ],
)
def test_tenant_from_a_domain(value: str, expected: object):
    assert decide(DOMAIN, host(value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7.example.com", 7),
        ("7.example.com:80", 7),
        ("7", 7),
        ("70.example.com", UNKNOWN),
        ("07.example.com", UNKNOWN),
        ("acme.example.com", MISSING),
        ("7.0.0.1", MISSING),
        ("7.0.0.1:8080", MISSING),
        ("[7::1]", MISSING),
    ],
)
def test_tenant_from_the_number_in_a_host(value: str, expected: object):
    assert decide(NUMERIC, host(value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("acme.anything.test", 7),
        ("ACME.anything.test:1", 7),
        ("acme", 7),
        ("123.example.com", 11),
        ("7.example.com", UNKNOWN),  # not a code, although there is such an id
        ("123.0.0.1", MISSING),
        ("[::1]", MISSING),
        ("www.example.com", UNKNOWN),
    ],
)
def test_tenant_from_the_code_in_a_host(value: str, expected: object):
    assert decide(BY_CODE, host(value)) == expected


@pytest.mark.parametrize("resolver", [NUMERIC, DOMAIN, BY_CODE])
def test_a_repeated_host_header_is_malformed(resolver: Resolver):
    assert decide(resolver, Request()) == MISSING
    assert decide(resolver, host("acme.example.com", "acme.example.com")) == AMBIGUOUS


def test_a_forwarded_host_is_used_only_if_configured():
    request = Request(
        headers={"host": ["broke.example.com"], "x-forwarded-host": ["acme.example.com"]}
    )
    assert decide(DOMAIN, request) == (403, "tenant_suspended")
    assert decide(DOMAIN, request, host_header="X-Forwarded-Host") == 7
    through_two = Request(headers={"x-forwarded-host": ["acme.example.com, a.example.com"]})
    assert decide(DOMAIN, through_two, host_header="X-Forwarded-Host") == MALFORMED


@pytest.mark.parametrize(
    ("resolver", "request_", "expected"),
    [
        (HEADER, header(), None),
        (HEADER, header("7"), 7),
        (HEADER, header("nobody"), UNKNOWN),
        (HEADER, header("9"), (403, "tenant_suspended")),
        (HEADER, header("7", "8"), AMBIGUOUS),
        (QUERY, Request(query="who="), None),
        (PATH, Request("/"), None),
        (PATH, Request("/a/b"), UNKNOWN),
        (DOMAIN, host("www.example.com"), None),
        (DOMAIN, host("broke.example.com"), (403, "tenant_suspended")),
        (DOMAIN, host("a@b"), MALFORMED),
        (BY_CODE, host("www.example.com"), None),
        (BY_CODE, host("10.0.0.1"), None),
        (NUMERIC, host("www.example.com"), None),
        (NUMERIC, host("70.example.com"), UNKNOWN),
    ],
)
def test_an_optional_tenant_must_be_valid_if_named(
    resolver: Resolver, request_: Request, expected: object
):
    assert decide(resolver, request_, required=False) == expected


def test_the_refused_states_are_configurable():
    assert decide(HEADER, header("8"), refuse=["suspended"]) == 8
    assert decide(HEADER, header("odd"), refuse=["suspended"]) == 10
    assert decide(HEADER, header("9"), refuse=["suspended"]) == (403, "tenant_suspended")
    assert decide(HEADER, header("9"), refuse=()) == 9
    assert decide(HEADER, header("12"), refuse=()) == UNKNOWN


def test_exempt_paths_need_no_tenant_but_similar_paths_do():
    exempt = ["/health", "/static/"]
    for path in ("/health", "/health/", "/health/deep", "/static", "/static/a.css"):
        assert decide(HEADER, Request(path), exempt=exempt) is None
    for path in ("/healthy", "/", "", "/a/health", "//health", "/Health"):
        assert decide(HEADER, Request(path), exempt=exempt) == MISSING


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"refuse": ["supended"]},
            "refuse must be one of active, inactive, suspended",
        ),
        ({"refuse": "suspended"}, "a collection"),
        ({"exempt": "/health"}, "a collection"),
        ({"exempt": ["health"]}, "'health' cannot be exempt"),
        ({"exempt": ["/"]}, "'/' cannot be exempt"),
        ({"exempt": [""]}, "'' cannot be exempt"),
    ],
)
def test_invalid_settings_are_refused(settings: Mapping[str, object], message: str):
    with pytest.raises(InvalidRequest, match=message):
        Admission(**settings)  # type: ignore[arg-type]


def unreachable() -> Tenants:
    raise Unavailable("the store is away")


@pytest.mark.parametrize("source", [None, lambda: None, unreachable])
def test_every_request_is_unavailable_before_tenants_are_loaded(
    source: Callable[[], Tenants | None] | None,
):
    for required in (True, False):
        admission = Admission(required=required, exempt=["/health"])
        assert admission.decide(source, header("7")) is UNAVAILABLE
        assert admission.decide(source, Request("/health")) is None
    assert (UNAVAILABLE.status, UNAVAILABLE.code) == (503, "tenants_unavailable")


def test_the_resolver_settings_are_those_of_the_current_snapshot():
    admission = Admission()
    now = all_of(TENANTS, HEADER)
    assert admission.decide(lambda: now, header("7")) == ACME
    now = all_of(TENANTS, DOMAIN)
    assert admission.decide(lambda: now, host("acme.example.com")) == ACME


def _message(value: object) -> object:
    """A parameter, which may be a message, as data."""
    if isinstance(value, dict):
        return message(value["kind"], **value["params"])
    return value


def test_a_rejection_says_what_was_missing_and_which_tenant_was_named():
    def rejection(resolver: Resolver, request: Request) -> object:
        decided = Admission(resolver=resolver).decide(all_of(TENANTS), request)
        assert isinstance(decided, TenantRejection)
        assert dict(decided.headers)["content-type"] == "application/json"
        assert dict(decided.headers)["content-length"] == str(len(decided.body))
        error = json.loads(decided.body)["error"]
        params = {name: _message(value) for name, value in error["params"].items()}
        assert message(error["kind"], **params).text == error["message"]
        return error["message"], error["tenant"]

    assert rejection(HEADER, header()) == (
        "the header X-Tenant-ID is missing: it names the tenant",
        None,
    )
    assert rejection(QUERY, Request()) == (
        "the query parameter who is missing: it names the tenant",
        None,
    )
    assert rejection(PATH, Request()) == (
        "segment 1 of the path, counted from 0, is missing: it names the tenant",
        None,
    )
    assert rejection(DOMAIN, Request()) == ("the header host is missing: it names the tenant", None)
    assert rejection(NUMERIC, host("www.example.com")) == (
        "the host www.example.com does not begin with the id of a tenant",
        None,
    )
    assert rejection(HEADER, header("70")) == ("no tenant has this id", 70)
    assert rejection(HEADER, header('<b>"')) == ("no tenant has this code", '<b>"')
    assert rejection(DOMAIN, host("x.example.com:80")) == (
        "no tenant has this host",
        "x.example.com",
    )
    assert rejection(HEADER, header("Broke")) == ("the tenant is suspended", "Broke")


def test_the_documentation_shows_the_body_of_a_rejection():
    (example,) = re.findall(r"```json\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    decided = Admission().decide(all_of(TENANTS, HEADER), header())
    assert isinstance(decided, TenantRejection)
    assert json.loads(decided.body) == json.loads(example)


TEXT = st.text(max_size=400) | st.text("7acme.:[]%&=,/ \x00\ufffd", max_size=40)
NAMES = st.sampled_from(["", "X-Tenant-ID", "tenant", "7"]) | st.text(max_size=200)


@given(
    resolver=st.builds(
        Resolver,
        http_type=st.sampled_from(["host", "header", "query", "path"]),
        http_header_name=NAMES,
        http_query_param=NAMES,
        http_path_index=st.integers(),
        http_host_mode=st.sampled_from(["numeric", "domain", "code"]),
    ),
    path=TEXT,
    query=TEXT,
    values=st.lists(TEXT, max_size=3),
    required=st.booleans(),
)
def test_any_request_gets_a_decision(
    resolver: Resolver, path: str, query: str, values: list[str], required: bool
):
    class Any(Request):
        def header(self, name: str) -> Sequence[str]:
            return values

    admission = Admission(resolver=resolver, required=required)
    decided = admission.decide(all_of(TENANTS), Any(path, query))
    if isinstance(decided, TenantRejection):
        assert len(decided.body) < 3000
        error = json.loads(decided.body)["error"]
        assert error.keys() == {"code", "message", "kind", "params", "tenant"}
    elif decided is None:
        assert not required
    else:
        assert decided.id in (7, 11)


@given(st.integers(1, 2**63 - 1))
def test_every_id_can_be_named_in_every_way(id: int):
    for resolver, request in (
        (HEADER, header(str(id))),
        (QUERY, Request(query=f"who={id}")),
        (PATH, Request(f"/x/{id}")),
        (NUMERIC, host(f"{id}.example.com")),
    ):
        assert tenant_reference(resolver, request) == TenantReference("id", str(id))
        assert TenantReference("id", str(id)).shown == id


@given(st.from_regex(r"([a-z0-9-]{1,63}\.){0,3}[a-z]{1,63}", fullmatch=True), st.integers(0, 65535))
def test_a_host_matches_in_every_spelling(name: str, port: int):
    for spelt in (name, name.upper(), f"{name}.", f"{name}:{port}", f" {name}.:{port} "):
        assert host_of(spelt) == name


def test_code_outside_a_request_selects_its_tenant():
    assert current_or_none() is None
    with pytest.raises(NotConfigured, match="no current tenant"):
        current()
    with acting_for(ACME):
        assert current() is current_or_none() is ACME
        with acting_for(None):
            assert current_or_none() is None
        assert current() is ACME
    assert current_or_none() is None


def test_an_unreadable_resolver_rejects_every_request(caplog: pytest.LogCaptureFixture):
    snapshot, _ = run_now(TenantSnapshot(resolver=None).changing({7: ACME}))
    tenants = Tenants(snapshot)
    admission = Admission(required=False, exempt=["/health"])
    for _ in range(3):
        assert admission.decide(tenants, header("7")) is UNRESOLVED
    assert (UNRESOLVED.status, UNRESOLVED.code) == (503, "tenants_unavailable")
    assert "common/resolver" in UNRESOLVED.message.text
    assert caplog.text.count("are rejected") == 1, "once, and not for each request"
    assert admission.decide(tenants, Request("/health")) is None
    assert Admission(resolver=DOMAIN).decide(tenants, host("acme.example.com")) is ACME
    tenants.show(all_of(TENANTS).snapshot)
    assert admission.decide(tenants, header("7")) is ACME
    tenants.show(snapshot)
    assert admission.decide(tenants, header("7")) is UNRESOLVED
    assert caplog.text.count("are rejected") == 2


def test_missing_tenants_are_logged_once(caplog: pytest.LogCaptureFixture):
    def source() -> Tenants:
        raise Unavailable("the store is away")

    admission = Admission()
    for _ in range(3):
        assert admission.decide(source, header("7")) is UNAVAILABLE
    assert caplog.text.count("the store is away") == 1
