"""The gRPC channel to all instances of a service, which is replaced when they change."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, Self
from weakref import WeakSet

import grpc

from mooring.errors import Closed
from mooring.formatting import describe
from mooring.grpc.health import SERVICE
from mooring.grpc.methods import HEALTH_CHECK_TIMEOUT, ConnectionMethod, connection_error


class FailedCall(grpc.RpcError, grpc.Call, grpc.Future):  # type: ignore[misc]
    """A call that failed before it began: like gRPC's errors also a call, a future and a stream."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def debug_error_string(self) -> str:
        return ""

    def initial_metadata(self) -> tuple[()]:
        return ()

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return False

    def is_active(self) -> bool:
        return False

    cancel = cancelled = running = is_active

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> NoReturn:
        raise self

    def exception(self, timeout: float | None = None) -> Self:
        return self

    def traceback(self, timeout: float | None = None) -> Any:
        return self.__traceback__

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        fn(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> NoReturn:
        raise self


log = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 1.0  # seconds after which a new channel is used even without a connection
_UNSUBSCRIBE_DELAY = 0.3
"""Seconds in which gRPC's thread notices that it has no more listeners. It would fail on a closed
channel."""

ConnectivityListener = Callable[[grpc.ChannelConnectivity], None]


class Route:
    """A plain gRPC channel to all instances, and the number of calls in flight on it."""

    __slots__ = ("_bare", "_listener", "channel", "in_flight", "ready", "retired", "watched")

    def __init__(self, bare: grpc.Channel, channel: grpc.Channel) -> None:
        self.channel = channel
        """With the caller's interceptors, which must not see the health checks of this module."""
        self._bare = bare
        self.in_flight = 0
        self.retired = False
        self.ready = False
        """Whether it has a connection, once it is watched."""
        self.watched = False
        self._listener: ConnectivityListener | None = None

    def connected(self) -> grpc.Future:
        """Completes when there is a connection, which any response to a health check proves."""
        check = self._bare.unary_unary(f"/{SERVICE}/Check")
        return check.future(b"", timeout=_CONNECT_TIMEOUT, wait_for_ready=True)

    def unavailable_reason(self) -> str:
        """Why there is no connection, from a call that does not wait for one; empty if unknown."""
        try:
            self._bare.unary_unary(f"/{SERVICE}/Check")(b"", timeout=HEALTH_CHECK_TIMEOUT)
        except grpc.RpcError as error:
            return connection_error(error)
        except ValueError:
            pass  # the channel is closed
        return ""

    def watch(self, changed: Callable[[], None]) -> None:
        """Follow its connectivity. This costs a gRPC thread, so it is done only on request."""
        if self._listener is not None:
            return

        def on_state(state: grpc.ChannelConnectivity) -> None:
            self.ready = state is grpc.ChannelConnectivity.READY
            changed()

        self._listener = on_state
        self.subscribe(on_state)

    def subscribe(self, listener: ConnectivityListener) -> None:
        self.watched = True
        self.channel.subscribe(listener, try_to_connect=True)

    def close(self) -> None:
        if self._listener is not None:
            self.channel.unsubscribe(self._listener)
        if self.watched:
            time.sleep(_UNSUBSCRIBE_DELAY)
        self.channel.close()


class SwappableChannel:
    """The route that new calls take. Thread-safe.

    A new route is used once it has a connection, so that no call waits for it while the old one
    works. Calls in flight finish on the old route, which is closed after the last one. In a forked
    child every method raises `Closed`: the threads of gRPC and of the hub exist only in the parent.
    """

    def __init__(self, service: str, connect: Callable[[str], Route]) -> None:
        self._service, self._connect = service, connect
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._route: Route | None = None
        self._next: Route | None = None
        self._retired: set[Route] = set()
        self._methods: WeakSet[ConnectionMethod[Route]] = WeakSet()
        self._listeners: list[ConnectivityListener] = []
        self._resolved = self.closed = False
        self._reason = "the registry has not answered yet"

    @property
    def inherited(self) -> bool:
        """Whether it was made before a fork, in the parent."""
        return self._process != os.getpid()

    def _check_process(self) -> None:
        """Call it before acquiring the lock, which a thread of the parent may have held."""
        if self.inherited:
            raise Closed(
                f"the channel to {self._service} was made before a fork: make one in this process"
            )

    def add(self, method: ConnectionMethod[Route]) -> None:
        """Remember a method while a stub refers to it."""
        self._check_process()
        with self._changed:
            self._methods.add(method)

    def set_unavailable(self, reason: str) -> None:
        """There is no first list yet."""
        with self._changed:
            self._reason = reason

    def switch_to(self, target: str, reason: str) -> None:
        """Use a new target. An empty one means that no instance can be called, for this reason."""
        with self._changed:
            if self.closed:
                return
            self._resolved, self._reason = True, reason
            superseded, self._next = self._next, None
            following = self._next = self._connected(target) if target else None
            if following is None and (not target or self._route is None):
                self._use(None)
            elif self._route is None:
                self._use(following)
        if superseded is not None:
            superseded.close()  # no call has used it
        if following is not None:
            self._use_when_ready(following)

    def _connected(self, target: str) -> Route | None:
        """A route; None if gRPC, or a wrapper around it, refuses to make a channel."""
        try:
            return self._connect(target)
        except Exception as error:  # noqa: BLE001 - every call reports it
            self._reason = f"{self._service}: no channel can be made: {describe(error)}"
            log.error("%s", self._reason)
            return None

    def _use_when_ready(self, route: Route) -> None:
        def use(_: object) -> None:
            with self._changed:
                if self._next is route:
                    self._use(route)

        route.connected().add_done_callback(use)

    def _use(self, route: Route | None) -> None:
        if self._next is route:
            self._next = None
        old, self._route = self._route, route
        self._changed.notify_all()
        for listener in self._listeners:
            if old is not None:
                old.channel.unsubscribe(listener)
            self._connect_listener(listener)
        if old is not None:
            old.retired = True
            self._retired.add(old)
            self._close_if_unused(old)

    def acquire(self, deadline: float | None, *, wait_for_ready: bool) -> Route:
        """The route for a new call; pass it to `release` when the call ends. Raises `FailedCall` if
        there is none by the deadline, on the monotonic clock."""
        self._check_process()
        with self._changed:
            while True:
                if (usable := self._usable_route(connected=wait_for_ready)) is not None:
                    usable.in_flight += 1
                    return usable
                if self._resolved and not wait_for_ready:
                    raise FailedCall(grpc.StatusCode.UNAVAILABLE, self._reason)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            route = self._route
        # Without the lock, since it may take a moment.
        details = f"Deadline Exceeded: {self._waiting_reason(route)}"
        raise FailedCall(grpc.StatusCode.DEADLINE_EXCEEDED, details)

    def _usable_route(self, *, connected: bool) -> Route | None:
        """The current route; None if there is none, or if it must be `connected` and is not."""
        if self.closed:
            raise ValueError("Cannot invoke RPC on closed channel!")  # as gRPC says
        route = self._route
        if route is None or not connected:
            return route
        route.watch(self._notify)
        return route if route.ready else None

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _waiting_reason(self, route: Route | None) -> str:
        """Why the wait of a call was in vain."""
        if not self._resolved:
            return f"{self._service}: its instances are not known yet: {self._reason}"
        if route is None:
            return self._reason
        why = route.unavailable_reason()
        return f"{self._service}: no instance is connected" + f": {why}" * bool(why)

    def release(self, route: Route) -> None:
        if self.inherited:
            return
        with self._changed:
            route.in_flight -= 1
            self._close_if_unused(route)

    def _close_if_unused(self, route: Route) -> None:
        if route.retired and not route.in_flight and route in self._retired:
            self._retired.discard(route)
            for method in self._methods:
                method.callables.pop(route, None)
            # In another thread: this may be gRPC's own, which closing waits for.
            _in_thread(route.close)

    def subscribe(self, listener: ConnectivityListener) -> None:
        """Call back from another thread with the connectivity of the current route."""
        self._check_process()
        with self._changed:
            self._listeners.append(listener)
            self._connect_listener(listener)

    def unsubscribe(self, listener: ConnectivityListener) -> None:
        self._check_process()
        with self._changed:
            if listener in self._listeners:
                self._listeners.remove(listener)
                if self._route is not None:
                    self._route.channel.unsubscribe(listener)

    def _connect_listener(self, listener: ConnectivityListener) -> None:
        if self._route is not None:
            self._route.subscribe(listener)
            return
        state = grpc.ChannelConnectivity
        now = state.TRANSIENT_FAILURE if self._resolved else state.CONNECTING
        _in_thread(lambda: listener(now))

    def close(self) -> None:
        with self._changed:
            self.closed = True
            for listener in [*self._listeners]:
                self.unsubscribe(listener)
            routes = {self._route, self._next, *self._retired} - {None}
            self._route = self._next = None
            self._retired.clear()
            for method in self._methods:  # stubs that are still referenced must not keep channels
                method.callables.clear()
            self._changed.notify_all()
        for route in routes:
            assert route is not None
            route.close()


def _in_thread(work: Callable[[], object]) -> None:
    threading.Thread(target=work, name="mooring gRPC", daemon=True).start()
