"""`mooring groups`, `mooring services` and `mooring info`."""

from __future__ import annotations

from typing import Annotated

import typer

from mooring.cli.io.connect import RegistryTarget, require_service
from mooring.cli.io.options import JSONOption, pairs
from mooring.cli.io.output import note, show, show_fields, warn
from mooring.cli.typer_extensions import CommandGroup
from mooring.errors import RegistryError, StoreError
from mooring.formatting import quoted
from mooring.hub import Hub
from mooring.model import JSON, Group, Service
from mooring.names import did_you_mean
from mooring.registry.contract import ServiceCount
from mooring.registry.evictions import Evictions


async def groups(target: RegistryTarget, as_json: JSONOption = False) -> None:
    """List service groups."""
    async with target.connect() as hub:
        names = await hub.registry.groups()
    if not names:
        note("no groups yet")
    show(names, {"group": str}, lambda group: {"group": group}, as_json=as_json)


async def services(
    target: RegistryTarget,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="only services of this group")] = "",
    as_json: JSONOption = False,
) -> None:
    """List services and how many instances each has.

    Unreadable records are not counted; `mooring instances` reports them. On Redis, a service
    that cannot be read is skipped with a warning.
    """
    async with target.connect() as hub:
        counts = await hub.registry.services(group)
        if not counts and group:
            await _require_group(hub, group)
        if (evictions := hub.registry.evictions) is not None:
            await _warn_of_brakes(evictions, counts)
    if not counts:
        note(f"no services {f'in {group} ' if group else ''}yet")
    show(
        counts,
        {"service": lambda row: row.name, "instances": lambda row: str(row.instances)},
        lambda row: {"service": row.name, "instances": row.instances},
        as_json=as_json,
    )


async def _require_group(hub: Hub, group: str) -> None:
    known = await hub.registry.groups()
    if group not in known:
        raise RegistryError(f"group {quoted(group)} not found{did_you_mean(group, known)}")


async def _warn_of_brakes(evictions: Evictions, services: list[ServiceCount]) -> None:
    try:
        brakes = await evictions.brakes()
    except StoreError as error:
        return warn(f"could not check for mass-expiry brakes: {error}")
    for service in services:
        if service.name in brakes:
            warn(f"{service.name}: the mass-expiry brake is engaged: {brakes[service.name]}")


app = CommandGroup()

_FIELDS = ("displayName", "department", "description")

OptionalServiceArgument = Annotated[
    str, typer.Argument(metavar="SERVICE", help="GROUP/NAME or NAME")
]
GroupOption = Annotated[
    str, typer.Option("--group", metavar="GROUP", help="apply to a group instead of a service")
]


@app.command()
async def get(
    target: RegistryTarget,
    service: OptionalServiceArgument = "",
    group: GroupOption = "",
    as_json: JSONOption = False,
) -> None:
    """Print the description of a service or group."""
    if bool(service) == bool(group):
        raise typer.BadParameter("give either SERVICE or --group", param_hint="SERVICE")
    async with target.connect() as hub:
        description = await hub.registry.info(service=service, group=group)
        if service:
            await require_service(hub, service)
        else:
            await _require_group(hub, group)
    _show_description(description, as_json)


@app.command(name="set")
async def set_fields(
    target: RegistryTarget,
    service: OptionalServiceArgument = "",
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=TEXT",
            help="fields: displayName, description; groups also have department",
        ),
    ] = None,
    group: GroupOption = "",
    as_json: JSONOption = False,
) -> None:
    """Change fields of a description and print the result."""
    assignments = list(fields or ())
    if group:  # the first argument is then a field, not a SERVICE
        service, assignments = "", [service, *assignments] if service else assignments
    elif service.partition("=")[0] in _FIELDS:
        raise typer.BadParameter("give a service first, or --group", param_hint=service)
    if not assignments:
        raise typer.BadParameter("give at least one", param_hint="FIELD=TEXT")
    new = pairs("FIELD=TEXT", assignments)
    async with target.connect() as hub:
        description = await hub.registry.describe(service=service, group=group, set=new)
    _show_description(description, as_json)


def _show_description(description: Group | Service, as_json: bool) -> None:
    fields: dict[str, JSON] = {
        "group" if isinstance(description, Group) else "service": description.name,
        "displayName": description.display_name,
    }
    if isinstance(description, Group):
        fields["department"] = description.department
    fields["description"] = description.description
    show_fields(fields, ("field", "text"), as_json=as_json)
