"""A server that is registered while it serves, and stops without failing calls."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack, overload

import grpc
import grpc.aio

import mooring.sync
from mooring.errors import InvalidRequest
from mooring.fork_safety import tracked
from mooring.formatting import quoted
from mooring.grpc.health import Health
from mooring.hub import Hub
from mooring.model import Instance
from mooring.registry.registration import Registration
from mooring.registry.shutdown import LINGER, until_stopped
from mooring.store.etcd.grpc_shutdown import stop
from mooring.sync.proxy import Blocking
from mooring.tasks import cleanup

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_DEREGISTER_WITHIN = 5.0


class ServingOptions(TypedDict, total=False):
    """The options of `serve_and_register`."""

    health: Health | None
    grace: float
    linger: float


@overload
def serve_and_register(
    server: grpc.aio.Server,
    hub: Hub,
    instance: Instance | Iterable[Instance],
    **options: Unpack[ServingOptions],
) -> Serving: ...
@overload
def serve_and_register(
    server: grpc.Server,
    hub: mooring.sync.Hub,
    instance: Instance | Iterable[Instance],
    **options: Unpack[ServingOptions],
) -> BlockingServing: ...
def serve_and_register(
    server: grpc.Server | grpc.aio.Server,
    hub: Hub | mooring.sync.Hub,
    instance: Instance | Iterable[Instance],
    *,
    health: Health | None = None,
    grace: float = 10.0,
    linger: float = LINGER,
) -> Serving | BlockingServing:
    """Start a server and keep its instance registered, or several if it offers several services.

    For a server of `grpc.aio` with a hub, use `async with`; for one of `grpc.server` with a hub of
    `mooring.sync`, use `with`. The server has its ports and services, and was not started.

    Entering adds the health service, starts the server, then registers. Leaving marks the instances
    as draining, deregisters them after `linger` seconds, and stops the server, which gives calls in
    flight `grace` seconds. The health status stays SERVING until the server stops, so that callers
    without another instance can continue. Raises `InvalidRequest`.
    """
    instances = (instance,) if isinstance(instance, Instance) else tuple(instance)
    _check_seconds("grace", grace)
    _check_seconds("linger", linger)
    if not instances or not all(isinstance(item, Instance) for item in instances):
        raise InvalidRequest(f"instance is a mooring.Instance, or several, not {quoted(instance)}")
    health = health or Health()
    if isinstance(server, grpc.aio.Server) and isinstance(hub, Hub):
        return Serving(tracked(server), hub, instances, health, grace, linger)
    if isinstance(server, grpc.Server) and isinstance(hub, Blocking):
        return BlockingServing(tracked(server), hub, instances, health, grace, linger)
    raise InvalidRequest(
        "a server of grpc.aio goes with a hub of mooring.connect, and one of grpc.server with a "
        f"hub of mooring.sync.connect: not {type(server).__name__} with {type(hub).__name__}"
    )


def _check_seconds(name: str, value: float) -> None:
    if not value >= 0:
        raise InvalidRequest(f"{name} is a time of 0 seconds or more, not {quoted(value)}")


S = TypeVar("S")
R = TypeVar("R")


class _RegisteredServer(Generic[S, R]):
    """A server `S` with its registrations `R`."""

    def __init__(
        self,
        server: S,
        hub: Any,
        instances: Sequence[Instance],
        health: Health,
        grace: float,
        linger: float,
    ) -> None:
        self.server, self.health = server, health
        self.registrations: tuple[R, ...] = ()
        """The registrations, once the server is registered."""
        self._hub, self._instances = hub, instances
        self._grace, self._linger = grace, linger


class Serving(_RegisteredServer[grpc.aio.Server, Registration]):
    """Created by `serve_and_register`; use it as an async context manager."""

    async def __aenter__(self) -> Self:
        self.health.serve(self.server)
        registrations = [self._hub.register(instance) for instance in self._instances]
        await self.server.start()
        try:
            async with AsyncExitStack() as entered:
                for registration in registrations:
                    await entered.enter_async_context(registration)
                entered.pop_all()
        except BaseException:
            await cleanup(stop(self.server, None), within=self._grace + 1)
            raise
        self.registrations = tuple(registrations)
        return self

    async def until_stopped(self, *, signals: Sequence[signal.Signals] = SIGNALS) -> signal.Signals:
        """Wait for a signal; leave the block afterwards. A second signal has its previous effect.
        Only in the event loop of the main thread, which alone receives signals in Python."""
        return await until_stopped(signals=signals)

    async def __aexit__(self, *_: object) -> None:
        within = _DEREGISTER_WITHIN + self._linger + self._grace + 5
        await cleanup(self._stop(), within=within)

    async def _stop(self) -> None:
        # Independently: the store of one registration may be unavailable, another's not.
        within = _DEREGISTER_WITHIN + self._linger
        await asyncio.gather(
            asyncio.sleep(self._linger),
            *(one.drain(grace=within, linger=self._linger) for one in self.registrations),
        )
        # After the server stopped accepting calls: before, clients would not even try.
        asyncio.get_running_loop().call_soon(self.health.end)
        await stop(self.server, self._grace)


class BlockingServing(_RegisteredServer[grpc.Server, "mooring.sync.Registration"]):
    """Created by `serve_and_register` with a hub of `mooring.sync`; use it as a context manager."""

    def __enter__(self) -> Self:
        self.health.serve(self.server)
        registrations = [self._hub.register(instance) for instance in self._instances]
        self.server.start()
        try:
            with ExitStack() as entered:
                for registration in registrations:
                    entered.enter_context(registration)
                entered.pop_all()
        except BaseException:
            self.server.stop(None).wait()
            raise
        self.registrations = tuple(registrations)
        return self

    def until_stopped(self, *, signals: Sequence[signal.Signals] = SIGNALS) -> signal.Signals:
        """Wait for a signal; leave the block afterwards. A second signal has its previous effect.
        Only in the main thread, which alone receives signals in Python."""
        return mooring.sync.until_stopped(signals=signals)

    def __exit__(self, *_: object) -> None:
        try:
            within = _DEREGISTER_WITHIN + self._linger
            with ThreadPoolExecutor(len(self.registrations), "mooring drain") as pool:
                drains = [
                    pool.submit(registration.drain, grace=within, linger=self._linger)
                    for registration in self.registrations
                ]
                time.sleep(self._linger)
            for drain in drains:
                drain.result()
        finally:
            stopped = self.server.stop(self._grace)
            self.health.end()
            stopped.wait()
