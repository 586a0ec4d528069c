"""`mooring resolve`, `mooring wait`, `mooring explain`: whom to call, and why."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from mooring import durations
from mooring.cli.commands.instances import record, without_secrets
from mooring.cli.io.connect import listed, reach, run_command
from mooring.cli.io.options import (
    JSONOption,
    LayoutOption,
    RegistryOption,
    RevealOption,
    ServiceArgument,
    StoreOption,
    TagOption,
    VersionOption,
    ZoneOption,
    pairs,
    seconds,
)
from mooring.cli.io.output import show, yes_no
from mooring.cli.io.stderr import note
from mooring.discovery.eligibility import Wanted
from mooring.discovery.resilience import Resilience
from mooring.discovery.rotation import Explanation, Rotation
from mooring.discovery.rotation import explain as explain_rotation
from mooring.errors import NoInstance
from mooring.model import JSON, Instance

_PATIENCE = 1.0  # seconds that the store has for its first answer, however short the wait

ProtocolOption = Annotated[
    str, typer.Option(metavar="NAME", help="the port for this protocol, where it has its own")
]


def resolve(
    service: ServiceArgument,
    policy: Annotated[str, typer.Option(metavar="NAME", help="how to choose")] = "p2c",
    key: Annotated[
        str, typer.Option(metavar="TEXT", help="for consistent_hash: the same goes to the same")
    ] = "",
    zone: ZoneOption = "",
    version: VersionOption = "",
    tag: TagOption = None,
    protocol: ProtocolOption = "",
    count: Annotated[
        int, typer.Option(metavar="N", min=1, help="so many different ones, if there are")
    ] = 1,
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
    reveal: RevealOption = False,
) -> None:
    """Print HOST:PORT of an instance to call; with --json all of it, secrets masked.

    Exits with 1 if there is none.
    """
    rotation = Rotation(service, policy=policy, wanted=Wanted(version, pairs("--tag", tag), zone))
    found = list(run_command(_listed(service, store, registry, layout)))
    random.shuffle(found)  # a policy that goes in turns begins anew with each command
    for instance in found:
        rotation.put(instance, 0.0, first=True)
    picked = _picks(rotation, key, count)
    if len(picked) < count:
        note(f"{service} has {len(picked)} of {count} instances that may be called")
    if reveal and as_json:
        note(f"the secrets of {service} are shown in clear text")
    _show_addresses(picked, protocol, as_json, reveal)


async def _listed(service: str, store: str, registry: str, layout: str) -> tuple[Instance, ...]:
    async with reach(store, layout, registry=registry) as hub:
        return await listed(hub, service)


def _picks(rotation: Rotation, key: str, count: int) -> list[Instance]:
    """Different instances, in the order in which they would be tried."""
    picked: dict[str, Instance] = {}
    while len(picked) < count:
        node = rotation.pick(key or None, picked)
        if node.id in picked:
            break  # there is no other
        picked[node.id] = node.item.instance
    return list(picked.values())


def _show_addresses(
    found: Sequence[Instance], protocol: str, as_json: bool, reveal: bool = False
) -> None:
    def address(instance: Instance) -> str:
        return instance.address_for(protocol)

    if as_json:
        show(
            found,
            {},
            lambda each: {
                "address": address(each),
                **record(each if reveal else without_secrets(each)),
            },
            as_json=True,
        )
        return
    for instance in found:
        typer.echo(address(instance))


def wait(
    service: ServiceArgument,
    count: Annotated[int, typer.Option(metavar="N", min=1, help="so many instances")] = 1,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="for so long")] = "30s",
    version: VersionOption = "",
    tag: TagOption = None,
    protocol: ProtocolOption = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """Wait until instances may be called.

    Prints HOST:PORT of each. Exits with 1 if there are too few in time.
    """
    within = seconds("--timeout", timeout)
    tags = pairs("--tag", tag)
    found = run_command(_wait(service, count, within, version, tags, store, registry, layout))
    _show_addresses(found, protocol, as_json)


async def _wait(
    service: str,
    count: int,
    within: float,
    version: str,
    tags: Mapping[str, str],
    store: str,
    registry: str,
    layout: str,
) -> list[Instance]:
    deadline = time.monotonic() + within
    async with (
        reach(store, layout, registry=registry) as hub,
        hub.discover(service, version=version, tags=tags, wait=max(within, _PATIENCE)) as view,
    ):
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                await view.wait(count)
        except TimeoutError:
            there = sum(each.called for each in view.explain())
            raise NoInstance(
                f"{service} has {there} of {count} instances that may be called after "
                f"{durations.show(within)}: `mooring explain {service}` tells why"
            ) from None
        return [each.instance for each in view.explain() if each.called]


def explain(
    service: ServiceArgument,
    zone: ZoneOption = "",
    version: VersionOption = "",
    tag: TagOption = None,
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """Tell why each instance is or is not called."""
    wanted = Wanted(version, pairs("--tag", tag), zone)
    found = run_command(_listed(service, store, registry, layout))
    if not found:
        note(f"{service} has no instances at present")
    show(
        explain_rotation(found, wanted, Resilience()),
        {
            "id": lambda each: each.instance.id,
            "called": lambda each: yes_no(each.called),
            "why": lambda each: "; ".join(each.reasons) or "in rotation",
        },
        _reasons,
        as_json=as_json,
    )


def _reasons(explained: Explanation) -> dict[str, JSON]:
    return {
        "service": explained.instance.service,
        "id": explained.instance.id,
        "called": explained.called,
        "reasons": list(explained.reasons),
    }
