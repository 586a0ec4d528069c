"""Diagnoses endpoints: gRPC reports only that it could not connect.

It checks whether anything listens, whether it speaks TLS and HTTP/2, and how far its clock is off.
"""

from __future__ import annotations

import asyncio
import email.utils
import ssl
import time
from dataclasses import dataclass

from mooring.formatting import quoted, reason
from mooring.settings.connections import TLS

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS_FRAME = 4


@dataclass(frozen=True, slots=True)
class Diagnosis:
    text: str
    final: bool
    """Whether waiting cannot solve it."""


async def diagnose(address: str, tls: TLS | None, *, within: float) -> Diagnosis | None:
    """The problem with an endpoint; None if it responds like a gRPC server."""
    try:
        async with asyncio.timeout(within):
            return await _look(address, tls)
    except TimeoutError:
        return Diagnosis(
            f"{address} does not respond. Check the address, firewalls, and that the server is not "
            "paused",
            final=False,
        )


async def _look(address: str, tls: TLS | None) -> Diagnosis | None:
    try:
        greeting = await _greet(address, _context(tls) if tls else None, tls)
    except ssl.SSLCertVerificationError as error:
        return Diagnosis(
            f"the certificate of {address} is not trusted: {error.verify_message}. Name "
            "its authority with ?ca=FILE, or its name with ?server_name=",
            final=True,
        )
    except ssl.SSLError as error:
        if _asks_for_certificate(error):
            return Diagnosis(
                f"{address} asks for a client certificate that it accepts: give "
                "?cert=FILE&key=FILE",
                final=True,
            )
        return await _mismatch(address, tls)
    except ConnectionRefusedError:
        return Diagnosis(
            f"nothing listens at {address} (connection refused). Check that the server runs and "
            "that the port is right",
            final=False,
        )
    except UnicodeError:
        return Diagnosis(f"{address} is not a host name: check the URL", final=True)
    except OSError as error:
        if isinstance(error, ConnectionError):  # the server closed the connection
            return await _mismatch(address, tls)
        return Diagnosis(f"{address} cannot be reached: {reason(error)}", final=False)
    if len(greeting) > 3 and greeting[3] == _SETTINGS_FRAME:
        return None
    return await _mismatch(address, tls, greeting)


async def _mismatch(address: str, tls: TLS | None, greeting: bytes = b"") -> Diagnosis | None:
    """The server responded unexpectedly: the other kind of connection shows why."""
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    blind.set_alpn_protocols(["h2"])
    try:
        other = await _greet(address, None if tls else blind, None)
    except ssl.SSLError as error:
        if _asks_for_certificate(error):
            return Diagnosis(
                f"{address} speaks TLS and asks for a client certificate: use "
                "etcds://…?ca=FILE&cert=FILE&key=FILE",
                final=True,
            )
        other = b""
    except OSError:
        other = b""
    if len(other) > 3 and other[3] == _SETTINGS_FRAME:
        if tls:
            return Diagnosis(f"{address} does not speak TLS: use etcd:// instead of etcds://", True)
        return Diagnosis(f"{address} speaks TLS: use etcds:// instead of etcd://", final=True)
    if not greeting:
        return Diagnosis(f"{address} closes the connection: is it etcd's client port?", final=False)
    answer = greeting[:40].split(b"\r\n")[0].decode("latin-1")
    return Diagnosis(
        f"{address} is not etcd: it answered {quoted(answer)}. Is it another server's port?",
        final=True,
    )


def _asks_for_certificate(error: ssl.SSLError) -> bool:
    """Servers report this in different ways."""
    alerts = ("CERTIFICATE_REQUIRED", "ALERT_BAD_CERTIFICATE", "ALERT_HANDSHAKE_FAILURE")
    return any(alert in str(error) for alert in alerts)


async def _greet(address: str, context: ssl.SSLContext | None, tls: TLS | None) -> bytes:
    reader, writer = await _open(address, context, tls)
    try:
        writer.write(_PREFACE)
        await writer.drain()
        return await reader.read(64)
    finally:
        writer.transport.abort()


async def clock_ahead(
    address: str, tls: TLS | None, *, within: float
) -> tuple[float, float] | None:
    """The least and the most seconds by which the clock of an endpoint is ahead of ours. etcd's
    client port also answers HTTP/1.1, with the date in whole seconds."""
    try:
        async with asyncio.timeout(within):
            context = _context(tls, alpn="http/1.1") if tls else None
            sent = time.time()
            reader, writer = await _open(address, context, tls)
            try:
                writer.write(f"GET /version HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
                while line := (await reader.readline()).decode("latin-1"):
                    name, _, value = line.partition(":")
                    if name.lower() == "date":
                        theirs = email.utils.parsedate_to_datetime(value.strip()).timestamp()
                        return theirs - time.time(), theirs + 1.0 - sent
            finally:
                writer.transport.abort()
    except (OSError, ValueError, TimeoutError):
        return None
    return None


async def _open(
    address: str, context: ssl.SSLContext | None, tls: TLS | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    name = (tls.server_name if tls and tls.server_name else host) if context else None
    return await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name)


def _context(tls: TLS, alpn: str = "h2") -> ssl.SSLContext:
    context = tls.context()
    context.set_alpn_protocols([alpn])
    return context
