"""Live changes of the fleet as server-sent events.

The stream sends at most one frame per tick, with all changes of that tick. Each changed service is
encoded once for all listeners. There is no buffer per listener: a listener has a position, and a
frame contains the current state of everything that changed since. A slow listener receives fewer
frames and each change once, and delays no other. If the history no longer covers the position of a
listener, it is asked to reload everything (`reset`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, Literal, Self, TypeVar, get_args
from weakref import WeakSet

import msgspec
from prometheus_client import Counter

from mooring.messages import Message, message
from mooring.model import now
from mooring.names import split_service
from mooring.server.auth.authorization import Principal
from mooring.server.http.response import HTTPError, encode
from mooring.server.live.problems import CurrentProblems, FleetProblem, visible_problems
from mooring.server.live.state import Fleet, FleetCallback
from mooring.server.live.summary import health
from mooring.tasks import Tasks, wait_for

K = TypeVar("K", bound=Hashable)

TICK = 0.25
"""Minimum seconds between two frames."""
HEALTH_INTERVAL = 1.0
"""Seconds between two checks whether the health or the problems changed."""
KEEPALIVE = 15.0
"""Seconds without events after which the stream sends a comment, so that proxies keep it open."""
AUTH_INTERVAL = 2.0
"""Seconds between two checks whether a listener is still authorized."""
MAX_LISTENERS = 2000
MAX_PER_TOKEN = 600
"""Listeners with one token: as many consoles as a company has open."""
RESERVE = 10
"""One in this many places is reserved for callers that can act on the events."""
MAX_CHANGES = 20_000
"""Changed services and instances that are remembered for listeners that resume."""

RESETS = Counter("mooring_sse_resets", "Events that ask a listener to reload everything")

StreamKind = Literal["services", "instances", "health", "problems"]
KINDS: frozenset[StreamKind] = frozenset(get_args(StreamKind))


class ChangeLog(Generic[K]):
    """The keys that changed last, each once, with the position of its last change."""

    def __init__(self, limit: int = MAX_CHANGES) -> None:
        self._limit = limit
        self._positions: dict[K, int] = {}
        self._forgotten = 0
        """Changes up to this position may be missing."""

    def add(self, keys: Iterable[K], position: int) -> None:
        """Positions must not decrease."""
        for key in keys:
            self._positions.pop(key, None)
            self._positions[key] = position
        while len(self._positions) > self._limit:
            self._forgotten = self._positions.pop(next(iter(self._positions)))

    def since(self, position: int) -> list[K] | None:
        """The keys that changed after a position, newest first; None if some are forgotten."""
        if position < self._forgotten:
            return None
        newest_first = reversed(self._positions)
        return list(takewhile(lambda key: self._positions[key] > position, newest_first))


@dataclass(frozen=True, slots=True)
class EventSubscription:
    """What a listener receives. Equal subscriptions share their encoded frames."""

    groups: frozenset[str] | None = None
    """The groups that the listener may access; None: all."""
    service: str = ""
    """The service whose instances are included."""
    kinds: frozenset[StreamKind] = KINDS

    def sees(self, service: str) -> bool:
        return self.groups is None or split_service(service)[0] in self.groups


class EventSource:
    """The fleet and its problems, as the API shows them."""

    def __init__(self, fleet: Fleet, problems: CurrentProblems) -> None:
        self._fleet, self._problems = fleet, problems

    def subscribe(self, callback: FleetCallback) -> Callable[[], None]:
        return self._fleet.subscribe(callback)

    def service(self, name: str) -> object | None:
        """None if it is removed; likewise for instances."""
        known = self._fleet.service(name)
        return None if known is None else msgspec.Raw(self._fleet.rendering.summary_text(known))

    def instance(self, service: str, id: str) -> object | None:
        known = self._fleet.service(service)
        if known is None or id not in known.instances:
            return None
        return msgspec.Raw(self._fleet.rendering.instance_text(known, id))

    def health(self, sees: Callable[[str], bool]) -> object:
        services = self._fleet.services(sees)
        return health(map(self._fleet.rendering.counts, services), now())

    def problems(self) -> list[FleetProblem]:
        return self._problems.problems()


class ResetEvent(msgspec.Struct, frozen=True):
    """Asks a listener to reload everything."""

    reason: str
    """In English."""
    message: Message
    """The reason as data."""


@dataclass(slots=True)
class _WholeEvent:
    """An event that always contains the complete value."""

    encoded: bytes = b""
    identity: object = None
    """The part of the value whose changes are published."""
    position: int = 0
    """The position of the last change."""

    def update(self, value: object, identity: object, position: int) -> bool:
        """Whether the value has changed."""
        if identity == self.identity:
            return False
        self.encoded, self.identity, self.position = encode(value), identity, position
        return True


@dataclass(slots=True)
class _ScopeState:
    """The listeners that may access the same groups, and the events that they share."""

    health: _WholeEvent = field(default_factory=_WholeEvent)
    problems: _WholeEvent = field(default_factory=_WholeEvent)
    listeners: WeakSet[EventListener] = field(default_factory=WeakSet)

    def events(self) -> tuple[tuple[StreamKind, _WholeEvent], ...]:
        return ("health", self.health), ("problems", self.problems)


class EventStream:
    """Publishes changes to its listeners while it is entered. Leaving it ends all of them."""

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._epoch = secrets.token_hex(4)
        self.position = 0
        self._services: ChangeLog[str] = ChangeLog()
        self._instances: ChangeLog[tuple[str, str]] = ChangeLog()
        self._dirty: set[tuple[str, str]] = set()
        self._scopes: dict[frozenset[str] | None, _ScopeState] = {}
        self._frames: dict[tuple[EventSubscription, int], bytes] = {}
        self._encoded: dict[tuple[str, str], bytes | None] = {}
        self._wake, self._advanced = asyncio.Event(), asyncio.Event()
        self._health_checked = float("-inf")
        self.closed = False
        self._tasks = Tasks()

    @property
    def clients(self) -> int:
        return sum(len(scope.listeners) for scope in self._scopes.values())

    async def __aenter__(self) -> Self:
        self._unsubscribe = self._source.subscribe(self._changed)
        self._tasks.start(self._run(), name="stream")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True
        self._unsubscribe()
        await self._tasks.aclose()
        self._advanced.set()

    def _changed(self, keys: Collection[tuple[str, str]]) -> None:
        self._dirty.update(keys)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await wait_for(self._wake, within=HEALTH_INTERVAL)
            self._wake.clear()
            self.advance()
            await asyncio.sleep(TICK)

    def advance(self) -> None:
        """One tick: assign the next position to the changes since the previous tick."""
        position, dirty = self.position + 1, self._dirty
        self._frames.clear()
        self._encoded.clear()
        changed = bool(dirty)
        if dirty:
            self._dirty = set()
            self._services.add({service for service, _ in dirty}, position)
            self._instances.add(((service, id) for service, id in dirty if id), position)
        moment = asyncio.get_running_loop().time()
        if moment - self._health_checked >= HEALTH_INTERVAL:
            self._health_checked = moment
            changed |= self._update_scopes(position)
        if changed:
            self.position = position
            advanced, self._advanced = self._advanced, asyncio.Event()
            advanced.set()

    def _update_scopes(self, position: int) -> bool:
        """Update the health and problems of all scopes; whether any changed."""
        changed = False
        for groups, scope in list(self._scopes.items()):
            if not scope.listeners:
                del self._scopes[groups]
                continue
            changed |= self._update(EventSubscription(groups), scope, position)
        return changed

    def _update(self, subscription: EventSubscription, scope: _ScopeState, position: int) -> bool:
        health = self._source.health(subscription.sees)
        untimed = {**msgspec.to_builtins(health), "timestamp": None}
        problems = visible_problems(self._source.problems(), subscription.sees)
        texts = [(problem.key, problem.severity, problem.text) for problem in problems]
        changed = scope.health.update(health, untimed, position)
        return scope.problems.update(problems, texts, position) or changed

    def open(
        self,
        subscription: EventSubscription,
        last: str = "",
        *,
        caller: Principal,
        authorized: Callable[[], bool] = lambda: True,
    ) -> EventListener:
        """A listener that resumes after the event `last`, and ends when it is no longer
        `authorized`. Raises `HTTPError` if there is no place for it (503) or its token (429); some
        places are reserved for callers that can act on the events."""
        reserved = MAX_LISTENERS // RESERVE if caller.role == "viewer" else 0
        if self.closed or self.clients >= MAX_LISTENERS - reserved:
            raise HTTPError(503, "too_many_streams", "streams_of_server", retry_after=10)
        if caller.token and self._clients_of(caller.token) >= MAX_PER_TOKEN:
            raise HTTPError(
                429,
                "too_many_streams",
                "streams_of_token",
                name=caller.name,
                limit=MAX_PER_TOKEN,
                retry_after=10,
            )
        scope = self._scopes.get(subscription.groups)
        if scope is None:
            # A scope without listeners is not updated. The new position makes sure that a listener
            # that resumes receives the current health and problems.
            scope = self._scopes[subscription.groups] = _ScopeState()
            self.position += 1
            self._frames.clear()
            self._update(subscription, scope, self.position)
        listener = EventListener(self, subscription, last, authorized, caller.token)
        scope.listeners.add(listener)
        return listener

    def _clients_of(self, token: str) -> int:
        return sum(
            listener.token == token
            for scope in self._scopes.values()
            for listener in scope.listeners
        )

    def discard(self, listener: EventListener) -> None:
        if scope := self._scopes.get(listener.subscription.groups):
            scope.listeners.discard(listener)

    async def wait(self, seconds: float) -> None:
        """Wait until the position advances, but not longer than this."""
        await wait_for(self._advanced, within=seconds)

    def event_id(self, position: int) -> bytes:
        return f"id: {self._epoch}-{position}\n".encode()

    def resume_position(self, last: str) -> int | None:
        """The position of an event id; None if the id is invalid or of another server."""
        epoch, _, text = last.rpartition("-")
        if epoch != self._epoch or not (text.isascii() and text.isdecimal()) or len(text) > 15:
            return None
        return int(text) if int(text) <= self.position else None

    def hello(
        self,
        subscription: EventSubscription,
        *,
        reset: Message | None = None,
        resumed: int | None = None,
    ) -> bytes:
        """The first frame, with health and problems unless the listener resumes. Its id is then the
        resumed position: the listener has not received the events after it yet."""
        blocks = [
            _block("hello", encode({"version": self.position, "resumed": resumed is not None}))
        ]
        if reset is not None:
            RESETS.inc()
            blocks.append(_block("reset", encode(ResetEvent(reset.text, reset))))
        if resumed is None:
            blocks += self._scope_blocks(subscription, since=-1)
        event_id = self.event_id(self.position if resumed is None else resumed)
        return b"".join([b"retry: 2000\n", *blocks[:-1], event_id, blocks[-1]])

    def frame(self, subscription: EventSubscription, position: int) -> bytes:
        """The current state of everything that changed after a position; empty if the subscription
        includes none of it."""
        key = (subscription, position)
        if (frame := self._frames.get(key)) is None:
            frame = self._frames[key] = self._compose(subscription, position)
        return frame

    def _compose(self, subscription: EventSubscription, position: int) -> bytes:
        services = self._services.since(position)
        instances = self._instances.since(position) if subscription.service else []
        if services is None or instances is None:
            return self.hello(subscription, reset=message("stream_too_far_behind"))
        blocks = [
            *self._service_blocks(subscription, services),
            *self._instance_blocks(subscription, instances),
            *self._scope_blocks(subscription, since=position),
        ]
        if not blocks:
            return b""
        return b"".join([*blocks[:-1], self.event_id(self.position), blocks[-1]])

    def _service_blocks(
        self, subscription: EventSubscription, changed: Iterable[str]
    ) -> Iterator[bytes]:
        names = [name for name in changed if subscription.sees(name)]
        if "services" in subscription.kinds and names:
            changes = ((name, self._encode((name, ""))) for name in names)
            yield _block("services", _delta(b'{"changed":[', changes))

    def _instance_blocks(
        self, subscription: EventSubscription, changed: Iterable[tuple[str, str]]
    ) -> Iterator[bytes]:
        keys = [key for key in changed if key[0] == subscription.service]
        if "instances" in subscription.kinds and keys:
            start = b'{"service":' + encode(subscription.service) + b',"changed":['
            changes = ((key[1], self._encode(key)) for key in keys)
            yield _block("instances", _delta(start, changes))

    def _scope_blocks(self, subscription: EventSubscription, *, since: int) -> list[bytes]:
        scope = self._scopes.get(subscription.groups)
        return [
            _block(kind, event.encoded)
            for kind, event in (scope.events() if scope is not None else ())
            if kind in subscription.kinds and event.position > since
        ]

    def _encode(self, key: tuple[str, str]) -> bytes | None:
        """A service or an instance as JSON, encoded once per tick; None if it is removed."""
        if key not in self._encoded:
            service, id = key
            value = self._source.instance(service, id) if id else self._source.service(service)
            self._encoded[key] = None if value is None else encode(value)
        return self._encoded[key]


@dataclass(eq=False)
class EventListener:
    """A client of the stream. `frames` yields what to send to it."""

    stream: EventStream
    subscription: EventSubscription
    last: str
    authorized: Callable[[], bool]
    token: str

    async def frames(self) -> AsyncIterator[bytes]:
        """Ends when the client disconnects or is no longer authorized, or the server stops."""
        stream, loop = self.stream, asyncio.get_running_loop()
        try:
            resumed = stream.resume_position(self.last) if self.last else None
            position = stream.position if resumed is None else resumed
            reset = message("stream_event_unknown") if self.last and resumed is None else None
            yield stream.hello(self.subscription, reset=reset, resumed=resumed)
            sent = checked = loop.time()
            while not stream.closed:
                if loop.time() - checked >= AUTH_INTERVAL:
                    checked = loop.time()
                    if not self.authorized():
                        return
                frame = b""
                if position < stream.position:
                    frame = stream.frame(self.subscription, position)
                    position = stream.position
                elif loop.time() - sent >= KEEPALIVE:
                    frame = stream.event_id(position) + b": still here\n\n"
                else:
                    await stream.wait(AUTH_INTERVAL)
                if frame:
                    yield frame
                    sent = loop.time()
        finally:
            stream.discard(self)


def _block(event: str, data: bytes) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


def _delta(start: bytes, changes: Iterable[tuple[str, bytes | None]]) -> bytes:
    """The JSON of changed items and the names of removed ones. `start` ends with the opening of the
    list of changed items."""
    changed, removed = [], []
    for name, encoded in changes:
        if encoded is None:
            removed.append(name)
        else:
            changed.append(encoded)
    return start + b",".join(changed) + b'],"removed":' + encode(removed) + b"}"
