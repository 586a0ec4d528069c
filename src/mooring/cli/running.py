"""How commands run: the event loop, and the store that they work on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")

StoreOption = Annotated[
    str,
    typer.Option(
        "--store", envvar="MOORING_STORE", metavar="URL", help="memory://, etcd://HOST:2379, …"
    ),
]


def run(work: Coroutine[object, object, T]) -> T:
    """Run a command's coroutine, on uvloop where it is installed."""
    with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        return runner.run(work)


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
