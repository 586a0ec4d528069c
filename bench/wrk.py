"""`wrk`, which loads an HTTP server with one thread and many connections."""

from __future__ import annotations

import re
import shutil
from typing import NamedTuple

from bench.processes import ROOT, ProcessFailed, output

BRING = "python tools/fetch.py wrk"
"""Downloads Debian's wrk if there is none on PATH, without installing it."""

_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}


class Loaded(NamedTuple):
    per_second: float
    p99: float
    """In milliseconds."""


def find() -> list[str]:
    """The command that runs wrk. If it is missing, raises `ProcessFailed` with instructions."""
    if (installed := shutil.which("wrk")) is not None:
        return [installed]
    folder = ROOT / ".tools" / "wrk" / "usr"
    if not (folder / "bin" / "wrk").exists():
        raise ProcessFailed(f"wrk not found; run: {BRING}")
    libraries = ":".join(str(path) for path in sorted((folder / "lib").glob("*")))
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(folder / "bin" / "wrk")]


async def load(url: str, token: str, *, connections: int, seconds: float) -> Loaded:
    """Sends GET requests for the given time, at least one second. Raises `ProcessFailed` if any
    response is an error."""
    whole = max(round(seconds), 1)
    options = f"--threads 1 --connections {connections} --duration {whole}s".split()
    options += ["--latency", "--timeout", "20s", "--header", f"Authorization: Bearer {token}"]
    return read(await output(*find(), *options, url, within=whole + 60))


def read(report: str) -> Loaded:
    rate = re.search(r"^Requests/sec:\s+([\d.]+)$", report, re.MULTILINE)
    worst = re.search(r"^\s+99%\s+([\d.]+)(us|ms|s|m)$", report, re.MULTILINE)
    wrong = re.search(r"^\s+(Non-2xx|Socket errors).*$", report, re.MULTILINE)
    if wrong or rate is None or worst is None:
        raise ProcessFailed(wrong[0].strip() if wrong else "the output of wrk has no numbers")
    return Loaded(float(rate[1]), float(worst[1]) * _UNITS[worst[2]])
