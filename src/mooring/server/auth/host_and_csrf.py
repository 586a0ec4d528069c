"""Protection against DNS rebinding and cross-site request forgery.

A browser sends the session cookie with the requests of any site, and can reach every server that
its machine can reach. So the `Host` of a request must be a name of this server, because the name of
another site may resolve to this server's address, and writes must come from the server's own page.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Collection
from typing import NamedTuple

from starlette.requests import Request

from mooring.messages import Message, message
from mooring.server.auth.authorization import Principal
from mooring.server.http.response import HTTPError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}


class HostPort(NamedTuple):
    host: str
    port: int | None


class Origins:
    def __init__(self, hosts: Collection[str]) -> None:
        """`hosts` are the names of the server, in addition to those of loopback."""
        self._hosts = frozenset(filter(None, map(normalized, (*LOOPBACK, *hosts))))

    def admit(self, host: str) -> None:
        """Add a name of the server."""
        self._hosts |= {normalized(host)}

    def check_host(self, request: Request) -> None:
        """Raises `HTTPError` (421) for a request to another host."""
        values = request.headers.getlist("host")
        if len(values) != 1:
            raise HTTPError(421, "misdirected", "host_header_missing")
        target = parse_host(values[0])
        if target is None or target.host not in self._hosts | {_local_address(request)}:
            raise HTTPError(421, "misdirected", "host_unknown", host=values[0])

    def check_origin(self, request: Request, principal: Principal) -> None:
        """Raises `HTTPError` for a write that may come from another site (403), and for a body that
        a browser lets any site send (415)."""
        origins = request.headers.getlist("origin")
        if origins:
            if len(origins) > 1 or not self._is_own_origin(request, origins[0]):
                raise _foreign_origin(message("origin_is", origin=origins[0]))
            site = request.headers.get("sec-fetch-site", "same-origin")
            if site not in ("same-origin", "none"):
                raise _foreign_origin(message("fetch_site_is", site=site))
        elif request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise _foreign_origin(message("from_another_site"))
        elif principal.session or not principal.token:
            raise _foreign_origin(message("origin_missing"))
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if principal.session and media not in ("", "application/json"):
            raise HTTPError(415, "bad_media", "body_not_json")

    def _is_own_origin(self, request: Request, origin: str) -> bool:
        scheme, separator, rest = origin.lower().partition("://")
        theirs = parse_host(rest)
        ours = parse_host(request.headers["host"])
        if not separator or scheme not in _PORTS or theirs is None or ours is None:
            return False
        # A proxy may terminate TLS in front of this server, but does not add it behind.
        if scheme not in (request.url.scheme, "https"):
            return False
        default = _PORTS[scheme]
        return (theirs.host, theirs.port or default) == (ours.host, ours.port or default)


def parse_host(text: str) -> HostPort | None:
    """The host and optional port of a `Host` header; None if it is invalid."""
    if not text.isascii() or any(letter in text for letter in "/?#@\\ \t,"):
        return None
    try:
        parts = urllib.parse.urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    named = normalized(host or "")
    return HostPort(named, port) if named and not text.endswith(":") else None


def normalized(host: str) -> str:
    """A host name or address in its canonical form."""
    host = host.strip("[]").lower().removesuffix(".")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _local_address(request: Request) -> str:
    """The address at which this connection arrived, which serves no other site's pages."""
    server = request.scope.get("server")
    try:
        return str(ipaddress.ip_address(server[0])) if server else ""
    except ValueError:
        return ""


def _foreign_origin(reason: Message) -> HTTPError:
    return HTTPError(403, "foreign_origin", "write_foreign", reason=reason)
