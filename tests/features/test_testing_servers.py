"""Ports for servers that are about to start."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from mooring.testing import servers
from mooring.testing.servers import ServerFailed, free_port


def test_ports_come_in_turn_and_no_client_sits_on_them():
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert all(11000 <= port < 21000 for port in ports)


def test_another_process_gets_none_of_them(monkeypatch: pytest.MonkeyPatch):
    """Not even while no server listens there: it may be restarted."""
    port = free_port()
    other = (
        "import itertools; from mooring.testing import servers;"
        f"servers._turns = itertools.count({port - 11000}); print(servers.free_port())"
    )
    done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=True)
    assert int(done.stdout) != port
    monkeypatch.setattr(servers, "_turns", iter([port - 11000, port - 10999]))
    assert free_port() != port


def test_a_machine_without_a_free_port_is_an_error(monkeypatch: pytest.MonkeyPatch):
    port = free_port()
    monkeypatch.setattr(servers, "_turns", itertools.repeat(port - 11000))
    with pytest.raises(ServerFailed, match="no free port"):
        free_port()
