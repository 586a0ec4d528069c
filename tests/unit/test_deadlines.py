"""A failed test of a deadline is repeated only if the machine was measurably late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import deadlines
from tests.deadlines import Lateness

FAILS = """
import pytest

@pytest.mark.{mark}
async def test_promise():
    with open("attempts", "a") as file:
        file.write("x")
    with open("attempts") as file:
        assert len(file.read()) >= {passing_attempt}, "too late"
"""

HANGS = """
import time

import pytest

@pytest.mark.deadline
@pytest.mark.timeout(0.5)
def test_promise():
    with open("attempts", "a") as file:
        file.write("x")
    time.sleep(60)
"""


WATCHED = """
from tests import deadlines, virtual_time

deadlines.HELD_UP_AT_ONCE = deadlines.HELD_UP_ON_AVERAGE = {bound}

def pytest_configure(config):
    config.pluginmanager.register(deadlines.Deadlines())
    config.pluginmanager.register(virtual_time.Clocks())
"""


LEAKS = """
import pytest

@pytest.fixture
def checked():
    yield
    assert False, "a task is left"

@pytest.mark.deadline
def test_promise(checked):
    with open("attempts", "a") as file:
        file.write("x")
"""


REAL_AND_VIRTUAL = """
import asyncio

import pytest

@pytest.mark.deadline
async def test_real():
    with open("attempts", "a") as file:
        file.write("x")

@pytest.mark.deadline
@pytest.mark.virtual_time
@pytest.mark.timeout(20)
async def test_virtual():
    await asyncio.sleep(3600)
"""


LATE_FIXTURE = """
import os, signal, time

import pytest

@pytest.fixture
def late(request):
    (plugin,) = (
        each for each in request.config.pluginmanager.get_plugins() if hasattr(each, "_reference")
    )
    os.kill(plugin._reference._process.pid, signal.SIGSTOP)
    time.sleep(1.5)  # the delay that is measured
    os.kill(plugin._reference._process.pid, signal.SIGCONT)
    plugin._reference.since(time.monotonic())

@pytest.mark.deadline
def test_promise(late):
    with open("attempts", "a") as file:
        file.write("x")
    raise AssertionError("too late")
"""


def run(
    pytester: pytest.Pytester,
    *,
    machine_late: bool,
    passing_attempt: int = 1,
    mark: str = "deadline",
    test: str = FAILS,
    bound: float = 1000.0,
) -> tuple[pytest.RunResult, int]:
    """Run pytest in a separate process. In this one, it would forget the modules that it
    imported, and libraries that import them again have two of each class."""
    pytester.makeconftest(WATCHED.format(bound=-1.0 if machine_late else bound))
    pytester.makepyfile(test.format(mark=mark, passing_attempt=passing_attempt))
    pytester.makeini(
        "[pytest]\nmarkers = deadline\n    virtual_time\nasyncio_mode = auto\n"
        "asyncio_default_fixture_loop_scope = function"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(deadlines.__file__).parents[1]))
        arguments = ("no:cacheprovider", "no:xdist", "no:schemathesis", "no:anyio")
        done = pytester.runpytest_subprocess(*(f"-p{plugin}" for plugin in arguments))
    return done, len(Path("attempts").read_text())


def test_on_a_punctual_machine_a_failure_stands(pytester: pytest.Pytester):
    done, attempts = run(pytester, machine_late=False, passing_attempt=2)
    done.assert_outcomes(failed=1)
    assert attempts == 1
    done.stdout.fnmatch_lines(
        ["*The machine was on time. In this one the reference process was held up for *"]
    )
    done.stdout.fnmatch_lines(["inconclusive attempts of deadline tests: 0"])


def test_on_a_late_machine_a_failure_is_inconclusive_and_repeated(pytester: pytest.Pytester):
    done, attempts = run(pytester, machine_late=True, passing_attempt=3)
    done.assert_outcomes(passed=1)
    assert attempts == 3
    done.stdout.fnmatch_lines(
        [
            "inconclusive attempts of deadline tests: 2",
            "*::test_promise: *; call: AssertionError: too late",
        ]
    )


def test_after_three_inconclusive_attempts_the_test_fails_with_the_reason(
    pytester: pytest.Pytester,
):
    done, attempts = run(pytester, machine_late=True, passing_attempt=9)
    done.assert_outcomes(failed=1)
    assert attempts == 3
    done.stdout.fnmatch_lines(["*Inconclusive: in each of 3 attempts the machine was late.*"])
    done.stdout.fnmatch_lines(["inconclusive attempts of deadline tests: 3"])


def test_a_timeout_stands(pytester: pytest.Pytester):
    """The timer of a test runs once, so another attempt would have none."""
    done, attempts = run(pytester, machine_late=True, test=HANGS)
    done.assert_outcomes(failed=1)
    assert attempts == 1
    done.stdout.fnmatch_lines(["*The machine was late, but no fixture and no timeout *"])


def test_a_failure_of_a_fixture_stands(pytester: pytest.Pytester):
    done, attempts = run(pytester, machine_late=True, test=LEAKS)
    done.assert_outcomes(passed=1, errors=1)
    assert attempts == 1


def test_a_machine_that_was_late_only_for_a_fixture_is_no_excuse(pytester: pytest.Pytester):
    done, attempts = run(pytester, machine_late=False, test=LATE_FIXTURE, bound=1.0)
    done.assert_outcomes(failed=1)
    assert attempts == 1
    done.stdout.fnmatch_lines(["*The machine was on time.*"])


def test_on_virtual_time_no_machine_is_late(pytester: pytest.Pytester):
    both = "deadline\n@pytest.mark.virtual_time"
    done, attempts = run(pytester, machine_late=True, passing_attempt=2, mark=both)
    done.assert_outcomes(failed=1)
    assert attempts == 1


def test_nothing_waits_for_real_time_to_reach_virtual_time(pytester: pytest.Pytester):
    done, _ = run(pytester, machine_late=False, test=REAL_AND_VIRTUAL)
    done.assert_outcomes(passed=2)


def test_other_tests_are_never_repeated(pytester: pytest.Pytester):
    done, attempts = run(pytester, machine_late=True, passing_attempt=2, mark="asyncio")
    done.assert_outcomes(failed=1)
    assert attempts == 1


@pytest.mark.parametrize(
    ("most", "average", "conclusive"),
    [(0.05, 0.001, True), (0.2, 0.001, False), (0.05, 0.02, False)],
)
def test_an_attempt_counts_unless_the_reference_process_was_late(
    most: float, average: float, conclusive: bool
):
    """A late loop beside a punctual reference process is Mooring's own fault."""
    assert Lateness(5.0, most, average).is_conclusive is conclusive
