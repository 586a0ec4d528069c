"""The stores that tests run on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

BACKENDS = ("memory", "sqlite", "served", "etcd-3.5", "etcd-3.4")
"""Every store. The contract of a store is tested on all of them."""

USUAL = ("memory", "etcd-3.5")
"""One of each family. Features that build on the contract of a store are tested on these."""


def usual(
    chosen: Collection[Any],
    rest: Collection[Any] = BACKENDS,
    *,
    reason: str = "tests/contract/test_store.py shows that all stores behave alike",
) -> list[Any]:
    """Parameters of a fixture: the chosen ones, and the rest only in the extended run."""
    extended = pytest.mark.extended(reason)
    return [
        *chosen,
        *(pytest.param(backend, marks=extended) for backend in rest if backend not in chosen),
    ]


OF_THE_API = "the API decides it; what a store decides runs on each kind by default"
"""The reason for most tests of the admin API to run on one store."""

in_memory = pytest.mark.parametrize(
    "backend", usual(["memory"], ["sqlite", "etcd-3.5"]), indirect=True
)
"""For tests with many operations that cannot differ between stores."""
without_store = pytest.mark.parametrize("backend", ["memory"], indirect=True)
"""For requests that are refused before they reach a store."""
