"""Ports for servers that are about to start."""

from __future__ import annotations

from mooring.testing.servers import free_port


def test_ports_come_in_turn_and_no_client_sits_on_them():
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert all(11000 <= port < 21000 for port in ports)
