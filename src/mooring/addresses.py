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
    """The host and port of an address. Raises `InvalidRequest` for an invalid one."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not _PORT.fullmatch(port) or (":" in host) != bracketed:
        raise InvalidRequest(
            f"{quoted(address)} is not an address: write it like 192.168.0.1:8080 or [::1]:8080"
        )
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
        raise InvalidRequest(f"a host must be an IP address or a host name, not {quoted(host)}")
    if problem := _host_problem(host):
        raise InvalidRequest(problem)


@functools.lru_cache(maxsize=10_000)
def _host_problem(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _host_name_problem(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return (
                f"{host} ends in a zone (%{address.scope_id}), which names a network interface of "
                "one machine: other machines cannot call it. Use an address without a zone"
            )
        address = address.ipv4_mapped or address
    return _unspecified(host) if address.is_unspecified else ""


def _host_name_problem(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        return _host_problem(host[1:-1]) or f"{host} has brackets: write an IPv6 host without them"
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return f"{quoted(host)} is neither an IP address nor a host name"
    if not all(_NUMBER.fullmatch(label) for label in labels):
        return ""
    # The C library reads such a name as an IPv4 address: 0x0 and 0 as 0.0.0.0.
    if not any(int(label, 16 if label[:2] in ("0x", "0X") else 10) for label in labels):
        return _unspecified(host)
    return f"{quoted(host)} looks like an IP address, but is not a valid one"


def _unspecified(host: str) -> str:
    return (
        f"{host} means every address of a machine, and others cannot call it: use the address that "
        "others can reach, or none to have it determined automatically"
    )


def check_port(port: object) -> None:
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise InvalidRequest(f"port {quoted(port)} is not between 1 and 65535")


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
