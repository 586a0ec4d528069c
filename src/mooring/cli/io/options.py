"""Options and arguments that several commands share, and parsers for their values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mooring.durations import parse_duration
from mooring.errors import Conflict, InvalidRequest
from mooring.formatting import quoted
from mooring.tenants.keys import NAMESPACE_VARIABLE, Owner, is_id, named

if TYPE_CHECKING:
    from mooring.tenants.parts import StoredParts


def tenant_id(typed: str) -> int:
    """Parse the id of a tenant."""
    if not is_id(typed):
        raise typer.BadParameter(f"{quoted(typed)} is not a tenant id: expected a positive integer")
    return int(typed)


StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="MOORING_STORE",
        metavar="URL",
        help="URL of the store (default: the local `mooring serve`)",
    ),
]
RegistryOption = Annotated[
    str,
    typer.Option(
        "--registry",
        envvar="MOORING_REGISTRY",
        metavar="URL",
        help="URL of a Redis registry, if the registry is not in the store",
    ),
]
LayoutOption = Annotated[
    str,
    typer.Option(
        envvar="MOORING_LAYOUT",
        metavar="NAME",
        help="key layout: tree, hprose, plain:ROOT/ or endpoints:ROOT/",
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="output file (default, and -: standard output)"),
]
RevealOption = Annotated[bool, typer.Option("--reveal", help="show secrets in clear text")]
JSONOption = Annotated[bool, typer.Option("--json", help="print JSON, one object per line")]
YesOption = Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="show what would change without writing it")
]

NamespaceOption = Annotated[
    str,
    typer.Option(
        "--namespace", envvar=NAMESPACE_VARIABLE, metavar="NAME", help="key prefix of the tenants"
    ),
]

ServiceArgument = Annotated[str, typer.Argument(metavar="SERVICE", help="GROUP/NAME or NAME")]
ByOption = Annotated[
    str,
    typer.Option(
        "--by", metavar="NAME", help="author of the change, for the history (default: user@machine)"
    ),
]
InstanceOption = Annotated[
    str,
    typer.Option(
        "--instance", metavar="ID", help="use the configuration of this instance of the service"
    ),
]
ZoneOption = Annotated[
    str, typer.Option(help="zone of the caller; instances there are preferred", metavar="ZONE")
]
VersionOption = Annotated[
    str, typer.Option(help="only instances of this version", metavar="VERSION")
]
TagOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", metavar="KEY=VALUE", help="only instances with this metadata; repeatable"
    ),
]
TenantArgument = Annotated[
    int, typer.Argument(metavar="ID", parser=tenant_id, help="id of the tenant")
]
EntryArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", min=0, help="number of an entry in the history")
]
EntryFilter = Annotated[
    int,
    typer.Argument(
        metavar="NUMBER", min=0, show_default=False, help="show the changes of this entry"
    ),
]


@dataclass(frozen=True)
class WriteOptions:
    """Options of commands that change the configuration of tenants."""

    base: Annotated[
        str,
        typer.Option(
            metavar="REVISION",
            help="write only if nothing changed since this revision, as printed by `show --json` "
            "or `get --json`",
        ),
    ] = ""
    by: ByOption = ""
    note: Annotated[
        str, typer.Option(metavar="TEXT", help="reason for the change, for the history")
    ] = ""

    def require(self, owner: Owner) -> Callable[[StoredParts], None] | None:
        """A check that nothing changed since `--base`; None without `--base`."""
        if not self.base:
            return None

        def require(stored: StoredParts) -> None:
            if stored.revision != self.base:
                raise Conflict(
                    f"{named(owner)}: changed since revision {self.base}. Compare and merge, then "
                    f"write with the new revision, {stored.revision}",
                    revision=0,
                )

        return require


def pairs(what: str, typed: Iterable[str] | None, form: str = "KEY=VALUE") -> dict[str, str]:
    """Parse `KEY=VALUE` arguments, in order. Errors name the option (`what`) and the form."""
    parsed: dict[str, str] = {}
    for text in typed or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{quoted(text)} is not {form}", param_hint=what)
        if name in parsed:
            raise typer.BadParameter(f"{quoted(name)} is given twice", param_hint=what)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise typer.BadParameter(f"{quoted(text)} is not UTF-8", param_hint=what) from None
        parsed[name] = value
    return parsed


def read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("standard input is not UTF-8 text") from error


def seconds(what: str, typed: str) -> float:
    """Parse a duration: `15s`, `1m30s`."""
    try:
        return parse_duration(typed)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint=what) from None
