"""`make test-changed` selects the tests of what changed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tests_for() -> Callable[[str], set[str]]:
    spec = importlib.util.spec_from_file_location("tests_of", ROOT / "tools" / "tests_of.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        imports = tool.imports_of_tests()

    def chosen(changed: str) -> set[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(ROOT)
            return {str(path) for path in tool.chosen_for([changed], imports)}

    return chosen


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("src/mooring/locks/lock.py", ["features/test_locks.py", "faults/test_locks_faults.py"]),
        ("src/mooring/locks", ["features/test_locks.py", "features/test_lock_kinds.py"]),
        ("src/mooring/locks/sql/fencing.sql", ["features/test_locks.py"]),
        ("src/mooring/registry/redis/scripts/list.lua", ["contract/test_registry_on_redis.py"]),
        ("docs/locks.md", ["acceptance/test_docs.py"]),
        ("tests/unit/test_lock_admission_rules.py", ["unit/test_lock_admission_rules.py"]),
        ("tools/tests_of.py", ["unit/test_tests_of.py"]),
    ],
)
def test_a_change_selects_its_tests(
    changed: str, tests: list[str], tests_for: Callable[[str], set[str]]
):
    assert {f"tests/{test}" for test in tests} <= tests_for(changed)


def test_a_page_of_the_console_selects_only_the_browser_tests(
    tests_for: Callable[[str], set[str]],
):
    selected = tests_for("src/mooring/server/console/pages/locks.js")
    assert {Path(test).parent.name for test in selected} == {"console"}
