"""Ports for servers that are about to start."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys

import pytest

from mooring.testing import servers
from mooring.testing.servers import ServerFailed, free_port

PORTS = servers._ports_for_servers(*servers._ports_of_clients())


def test_ports_are_given_in_turn_and_not_from_the_range_of_clients():
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert set(ports) <= set(PORTS)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        ((32768, 60999), range(11000, 21000)),
        ((49152, 65535), range(11000, 21000)),
        ((25000, 60999), range(11000, 15000)),
        ((10000, 40000), range(40001, 55536)),
        ((20000, 50000), range(50001, 55536)),
        ((1024, 65535), range(11000, 21000)),
        ((20000, 60999), range(11000, 21000)),
    ],
    ids=str,
)
def test_the_ports_are_the_larger_range_beside_that_of_clients(
    clients: tuple[int, int], expected: range
):
    assert servers._ports_for_servers(*clients) == expected


def test_the_range_of_clients_is_that_of_the_kernel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(servers, "_ports_of_clients", lambda: (1024, 40000))
    assert free_port() > 40000
    monkeypatch.undo()
    first, last = servers._ports_of_clients()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client:
            assert first <= client.getsockname()[1] <= last


def test_another_process_gets_none_of_them(monkeypatch: pytest.MonkeyPatch):
    """Not even while no server listens there: it may be restarted."""
    port = free_port()
    other = (
        "import itertools; from mooring.testing import servers;"
        f"servers._turns = itertools.count({PORTS.index(port)}); print(servers.free_port())"
    )
    done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=True)
    assert int(done.stdout) != port
    monkeypatch.setattr(servers, "_turns", itertools.count(PORTS.index(port)))
    assert free_port() != port


def test_a_machine_without_a_free_port_is_an_error(monkeypatch: pytest.MonkeyPatch):
    port = free_port()
    monkeypatch.setattr(servers, "_turns", itertools.repeat(PORTS.index(port)))
    with pytest.raises(ServerFailed, match="no free port"):
        free_port()
