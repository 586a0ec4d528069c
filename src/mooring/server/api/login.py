"""The console's door: `/login` and `/logout`.

A link with a code is only looked at by GET, since programs that preview links do that too; the code
is used up by the POST of the page's button.
"""

from __future__ import annotations

import datetime
from typing import Annotated

import msgspec

from mooring.server.auth.authorization import OPEN, ROLES, Need, need
from mooring.server.auth.sessions import CODE_LASTS
from mooring.server.auth.tokens import utcnow
from mooring.server.http.request import ApiCall
from mooring.server.http.response import HTTPError, Response, shown
from mooring.server.http.routing import ApiRoute

_HTML = "text/html; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    # With the policy of the other pages the form's own Origin would be `null`.
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
_SPENT = (
    """<p><strong>This link is no longer good: it was used, or is too old.</strong></p>
<p><strong>此链接已使用或已过期。</strong></p>
"""
    + _NO_CODE
)


class Code(msgspec.Struct, frozen=True):
    code: Annotated[str, msgspec.Meta(max_length=100)] = ""


class CodeNeeded(msgspec.Struct, frozen=True):
    code: Annotated[str, msgspec.Meta(max_length=100)]


class TokenShown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: Annotated[str, msgspec.Meta(max_length=1000)]

    def __repr__(self) -> str:
        return "TokenShown(token=…)"


class LoginLink(msgspec.Struct, frozen=True):
    """A link that logs its opener in once, as who asked for it."""

    url: str
    expires: str


async def page(call: ApiCall) -> Response:
    code: str = call.query.code
    # Of any other text there is none in the page: there is nothing to escape.
    good = code.isascii() and code.replace("-", "").replace("_", "").isalnum()
    content = _FORM.format(code=code) if good else _NO_CODE
    return _page(content, 200)


async def login(call: ApiCall) -> Response:
    begun = await call.server.sessions.redeem(call.query.code)
    if begun is None:
        call.server.limits.count_failure(call.client)
        return _page(_SPENT, 401)
    call.principal, cookie = begun
    return Response(
        b"", 303, headers={**_HEADERS, "Location": "/", "Set-Cookie": cookie}, media=_HTML
    )


async def login_with_token(call: ApiCall) -> Response:
    begun = await call.server.sessions.begin(call.body.token)
    if begun is None:
        call.server.limits.count_failure(call.client)
        raise HTTPError(401, "unauthenticated", "this token is unknown, revoked or expired")
    call.principal, cookie = begun
    return Response(status=204, headers={"Set-Cookie": cookie})


async def logout(call: ApiCall) -> Response:
    await call.server.sessions.end(call.request)
    headers = {"Set-Cookie": call.server.sessions.removal_cookie, "Clear-Site-Data": '"cache"'}
    return Response(status=204, headers=headers)


async def link(call: ApiCall) -> Response:
    if call.principal.session:
        raise HTTPError(
            403,
            "forbidden",
            "a session cannot begin another: ask with the token itself (`mooring login`)",
        )
    code = await call.server.sessions.issue(call.principal.token)
    if not code:
        raise HTTPError(401, "unauthenticated", "the token was revoked this very moment")
    request = call.request
    expires = utcnow() + datetime.timedelta(seconds=CODE_LASTS)
    url = f"{request.url.scheme}://{request.headers['host']}/login?code={code}"
    return Response(LoginLink(url, shown(expires) or ""), 201)


async def off(call: ApiCall) -> Response:
    raise HTTPError(
        409,
        "console_off",
        "the console of this server is off (`console: off` in its settings): there is nothing to "
        "log in to. Use the API and the commands with the token itself",
    )


def _page(content: str, status: int) -> Response:
    return Response(_PAGE.format(content=content).encode(), status, headers=_HEADERS, media=_HTML)


ENDPOINTS = (
    ApiRoute(
        "GET",
        "/login",
        OPEN,
        page,
        "Show the page of a login link without using it up",
        query=Code,
        answers={200: None},
        media=_HTML,
    ),
    ApiRoute(
        "POST",
        "/login",
        OPEN,
        login,
        "Redeem a login link and start a session",
        query=CodeNeeded,
        answers={303: None, 401: None},
        fails=(403,),
        media=_HTML,
    ),
    ApiRoute(
        "POST",
        "/admin/sessions",
        OPEN,
        login_with_token,
        "Start a browser session with a token",
        body=TokenShown,
        answers={204: None},
        fails=(401, 403),
    ),
    ApiRoute(
        "POST",
        "/logout",
        Need(frozenset(ROLES)),
        logout,
        "End the session of the caller",
        answers={204: None},
    ),
    ApiRoute(
        "POST",
        "/admin/login-codes",
        need("viewer"),
        link,
        "Create a one-time login link for the caller",
        answers={201: LoginLink},
    ),
)

WITHOUT_CONSOLE = (
    ApiRoute(
        "POST",
        "/admin/login-codes",
        need("viewer"),
        off,
        "Say that the console is off: there is nothing to log in to",
        answers={},
        fails=(409,),
    ),
)
