"""`mooring tenant resolve`: finds the tenant of a host, code, name, FTP user or request."""

from __future__ import annotations

from typing import Annotated, NamedTuple
from urllib.parse import unquote, urlsplit

import typer

from mooring.cli.io.connect import TenantTarget
from mooring.cli.io.options import JSONOption
from mooring.cli.io.streams import note
from mooring.cli.io.tables import show_json
from mooring.errors import NotConfigured
from mooring.formatting import quoted
from mooring.tenants.keys import host_of
from mooring.tenants.read.resolution import By, Resolution, look_up, resolve_request
from mooring.tenants.resolver import REFUSED


class RequestLine(NamedTuple):
    """The request that --url and --header describe."""

    path: str
    query: str
    headers: list[tuple[str, str]]

    def header(self, name: str) -> list[str]:
        return [value for header, value in self.headers if header.lower() == name.lower()]


async def resolve(
    target: TenantTarget,
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="host name, such as shop.example.com")
    ] = "",
    code: Annotated[str, typer.Option(metavar="CODE", help="tenant code, in any case")] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="full tenant name")] = "",
    ftp_user: Annotated[str, typer.Option(metavar="USER", help="name of an FTP user")] = "",
    url: Annotated[
        str, typer.Option(metavar="URL", help="URL of a request, resolved as by the middleware")
    ] = "",
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:VALUE", help="header of the request; repeatable"),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Find a tenant by host, code, name, FTP user or request, and print its id.

    Exits with 1 if no tenant matches.
    """
    host_name = host_of(host) or ""
    if host and not host_name:
        raise typer.BadParameter(f"{quoted(host)} is not a host name", param_hint="HOST")
    options: dict[By, str] = {"host": host_name, "code": code, "name": name, "ftp-user": ftp_user}
    names = [(by, value) for by, value in options.items() if value]
    request = _request(url, header or []) if url or header else None
    if len(names) + (request is not None) != 1:
        raise typer.BadParameter(
            "give one of HOST, --code, --name, --ftp-user, or --url with or without --header"
        )
    async with target.connect() as hub:
        if request is not None:
            resolution = await resolve_request(hub.store, target.keys, request)
        else:
            resolution = await look_up(hub.store, target.keys, *names[0])
    _show_resolution(resolution, as_json)
    if request is not None and resolution.status in REFUSED:
        note(
            f"tenant {resolution.tenant} is {resolution.status}: such a request is refused with 403"
        )


def _show_resolution(resolution: Resolution, as_json: bool) -> None:
    """Print the tenant. Exits with 1 if there is none."""
    if as_json:
        show_json(
            {
                "tenant": resolution.tenant,
                "by": resolution.by,
                "name": resolution.name or None,
                "status": resolution.status or None,
                "why": resolution.reason,
            }
        )
        if resolution.tenant is None:
            raise typer.Exit(1)
    elif resolution.tenant is None:
        raise NotConfigured(resolution.reason)
    else:
        typer.echo(str(resolution.tenant))


def _request(url: str, headers: list[str]) -> RequestLine:
    parsed: list[tuple[str, str]] = []
    for text in headers:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter(f"{quoted(text)} is not NAME:VALUE", param_hint="--header")
        parsed.append((name.strip(), value.strip()))
    try:
        parts = urlsplit(url if "//" in url or not url else f"//{url}")
    except ValueError:
        raise typer.BadParameter(f"{quoted(url)} is not a URL", param_hint="--url") from None
    if parts.netloc and not any(name.lower() == "host" for name, _ in parsed):
        parsed.append(("Host", parts.netloc.rpartition("@")[2]))
    return RequestLine(unquote(parts.path), parts.query, parsed)
