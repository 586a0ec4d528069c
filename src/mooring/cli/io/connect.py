"""The registry that a command works on, and how it is run there."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import typer

from mooring.cli.io.output import log_crashes, log_to_stderr, warn
from mooring.errors import InvalidRequest, RegistryError, Unavailable
from mooring.formatting import quoted
from mooring.hub import Hub, connect
from mooring.model import Instance
from mooring.names import join_service, split_service
from mooring.settings.registry import RegistrySettings, parse

T = TypeVar("T")


def run(work: Coroutine[object, object, T]) -> T:
    """Run a command's coroutine, on uvloop where it is installed."""
    log_crashes()
    with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        return runner.run(work)


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


LOCAL = "127.0.0.1:2379"
"""Where `mooring serve` listens unless told otherwise."""

_NO_METRICS: dict[str, object] = {"registry": {"metrics": {"enabled-metrics": []}}}
"""A command's own metrics are not those of the service that it registers."""

START_ONE = (
    "start `mooring serve`, or name a store with --store URL or MOORING_STORE, or a registry with "
    "--registry URL or MOORING_REGISTRY"
)


def run_command(work: Coroutine[object, object, T]) -> T:
    """Run a command's coroutine; Ctrl-C ends it without a word."""
    try:
        return run(work)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@asynccontextmanager
async def open_hub(
    store: str, layout: str, *, registry: str = "", settings: RegistrySettings | None = None
) -> AsyncIterator[Hub]:
    """The hub on a store, or on the registry alone where that is elsewhere: a store that is not
    needed need not be there, nor free. By default it is on the local server, and who has none is
    told how to start it."""
    log_to_stderr("mooring.registry.redis.registry")  # what it leaves out of an answer
    settings = settings or parse(_NO_METRICS)
    if store and registry:
        connect(store, registry=registry)  # raises where the two do not go together
    with url_or_local(registry or store) as url:
        async with connect(url, layout=layout, settings=settings) as hub:
            yield hub


@contextmanager
def url_or_local(url: str) -> Iterator[str]:
    """The URL that was given, or that of the local server. If the local server does not answer,
    the error says how to start it."""
    try:
        yield url or f"etcd://{LOCAL}?timeout=2s"
    except Unavailable as error:
        if url:
            raise
        raise Unavailable(f"no store answers at {LOCAL}: {START_ONE}") from error


async def list_instances(hub: Hub, service: str) -> tuple[Instance, ...]:
    """The instances of a service. Warns of what cannot be understood there; raises where there is
    no such service."""
    listing = await hub.registry.instances(service)
    for problem in listing.problems:
        warn(str(problem))
    if not listing.instances:
        await require_service(hub, service)
    return listing.instances


async def require_service(hub: Hub, service: str) -> None:
    """Raise `RegistryError` where the registry has never heard of a service: it has no instances,
    no description, and no configuration."""
    try:
        known = await hub.registry.names()
    except InvalidRequest:
        return  # a layout without a root cannot tell which services there are
    if service in known or join_service(*split_service(service)) in known:
        return
    if not await hub.registry.configured(service):
        raise RegistryError(f"there is no service {quoted(service)}{did_you_mean(service, known)}")


def did_you_mean(name: str, known: list[str]) -> str:
    """The end of an error about an unknown name; there may be too many to list them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f": did you mean {quoted(close[0])}?" if close else ""
