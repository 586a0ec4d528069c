"""`mooring groups`, `mooring services`: what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mooring.cli.options import JSONOption, LayoutOption, RegistryOption, StoreOption
from mooring.cli.printing import show
from mooring.cli.reaching import meant, on_redis, reach, run_command
from mooring.cli.telling import note, warn
from mooring.display import quoted
from mooring.errors import RegistryError, StoreError
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
