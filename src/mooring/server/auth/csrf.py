"""Which page a request came from.

A browser sends its user's cookie along, and reaches what the user's machine reaches. So a request
must be for one of our own names (another site's name may be pointed at our address), and what
changes something must come from our own page.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Collection
from typing import NamedTuple

from starlette.requests import Request

from mooring.formatting import quoted
from mooring.server.auth.authorization import Principal
from mooring.server.http.response import HTTPError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}


class HostPort(NamedTuple):
    """Where somebody says that something is."""

    host: str
    port: int | None


class Origins:
    """`hosts`: the names, beside those of loopback, by which the server is called."""

    def __init__(self, hosts: Collection[str]) -> None:
        self._hosts = frozenset(filter(None, map(normalized, (*LOOPBACK, *hosts))))

    def admit(self, host: str) -> None:
        """The server is called by this name too."""
        self._hosts |= {normalized(host)}

    def check_host(self, request: Request) -> None:
        """Raises `HTTPError` (421) for a request that is meant for somebody else."""
        told = request.headers.getlist("host")
        place = parse_host(told[0]) if len(told) == 1 else None
        if place is None or not (
            place.host in self._hosts or place.host == _local_address(request)
        ):
            named = f"the host {quoted(told[0], 200)}" if len(told) == 1 else "no single host"
            raise HTTPError(
                421,
                "misdirected",
                f"the request is for {named}, which is no name of this server: name it under "
                "`hosts:` in the file of `mooring serve --config` if it is",
            )

    def check_origin(self, request: Request, principal: Principal) -> None:
        """Raises `HTTPError` for a write that may come from another site's page (403), or with a
        body that any page may send (415)."""
        origins = request.headers.getlist("origin")
        if origins:
            if len(origins) > 1 or not self._is_own_origin(request, origins[0]):
                raise _foreign_origin(f"the request comes from a page of {quoted(origins[0], 200)}")
            site = request.headers.get("sec-fetch-site", "same-origin")
            if site not in ("same-origin", "none"):
                raise _foreign_origin(f"the browser says that the request is {quoted(site, 20)}")
        elif request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise _foreign_origin("the browser says that the request comes from another site")
        elif principal.session or not principal.token:
            raise _foreign_origin("the request does not say which page it comes from")
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if principal.session and media not in ("", "application/json"):
            raise HTTPError(
                415, "bad_media", "the body must be JSON: Content-Type: application/json"
            )

    def _is_own_origin(self, request: Request, origin: str) -> bool:
        scheme, separator, rest = origin.lower().partition("://")
        theirs = parse_host(rest)
        ours = parse_host(request.headers["host"])
        if not separator or scheme not in _PORTS or theirs is None or ours is None:
            return False
        # Somebody in front of us may do TLS for us; nobody takes it away.
        if scheme not in (request.url.scheme, "https"):
            return False
        default = _PORTS[scheme]
        return (theirs.host, theirs.port or default) == (ours.host, ours.port or default)


def parse_host(text: str) -> HostPort | None:
    """The host of a `Host` header, and its port if it names one; None for what is none."""
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
    """A host's name in the one way of writing it; empty for none."""
    host = host.strip("[]").lower().removesuffix(".")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _local_address(request: Request) -> str:
    """The address at which this connection arrived: nobody's page but ours is there."""
    server = request.scope.get("server")
    try:
        return str(ipaddress.ip_address(server[0])) if server else ""
    except ValueError:
        return ""


def _foreign_origin(why: str) -> HTTPError:
    return HTTPError(
        403, "foreign_origin", f"{why}: writes are taken from the server's own page only"
    )
