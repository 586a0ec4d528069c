"""The live stream: what changed, told to everybody who listens, as server-sent events.

One tick for all: a change is told at most a quarter of a second after it, together with all others
of that time, and what is said of a service is encoded once however many listen. There is no buffer
for each listener. It has a position only, and is told what changed since, as it is now: one that is
slow hears less often and of each thing once, and holds up nobody. One that was away for longer than
the past is kept is told to read everything anew (`reset`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, Protocol, Self, TypeVar, get_args
from weakref import WeakSet

import msgspec

from mooring.model import now
from mooring.names import split_service
from mooring.server.api.prometheus import RESETS
from mooring.server.http.response import encode
from mooring.server.live.problems import Problem, visible_problems
from mooring.server.live.summary import (
    UNOBSERVED,
    HealthCounts,
    HealthSummary,
    InstanceDetail,
    ServiceSummary,
    count_health,
    health,
    instance_detail,
    service_summary,
)
from mooring.tasks import Tasks

if TYPE_CHECKING:
    from mooring.server.live.problems import CurrentProblems
    from mooring.server.live.state import Fleet

K = TypeVar("K", bound=Hashable)

TICK = 0.25
"""Seconds between two frames at the least."""
LOOK = 1.0
"""Seconds between two looks at the health of all and at what is wrong."""
HEARTBEAT = 15.0
"""Seconds without a word after which something is said, for the proxies in between."""
ALIVE = 2.0
"""Seconds between two looks at whether a listener still may."""
CLIENTS = 2000
OF_ONE = 600
"""So many of them with one token: as many consoles as a company has open, and no more."""
RESERVE = 10
"""One place in so many is for those who can do something about what they hear."""
KEPT = 20_000
"""So many things that changed are remembered, for who was away."""

Told = Literal["services", "instances", "health", "problems"]
KINDS: frozenset[Told] = frozenset(get_args(Told))


class Changes(Generic[K]):
    """What changed last: each thing once, the newest last."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._at: dict[K, int] = {}
        self._forgotten = 0
        """Up to here the past is not known whole."""

    def note(self, things: Iterable[K], position: int) -> None:
        """These changed at a position, which never goes back."""
        for thing in things:
            self._at.pop(thing, None)
            self._at[thing] = position
        while len(self._at) > self._kept:
            self._forgotten = self._at.pop(next(iter(self._at)))

    def since(self, position: int) -> list[K] | None:
        """What changed after a position, the newest first; None where that is forgotten."""
        if position < self._forgotten:
            return None
        found: list[K] = []
        for thing in reversed(self._at):
            if self._at[thing] <= position:
                break
            found.append(thing)
        return found


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody wants to hear. Who wants the same is told the same bytes."""

    groups: frozenset[str] | None = None
    """The groups that they may see; None: all."""
    service: str = ""
    """The service whose instances they look at."""
    kinds: frozenset[Told] = KINDS

    def sees(self, service: str) -> bool:
        return self.groups is None or split_service(service)[0] in self.groups


class Shown(Protocol):
    """How things are told, as the API shows them; None for what is gone."""

    def service(self, name: str, /) -> object | None: ...
    def instance(self, service: str, id: str, /) -> object | None: ...
    def health(self, sees: Callable[[str], bool], /) -> object: ...
    def problems(self) -> list[Problem]: ...


class Followed(Protocol):
    """What of the fleet is followed."""

    def subscribe(
        self, callback: Callable[[Collection[tuple[str, str]]], None], /
    ) -> Callable[[], None]: ...


@dataclass(slots=True)
class _Scope:
    """What is told whole to those who may see the same groups, and since when it is so."""

    health: bytes = b"{}"
    counts: object = None
    """The same without its time."""
    health_at: int = 0
    problems: bytes = b"[]"
    texts: object = None
    """What is said in them; since when is not news."""
    problems_at: int = 0
    listeners: WeakSet[Listener] = field(default_factory=WeakSet)


class Shapes:
    """A fleet, told as the API shows it."""

    def __init__(self, fleet: Fleet, outlook: CurrentProblems) -> None:
        self._fleet, self._outlook = fleet, outlook
        self._tallies: dict[str, tuple[int, HealthCounts]] = {}

    def service(self, name: str) -> ServiceSummary | None:
        known = self._fleet.service(name)
        if known is None:
            self._tallies.pop(name, None)
            return None
        observed = self._fleet.observed(name)
        return service_summary(name, known.instances, observed, changed=known.changed)

    def instance(self, service: str, id: str) -> InstanceDetail | None:
        known = self._fleet.service(service)
        instance = None if known is None else known.instances.get(id)
        if instance is None:
            return None
        return instance_detail(instance, self._fleet.observed(service).get(id, UNOBSERVED))

    def health(self, sees: Callable[[str], bool]) -> HealthSummary:
        seen = (name for name in self._fleet.names() if sees(name))
        return health(sum(map(self._tally, seen), start=HealthCounts()), now())

    def _tally(self, name: str) -> HealthCounts:
        """What health is reckoned from, anew only for what changed: this is done all the time."""
        known = self._fleet.service(name)
        if known is None:
            return HealthCounts()
        version, told = self._tallies.get(name, (-1, HealthCounts()))
        if version != known.version:
            told = count_health(known.instances, self._fleet.observed(name))
            self._tallies[name] = known.version, told
        return told

    def problems(self) -> list[Problem]:
        return self._outlook.problems()


class TooMany(Exception):
    """There are so many listeners that there is no room for another."""


class TooManyOfOne(TooMany):
    """There are so many listeners with one token that there is no room for another of it."""


class Stream:
    """Tells its listeners what changes while it is entered. Leaving ends them all."""

    def __init__(
        self,
        fleet: Followed,
        shown: Shown,
        *,
        tick: float = TICK,
        clients: int = CLIENTS,
        of_one: int = OF_ONE,
    ) -> None:
        self._fleet, self._shown, self._tick = fleet, shown, tick
        self._clients, self._of_one = clients, of_one
        self._epoch = secrets.token_hex(4)
        self._position = 0
        self._services: Changes[str] = Changes()
        self._instances: Changes[tuple[str, str]] = Changes()
        self._dirty: set[tuple[str, str]] = set()
        self._scopes: dict[frozenset[str] | None, _Scope] = {}
        self._frames: dict[tuple[Ask, int], bytes] = {}
        self._encoded: dict[tuple[str, str], bytes | None] = {}
        self._wake, self._moved = asyncio.Event(), asyncio.Event()
        self._looked_at = float("-inf")
        self.closed = False
        self._tasks = Tasks()

    @property
    def clients(self) -> int:
        return sum(len(scope.listeners) for scope in self._scopes.values())

    async def __aenter__(self) -> Self:
        self._unsubscribe = self._fleet.subscribe(self._changed)
        self._tasks.start(self._run(), name="stream")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True
        self._unsubscribe()
        await self._tasks.aclose()
        self._moved.set()

    def _changed(self, things: Collection[tuple[str, str]]) -> None:
        self._dirty.update(things)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._wake.wait()
            self._wake.clear()
            self.advance()
            await asyncio.sleep(self._tick)

    def advance(self) -> None:
        """One tick: what changed since the last has a position from now on."""
        position, dirty = self._position + 1, self._dirty
        self._frames.clear()
        self._encoded.clear()
        news = bool(dirty)
        if dirty:
            self._dirty = set()
            self._services.note({service for service, _ in dirty}, position)
            self._instances.note((each for each in dirty if each[1]), position)
        now = asyncio.get_running_loop().time()
        if now - self._looked_at >= LOOK:
            self._looked_at = now
            news |= self._look(position)
        if news:
            self._position = position
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()

    def _look(self, position: int) -> bool:
        """Whether something of what is told whole is not as it was."""
        news = False
        for groups, scope in list(self._scopes.items()):
            if not scope.listeners:
                del self._scopes[groups]
                continue
            news |= self._look_at(Ask(groups), scope, position)
        return news

    def _look_at(self, ask: Ask, scope: _Scope, position: int) -> bool:
        health = self._shown.health(ask.sees)
        problems = visible_problems(self._shown.problems(), ask.sees)
        counts, texts = _without_time(health), [(p.key, p.severity, p.text) for p in problems]
        news = False
        if counts != scope.counts:
            scope.health, scope.counts, scope.health_at = encode(health), counts, position
            news = True
        if texts != scope.texts:
            scope.problems, scope.texts, scope.problems_at = encode(problems), texts, position
            news = True
        return news

    def open(
        self,
        ask: Ask,
        last: str = "",
        *,
        token: str = "",
        acts: bool = False,
        may: Callable[[], bool] = lambda: True,
    ) -> Listener:
        """A listener that goes on after the event `last`, for as long as it `may`. Raises `TooMany`
        where there is no room for it, or for its token; some is left for who `acts`."""
        room = self._clients if acts else self._clients - self._clients // RESERVE
        if self.closed or self.clients >= room:
            raise TooMany
        if token and self._of(token) >= self._of_one:
            raise TooManyOfOne
        scope = self._scopes.get(ask.groups)
        if scope is None:
            # Nobody looked while there was none: who comes back was not told what is so by now.
            scope = self._scopes[ask.groups] = _Scope()
            self._position += 1
            self._frames.clear()
            self._look_at(ask, scope, self._position)
        listener = Listener(self, ask, last, may, token)
        scope.listeners.add(listener)
        return listener

    def _of(self, token: str) -> int:
        return sum(
            each.token == token for scope in self._scopes.values() for each in scope.listeners
        )

    def leave(self, listener: Listener) -> None:
        if scope := self._scopes.get(listener.ask.groups):
            scope.listeners.discard(listener)

    @property
    def position(self) -> int:
        return self._position

    async def wait(self, most: float) -> None:
        """Until there is something to tell after the position of now, for so long at the most."""
        moved = self._moved
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most):
                await moved.wait()

    def mark(self, position: int) -> bytes:
        return f"id: {self._epoch}-{position}\n".encode()

    def resumed(self, last: str) -> int | None:
        """The position of an event's id; None for one of another server, or of another time."""
        epoch, _, text = last.rpartition("-")
        if epoch != self._epoch or not (text.isascii() and text.isdecimal()) or len(text) > 15:
            return None
        return int(text) if int(text) <= self._position else None

    def hello(self, ask: Ask, *, reset: str = "", resumed: int | None = None) -> bytes:
        """The first words; with everything that is told whole, unless it goes on from before. What
        came after that is still to be told, and so is not what these words are marked with."""
        told = {"version": self._position, "resumed": resumed is not None}
        blocks = [_block("hello", encode(told))]
        if reset:
            RESETS.inc()
            blocks.append(_block("reset", encode({"reason": reset})))
        if resumed is None:
            blocks += self._whole(ask, since=-1)
        mark = self.mark(self._position if resumed is None else resumed)
        return b"".join([b"retry: 2000\n", *blocks[:-1], mark, blocks[-1]])

    def frame(self, ask: Ask, position: int) -> bytes:
        """What changed after a position, as it is now; empty where it is nothing for them."""
        key = (ask, position)
        if (frame := self._frames.get(key)) is None:
            frame = self._frames[key] = self._compose(ask, position)
        return frame

    def _compose(self, ask: Ask, position: int) -> bytes:
        services = self._services.since(position)
        instances = self._instances.since(position) if ask.service else []
        if services is None or instances is None:
            return self.hello(ask, reset="too much changed meanwhile")
        blocks = []
        if "services" in ask.kinds and (names := [each for each in services if ask.sees(each)]):
            blocks.append(_block("services", self._of_services(names)))
        if ask.service and "instances" in ask.kinds:
            ids = [id for service, id in instances if service == ask.service]
            if ids:
                blocks.append(_block("instances", self._of_instances(ask.service, ids)))
        blocks += self._whole(ask, since=position)
        if not blocks:
            return b""
        return b"".join([*blocks[:-1], self.mark(self._position), blocks[-1]])

    def _whole(self, ask: Ask, *, since: int) -> list[bytes]:
        scope = self._scopes.get(ask.groups)
        blocks = []
        if scope is not None and "health" in ask.kinds and scope.health_at > since:
            blocks.append(_block("health", scope.health))
        if scope is not None and "problems" in ask.kinds and scope.problems_at > since:
            blocks.append(_block("problems", scope.problems))
        return blocks

    def _of_services(self, names: list[str]) -> bytes:
        told = [(name, self._once((name, ""))) for name in names]
        return _delta(b'{"changed":[', told)

    def _of_instances(self, service: str, ids: list[str]) -> bytes:
        told = [(id, self._once((service, id))) for id in ids]
        return _delta(b'{"service":' + encode(service) + b',"changed":[', told)

    def _once(self, thing: tuple[str, str]) -> bytes | None:
        """How a service, or an instance, is told at this tick: encoded once for all."""
        if thing not in self._encoded:
            service, id = thing
            shown = self._shown.instance(service, id) if id else self._shown.service(service)
            self._encoded[thing] = None if shown is None else encode(shown)
        return self._encoded[thing]


