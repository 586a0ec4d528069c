"""`mooring wait`: waits until a service can be called."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer

from mooring.cli.commands.resolve import ProtocolOption, show_addresses
from mooring.cli.io.connect import RegistryTarget
from mooring.cli.io.options import (
    JSONOption,
    ServiceArgument,
    TagOption,
    VersionOption,
    pairs,
    seconds,
)
from mooring.durations import format_duration
from mooring.errors import NoInstance
from mooring.registry.lookup import require_service

_FIRST_RESPONSE = 1.0  # seconds for the first response of the store, even with a shorter --timeout


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
                await require_service(hub.registry, service)
            callable_count = sum(explanation.called for explanation in explanations)
            raise NoInstance(
                f"after {format_duration(within)}, {callable_count} of {count} required instances "
                f"of {service} can be called: run `mooring explain {service}` for the reasons"
            ) from None
        instances = [explanation.instance for explanation in view.explain() if explanation.called]
    show_addresses(instances, protocol, as_json)
