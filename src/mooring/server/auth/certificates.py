"""The names in the certificate that a server shows."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

_ROUNDS = 4
"""Of words that each side says: one more than the longest handshake takes."""


class Names(NamedTuple):
    dns: tuple[str, ...] = ()
    """Without those that stand for many, `*.example.com`."""
    addresses: tuple[str, ...] = ()


def names(cert: Path, key: Path) -> Names:
    """Whom a certificate is for; nobody where it cannot be told, as of one that has expired.

    Python reads certificates only of a peer: so a client here asks a server here.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        server.load_cert_chain(cert, key)
        client.load_verify_locations(cafile=cert)
        told = _greet(client, server).getpeercert() or {}
    except (OSError, ValueError):
        return Names()
    named = [pair for pair in told.get("subjectAltName", ()) if isinstance(pair, tuple)]
    return Names(
        tuple(str(name) for kind, name in named if kind == "DNS" and "*" not in str(name)),
        tuple(_address(str(name)) for kind, name in named if kind == "IP Address"),
    )


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text.strip()))
    except ValueError:
        return text


def _greet(asking: ssl.SSLContext, asked: ssl.SSLContext) -> ssl.SSLObject:
    """A client that has shaken hands with a server, in memory. Raises `ssl.SSLError`."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server)
    server = asked.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_ROUNDS):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client
