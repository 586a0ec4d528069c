"""`mooring resolve`: picks an instance to call."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated

import typer

from mooring.cli.commands.instances import record, without_secrets
from mooring.cli.io.connect import RegistryTarget, list_instances
from mooring.cli.io.options import (
    JSONOption,
    RevealOption,
    ServiceArgument,
    TagOption,
    VersionOption,
    ZoneOption,
    pairs,
)
from mooring.cli.io.streams import note
from mooring.cli.io.tables import show_json
from mooring.discovery.balance import NAMES
from mooring.discovery.exclusion import Selector
from mooring.discovery.rotation import Rotation
from mooring.model import Instance

ProtocolOption = Annotated[
    str, typer.Option(metavar="NAME", help="use the named port of this protocol, if there is one")
]


async def resolve(
    service: ServiceArgument,
    target: RegistryTarget,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help=f"balancing policy: {', '.join(NAMES)}")
    ] = "p2c",
    key: Annotated[str, typer.Option(metavar="TEXT", help="hash key for consistent_hash")] = "",
    zone: ZoneOption = "",
    version: VersionOption = "",
    tag: TagOption = None,
    protocol: ProtocolOption = "",
    count: Annotated[
        int, typer.Option(metavar="N", min=1, help="number of different instances to print")
    ] = 1,
    as_json: JSONOption = False,
    reveal: RevealOption = False,
) -> None:
    """Pick an instance to call and print its HOST:PORT.

    With --json, prints the whole instance with secrets masked. Exits with 1 if no instance can
    be called.
    """
    rotation = Rotation(
        service, policy=policy, selector=Selector(version, pairs("--tag", tag), zone)
    )
    async with target.connect() as hub:
        instances = list(await list_instances(hub, service))
    random.shuffle(instances)  # each command starts a round robin from the beginning
    for instance in instances:
        rotation.put(instance, 0.0, first=True)
    picked = _pick(rotation, key, count)
    if len(picked) < count:
        note(f"{len(picked)} of {count} requested instances of {service} can be called")
    if reveal and as_json:
        note(f"the secrets of {service} are shown in clear text")
    show_addresses(picked, protocol, as_json, reveal)


def _pick(rotation: Rotation, key: str, count: int) -> list[Instance]:
    """Different instances, in the order in which they would be tried."""
    picked: dict[str, Instance] = {}
    while len(picked) < count:
        node = rotation.pick(key or None, picked)
        if node.id in picked:
            break  # no other instance is left
        picked[node.id] = node.item.instance
    return list(picked.values())


def show_addresses(
    instances: Sequence[Instance], protocol: str, as_json: bool, reveal: bool = False
) -> None:
    for instance in instances:
        address = instance.address_for(protocol)
        if as_json:
            shown = instance if reveal else without_secrets(instance)
            show_json({"address": address, **record(shown)})
        else:
            typer.echo(address)
