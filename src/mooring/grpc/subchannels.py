"""The connections to the instances of a service, and the choice among those that are ready."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import grpc
import grpc.aio

from mooring.discovery.balance import Node
from mooring.discovery.rotation import Member, Rotation
from mooring.discovery.view import View
from mooring.errors import NoInstance, Unavailable
from mooring.grpc.health import SERVICE
from mooring.grpc.options import target_of
from mooring.grpc.target import ASK_WITHIN, connection_error, reason, verdict
from mooring.hub import Hub
from mooring.mirror import Update
from mooring.model import Instance
from mooring.store.etcd.grpc_shutdown import settled
from mooring.tasks import Backoff, Tasks

if TYPE_CHECKING:
    from mooring.grpc.aio import Method


READY = grpc.ChannelConnectivity.READY


class Subchannel:
    """Connects when it is created, and reconnects whenever the connection is lost.

    `changed` is called at each state change, with whether it was `connecting`. Its owner counts the
    calls in `under_way`, so that it can be closed after the last one.
    """

    __slots__ = (
        "_changed",
        "channel",
        "failing",
        "id",
        "incarnation",
        "leaving",
        "ready",
        "state",
        "target",
        "under_way",
    )

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
        self.leaving = False
        """Whether its instance is gone, and it closes after its last call."""
        self.under_way = 0
        self._changed = changed

    @property
    def connecting(self) -> bool:
        """Whether it is worth waiting for."""
        return not self.ready and not self.failing

    def fits(self, instance: Instance, target: str) -> bool:
        """Whether it leads to the same process, as far as can be known."""
        return self.target == target and self.incarnation == instance.incarnation

    def still_ready(self) -> bool:
        """Check the state again, and reconnect if necessary."""
        self._see(self.state(try_to_connect=True))
        return self.ready

    async def why_not(self) -> str:
        """Why there is no connection; empty if gRPC does not say. A call that does not wait for one
        fails with the reason."""
        try:
            check = self.channel.unary_unary(f"/{SERVICE}/Check")
            check._interceptors = None  # they are for the caller's calls
            await check(b"", timeout=ASK_WITHIN)
        except grpc.aio.AioRpcError as error:
            return connection_error(error)
        except grpc.aio.UsageError:
            pass  # it was closed
        return ""

    async def follow(self) -> None:
        """Follow the state until the channel is closed."""
        try:
            state = self.channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.SHUTDOWN:
                self._see(state)
                await self.channel.wait_for_state_change(state)
                state = self.channel.get_state(try_to_connect=True)
        except grpc.aio.UsageError:
            return  # it was closed

    def _see(self, state: grpc.ChannelConnectivity) -> None:
        before = (self.ready, self.failing)
        was_connecting = self.connecting
        self.ready = state is READY
        if self.ready:
            self.failing = False
        elif state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            self.failing = True
        if (self.ready, self.failing) != before:
            self._changed(self, was_connecting)


log = logging.getLogger(__name__)

_NAMED = 5  # instances whose reason an error has
_ASK_AGAIN = 1.0  # seconds for which the reasons count
_FOLLOWED = 0.1
"""Seconds for gRPC to report that channels are closed. It takes a millisecond, but while the caller
keeps an ended call of a channel, gRPC keeps the channel too and reports nothing."""
_A_STREAM = 1e-3  # seconds that a stream counts as where nothing is known of an instance


class Subchannels:
    """Follows a service: one subchannel for each instance that may be called, opened when the
    instance appears and closed after its last call once the instance is gone. Instances without a
    connection are not in the rotation."""

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
        self._pick: Callable[[], Node] = _no_instance
        self._started: Callable[[Node], None]
        self._subchannels: dict[str, Subchannel | None] = {}
        """By instance; None for those that may not be called."""
        self._leaving: set[Subchannel] = set()
        self._following: set[asyncio.Task[object]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._connecting = 0
        self._methods: WeakSet[Method] = WeakSet()
        self._unresolved = "the registry has not answered yet"
        self._failure = ""
        self._unconnected: dict[str, str] = {}
        """Why there is no connection to an instance, as far as it was asked for."""
        self._asking: asyncio.Task[object] | None = None
        self._asked = 0.0
        self._changed, self._waiting = asyncio.Event(), 0
        self._opened = AsyncExitStack()
        self.tasks = Tasks()
        self.tasks.start(self._resolve(), name=f"instances of {service} for gRPC")

    async def _resolve(self) -> None:
        """Wait for the first list without a time limit."""
        backoff = Backoff()
        try:
            if self._owns_hub:
                await self._opened.enter_async_context(self._hub)
            while self.view is None:
                view = self._discover()
                try:
                    self.view = await self._opened.enter_async_context(view)
                except Unavailable as error:
                    if self._unresolved != str(error):
                        log.warning("%s: no call can be made yet: %s", self.service, error)
                    self._unresolved = str(error)
                    await asyncio.sleep(backoff.next())
        except Exception as error:  # noqa: BLE001 - every call reports it
            log.error("%s: no call can be made: %s", self.service, reason(error))
            self._failure = f"{self.service}: {reason(error)}"
            self._tell()
            return
        self.view.subscribe(self._update)
        self._rotation = self.view.rotation
        self._pick, self._started = self._rotation.picker.pick, self._rotation.picker.started
        self._match()
        self._tell()

    def add(self, method: Method) -> None:
        """Remember a method while a stub refers to it."""
        self._methods.add(method)

    def _update(self, update: Update[str, Instance]) -> None:
        rotation = self._rotation
        assert rotation is not None
        for change in update.changes:
            self._put(change.key, rotation.member(change.key))
        if len(self._subchannels) != len(
            rotation
        ):  # a copy from disk, or a last list that was kept
            self._match()
        self._tell()  # also if a connected instance returns to the rotation

    def _match(self) -> None:
        """Compare with all instances in the rotation."""
        assert self._rotation is not None
        there = {member.instance.id: member for member in self._rotation}
        for id in [*self._subchannels]:
            if id not in there:
                self._put(id, None)
        for id, member in there.items():
            self._put(id, member)

    def _put(self, id: str, member: Member | None) -> None:
        if member is None:
            self._unconnected.pop(id, None)
            if (gone := self._subchannels.pop(id, None)) is not None:
                self._leave(gone)
            return
        subchannel = self._subchannels.get(id)
        if subchannel is None and member.exclusion:
            self._subchannels[id] = None
            return
        target = target_of(member.instance)
        if subchannel is None or not subchannel.fits(member.instance, target):
            if subchannel is not None:
                self._leave(subchannel)
            subchannel = self._subchannels[id] = self._connected(member.instance, target)
        assert self._rotation is not None
        self._rotation.set_reachable(id, subchannel is not None and subchannel.ready)

    def _connected(self, instance: Instance, target: str) -> Subchannel | None:
        """A subchannel to an instance; None if gRPC, or a wrapper around it, refuses to make a
        channel, and after `aclose`."""
        if self.closed:
            return None
        id = instance.id
        try:
            channel = self._connect(target)
        except Exception as error:  # noqa: BLE001 - one instance's failure must not hide the others
            why = f"no channel to {id} can be made: {reason(error)}"
            if self._unconnected.get(id) != why:
                log.error("%s: %s", self.service, why)
            self._unconnected[id] = why
            return None
        self._unconnected.pop(id, None)
        subchannel = Subchannel(instance, target, channel, self._look)
        self._connecting += 1
        follow = self.tasks.start(subchannel.follow(), name=f"connection to {id} of {self.service}")
        self._following.add(follow)
        follow.add_done_callback(self._following.discard)
        return subchannel

    def _leave(self, subchannel: Subchannel) -> None:
        """Its instance is gone: calls in flight finish there."""
        self._connecting -= subchannel.connecting
        subchannel.leaving = True
        for method in self._methods:
            method.made.pop(subchannel, None)
        self._leaving.add(subchannel)
        if not subchannel.under_way:
            self._end(subchannel)

    def _end(self, subchannel: Subchannel) -> None:
        if not self.closed:
            self.tasks.start(
                self._disconnect(subchannel), name=f"end of the connection to {subchannel.id}"
            )

    async def _disconnect(self, subchannel: Subchannel) -> None:
        await subchannel.channel.close()
        self._leaving.discard(subchannel)

    def _look(self, subchannel: Subchannel, was_connecting: bool) -> None:
        """Handle a state change of a subchannel."""
        if subchannel.leaving:
            return
        assert self._rotation is not None
        self._connecting += subchannel.connecting - was_connecting
        self._rotation.set_reachable(subchannel.id, subchannel.ready)
        self._unconnected.pop(subchannel.id, None)
        self._asked = 0.0
        self._tell()

    def _tell(self) -> None:
        if self._waiting:
            self._changed.set()
            self._changed = asyncio.Event()

    async def change(self) -> None:
        """Wait until an instance or its connection changes."""
        self._waiting += 1
        try:
            await self._changed.wait()
        finally:
            self._waiting -= 1

    @property
    def state(self) -> grpc.ChannelConnectivity:
        """The combined state, as gRPC reports it for the addresses of one channel."""
        if self.closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if self._rotation is None:
            hopeful = not self._failure
        elif len(self._rotation.picker):
            return READY
        else:
            hopeful = bool(self._connecting)
        if hopeful:
            return grpc.ChannelConnectivity.CONNECTING
        return grpc.ChannelConnectivity.TRANSIENT_FAILURE

    @property
    def present(self) -> list[Subchannel]:
        return [subchannel for subchannel in self._subchannels.values() if subchannel is not None]

    def next(
        self, key: str | None = None, exclude: Collection[str] = ()
    ) -> tuple[Node, Subchannel] | None:
        """The next instance; None if none is connected, or all are excluded."""
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
            self._recheck(node.id, subchannel)

    def why_not(self) -> str:
        """Why no instance is worth waiting for; empty if one is, or may be."""
        if self._failure:
            return self._failure
        if self._rotation is None or self._connecting:
            return ""
        try:
            self._rotation.pick()
        except NoInstance as error:
            return "; ".join((str(error), *islice(self._unconnected.values(), _NAMED)))
        return ""

    async def learn_why(self) -> None:
        """Ask gRPC why instances have no connection, unless that is known since a moment. Calls
        that fail together share the question."""
        again = time.monotonic() > self._asked + _ASK_AGAIN
        if self._asking is None or (self._asking.done() and again):
            self._asking = self.tasks.start(self._ask(), name=f"connections of {self.service}")
        await asyncio.wait([self._asking])

    async def _ask(self) -> None:
        self._asked = time.monotonic()
        failing = [subchannel for subchannel in self.present if subchannel.failing][:_NAMED]
        reasons = await asyncio.gather(*(subchannel.why_not() for subchannel in failing))
        for subchannel, why in zip(failing, reasons, strict=True):
            if why and subchannel.failing and not subchannel.leaving:
                self._unconnected[subchannel.id] = why

    def why_waiting(self) -> str:
        """What a call waits for."""
        if self._rotation is None:
            return f"{self.service}: its instances are not known yet: {self._unresolved}"
        return self.why_not() or f"{self.service}: no instance is connected yet"

    def dispatch(
        self,
        method: Method,
        request: Any,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        compression: grpc.Compression | None,
    ) -> Any:
        """Call the next instance at once; None if none is ready.

        The fast path of most calls: `next` and `begun` in one.
        """
        try:
            node = self._pick()
            while not (subchannel := self._subchannels[node.id]) or subchannel.state() is not READY:
                self._recheck(node.id, subchannel)
                node = self._pick()
        except LookupError:
            return None
        call = (method.made.get(subchannel) or method.at(subchannel))(
            request,
            timeout=timeout,
            metadata=metadata,
            credentials=credentials,
            compression=compression,
        )
        self._started(node)
        subchannel.under_way += 1
        began = None if method.streams else time.monotonic()
        call.add_done_callback(partial(self._ended, node, subchannel, began))
        return call

    def _recheck(self, id: str, subchannel: Subchannel | None) -> None:
        """Check the state again: gRPC may not have reported a broken connection yet."""
        assert self._rotation is not None
        self._rotation.set_reachable(id, subchannel is not None and subchannel.still_ready())

    def begun(self, node: Node, subchannel: Subchannel, call: Any, *, stream: bool) -> None:
        """Count a call in flight, and learn from its end."""
        self._started(node)
        subchannel.under_way += 1
        began = None if stream else time.monotonic()
        call.add_done_callback(partial(self._ended, node, subchannel, began))

    def _ended(self, node: Node, subchannel: Subchannel, began: float | None, call: Any) -> None:
        subchannel.under_way -= 1
        if subchannel.leaving and not subchannel.under_way:
            self._end(subchannel)
        now = time.monotonic()
        # The length of a stream does not show how fast an instance responds.
        seconds = (node.latency or _A_STREAM) if began is None else now - began
        inner = getattr(call, "_cython_call", None)  # 20 times faster in the usual case
        well = (inner is not None and inner.is_ok()) or verdict(code_of(call))
        if self._rotation.finished(node, seconds, well, now):  # type: ignore[union-attr]
            log.warning("%s: %s is ejected: its calls fail", self.service, node.id)

    async def aclose(self, grace: float | None = None) -> None:
        """Close all connections. Calls in flight have `grace` seconds to finish. If a caller is
        cancelled, closing continues, and the next caller of `aclose` waits for it."""
        if self._closing is None:
            self.closed, self._pick = True, _no_instance
            self._closing = asyncio.get_running_loop().create_task(self._close(grace))
        await asyncio.shield(self._closing)

    async def _close(self, grace: float | None) -> None:
        subchannels = [*self._leaving, *self.present]
        self._subchannels.clear()
        self._leaving.clear()
        for method in self._methods:  # a stub that is kept keeps no gRPC channel
            method.made.clear()
        self._tell()
        if subchannels:
            await asyncio.gather(*(subchannel.channel.close(grace) for subchannel in subchannels))
        await settled()
        if self._following:
            await asyncio.wait(self._following, timeout=_FOLLOWED)
        await self.tasks.aclose()
        await settled()
        await self._opened.aclose()


def code_of(call: Any) -> grpc.StatusCode | None:
    """The status of a finished call, without waiting for it."""
    asked = call.code()
    try:
        asked.send(None)
    except StopIteration as answer:
        code: grpc.StatusCode = answer.value
        return code
    except (Exception, asyncio.CancelledError):  # noqa: BLE001 - an interceptor's own mistake
        return None
    asked.close()
    return None


def _no_instance() -> Node:
    raise LookupError("no instance is known")
