"""gRPC and fork: a process that was forked from one where gRPC ran cannot use it.

Its threads stayed with the parent, and what it reads from their shared pipes is missing there: the
parent's own watches would fall silent.
"""

from __future__ import annotations

import os

from mooring.errors import InvalidRequest

_process = 0


def check_process() -> None:
    """Before each new channel. Raises `InvalidRequest` where gRPC ran before the fork."""
    global _process
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise InvalidRequest(
            "etcd was connected to before this process was forked, and gRPC does not outlive that: "
            "connect after the fork only (in gunicorn's post_fork, say), or start processes with "
            "the method spawn"
        )
