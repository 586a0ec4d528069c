"""`mooring token`: API tokens."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from mooring.cli.commands.login import ServerTarget
from mooring.cli.io.options import JSONOption, tenant_id
from mooring.cli.io.streams import note
from mooring.cli.io.tables import show, show_json
from mooring.cli.typer_extensions import CommandGroup
from mooring.durations import parse_duration
from mooring.errors import InvalidRequest
from mooring.formatting import printable, quoted
from mooring.server.auth.authorization import ROLES

_PAGE = 1000

app = CommandGroup()


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
    target: ServerTarget,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="GROUP", help="restrict to this group; repeatable"),
    ] = None,
    tenant: Annotated[
        list[int] | None,
        typer.Option(
            "--tenant", metavar="ID", parser=tenant_id, help="restrict to this tenant; repeatable"
        ),
    ] = None,
    expires: Annotated[
        str, typer.Option(metavar="DURATION", help="lifetime: 30d, 12h, never")
    ] = "90d",
    as_json: JSONOption = False,
) -> None:
    """Create a token and print its secret.

    The secret is shown only once.
    """
    if role not in ROLES:
        raise InvalidRequest(f"unknown role {quoted(role)}: use {', '.join(ROLES)}")
    if expires != "never":
        parse_duration(expires)
    settings = {
        "name": name,
        "role": role,
        "groups": group or [],
        "tenants": tenant or [],
        "expires": expires,
    }
    token = target.connect().request("POST", "/admin/tokens", settings)
    if as_json:
        show_json(token)
        return
    typer.echo(printable(token["token"]))
    lifetime = f"until {token['expires']}" if token["expires"] else "without limit"
    note(
        f"{token['id']} is valid {lifetime}. The secret is shown only once: store it safely. "
        f"`mooring token revoke {token['id']}` ends it"
    )


@app.command("list")
def list_tokens(target: ServerTarget, as_json: JSONOption = False) -> None:
    """List tokens, without their secrets."""
    tokens: list[dict[str, Any]] = []
    client, last = target.connect(), ""
    while page := client.request("GET", f"/admin/tokens?limit={_PAGE}&after={last}"):
        tokens += page
        if len(page) < _PAGE:
            break
        last = quote(str(page[-1]["id"]), safe="")
    show(
        tokens,
        {
            "id": lambda token: str(token["id"]),
            "name": lambda token: str(token["name"]),
            "role": lambda token: str(token["role"]),
            "scope": _scope,
            "state": lambda token: str(token["state"]),
            "expires": lambda token: str(token["expires"] or "never"),
            "last used": lambda token: str(token["lastUsed"] or ""),
        },
        lambda token: token,
        as_json=as_json,
        spare=("last used",),
    )


def _scope(token: dict[str, Any]) -> str:
    tenants = [f"tenant {id}" for id in token["tenants"]]
    return ", ".join([*token["groups"], *tenants]) or "everything"


@app.command()
def revoke(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="token id, as listed by `mooring token list`")
    ],
    target: ServerTarget,
) -> None:
    """Revoke a token and end the sessions that were started with it."""
    token = target.connect().request("DELETE", f"/admin/tokens/{quote(id, safe='')}")
    note(f"revoked {token['id']} ({token['name']})")
