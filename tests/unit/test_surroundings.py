"""Tests are isolated from the shell, the user's settings and scripts around them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)

STATE = """
import json, os, signal, subprocess, sys, time
from tests.surroundings import settle

CHILD = "import signal; print([int(signal.getsignal(n)) for n in (1, 3, 15)])"
settle()
print(json.dumps({
    "environment": dict(os.environ),
    "zone": time.tzname[0],
    "umask": os.umask(0o022),
    "interruptible": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "handlers of a child": json.loads(subprocess.check_output([sys.executable, "-c", CHILD])),
}))
"""


def ignore_and_block_signals() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)


def test_a_test_run_is_isolated_from_its_surroundings():
    foreign = {
        "MOORING_STORE": "etcd://elsewhere:2379",
        "ENCRYPTION_KEY": "k" * 32,
        "ETCDCTL_ENDPOINTS": "elsewhere:2379",
        "http_proxy": "http://elsewhere:3128",
        "HTTPS_PROXY": "http://elsewhere:3128",
        "LC_ALL": "POSIX",
        "FLASK_DEBUG": "1",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", STATE],
        env={**os.environ, **foreign, "TZ": "Asia/Shanghai", "ETCD_UNSUPPORTED_ARCH": "arm64"},
        stdout=subprocess.PIPE,
        check=True,
        cwd=Path(__file__).parents[2],
        umask=0o077,
        preexec_fn=ignore_and_block_signals,
    )
    state = json.loads(done.stdout)
    environment = state.pop("environment")
    assert foreign.keys() & environment.keys() == set()
    assert environment["ETCD_UNSUPPORTED_ARCH"] == "arm64"
    assert state == {
        "zone": "UTC",
        "umask": 0o022,
        "interruptible": True,
        "blocked": 0,
        "handlers of a child": [int(signal.SIG_DFL)] * 3,
    }
