"""Options that the registry's commands share, and how what is typed is read."""

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
        help="URL of the store; default: the local `mooring serve`",
    ),
]
RegistryOption = Annotated[
    str,
    typer.Option(
        "--registry",
        envvar="MOORING_REGISTRY",
        metavar="URL",
        help="where the registry is, if not in the store: redis://…",
    ),
]
LayoutOption = Annotated[
    str,
    typer.Option(
        envvar="MOORING_LAYOUT",
        metavar="NAME",
        help="tree, hprose, plain:ROOT/ or endpoints:ROOT/",
    ),
]
RevealOption = Annotated[bool, typer.Option("--reveal", help="secrets in clear text")]
JSONOption = Annotated[bool, typer.Option("--json", help="one JSON object a line")]

NamespaceOption = Annotated[
    str,
    typer.Option(
        "--namespace",
        envvar=NAMESPACE_VARIABLE,
        metavar="NAME",
        help="the key prefix of the tenants",
    ),
]

ServiceArgument = Annotated[str, typer.Argument(metavar="SERVICE", help="group/name, or name")]
InstanceOption = Annotated[
    str, typer.Option("--instance", metavar="ID", help="one instance, not the whole service")
]
ZoneOption = Annotated[str, typer.Option(help="the caller's zone: preferred", metavar="ZONE")]
VersionOption = Annotated[str, typer.Option(help="this version alone", metavar="VERSION")]
TagOption = Annotated[
    list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="metadata that it must have")
]


def pairs(what: str, typed: Iterable[str] | None) -> dict[str, str]:
    """What was typed as `KEY=VALUE`, in order. `what` names the option in errors."""
    found: dict[str, str] = {}
    for text in typed or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{quoted(text)} is not KEY=VALUE", param_hint=what)
        if name in found:
            raise typer.BadParameter(f"{quoted(name)} is given twice", param_hint=what)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise typer.BadParameter(f"{quoted(text)} is not UTF-8", param_hint=what) from None
        found[name] = value
    return found


def seconds(what: str, typed: str) -> float:
    """The duration that was typed: `15s`, `1m30s`."""
    try:
        return durations.parse(typed)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint=what) from None
