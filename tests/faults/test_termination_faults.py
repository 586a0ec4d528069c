"""SIGTERM while the store does not answer."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

import mooring.sync
from mooring.testing.etcd import EtcdServer
from tests.features.test_termination import terminated

SEVERAL = """
    import sys, time
    import mooring.sync
    for port in range(4):
        hub = mooring.sync.connect(sys.argv[1]).open()
        hub.register(mooring.Instance("echo", "10.0.0.1", port + 1), ttl=float(sys.argv[2])).open()
    ready(); time.sleep(60)
"""


@pytest.mark.deadline
def test_several_blocking_hubs_share_five_seconds(fresh_etcd: Callable[..., EtcdServer]):
    """The store does not answer any more: hubs closed one after another took 2 s each."""
    server = fresh_etcd()
    started = 0.0

    def silence() -> None:
        nonlocal started
        server.pause()
        started = time.monotonic()

    with mooring.sync.connect(server.url) as hub:
        status, _ = terminated(hub, server.url, SEVERAL, count=4, before=silence)
        ended = time.monotonic()
        server.resume()
    assert status == -signal.SIGTERM
    assert ended - started < 5.5
