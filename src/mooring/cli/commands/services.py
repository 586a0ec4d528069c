"""`mooring groups`, `mooring services`: what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mooring.cli.io.connect import meant, must_be_known, on_redis, reach, run_command
from mooring.cli.io.options import JSONOption, LayoutOption, RegistryOption, StoreOption, pairs
from mooring.cli.io.output import show, show_json
from mooring.cli.io.stderr import note, warn
from mooring.errors import RegistryError, StoreError
from mooring.formatting import quoted
from mooring.hub import Hub
from mooring.model import JSON, Group, Service
from mooring.registry.contract import ServiceCount

if TYPE_CHECKING:
    from mooring.registry.redis.registry import RedisRegistry


def groups(
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """List the groups of services."""
    run_command(_groups(store, registry, layout, as_json))


async def _groups(store: str, registry: str, layout: str, as_json: bool) -> None:
    async with reach(store, layout, registry=registry) as hub:
        found = await hub.registry.groups()
    if not found:
        note("there are no groups yet")
    show(found, {"group": str}, lambda group: {"group": group}, as_json=as_json)


def services(
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="only the services of this group")
    ] = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """List the services with the number of their instances.

    A record that cannot be read does not count: `instances` shows which one. A service on Redis
    that cannot be read is left out, with a warning.
    """
    run_command(_services(group, store, registry, layout, as_json))


async def _services(group: str, store: str, registry: str, layout: str, as_json: bool) -> None:
    async with reach(store, layout, registry=registry) as hub:
        found = await hub.registry.services(group)
        if not found and group and group not in (known := await hub.registry.groups()):
            raise RegistryError(f"there is no group {quoted(group)}{meant(group, known)}")
        if (redis := on_redis(hub)) is not None:
            await _warn_of_brakes(redis, found)
    if not found:
        note(f"there are no services {f'in {group} ' if group else ''}yet")
    show(
        found,
        {"service": lambda each: each.name, "instances": lambda each: str(each.instances)},
        _record,
        as_json=as_json,
    )


async def _warn_of_brakes(redis: RedisRegistry, found: list[ServiceCount]) -> None:
    try:
        brakes = await redis.sweeper().brakes()
    except StoreError as error:
        return warn(f"whether a brake holds is not known: {error}")
    for each in found:
        if each.name in brakes:
            warn(f"{each.name}: the brake holds: {brakes[each.name]}")


def _record(service: ServiceCount) -> dict[str, str | int]:
    return {"service": service.name, "instances": service.instances}


app = typer.Typer(help="Descriptions of services and groups: get, set.", no_args_is_help=True)

_FIELDS = ("displayName", "department", "description")

GroupOption = Annotated[
    str, typer.Option("--group", metavar="GROUP", help="a group in place of a service")
]


@app.command()
def get(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="group/name, or name")] = "",
    group: GroupOption = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """Print a description."""
    if bool(service) == bool(group):
        raise typer.BadParameter("name one of SERVICE and --group", param_hint="SERVICE")
    _show(run_command(_get(service, group, store, registry, layout)), as_json)


async def _get(service: str, group: str, store: str, registry: str, layout: str) -> Group | Service:
    async with reach(store, layout, registry=registry) as hub:
        found = await hub.registry.info(service=service, group=group)
        if service:
            await must_be_known(hub, service)
        else:
            await _group_must_be_known(hub, group)
        return found


async def _group_must_be_known(hub: Hub, group: str) -> None:
    known = await hub.registry.groups()
    if group not in known:
        raise RegistryError(f"there is no group {quoted(group)}{meant(group, known)}")


@app.command(name="set")
def set_fields(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="group/name, or name")] = "",
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=TEXT", help="displayName, description; for a group department too"
        ),
    ] = None,
    group: GroupOption = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """Change some of a description, and print all of it."""
    told = list(fields or ())
    if group:  # then there is no SERVICE, and what stands in its place is a field
        service, told = "", [service, *told] if service else told
    elif service.partition("=")[0] in _FIELDS:
        raise typer.BadParameter("name a service before it, or --group", param_hint=service)
    if not told:
        raise typer.BadParameter("give at least one", param_hint="FIELD=TEXT")
    new = pairs("FIELD=TEXT", told)
    _show(run_command(_set(service, group, new, store, registry, layout)), as_json)


async def _set(
    service: str, group: str, new: dict[str, str], store: str, registry: str, layout: str
) -> Group | Service:
    async with reach(store, layout, registry=registry) as hub:
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