class Listener:
    """One who listens. `frames` is what to send them."""

    def __init__(
        self, stream: Stream, ask: Ask, last: str, may: Callable[[], bool], token: str
    ) -> None:
        self._stream, self.ask, self._last, self._may = stream, ask, last, may
        self.token = token

    async def frames(self) -> AsyncIterator[bytes]:
        """Until they go, may no longer listen, or the server stops."""
        stream, loop = self._stream, asyncio.get_running_loop()
        try:
            resumed = stream.resumed(self._last) if self._last else None
            position = stream.position if resumed is None else resumed
            missed = "it is not known what was missed" if self._last and resumed is None else ""
            yield stream.hello(self.ask, reset=missed, resumed=resumed)
            spoke = asked = loop.time()
            while not stream.closed:
                if loop.time() - asked >= ALIVE:
                    asked = loop.time()
                    if not self._may():
                        return
                frame = b""
                if position < stream.position:
                    position, frame = stream.position, stream.frame(self.ask, position)
                elif loop.time() - spoke >= HEARTBEAT:
                    frame = stream.mark(position) + b": still here\n\n"
                else:
                    await stream.wait(ALIVE)
                if frame:
                    yield frame
                    spoke = loop.time()
        finally:
            stream.leave(self)


def _block(event: str, data: bytes) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


def _delta(start: bytes, told: Iterable[tuple[str, bytes | None]]) -> bytes:
    changed, removed = [], []
    for name, encoded in told:
        if encoded is None:
            removed.append(name)
        else:
            changed.append(encoded)
    return start + b",".join(changed) + b'],"removed":' + encode(removed) + b"}"


def _without_time(health: object) -> object:
    """HealthSummary, without the moment at which it was looked at."""
    told = msgspec.to_builtins(health)
    return {name: told[name] for name in told if name != "timestamp"}
