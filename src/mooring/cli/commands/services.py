"""`mooring groups` and `mooring services`."""

from __future__ import annotations

from typing import Annotated

import typer

from mooring.cli.io.connect import RegistryTarget
from mooring.cli.io.options import JSONOption
from mooring.cli.io.streams import note, warn
from mooring.cli.io.tables import show
from mooring.errors import StoreError
from mooring.registry.contract import ServiceCount
from mooring.registry.evictions import Evictions
from mooring.registry.lookup import require_group


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
            await require_group(hub.registry, group)
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


async def _warn_of_brakes(evictions: Evictions, services: list[ServiceCount]) -> None:
    try:
        brakes = await evictions.brakes()
    except StoreError as error:
        return warn(f"could not check for brakes: {error}")
    for service in services:
        if service.name in brakes:
            warn(f"{service.name}: the brake is engaged: {brakes[service.name]}")
