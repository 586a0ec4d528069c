"""`mooring info`: descriptions of services and groups."""

from __future__ import annotations

from typing import Annotated

import typer

from mooring.cli.io.connect import RegistryTarget
from mooring.cli.io.options import JSONOption, ServiceArgument, pairs
from mooring.cli.io.tables import show_fields
from mooring.cli.typer_extensions import CommandGroup
from mooring.model import JSON, Group, Service
from mooring.registry.lookup import require_group, require_service

app = CommandGroup()

_FIELDS = ("displayName", "department", "description")

GroupOption = Annotated[
    str, typer.Option("--group", metavar="GROUP", help="apply to a group instead of a service")
]


@app.command()
async def get(
    target: RegistryTarget,
    service: ServiceArgument = "",
    group: GroupOption = "",
    as_json: JSONOption = False,
) -> None:
    """Print the description of a service or group."""
    if bool(service) == bool(group):
        raise typer.BadParameter("give either SERVICE or --group", param_hint="SERVICE")
    async with target.connect() as hub:
        description = await hub.registry.info(service=service, group=group)
        if service:
            await require_service(hub.registry, service)
        else:
            await require_group(hub.registry, group)
    _show_description(description, as_json)


@app.command(name="set")
async def set_fields(
    target: RegistryTarget,
    service: ServiceArgument = "",
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
    new = pairs("FIELD=TEXT", assignments, "FIELD=TEXT")
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
