"""`mooring token` and `mooring login`."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from mooring import durations
from mooring.cli.io.http_client import (
    TLS,
    CAOption,
    CertOption,
    DataOption,
    InsecureOption,
    KeyOption,
    ServerOption,
    reach,
)
from mooring.cli.io.options import JSONOption
from mooring.cli.io.output import note, printable, show, show_json
from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.tenants.keys import MAX_ID

ROLES = ("viewer", "operator", "admin", "service")

app = typer.Typer(help="Create, list and revoke API tokens.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="name of the token, shown in the audit log")
    ],
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE", help="viewer, operator, admin, or service (may register instances)"
        ),
    ],
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="GROUP", help="restrict to this group; repeatable"),
    ] = None,
    tenant: Annotated[
        list[int] | None,
        typer.Option(
            "--tenant", metavar="ID", min=1, max=MAX_ID, help="restrict to this tenant; repeatable"
        ),
    ] = None,
    expires: Annotated[
        str, typer.Option(metavar="DURATION", help="lifetime: 30d, 12h, never")
    ] = "90d",
    as_json: JSONOption = False,
    data: DataOption = None,
    server: ServerOption = "",
    ca: CAOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Create a token and print its secret.

    The secret is shown only once.
    """
    if role not in ROLES:
        raise InvalidRequest(f"there is no role {quoted(role)}: there are {', '.join(ROLES)}")
    if expires != "never":
        durations.parse(expires)
    wanted = {
        "name": name,
        "role": role,
        "groups": group or [],
        "tenants": tenant or [],
        "expires": expires,
    }
    made = reach(data, server, TLS(ca, cert, key), insecure=insecure).ask(
        "POST", "/admin/tokens", wanted
    )
    if as_json:
        show_json(made)
        return
    typer.echo(printable(made["token"]))
    until = f"until {made['expires']}" if made["expires"] else "for ever"
    note(
        f"{made['id']} is valid {until}. The secret is shown only once: store it safely. "
        f"`mooring token revoke {made['id']}` ends it"
    )


@app.command("list")
def list_(
    as_json: JSONOption = False,
    data: DataOption = None,
    server: ServerOption = "",
    ca: CAOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    insecure: InsecureOption = False,
) -> None:
    """List tokens, without their secrets."""
    found: list[dict[str, Any]] = []
    asked = reach(data, server, TLS(ca, cert, key), insecure=insecure)
    while page := asked.ask("GET", f"/admin/tokens?limit=1000&after={_last(found)}"):
        found += page
        if len(page) < 1000:
            break
    show(
        found,
        {
            "id": lambda each: str(each["id"]),
            "name": lambda each: str(each["name"]),
            "role": lambda each: str(each["role"]),
            "scope": _scope,
            "state": lambda each: str(each["state"]),
            "expires": lambda each: str(each["expires"] or "never"),
            "last used": lambda each: str(each["lastUsed"] or ""),
        },
        lambda each: each,
        as_json=as_json,
        spare=("last used",),
    )


@app.command()
def revoke(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="token id, as listed by `mooring token list`")
    ],
    data: DataOption = None,
    server: ServerOption = "",
    ca: CAOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Revoke a token and end the sessions that were started with it."""
    asked = reach(data, server, TLS(ca, cert, key), insecure=insecure)
    gone = asked.ask("DELETE", f"/admin/tokens/{quote(id, safe='')}")
    note(f"revoked {gone['id']} ({gone['name']})")


def _last(found: list[dict[str, Any]]) -> str:
    return quote(str(found[-1]["id"]), safe="") if found else ""


def _scope(token: dict[str, Any]) -> str:
    tenants = [f"tenant {id}" for id in token["tenants"]]
    return ", ".join([*token["groups"], *tenants]) or "everything"


def login(
    data: DataOption = None,
    server: ServerOption = "",
    ca: CAOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Print a one-time login link for the console.

    The link is valid for ten minutes. With --server and MOORING_TOKEN, it logs in as that token.
    """
    link = reach(data, server, TLS(ca, cert, key), insecure=insecure).ask(
        "POST", "/admin/login-codes"
    )
    typer.echo(printable(link["url"]))
    note("the link works once, within ten minutes, in a browser that can reach the server")
