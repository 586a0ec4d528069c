"""Addresses of instances: `host:port`, with IPv6 in brackets."""

from __future__ import annotations

import functools
import ipaddress
import logging
import re
import socket

from mooring.errors import InvalidRequest
from mooring.formatting import quoted

log = logging.getLogger(__name__)

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]+")
_PORT = re.compile(r"[0-9]{1,5}")


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Host and port of an address. Raises `InvalidRequest` where it is none."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not _PORT.fullmatch(port) or (":" in host) != bracketed:
        raise InvalidRequest(
            f"{quoted(address)} is no address: write it like 192.168.0.1:8080 or [::1]:8080"
        )
    check_host(host)
    check_port(int(port))
    return host, int(port)


def is_ip(host: str) -> bool:
    """Whether a host is an IP address, and no name to look up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_host(host: object) -> None:
    """Raise `InvalidRequest` unless others could reach an instance by this host."""
    if not isinstance(host, str) or not host:
        raise InvalidRequest(f"a host must be an IP address or a host name, not {quoted(host)}")
    if problem := _problem(host):
        raise InvalidRequest(problem)


@functools.lru_cache(maxsize=10_000)
def _problem(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _problem_of_name(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return (
                f"{host} ends in a zone (%{address.scope_id}), which names a network interface of "
                "one machine: other machines cannot call it. Give an address without a zone"
            )
        address = address.ipv4_mapped or address
    return _unspecified(host) if address.is_unspecified else ""


def _problem_of_name(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        return _problem(host[1:-1]) or f"{host} has brackets: write an IPv6 host without them"
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return f"{quoted(host)} is neither an IP address nor a host name"
    if not all(_NUMBER.fullmatch(label) for label in labels):
        return ""
    # The C library reads such a name as an IPv4 address: 0x0 and 0 as 0.0.0.0.
    if not any(int(label, 16 if label[:2] in ("0x", "0X") else 10) for label in labels):
        return _unspecified(host)
    return f"{quoted(host)} looks like an IP address, but is none"


def _unspecified(host: str) -> str:
    return (
        f"{host} means every address of a machine and cannot be called from another: give the "
        "address that others reach, or none to have it found"
    )


def check_port(port: object) -> None:
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise InvalidRequest(f"port {quoted(port)} is not between 1 and 65535")


def reachable_host() -> str:
    """This machine's address as others see it, by the route that leads out; said in the log."""
    for family, outside in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((outside, 9))  # sends nothing: asks the kernel for the route
            except OSError:
                continue
            host = str(probe.getsockname()[0])
            log.info("no host was given: this machine is advertised as %s", host)
            return host
    log.warning("no host was given and no route leads out: 127.0.0.1 is advertised")
    return "127.0.0.1"
