"""Options and arguments that several commands share, and parsers for their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from mooring import durations
from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.tenants.keys import NAMESPACE_VARIABLE

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
RevealOption = Annotated[bool, typer.Option("--reveal", help="show secrets in clear text")]
JSONOption = Annotated[bool, typer.Option("--json", help="print JSON, one object per line")]

NamespaceOption = Annotated[
    str,
    typer.Option(
        "--namespace",
        envvar=NAMESPACE_VARIABLE,
        metavar="NAME",
        help="key prefix of the tenants",
    ),
]

ServiceArgument = Annotated[str, typer.Argument(metavar="SERVICE", help="GROUP/NAME or NAME")]
InstanceOption = Annotated[
    str,
    typer.Option("--instance", metavar="ID", help="apply to this instance instead of the service"),
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


def pairs(what: str, typed: Iterable[str] | None) -> dict[str, str]:
    """Parse `KEY=VALUE` arguments, in order. `what` names the option in errors."""
    parsed: dict[str, str] = {}
    for text in typed or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{quoted(text)} is not KEY=VALUE", param_hint=what)
        if name in parsed:
            raise typer.BadParameter(f"{quoted(name)} is given twice", param_hint=what)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise typer.BadParameter(f"{quoted(text)} is not UTF-8", param_hint=what) from None
        parsed[name] = value
    return parsed


def seconds(what: str, typed: str) -> float:
    """Parse a duration: `15s`, `1m30s`."""
    try:
        return durations.parse(typed)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint=what) from None
