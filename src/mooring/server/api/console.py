"""The console: its files, and login and logout of browsers.

The files contain no data: everything that the console shows comes from the API. Programs that
preview links send GET requests, so only the POST of the login page redeems the code of a link.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, NamedTuple

import msgspec

from mooring.model import now
from mooring.server.api.endpoint import ApiCall, EndpointList
from mooring.server.auth.authorization import OPEN, ROLES, Need, need
from mooring.server.auth.sessions import CODE_LASTS
from mooring.server.http.response import HTTPError, Response, digest, rfc3339

endpoints = EndpointList()
endpoints_when_off = EndpointList()
"""The endpoints of a server without a console."""

MEDIA = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/manifest+json",
    "svg": "image/svg+xml",
}
"""The files that are served, by suffix."""


class ConsoleFile(NamedTuple):
    body: bytes
    media: str
    etag: str


@functools.cache
def files() -> Mapping[str, ConsoleFile]:
    """All files of the console, by their path below its folder."""
    return dict(_read(resources.files("mooring.server") / "console", ""))


def _read(folder: Traversable, prefix: str) -> Iterator[tuple[str, ConsoleFile]]:
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        media = MEDIA.get(entry.name.rpartition(".")[2])
        if entry.is_dir():
            yield from _read(entry, f"{path}/")
        elif media is not None:
            body = entry.read_bytes()
            yield path, ConsoleFile(body, media, digest(body))


@endpoints.add("GET", "/", OPEN, answers={200: None}, media="text/html")
async def index(call: ApiCall) -> Response:
    """The console."""
    return _file_response("index.html")


@endpoints.add("GET", "/favicon.ico", OPEN, answers={200: None}, media="image/svg+xml")
async def icon(call: ApiCall) -> Response:
    """The console's icon."""
    return _file_response("logo.svg")


@endpoints.add(
    "GET",
    "/console/{folder}/{file}",
    OPEN,
    answers={200: None},
    fails=(404,),
    media="*/*",
    summary="A file in a folder of the console",
)
@endpoints.add("GET", "/console/{file}", OPEN, answers={200: None}, fails=(404,), media="*/*")
async def file(call: ApiCall) -> Response:
    """A file of the console."""
    return _file_response("/".join(call.path.values()))


def _file_response(path: str) -> Response:
    file = files().get(path)
    if file is None:
        raise HTTPError(404, "not_found", "console_file_not_found")
    return Response(
        file.body, media=file.media, etag=file.etag, headers={"Cache-Control": "no-cache"}
    )


_HTML = "text/html; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    # With `no-referrer`, the Origin of the form would be `null`.
    "Referrer-Policy": "same-origin",
}
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>Mooring: log in</title>
<h1>Mooring</h1>
{content}
</html>
"""
_FORM = """<form method="post" action="/login?code={code}">
<p>This link logs you in once. 此链接只能登录一次。</p>
<p><button type="submit" autofocus>Log in 登录</button></p>
</form>"""
_NO_CODE = """<p>Run <code>mooring login</code> where the server runs,
and open the link that it prints.</p>
<p>请在服务器所在的机器上运行 <code>mooring login</code>，然后打开它输出的链接。</p>"""
_EXPIRED_CODE = (
    """<p><strong>This link was already used, or it has expired.</strong></p>
<p><strong>此链接已使用或已过期。</strong></p>
"""
    + _NO_CODE
)


class LoginPageQuery(msgspec.Struct, frozen=True):
    code: Annotated[str, msgspec.Meta(max_length=100)] = ""


class LoginQuery(msgspec.Struct, frozen=True):
    code: Annotated[str, msgspec.Meta(max_length=100)]


class SessionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: Annotated[str, msgspec.Meta(max_length=1000)]

    def __repr__(self) -> str:
        return "SessionRequest(token=…)"


class LoginLink(msgspec.Struct, frozen=True):
    """A link that starts one browser session for the caller."""

    url: str
    expires: str


@endpoints.add("GET", "/login", OPEN, query=LoginPageQuery, answers={200: None}, media=_HTML)
async def login_page(call: ApiCall) -> Response:
    """Show the page of a login link without redeeming it."""
    code: str = call.query.code
    # Any other text is not inserted into the page, so nothing needs to be escaped.
    valid = code.isascii() and code.replace("-", "").replace("_", "").isalnum()
    content = _FORM.format(code=code) if valid else _NO_CODE
    return _html(content, 200)


@endpoints.add(
    "POST",
    "/login",
    OPEN,
    query=LoginQuery,
    answers={303: None, 401: None},
    fails=(403,),
    media=_HTML,
)
async def login(call: ApiCall) -> Response:
    """Redeem a login link and start a session."""
    session = await call.server.sessions.redeem(call.query.code)
    if session is None:
        call.server.limits.count_failure(call.client)
        return _html(_EXPIRED_CODE, 401)
    call.principal, cookie = session
    return Response(
        b"", 303, headers={**_HEADERS, "Location": "/", "Set-Cookie": cookie}, media=_HTML
    )


@endpoints.add(
    "POST", "/admin/sessions", OPEN, body=SessionRequest, answers={204: None}, fails=(401, 403)
)
async def login_with_token(call: ApiCall) -> Response:
    """Start a browser session with a token."""
    session = await call.server.sessions.start(call.body.token)
    if session is None:
        call.server.limits.count_failure(call.client)
        raise HTTPError(401, "unauthenticated", "token_not_valid")
    call.principal, cookie = session
    return Response(status=204, headers={"Set-Cookie": cookie})


@endpoints.add("POST", "/logout", Need(frozenset(ROLES)), answers={204: None})
async def logout(call: ApiCall) -> Response:
    """End the session of the caller."""
    await call.server.sessions.end(call.request)
    headers = {"Set-Cookie": call.server.sessions.removal_cookie, "Clear-Site-Data": '"cache"'}
    return Response(status=204, headers=headers)


@endpoints.add("POST", "/admin/login-codes", need("viewer"), answers={201: LoginLink})
async def create_login_link(call: ApiCall) -> Response:
    """Create a one-time login link for the caller."""
    if call.principal.session:
        raise HTTPError(403, "forbidden", "login_link_of_session")
    code = await call.server.sessions.issue(call.principal.token)
    if not code:
        raise HTTPError(401, "unauthenticated", "token_just_revoked")
    request = call.request
    expires = now() + datetime.timedelta(seconds=CODE_LASTS)
    url = f"{request.url.scheme}://{request.headers['host']}/login?code={code}"
    return Response(LoginLink(url, rfc3339(expires)), 201)


@endpoints_when_off.add("POST", "/admin/login-codes", need("viewer"), answers={}, fails=(409,))
async def console_off(call: ApiCall) -> Response:
    """Reject the request, because the console is disabled."""
    raise HTTPError(409, "console_off", "console_off")


def _html(content: str, status: int) -> Response:
    return Response(_PAGE.format(content=content).encode(), status, headers=_HEADERS, media=_HTML)
