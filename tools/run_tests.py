"""Run the tests in steps: unit tests, all others, and last the tests of deadlines.

python tools/run_tests.py [--coverage] [options and files of pytest]

Most tests wait for I/O or timers, so there are more workers than cores. Tests of deadlines need a
machine that is not overloaded, so fewer of them run at once.

The unit tests run under coverage, which is printed but cannot fail the run. Tests take more than
twice as long under coverage, so the others run under it only with `--coverage`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

_MANY = ("-n", "6", "--dist", "worksteal", "-m", "not deadline")
_UNIT = {"unit tests": ("tests/unit", *_MANY), "tests": ("--ignore=tests/unit", *_MANY)}
_ALL = {"tests": _MANY}
_DEADLINES = {"tests of deadlines": ("-n", "4", "--dist", "worksteal", "-m", "deadline")}
_COUNTED = ("num_statements", "covered_lines", "num_branches", "covered_branches")
_NONE_FOUND = 5
"""The exit code of pytest if no test was selected."""


def main() -> int:
    options = sys.argv[1:]
    measured = {"unit tests"}
    if "--coverage" in options:
        options.remove("--coverage")
        measured = {*_ALL, *_DEADLINES}
    names_files = any(not option.startswith("-") for option in options)
    steps = {**(_ALL if names_files or "tests" in measured else _UNIT), **_DEADLINES}
    coverage("erase")
    codes, times = [], {}
    with tempfile.TemporaryDirectory(prefix="mooring-tests-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)  # some tests run a process as another user
        # pytest keeps the folders of earlier runs, and two runs at once clean up the same ones.
        # Killed processes leave their files in TMPDIR, so that is part of this folder too.
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": folder, "TMPDIR": folder}
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):  # they could deselect tests
            environment.pop(name, None)
        for name, step in steps.items():
            started = time.monotonic()
            program = ["coverage", "run", "-m", "pytest"] if name in measured else ["pytest"]
            command = [sys.executable, "-m", *program, *step, *options]
            codes.append(subprocess.run(command, check=False, env=environment).returncode)
            times[name] = time.monotonic() - started
    if names := [name for name in steps if name in measured]:
        workers = sum(_workers([*steps[name], *options]) for name in names)
        saved = len([*Path().glob(".coverage.gw*")])  # see pytest_sessionfinish in tests/conftest
        if saved < workers:
            print(f"warning: only {saved} of {workers} workers saved their coverage")
        print(f"coverage of the {' and '.join(names)}:")
        report_coverage()
    for name, seconds in times.items():
        print(f"{name}: {seconds // 60:.0f} min {seconds % 60:.0f} s")
    if 0 in codes and names_files:
        # The tests that the caller names may all belong to one step.
        codes = [code for code in codes if code != _NONE_FOUND]
    return int(any(codes))


def _workers(arguments: list[str]) -> int:
    """The number of workers; the last `-n` counts."""
    return int(arguments[len(arguments) - arguments[::-1].index("-n")])


def coverage(*arguments: str) -> str:
    command = [sys.executable, "-m", "coverage", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def report_coverage() -> None:
    """Print the shares of lines and branches that ran, for each package."""
    coverage("combine", "--quiet")
    packages: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    for file, measured in json.loads(coverage("json", "--quiet", "-o", "-"))["files"].items():
        parts = Path(file).parts[2:]  # below src/mooring
        package = parts[0] if len(parts) > 1 else "(modules)"
        summary = {name: measured["summary"][name] for name in _COUNTED}
        packages.setdefault(package, Counter()).update(summary)
        total.update(summary)
    print(f"{'package':12} {'lines':>8} {'covered':>8} {'branches':>8} {'covered':>8}")
    for package, sums in [*sorted(packages.items()), ("total", total)]:
        lines, covered_lines, branches, covered_branches = (sums[name] for name in _COUNTED)
        line_share, branch_share = covered_lines / lines, covered_branches / max(branches, 1)
        print(f"{package:12} {lines:>8} {line_share:>8.2%} {branches:>8} {branch_share:>8.2%}")


if __name__ == "__main__":
    sys.exit(main())
