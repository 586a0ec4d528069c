"""`mooring resolve`, `mooring wait` and `mooring explain`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from mooring.cli.commands.instances import record, without_secrets
from mooring.cli.io.connect import RegistryTarget, list_instances, require_service
from mooring.cli.io.options import (
    JSONOption,
    RevealOption,
    ServiceArgument,
    TagOption,
    VersionOption,
    ZoneOption,
    pairs,
    seconds,
)
from mooring.cli.io.output import note, show, show_json, yes_no
from mooring.discovery.resilience import Resilience
from mooring.discovery.rotation import Rotation
from mooring.discovery.rotation import explain as explain_rotation
from mooring.discovery.selector import Selector
from mooring.errors import NoInstance
from mooring.formatting import format_duration
from mooring.model import Instance

_FIRST_RESPONSE = 1.0  # seconds for the first response of the store, even with a shorter --timeout

ProtocolOption = Annotated[
    str, typer.Option(metavar="NAME", help="use the named port of this protocol, if there is one")
]


async def resolve(
    service: ServiceArgument,
    target: RegistryTarget,
    policy: Annotated[str, typer.Option(metavar="NAME", help="balancing policy")] = "p2c",
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
        note(f"{service} has {len(picked)} of {count} callable instances")
    if reveal and as_json:
        note(f"the secrets of {service} are shown in clear text")
    _show_addresses(picked, protocol, as_json, reveal)


def _pick(rotation: Rotation, key: str, count: int) -> list[Instance]:
    """Different instances, in the order in which they would be tried."""
    picked: dict[str, Instance] = {}
    while len(picked) < count:
        node = rotation.pick(key or None, picked)
        if node.id in picked:
            break  # no other instance is left
        picked[node.id] = node.item.instance
    return list(picked.values())


def _show_addresses(
    instances: Sequence[Instance], protocol: str, as_json: bool, reveal: bool = False
) -> None:
    for instance in instances:
        address = instance.address_for(protocol)
        if as_json:
            shown = instance if reveal else without_secrets(instance)
            show_json({"address": address, **record(shown)})
        else:
            typer.echo(address)


async def wait(
    service: ServiceArgument,
    target: RegistryTarget,
    count: Annotated[
        int, typer.Option(metavar="N", min=1, help="number of instances to wait for")
    ] = 1,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="give up after this time")
    ] = "30s",
    version: VersionOption = "",
    tag: TagOption = None,
    protocol: ProtocolOption = "",
    as_json: JSONOption = False,
) -> None:
    """Wait until a service has callable instances.

    Prints the HOST:PORT of each. Exits with 1 if there are too few before the timeout.
    """
    within = seconds("--timeout", timeout)
    tags = pairs("--tag", tag)
    deadline = time.monotonic() + within
    async with (
        target.connect() as hub,
        hub.discover(
            service, version=version, tags=tags, wait=max(within, _FIRST_RESPONSE)
        ) as view,
    ):
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                await view.wait(count)
        except TimeoutError:
            explanations = view.explain()
            if not explanations:
                await require_service(hub, service)
            callable_count = sum(explanation.called for explanation in explanations)
            raise NoInstance(
                f"{service} has {callable_count} of {count} callable instances after "
                f"{format_duration(within)}: run `mooring explain {service}` for the reasons"
            ) from None
        instances = [explanation.instance for explanation in view.explain() if explanation.called]
    _show_addresses(instances, protocol, as_json)


async def explain(
    service: ServiceArgument,
    target: RegistryTarget,
    zone: ZoneOption = "",
    version: VersionOption = "",
    tag: TagOption = None,
    as_json: JSONOption = False,
) -> None:
    """Show why each instance is or is not in rotation."""
    selector = Selector(version, pairs("--tag", tag), zone)
    async with target.connect() as hub:
        instances = await list_instances(hub, service)
    if not instances:
        note(f"{service} has no instances")
    show(
        explain_rotation(instances, selector, Resilience()),
        {
            "id": lambda row: row.instance.id,
            "called": lambda row: yes_no(row.called),
            "why": lambda row: "; ".join(row.reasons) or "in rotation",
        },
        lambda row: {
            "service": row.instance.service,
            "id": row.instance.id,
            "called": row.called,
            "reasons": list(row.reasons),
        },
        as_json=as_json,
    )
