"""The connections to the instances of a service, and the choice of one for each call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from typing import Any
from weakref import WeakSet

import grpc
import grpc.aio

from mooring.discovery.balance import Node
from mooring.discovery.rotation import Rotation
from mooring.discovery.view import View, open_view
from mooring.errors import NoInstance
from mooring.formatting import describe
from mooring.grpc.health import SERVICE
from mooring.grpc.methods import HEALTH_CHECK_TIMEOUT, ConnectionMethod, connection_error, verdict
from mooring.grpc.options import target_of
from mooring.hub import Hub
from mooring.mirror import Update
from mooring.model import Instance
from mooring.store.etcd.grpc_shutdown import settled
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

READY = grpc.ChannelConnectivity.READY

_MAX_REASONS = 5  # the number of instances whose reason appears in an error
_REASONS_VALID = 1.0  # seconds for which the reasons are not checked again
_SHUTDOWN_TIMEOUT = 0.1
"""Seconds for gRPC to report that channels are closed. It takes a millisecond, but while the caller
keeps an ended call of a channel, gRPC keeps the channel too and reports nothing."""
_STREAM_LATENCY = 1e-3  # seconds: the latency of a stream if that of its instance is unknown


class Subchannel:
    """Connects, and reconnects whenever the connection is lost. `changed` is called at each state
    change, with whether it was `connecting`. It can be closed after the last of its calls, which
    its owner counts in `in_flight`."""

    def __init__(
        self,
        instance: Instance,
        target: str,
        channel: grpc.aio.Channel,
        changed: Callable[[Subchannel, bool], None],
    ) -> None:
        self.id, self.incarnation, self.target = instance.id, instance.incarnation, target
        self.channel = channel
        self.state: Callable[..., grpc.ChannelConnectivity] = channel.get_state
        self.ready = False
        self.failing = False
        """Whether connecting failed since it was last ready."""
        self.retired = False
        """Whether its instance left, and it closes after its last call."""
        self.in_flight = 0
        self._changed = changed

    @property
    def connecting(self) -> bool:
        return not self.ready and not self.failing

    def still_ready(self) -> bool:
        """Check the state again, and reconnect if necessary."""
        self._set_state(self.state(try_to_connect=True))
        return self.ready

    async def unavailable_reason(self) -> str:
        """Why there is no connection, from a call that does not wait for one; empty if unknown."""
        try:
            check = self.channel.unary_unary(f"/{SERVICE}/Check")
            check._interceptors = None  # these are for the caller's calls only
            await check(b"", timeout=HEALTH_CHECK_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            return connection_error(error)
        except grpc.aio.UsageError:
            pass  # the channel is closed
        return ""

    async def follow(self) -> None:
        try:
            state = self.channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.SHUTDOWN:
                self._set_state(state)
                await self.channel.wait_for_state_change(state)
                state = self.channel.get_state(try_to_connect=True)
        except grpc.aio.UsageError:
            return  # the channel is closed

    def _set_state(self, state: grpc.ChannelConnectivity) -> None:
        before = (self.ready, self.failing)
        was_connecting = self.connecting
        self.ready = state is READY
        if self.ready:
            self.failing = False
        elif state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            self.failing = True
        if (self.ready, self.failing) != before:
            self._changed(self, was_connecting)


class Subchannels:
    """One subchannel for each instance that may be called, closed after its last call once the
    instance is gone. Instances without a connection are not in the rotation."""

    def __init__(
        self,
        service: str,
        hub: Hub,
        discover: Callable[[], View],
        connect: Callable[[str], grpc.aio.Channel],
        *,
        owns_hub: bool,
    ) -> None:
        self.service = service
        self.view: View | None = None
        self.closed = False
        self._hub, self._owns_hub = hub, owns_hub
        self._discover, self._connect = discover, connect
        self._rotation: Rotation | None = None
        self._subchannels: dict[str, Subchannel | None] = {}
        """By instance id; None for instances that may not be called."""
        self._retired: set[Subchannel] = set()
        self._followers: set[asyncio.Task[object]] = set()
        self._closing: asyncio.Task[object] | None = None
        self._connecting = 0
        self._methods: WeakSet[ConnectionMethod[Subchannel]] = WeakSet()
        self._unavailable = "the registry has not answered yet"
        self._failure = ""
        self._unconnected: dict[str, str] = {}
        """Why instances have no connection, by id, as far as it was checked."""
        self._finding_reasons: asyncio.Task[object] | None = None
        self._reasons_found_at = 0.0
        self._changed = asyncio.Event()
        self._resources = AsyncExitStack()
        self.tasks = Tasks()
        self.tasks.start(self._resolve(), name=f"instances of {service} for gRPC")

    async def _resolve(self) -> None:
        """Wait for the first list without a time limit."""

        def unavailable(reason: str) -> None:
            self._unavailable = reason

        try:
            if self._owns_hub:
                await self._resources.enter_async_context(self._hub)
            self.view = await open_view(self._discover, unavailable)
            self._resources.push_async_exit(self.view)
        except Exception as error:  # noqa: BLE001 - every call reports it
            log.error("%s: no call can be made: %s", self.service, describe(error))
            self._failure = f"{self.service}: {describe(error)}"
            self._notify()
            return
        self.view.subscribe(self._update)
        self._rotation = self.view.rotation
        self._set_all_instances(self._rotation)
        self._notify()

    def add(self, method: ConnectionMethod[Subchannel]) -> None:
        """Remember a method while a stub refers to it."""
        self._methods.add(method)

    def _update(self, update: Update[str, Instance]) -> None:
        rotation = self._rotation
        assert rotation is not None
        for change in update.changes:
            self._set_instance(change.key, rotation)
        if len(self._subchannels) != len(rotation):  # after a copy from disk, or a kept list
            self._set_all_instances(rotation)
        self._notify()  # also if a connected instance returns to the rotation

    def _set_all_instances(self, rotation: Rotation) -> None:
        ids = [member.instance.id for member in rotation]
        for id in dict.fromkeys([*self._subchannels, *ids]):
            self._set_instance(id, rotation)

    def _set_instance(self, id: str, rotation: Rotation) -> None:
        """Open, replace or close the subchannel of an instance, which may be gone."""
        member = rotation.member(id)
        if member is None:
            self._unconnected.pop(id, None)
            if (subchannel := self._subchannels.pop(id, None)) is not None:
                self._retire(subchannel)
            return
        subchannel = self._subchannels.get(id)
        if subchannel is None and member.exclusion:
            self._subchannels[id] = None
            return
        target = target_of(member.instance)
        process = (target, member.instance.incarnation)
        if subchannel is None or (subchannel.target, subchannel.incarnation) != process:
            if subchannel is not None:
                self._retire(subchannel)
            subchannel = self._subchannels[id] = self._connected(member.instance, target)
        rotation.set_reachable(id, subchannel is not None and subchannel.ready)

    def _connected(self, instance: Instance, target: str) -> Subchannel | None:
        """None if gRPC, or a wrapper around it, refuses to make a channel, and after `aclose`."""
        if self.closed:
            return None
        id = instance.id
        try:
            channel = self._connect(target)
        except Exception as error:  # noqa: BLE001 - one instance's failure must not hide the others
            why = f"no channel to {id} can be made: {describe(error)}"
            if self._unconnected.get(id) != why:
                log.error("%s: %s", self.service, why)
            self._unconnected[id] = why
            return None
        self._unconnected.pop(id, None)
        subchannel = Subchannel(instance, target, channel, self._on_state_change)
        self._connecting += 1
        follow = self.tasks.start(subchannel.follow(), name=f"connection to {id} of {self.service}")
        self._followers.add(follow)
        follow.add_done_callback(self._followers.discard)
        return subchannel

    def _retire(self, subchannel: Subchannel) -> None:
        """Its instance left: calls in flight finish there."""
        self._connecting -= subchannel.connecting
        subchannel.retired = True
        for method in self._methods:
            method.callables.pop(subchannel, None)
        self._retired.add(subchannel)
        if not subchannel.in_flight:
            self._disconnect_soon(subchannel)

    def _disconnect_soon(self, subchannel: Subchannel) -> None:
        if not self.closed:
            self.tasks.start(
                self._disconnect(subchannel), name=f"end of the connection to {subchannel.id}"
            )

    async def _disconnect(self, subchannel: Subchannel) -> None:
        await subchannel.channel.close()
        self._retired.discard(subchannel)

    def _on_state_change(self, subchannel: Subchannel, was_connecting: bool) -> None:
        if subchannel.retired:
            return
        assert self._rotation is not None
        self._connecting += subchannel.connecting - was_connecting
        self._rotation.set_reachable(subchannel.id, subchannel.ready)
        self._unconnected.pop(subchannel.id, None)
        self._reasons_found_at = 0.0
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed.clear()

    async def change(self) -> None:
        """Wait until an instance or its connection changes."""
        await self._changed.wait()

    @property
    def state(self) -> grpc.ChannelConnectivity:
        """The combined state, as gRPC reports it for the addresses of one channel."""
        if self.closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if self._rotation is None:
            connecting = not self._failure
        elif len(self._rotation.picker):
            return READY
        else:
            connecting = bool(self._connecting)
        if connecting:
            return grpc.ChannelConnectivity.CONNECTING
        return grpc.ChannelConnectivity.TRANSIENT_FAILURE

    @property
    def present(self) -> list[Subchannel]:
        return [subchannel for subchannel in self._subchannels.values() if subchannel is not None]

    def pick(
        self, key: str | None = None, exclude: Collection[str] = ()
    ) -> tuple[Node, Subchannel] | None:
        """The next instance to call; None if none is connected, or all are excluded."""
        rotation = self._rotation
        if rotation is None or self.closed:
            return None
        while True:
            try:
                node = rotation.pick(key, exclude) if exclude else rotation.picker.pick(key)
            except (NoInstance, LookupError):
                return None
            if exclude and node.id in exclude:
                return None
            subchannel = self._subchannels.get(node.id)
            if subchannel is not None and subchannel.state() is READY:
                return node, subchannel
            # gRPC may not have reported a broken connection yet.
            rotation.set_reachable(node.id, subchannel is not None and subchannel.still_ready())

    def unavailable_reason(self) -> str:
        """Why no instance is worth waiting for; empty if one is, or may be."""
        if self._failure:
            return self._failure
        rotation = self._rotation
        if rotation is None or self._connecting or len(rotation.picker):
            return ""
        reasons = islice(self._unconnected.values(), _MAX_REASONS)
        return "; ".join((str(rotation.unavailable_reason()), *reasons))

    async def find_reasons(self) -> None:
        """Ask gRPC why instances have no connection, at most once a second for all calls."""
        expired = time.monotonic() > self._reasons_found_at + _REASONS_VALID
        if self._finding_reasons is None or (self._finding_reasons.done() and expired):
            self._finding_reasons = self.tasks.start(
                self._find_reasons(), name=f"connections of {self.service}"
            )
        await asyncio.wait([self._finding_reasons])

    async def _find_reasons(self) -> None:
        self._reasons_found_at = time.monotonic()
        failing = [subchannel for subchannel in self.present if subchannel.failing][:_MAX_REASONS]
        reasons = await asyncio.gather(*(subchannel.unavailable_reason() for subchannel in failing))
        for subchannel, why in zip(failing, reasons, strict=True):
            if why and subchannel.failing and not subchannel.retired:
                self._unconnected[subchannel.id] = why

    def waiting_reason(self) -> str:
        if self._rotation is None:
            return f"{self.service}: its instances are not known yet: {self._unavailable}"
        return self.unavailable_reason() or f"{self.service}: no instance is connected yet"

    def start_call(
        self,
        node: Node,
        subchannel: Subchannel,
        method: ConnectionMethod[Subchannel],
        request: Any,
        **options: Any,
    ) -> Any:
        """Start a call to one instance, and report its result to the rotation when it ends."""
        call = (method.callables.get(subchannel) or method.at(subchannel))(request, **options)
        assert self._rotation is not None
        self._rotation.picker.started(node)
        subchannel.in_flight += 1
        began = time.monotonic() if method.kind == "unary_unary" else None
        call.add_done_callback(partial(self._ended, node, subchannel, began))
        return call

    def _ended(self, node: Node, subchannel: Subchannel, began: float | None, call: Any) -> None:
        subchannel.in_flight -= 1
        if subchannel.retired and not subchannel.in_flight:
            self._disconnect_soon(subchannel)
        now = time.monotonic()
        # The duration of a stream does not show how fast an instance responds.
        seconds = (node.latency or _STREAM_LATENCY) if began is None else now - began
        inner = getattr(call, "_cython_call", None)  # 20 times faster in the usual case
        ok = (inner is not None and inner.is_ok()) or verdict(code_of(call))
        if self._rotation.finished(node, seconds, ok, now):  # type: ignore[union-attr]
            log.warning("%s: %s is ejected: its calls fail", self.service, node.id)

    async def aclose(self, grace: float | None = None) -> None:
        """Close all connections. Calls in flight have `grace` seconds to finish. If a caller is
        cancelled, closing continues, and the next caller of `aclose` waits for it."""
        if self._closing is None:
            self.closed = True
            name = f"end of the channel to {self.service}"
            self._closing = Tasks().start(self._close(grace), name=name)
        await asyncio.shield(self._closing)

    async def _close(self, grace: float | None) -> None:
        subchannels = [*self._retired, *self.present]
        self._subchannels.clear()
        self._retired.clear()
        for method in self._methods:  # stubs that are still referenced must not keep channels
            method.callables.clear()
        self._notify()
        if subchannels:
            await asyncio.gather(*(subchannel.channel.close(grace) for subchannel in subchannels))
        await settled()
        if self._followers:
            await asyncio.wait(self._followers, timeout=_SHUTDOWN_TIMEOUT)
        await self.tasks.aclose()
        await settled()
        await self._resources.aclose()


def code_of(call: Any) -> grpc.StatusCode | None:
    """The status of a finished call, without waiting for it."""
    coroutine = call.code()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        code: grpc.StatusCode = stop.value
        return code
    except (Exception, asyncio.CancelledError):  # noqa: BLE001 - an interceptor's own error
        return None
    coroutine.close()
    return None
