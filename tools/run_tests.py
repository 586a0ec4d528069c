"""Run the tests: all but those of deadlines many at once, then those of deadlines, few at once.

python tools/run_tests.py [--coverage] [options of pytest]

A test that waits takes no processor, so there are more workers than cores. A test of a deadline
needs a machine that is on time, so there are fewer of those.
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

STEPS = {
    "tests": ("-n", "6", "--dist", "worksteal", "-m", "not deadline"),
    "tests of deadlines": ("-n", "4", "--dist", "worksteal", "-m", "deadline"),
}
_COUNTED = ("num_statements", "covered_lines", "num_branches", "covered_branches")
_NONE_FOUND = 5
"""What pytest exits with if no test was chosen."""


def main() -> int:
    options = sys.argv[1:]
    measure = "--coverage" in options
    if measure:
        options.remove("--coverage")
        coverage("erase")
    program = ["coverage", "run", "-m", "pytest"] if measure else ["pytest"]
    codes, times = [], {}
    with tempfile.TemporaryDirectory(prefix="mooring-tests-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)  # some tests run a process as another user
        # pytest keeps the folders of earlier runs, and two runs at once clean up the same ones.
        # Killed processes leave their files in TMPDIR, so that is part of this folder too.
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": folder, "TMPDIR": folder}
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):  # they could leave tests out
            environment.pop(name, None)
        for name, step in STEPS.items():
            started = time.monotonic()
            command = [sys.executable, "-m", *program, *step, *options]
            codes.append(subprocess.run(command, check=False, env=environment).returncode)
            times[name] = time.monotonic() - started
    if measure:
        report_coverage()
    for name, seconds in times.items():
        print(f"{name}: {seconds // 60:.0f} min {seconds % 60:.0f} s")
    if 0 in codes and any(not option.startswith("-") for option in options):
        # The tests that the caller names may all belong to one step.
        codes = [code for code in codes if code != _NONE_FOUND]
    return int(any(codes))


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
