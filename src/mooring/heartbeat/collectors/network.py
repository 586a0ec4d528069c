"""The bytes of the machine's network, and the connections of this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import psutil

from mooring.heartbeat.collectors.contract import Cost


class NetworkCollector:
    type = "network"
    cost = Cost.MEDIUM

    def __init__(self) -> None:
        self._process = psutil.Process()

    def available(self) -> bool:
        return psutil.net_io_counters() is not None

    def collect(self) -> Mapping[str, object]:
        """Bytes are those since the machine started."""
        machine = psutil.net_io_counters()
        states = Counter(c.status for c in self._process.net_connections(kind="inet"))
        return {
            "bytesSent": machine.bytes_sent,
            "bytesReceived": machine.bytes_recv,
            "connections": states.total(),
            "established": states[psutil.CONN_ESTABLISHED],
            "listening": states[psutil.CONN_LISTEN],
        }
