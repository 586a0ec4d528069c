"""`mooring register`: an instance that is registered while a command runs. `mooring deregister`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from mooring import addresses
from mooring.cli.io.child_process import Child, queue_signals, report_not_started
from mooring.cli.io.connect import START_ONE, RegistryTarget, list_instances
from mooring.cli.io.options import JSONOption, ServiceArgument, pairs, seconds
from mooring.cli.io.streams import log_to_stderr, note, print_stderr, warn
from mooring.cli.io.tables import show_json
from mooring.formatting import quoted
from mooring.model import Instance
from mooring.registry.kv.layouts import layout_of
from mooring.registry.kv.layouts.hprose import protocol_of
from mooring.registry.lookup import instance_not_found
from mooring.registry.registration import Registration
from mooring.store.validation import check_ttl
from mooring.tasks import Tasks

_FIRST_REGISTRATION = 1.0  # seconds to wait for it before the command starts
_STOP_TIMEOUT = 10.0  # seconds until the command is killed if the registration ends first


@dataclass(frozen=True)
class InstanceOptions:
    """Options that describe the instance to register."""

    version: Annotated[str, typer.Option(metavar="VERSION", help="version of the service")] = (
        "0.0.0"
    )
    weight: Annotated[float, typer.Option(metavar="N", help="relative share of calls")] = 1.0
    zone: Annotated[str, typer.Option(metavar="ZONE", help="zone of the instance")] = ""
    protocol: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="protocol of the main port (default: tcp; with hprose, the prefix of the domain)",
        ),
    ] = ""
    port: Annotated[
        list[str] | None,
        typer.Option("--port", metavar="NAME=PORT", help="additional named port; repeatable"),
    ] = None
    meta: Annotated[
        list[str] | None, typer.Option("--meta", metavar="KEY=VALUE", help="metadata; repeatable")
    ] = None
    ttl: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="expire after this time without a heartbeat; no effect on Redis (default: 15s; "
            "with hprose 10s, with plain 5s)",
        ),
    ] = ""
    persistent: Annotated[
        bool,
        typer.Option(
            "--persistent",
            help="on Redis: mark as unhealthy instead of evicting when heartbeats stop",
        ),
    ] = False

    def instance(self, service: str, host: str, port: int, layout: str) -> Instance:
        extra = pairs("--port", self.port, "NAME=PORT")
        return Instance(
            service,
            host,
            port,
            protocol=self.protocol or _default_protocol(service, layout),
            version=self.version,
            zone=self.zone,
            weight=self.weight,
            metadata=pairs("--meta", self.meta),
            ports={name: _number(name, text) for name, text in extra.items()},
            ephemeral=not self.persistent,
        )

    def lifetime(self) -> float | None:
        """Seconds until the instance expires without a heartbeat; None for the default."""
        if not self.ttl:
            return None
        lifetime = seconds("--ttl", self.ttl)
        check_ttl(lifetime)
        return lifetime


async def register(
    context: typer.Context,
    service: ServiceArgument,
    options: InstanceOptions,
    target: RegistryTarget,
    address: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT",
            help="address of the instance; :PORT uses this host; if omitted, the command "
            "gets a free port in $PORT",
        ),
    ] = "",
    as_json: JSONOption = False,
) -> None:
    """Register an instance while a command runs.

    SIGTERM and Ctrl-C drain the instance before the command receives the signal. Exits with
    the exit code of the command.

    Without a command, the instance stays registered until this process is stopped.
    """
    command: list[str] = context.obj
    if not address and not command:
        raise typer.BadParameter("give an address, or a command after --", param_hint="HOST:PORT")
    host, number = _split(address) if address else ("", _free_port())
    instance = options.instance(service, host, number, target.layout)
    lifetime = options.lifetime()
    async with target.connect() as hub:
        signals = queue_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if not as_json:
            log_to_stderr("mooring.addresses", "mooring.registry")
        if not instance.ephemeral and hub.registry.evictions is None:
            warn("--persistent has no effect here: on a store, instances expire with their lease")
            instance = msgspec.structs.replace(instance, ephemeral=True)
        registration = hub.register(instance, ttl=lifetime, wait=_FIRST_REGISTRATION)
        if as_json:
            registration.subscribe(lambda state: _print_state(registration.instance, state))
        async with _started(command, instance.port) as child, registration:
            if registration.state == "registering" and not (target.store or target.registry):
                note(START_ONE)
            code = await _run(registration, child, signals)
    raise typer.Exit(code)


def _default_protocol(service: str, layout: str) -> str:
    if layout_of(layout).name != "hprose":
        return "tcp"
    if protocol := protocol_of(service):
        return protocol
    raise typer.BadParameter(
        f"the domain {service} does not start with a protocol, such as http.{service}",
        param_hint="--protocol",
    )


def _split(address: str) -> tuple[str, int]:
    if not address.startswith(":"):
        return addresses.split(address)
    return "", addresses.split(f"localhost{address}")[1]


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(
            f"{name}={text}: {quoted(text)} is not a port number", param_hint="--port"
        )
    return int(text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _print_state(instance: Instance, state: str) -> None:
    record = {"service": instance.service, "id": instance.id, "state": state}
    print_stderr(json.dumps(record, ensure_ascii=False))


@contextlib.asynccontextmanager
async def _started(command: Sequence[str], port: int) -> AsyncIterator[Child | None]:
    if not command:
        yield None
        return
    try:
        # A background process group must not read from a terminal.
        keyboard = subprocess.DEVNULL if sys.stdin.isatty() else None
        child = Child(command, {"PORT": str(port)}, stdin=keyboard)
    except OSError as error:
        raise typer.Exit(report_not_started(command[0], error)) from None
    try:
        yield child
    finally:
        if not child.ended:
            await child.stop(within=_STOP_TIMEOUT)


async def _run(
    registration: Registration, child: Child | None, signals: asyncio.Queue[signal.Signals]
) -> int:
    """Wait until the command ends, and drain on a signal. Returns the exit code."""
    async with Tasks() as tasks:
        ended = tasks.start(child.end() if child else _ended(registration), name="end")
        number = await _next_signal(signals, ended)
        if number is not None:
            drained = tasks.start(registration.drain(), name="drain")
            number = await _next_signal(signals, drained, ended) or number
            drained.cancel()  # a second signal skips the wait
            await asyncio.wait([drained])
        while number is not None and child is not None:
            child.signal(number)
            number = await _next_signal(signals, ended)
        if child is not None:
            return await child.end()
        return 1 if number is None else 0


async def _next_signal(
    signals: asyncio.Queue[signal.Signals], *ends: asyncio.Task[object]
) -> signal.Signals | None:
    """The next signal, or None if one of these tasks ends first."""
    async with Tasks() as tasks:
        arrival = tasks.start(signals.get(), name="signals")
        await asyncio.wait([arrival, *ends], return_when=asyncio.FIRST_COMPLETED)
        return arrival.result() if arrival.done() else None


async def _ended(registration: Registration) -> None:
    """Wait until the registration is superseded or removed."""
    ended = asyncio.Event()

    def check(state: str) -> None:
        if state in ("superseded", "removed"):
            ended.set()

    registration.subscribe(check)
    check(registration.state)
    await ended.wait()


async def deregister(
    service: ServiceArgument,
    id: Annotated[
        str, typer.Argument(metavar="ID", help="instance id, as listed by `mooring instances`")
    ],
    target: RegistryTarget,
    as_json: JSONOption = False,
) -> None:
    """Remove an instance until its process restarts."""
    async with target.connect() as hub:
        if not await hub.registry.deregister(service, id):
            known = [instance.id for instance in await list_instances(hub, service)]
            raise instance_not_found(service, id, known)
    if as_json:
        show_json({"service": service, "id": id, "deregistered": True})
    else:
        note(f"deregistered {service} {id}")
