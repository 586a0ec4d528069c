"""The connection to one instance, and the methods of a channel on it."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio

from mooring.grpc.health import SERVICE
from mooring.grpc.methods import HEALTH_CHECK_TIMEOUT, connection_error
from mooring.model import Instance

READY = grpc.ChannelConnectivity.READY


class Subchannel:
    """Connects when it is created, and reconnects whenever the connection is lost.

    `changed` is called at each state change, with whether it was `connecting`. Its owner counts the
    calls in `in_flight`, so that it can be closed after the last one.
    """

    __slots__ = (
        "_changed",
        "channel",
        "failing",
        "id",
        "in_flight",
        "incarnation",
        "ready",
        "retired",
        "state",
        "target",
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
        self.retired = False
        """Whether its instance left, and it closes after its last call."""
        self.in_flight = 0
        self._changed = changed

    @property
    def connecting(self) -> bool:
        """Whether it is worth waiting for."""
        return not self.ready and not self.failing

    def connects_to(self, instance: Instance, target: str) -> bool:
        """Whether it connects to this process at this target."""
        return self.target == target and self.incarnation == instance.incarnation

    def still_ready(self) -> bool:
        """Check the state again, and reconnect if necessary."""
        self._set_state(self.state(try_to_connect=True))
        return self.ready

    async def unavailable_reason(self) -> str:
        """Why there is no connection; empty if gRPC does not say. A call that does not wait for one
        fails with the reason."""
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
        """Follow the state until the channel is closed."""
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
