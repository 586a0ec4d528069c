"""Which results a search returns, and in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mooring.server.api.search import Candidate, best_matches, rank


def service(name: str) -> Candidate:
    return Candidate(kind="service", name=name, texts=(("name", name),))


def test_results_are_ordered_by_match_then_kind_then_name():
    tenant = Candidate(kind="tenant", name="Auth", tenant=7, texts=(("name", "Auth"),))
    instance = Candidate(
        kind="instance", name="h:1", service="x", texts=(("id", "h:1"), ("host", "auth"))
    )
    candidates = [service("oauth"), instance, service("authz"), tenant, service("auth")]
    results = [
        (match.kind, match.name, match.match) for match in best_matches(candidates, "AUTH", 10)
    ]
    assert results == [
        ("service", "auth", "exact"),
        ("tenant", "Auth", "exact"),
        ("instance", "h:1", "exact"),
        ("service", "authz", "prefix"),
        ("service", "oauth", "substring"),
    ]


def test_a_result_has_its_path_in_the_api():
    instance = Candidate(
        kind="instance", name="[::1]:80", service="Common/x", texts=(("metadata.a", "find me"),)
    )
    (result,) = best_matches([instance], "find", 10)
    assert result.path == "/admin/registry/services/Common%2Fx/instances/%5B%3A%3A1%5D%3A80"
    assert (result.field, result.text) == ("metadata.a", "find me")
    (lock,) = best_matches([Candidate(kind="lock", name="a/b", texts=(("name", "a/b"),))], "a", 10)
    assert lock.path == "/admin/locks/a%2Fb"


def test_only_the_beginning_of_a_huge_text_is_searched():
    assert rank("x" * 1_000_000 + "needle", "needle") is None
    (result,) = best_matches([service("needle" + "x" * 1_000_000)], "needle", 10)
    assert len(result.text) == len(result.name) == 200


@given(st.lists(st.text(max_size=4), max_size=20), st.text(min_size=1, max_size=3))
def test_the_order_of_results_is_independent_of_the_order_of_candidates(names: list[str], q: str):
    candidates = [service(name) for name in names]
    once = best_matches(candidates, q, 100)
    assert once == best_matches(candidates[::-1], q, 100)
    assert all(q.casefold() in result.name.casefold() for result in once)
    assert best_matches(candidates, q, 3) == once[:3]
