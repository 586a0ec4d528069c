"""Diagnoses endpoints: gRPC reports only that it could not connect.

It checks whether anything listens, whether it speaks TLS and HTTP/2, and how far its clock is off.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import ssl
import time
from dataclasses import dataclass

from mooring.messages import Message, message, verbatim
from mooring.settings.connections import TLS

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS_FRAME = 4


@dataclass(frozen=True, slots=True)
class Diagnosis:
    problem: Message
    final: bool
    """Whether waiting cannot solve it."""


async def diagnose(address: str, tls: TLS | None, *, within: float) -> Diagnosis | None:
    """The problem with an endpoint; None if it responds like a gRPC server."""
    try:
        async with asyncio.timeout(within):
            return await _look(address, tls)
    except TimeoutError:
        return Diagnosis(message("endpoint_silent", address=address), final=False)


async def _look(address: str, tls: TLS | None) -> Diagnosis | None:
    try:
        greeting = await _greet(address, _context(tls) if tls else None, tls)
    except ssl.SSLCertVerificationError as error:
        reason = verbatim(error.verify_message)
        untrusted = message("endpoint_untrusted", address=address, reason=reason)
        return Diagnosis(untrusted, final=True)
    except ssl.SSLError as error:
        if _asks_for_certificate(error):
            return Diagnosis(message("endpoint_wants_certificate", address=address), final=True)
        return await _mismatch(address, tls)
    except ConnectionRefusedError:
        return Diagnosis(message("endpoint_refused", address=address), final=False)
    except UnicodeError:
        return Diagnosis(message("endpoint_not_a_host", address=address), final=True)
    except OSError as error:
        if isinstance(error, ConnectionError):  # the server closed the connection
            return await _mismatch(address, tls)
        unreachable = message("endpoint_unreachable", address=address, reason=error)
        return Diagnosis(unreachable, final=False)
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
            problem = message("endpoint_wants_tls_certificate", address=address)
            return Diagnosis(problem, final=True)
        other = b""
    except OSError:
        other = b""
    if len(other) > 3 and other[3] == _SETTINGS_FRAME:
        kind = "endpoint_without_tls" if tls else "endpoint_with_tls"
        return Diagnosis(message(kind, address=address), final=True)
    if not greeting:
        return Diagnosis(message("endpoint_closes", address=address), final=False)
    answer = greeting[:40].split(b"\r\n")[0].decode("latin-1")
    return Diagnosis(message("endpoint_not_etcd", address=address, answer=answer), final=True)


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
    with contextlib.suppress(OSError, ValueError):
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
