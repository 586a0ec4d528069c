"""`mooring groups`, `mooring services` and `mooring info`."""

from __future__ import annotations

from typing import Annotated

import typer

from mooring.cli.io.connect import did_you_mean, open_hub, require_service, run_command
from mooring.cli.io.options import JSONOption, LayoutOption, RegistryOption, StoreOption, pairs
from mooring.cli.io.output import note, show, show_json, warn
from mooring.errors import RegistryError, StoreError
from mooring.formatting import quoted
from mooring.hub import Hub
from mooring.model import JSON, Group, Service
from mooring.registry.contract import Evictions, ServiceCount


def groups(
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """List service groups."""
    run_command(_groups(store, registry, layout, as_json))


async def _groups(store: str, registry: str, layout: str, as_json: bool) -> None:
    async with open_hub(store, layout, registry=registry) as hub:
        found = await hub.registry.groups()
    if not found:
        note("no groups yet")
    show(found, {"group": str}, lambda group: {"group": group}, as_json=as_json)


def services(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="only services of this group")] = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """List services and how many instances each has.

    Unreadable records are not counted; `mooring instances` reports them. On Redis, a service
    that cannot be read is skipped with a warning.
    """
    run_command(_services(group, store, registry, layout, as_json))


async def _services(group: str, store: str, registry: str, layout: str, as_json: bool) -> None:
    async with open_hub(store, layout, registry=registry) as hub:
        found = await hub.registry.services(group)
        if not found and group and group not in (known := await hub.registry.groups()):
            raise RegistryError(f"group {quoted(group)} not found{did_you_mean(group, known)}")
        if (evictions := hub.registry.evictions) is not None:
            await _warn_of_brakes(evictions, found)
    if not found:
        note(f"no services {f'in {group} ' if group else ''}yet")
    show(
        found,
        {"service": lambda row: row.name, "instances": lambda row: str(row.instances)},
        _record,
        as_json=as_json,
    )


async def _warn_of_brakes(evictions: Evictions, services: list[ServiceCount]) -> None:
    try:
        brakes = await evictions.brakes()
    except StoreError as error:
        return warn(f"could not check for mass-expiry brakes: {error}")
    for service in services:
        if service.name in brakes:
            warn(f"{service.name}: the mass-expiry brake is on: {brakes[service.name]}")


def _record(service: ServiceCount) -> dict[str, str | int]:
    return {"service": service.name, "instances": service.instances}


app = typer.Typer(help="Get and set descriptions of services and groups.", no_args_is_help=True)

_FIELDS = ("displayName", "department", "description")

GroupOption = Annotated[
    str, typer.Option("--group", metavar="GROUP", help="apply to a group instead of a service")
]


@app.command()
def get(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="GROUP/NAME or NAME")] = "",
    group: GroupOption = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """Print the description of a service or group."""
    if bool(service) == bool(group):
        raise typer.BadParameter("give either SERVICE or --group", param_hint="SERVICE")
    _show(run_command(_get(service, group, store, registry, layout)), as_json)


async def _get(service: str, group: str, store: str, registry: str, layout: str) -> Group | Service:
    async with open_hub(store, layout, registry=registry) as hub:
        found = await hub.registry.info(service=service, group=group)
        if service:
            await require_service(hub, service)
        else:
            await _group_must_be_known(hub, group)
        return found


async def _group_must_be_known(hub: Hub, group: str) -> None:
    known = await hub.registry.groups()
    if group not in known:
        raise RegistryError(f"group {quoted(group)} not found{did_you_mean(group, known)}")


@app.command(name="set")
def set_fields(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="GROUP/NAME or NAME")] = "",
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=TEXT",
            help="fields: displayName, description; groups also have department",
        ),
    ] = None,
    group: GroupOption = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
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
    _show(run_command(_set(service, group, new, store, registry, layout)), as_json)


async def _set(
    service: str, group: str, new: dict[str, str], store: str, registry: str, layout: str
) -> Group | Service:
    async with open_hub(store, layout, registry=registry) as hub:
        return await hub.registry.describe(service=service, group=group, set=new)


def _info_record(described: Group | Service) -> dict[str, JSON]:
    if isinstance(described, Group):
        return {
            "group": described.name,
            "displayName": described.display_name,
            "department": described.department,
            "description": described.description,
        }
    return {
        "service": described.name,
        "displayName": described.display_name,
        "description": described.description,
    }


def _show(described: Group | Service, as_json: bool) -> None:
    fields = _info_record(described)
    if as_json:
        show_json(fields)
        return
    show(
        list(fields.items()),
        {"field": lambda field: field[0], "text": lambda field: str(field[1])},
        lambda field: {field[0]: field[1]},
        as_json=False,
    )
