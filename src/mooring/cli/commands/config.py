"""`mooring config`: operator overrides of services and instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from mooring.cli.io.connect import open_hub, require_service, run_command
from mooring.cli.io.options import (
    InstanceOption,
    JSONOption,
    LayoutOption,
    RegistryOption,
    RevealOption,
    ServiceArgument,
    StoreOption,
    pairs,
)
from mooring.cli.io.output import as_text, note, printable, show, show_json
from mooring.errors import RegistryError
from mooring.formatting import quoted
from mooring.hub import Hub
from mooring.masking import holds_mask, masked_fields
from mooring.model import JSON

app = typer.Typer(
    help="Get, set and unset service and instance configuration.", no_args_is_help=True
)

Fields = Mapping[str, JSON]


@app.command()
def get(
    service: ServiceArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="print only its value")] = "",
    instance: InstanceOption = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
    reveal: RevealOption = False,
) -> None:
    """Print configuration values.

    Secrets are masked. Exits with 1 if KEY is not set.
    """
    fields = run_command(_get(service, instance, store, registry, layout))
    if reveal:
        note(f"the secrets of {_subject(service, instance)} are shown in clear text")
    else:
        fields = masked_fields(fields)
    if not key:
        _show(fields, as_json)
    elif key not in fields:
        raise RegistryError(f"{_subject(service, instance)} has no {quoted(key)} set")
    elif as_json:
        show_json(fields[key])
    else:
        typer.echo(printable(as_text(fields[key])))


async def _get(service: str, instance: str, store: str, registry: str, layout: str) -> Fields:
    async with open_hub(store, layout, registry=registry) as hub:
        fields = await hub.registry.config(service, instance)
        if not fields:
            await require_service(hub, service)
        return fields


@app.command(name="set")
def set_values(
    service: ServiceArgument,
    values: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE", help="VALUE is JSON if it parses as JSON, else text"),
    ],
    instance: InstanceOption = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """Set values, and print all that is set. Instances and callers follow at once.

    weight, enabled, zone and metadata steer the calls; the rest is the service's own.

    A KEY that begins with a dash goes after --.
    """
    new = {name: _typed(text) for name, text in pairs("KEY=VALUE", values).items()}
    for name, value in new.items():
        if holds_mask({name: value}):
            raise typer.BadParameter(f"{name} is masked: give the secret itself, or leave it out")
    configured = run_command(_configure(service, instance, new, (), store, registry, layout))
    _show(masked_fields(configured), as_json)


@app.command()
def unset(
    service: ServiceArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY")],
    instance: InstanceOption = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """Remove values and print the remaining ones."""
    configured = run_command(
        _configure(service, instance, {}, tuple(keys), store, registry, layout)
    )
    _show(masked_fields(configured), as_json)


async def _configure(
    service: str,
    instance: str,
    new: Fields,
    gone: tuple[str, ...],
    store: str,
    registry: str,
    layout: str,
) -> Fields:
    async with open_hub(store, layout, registry=registry) as hub:
        before = await hub.registry.config(service, instance) if gone else {}
        fields = await hub.registry.configure(service, instance, set=new, unset=gone)
        for name in gone:
            if name not in before:
                note(f"{quoted(name)} was not set on {_subject(service, instance)}")
        if new and not await _is_registered(hub, service, instance):
            note(f"{_subject(service, instance)} is not registered; the values apply once it is")
        return fields


async def _is_registered(hub: Hub, service: str, instance: str) -> bool:
    instances = (await hub.registry.instances(service)).instances
    return any(instance in ("", candidate.id) for candidate in instances)


def _typed(text: str) -> JSON:
    """Parse `true`, `3`, `"3"` or `[1]` as JSON; anything else is text."""
    try:
        value: JSON = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return value


def _subject(service: str, instance: str) -> str:
    return f"{service} {instance}".rstrip()


def _show(fields: Fields, as_json: bool) -> None:
    if as_json:
        show_json(fields)
        return
    show(
        list(fields.items()),
        {"key": lambda field: field[0], "value": lambda field: as_text(field[1])},
        lambda field: {field[0]: field[1]},
        as_json=False,
    )
