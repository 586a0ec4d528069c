"""Addresses of instances: `host:port`, with IPv6 in brackets."""

from __future__ import annotations

import functools
import ipaddress
import logging
import re
import socket

from mooring.errors import InvalidRequest
from mooring.messages import Message, message

log = logging.getLogger(__name__)

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]+")
_PORT = re.compile(r"[0-9]{1,5}")


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """The host and port of an address. Raises `InvalidRequest` for an invalid one."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not _PORT.fullmatch(port) or (":" in host) != bracketed:
        raise InvalidRequest(message("address_invalid", address=address))
    check_host(host)
    check_port(int(port))
    return host, int(port)


def is_ip(host: str) -> bool:
    """Whether a host is an IP address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_host(host: object) -> None:
    """Raise `InvalidRequest` unless it is a host that other machines can call."""
    if not isinstance(host, str) or not host:
        raise InvalidRequest(message("host_not_text", host=host))
    if problem := _host_problem(host):
        raise InvalidRequest(problem)


@functools.lru_cache(maxsize=10_000)
def _host_problem(host: str) -> Message | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _host_name_problem(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return message("host_in_zone", host=host, zone=address.scope_id)
        address = address.ipv4_mapped or address
    return message("host_unspecified", host=host) if address.is_unspecified else None


def _host_name_problem(host: str) -> Message | None:
    if host.startswith("[") and host.endswith("]"):
        return _host_problem(host[1:-1]) or message("host_in_brackets", host=host)
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return message("host_invalid", host=host)
    if not all(_NUMBER.fullmatch(label) for label in labels):
        return None
    # The C library reads such a name as an IPv4 address: 0x0 and 0 as 0.0.0.0.
    if not any(int(label, 16 if label[:2] in ("0x", "0X") else 10) for label in labels):
        return message("host_unspecified", host=host)
    return message("host_not_an_ip", host=host)


def check_port(port: object) -> None:
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise InvalidRequest(message("port_invalid", port=port))


def reachable_host() -> str:
    """The address of this machine on its default route, which is logged."""
    for family, outside in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((outside, 9))  # sends nothing: the kernel determines the route
            except OSError:
                continue
            host = str(probe.getsockname()[0])
            log.info("no host was set: this machine is advertised as %s", host)
            return host
    log.warning("no host was set and there is no default route: 127.0.0.1 is advertised")
    return "127.0.0.1"
