"""What the commands about tenants share: their arguments, the publisher, and who is asked."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from mooring.cli.io.connect import open_hub, run_command
from mooring.cli.io.output import log_to_stderr, note
from mooring.errors import Conflict, InvalidRequest
from mooring.formatting import printable
from mooring.tenants.keys import MAX_ID, Owner, default_namespace, joined, named
from mooring.tenants.parts import Parts, StoredParts
from mooring.tenants.publish.publisher import Publisher, Require

T = TypeVar("T")

TenantArgument = Annotated[
    int, typer.Argument(metavar="ID", min=1, max=MAX_ID, help="the number of the tenant")
]
NumberArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", min=0, help="of an entry in the history")
]
ByOption = Annotated[
    str, typer.Option("--by", metavar="NAME", help="who, for the history; default: user@machine")
]
BaseOption = Annotated[
    str,
    typer.Option(
        "--base",
        metavar="REVISION",
        help="write only if nothing changed since this revision: see `show` or `get` with --json",
    ),
]
NoteOption = Annotated[str, typer.Option("--note", metavar="TEXT", help="why, for the history")]
YesOption = Annotated[bool, typer.Option("--yes", help="do not ask")]


def publishing(
    work: Callable[[Publisher], Awaitable[T]], store: str, namespace: str, by: str = ""
) -> T:
    """What some work with a publisher returns."""

    async def run() -> T:
        log_to_stderr("mooring.tenants.publish.committer", "mooring.tenants.publish.commit_loop")
        async with open_hub(store, "tree") as hub:
            return await work(hub.publisher(namespace=namespace, by=by))

    return run_command(run())


def expecting(owner: Owner, base: str) -> Require | None:
    """A check that nothing changed since this revision; None if any will do."""
    if not base:
        return None

    def require(there: StoredParts) -> None:
        if there.revision != base:
            raise Conflict(
                f"{named(owner)}: changed since revision {base}. Compare and merge, then write "
                f"with the new revision, {there.revision}",
                revision=0,
            )

    return require


def must_agree(question: str, yes: bool) -> None:
    """Ask, and end the command where the answer is no. Where nobody can be asked, raise."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{question} Confirm with --yes: standard input is not a terminal")
    if not typer.confirm(printable(question), err=True):
        note("nothing was changed")
        raise typer.Exit(1)


def called(tenant: int, parts: Parts) -> str:
    """A tenant as people know it: `tenant 7 (acme, "Acme Ltd")`."""
    meta = parts.get("meta")
    fields = meta if isinstance(meta, dict) else {}
    known = [str(fields.get("code") or ""), f'"{fields["name"]}"' if fields.get("name") else ""]
    names = ", ".join(filter(None, known))
    return f"tenant {tenant} ({names})" if names else f"tenant {tenant}"


def how_to_roll_back(tenant: int, number: int, namespace: str) -> str:
    default = joined(namespace) == joined(default_namespace())
    elsewhere = "" if default else f" --namespace {shlex.quote(namespace)}"
    return f"mooring tenant rollback {tenant} {number}{elsewhere}"
