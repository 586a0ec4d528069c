"""`/admin/openapi.json`: what can be asked, for machines."""

from __future__ import annotations

from typing import Any

from mooring import __version__
from mooring.server.auth.authorization import ROLES, Need
from mooring.server.http.openapi import describe
from mooring.server.http.request import Call
from mooring.server.http.response import Answer, encode
from mooring.server.http.routing import Endpoint

_written: dict[tuple[bool, str], bytes] = {}
"""With the console and without, by the name of the session's cookie."""


async def openapi(call: Call) -> Answer:
    from mooring.server.api import endpoints  # which lists this one too

    console, cookie = call.parts.settings.console, call.parts.sessions.cookie
    if (console, cookie) not in _written:
        listed = endpoints(console=console)
        told = describe(listed, title="Mooring", version=__version__, cookie=cookie)
        _written[console, cookie] = encode(told)
    return Answer(_written[console, cookie])


ENDPOINTS = (
    Endpoint(
        "GET",
        "/admin/openapi.json",
        Need(frozenset(ROLES)),
        openapi,
        "Get this OpenAPI document",
        answers={200: dict[str, Any]},
    ),
)
