"""`mooring config`: operator overrides of services and instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from mooring.cli.io.connect import RegistryTarget
from mooring.cli.io.options import InstanceOption, JSONOption, RevealOption, ServiceArgument, pairs
from mooring.cli.io.streams import note
from mooring.cli.io.tables import as_text, show_fields, show_json
from mooring.cli.typer_extensions import CommandGroup
from mooring.errors import RegistryError
from mooring.formatting import printable, quoted
from mooring.masking import holds_mask, masked_fields
from mooring.model import JSON
from mooring.registry.lookup import require_service

app = CommandGroup()


@app.command()
async def get(
    service: ServiceArgument,
    target: RegistryTarget,
    key: Annotated[str, typer.Argument(metavar="KEY", help="print only its value")] = "",
    instance: InstanceOption = "",
    as_json: JSONOption = False,
    reveal: RevealOption = False,
) -> None:
    """Print configuration values.

    Secrets are masked. Exits with 1 if KEY is not set.
    """
    async with target.connect() as hub:
        fields = await hub.registry.config(service, instance)
        if not fields:
            await require_service(hub.registry, service)
    if reveal:
        note(f"the secrets of {_subject(service, instance)} are shown in clear text")
    else:
        fields = masked_fields(fields)
    if not key:
        show_fields(fields, as_json=as_json)
    elif key not in fields:
        raise RegistryError(f"{quoted(key)} is not set on {_subject(service, instance)}")
    elif as_json:
        show_json(fields[key])
    else:
        typer.echo(printable(as_text(fields[key])))


@app.command(name="set")
async def set_values(
    service: ServiceArgument,
    values: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE", help="VALUE is JSON if it parses as JSON, else text"),
    ],
    target: RegistryTarget,
    instance: InstanceOption = "",
    as_json: JSONOption = False,
) -> None:
    """Set values and print the resulting configuration.

    Instances and callers apply changes at once. `weight`, `enabled`, `zone` and `metadata` override
    what the instances registered; other keys are for the application.

    A KEY that begins with a dash goes after --.
    """
    new = {name: _parsed(text) for name, text in pairs("KEY=VALUE", values).items()}
    for name, value in new.items():
        if holds_mask({name: value}):
            raise typer.BadParameter(f"{name} is masked: give the secret itself, or leave it out")
    async with target.connect() as hub:
        fields = await hub.registry.configure(service, instance, set=new)
        registered = (await hub.registry.instances(service)).instances
        if not any(instance in ("", candidate.id) for candidate in registered):
            note(f"{_subject(service, instance)} is not registered; the values apply once it is")
    show_fields(masked_fields(fields), as_json=as_json)


@app.command()
async def unset(
    service: ServiceArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="name of a value")],
    target: RegistryTarget,
    instance: InstanceOption = "",
    as_json: JSONOption = False,
) -> None:
    """Remove values and print the remaining ones."""
    async with target.connect() as hub:
        before: Mapping[str, JSON] = await hub.registry.config(service, instance)
        fields = await hub.registry.configure(service, instance, set={}, unset=tuple(keys))
    for name in keys:
        if name not in before:
            note(f"{quoted(name)} was not set on {_subject(service, instance)}")
    show_fields(masked_fields(fields), as_json=as_json)


def _parsed(text: str) -> JSON:
    """Parse `true`, `3`, `"3"` or `[1]` as JSON; anything else is text."""
    try:
        value: JSON = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return value


def _subject(service: str, instance: str) -> str:
    return f"{service} {instance}".rstrip()
