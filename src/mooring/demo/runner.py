"""The play: everybody enters, acts by the clock, and goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Self

from mooring.demo import fleet
from mooring.demo.fleet import Actor
from mooring.demo.script import ACTS, LASTS, ROLES, Act
from mooring.errors import InvalidRequest, MissingExtra, MooringError
from mooring.hub import Hub
from mooring.tasks import Tasks, cleanup

METRICS_EVERY = 2.0
SETTINGS: dict[str, object] = {
    "registry": {
        "metrics": {"enabled-metrics": []},
        "heartbeat": {"heartbeat-interval": "2s", "metadata-interval": "2s"},
    }
}
"""The metrics of this process are not those of the actors, and theirs are told often."""
_GO_WITHIN = 20.0


class Stage:
    """Everything of the demo is there while this is entered, and nothing afterwards. `say` gets
    each line for the audience."""

    def __init__(self, hub: Hub, say: Callable[[str], None], *, hurry: float = 1.0) -> None:
        self._hub, self._say, self._hurry = hub, say, hurry
        self._actors = [Actor(hub, role, seed=number) for number, role in enumerate(ROLES)]
        self._opened, self._described = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        services = {role.service for role in ROLES}
        try:
            if self._has_store:
                described = fleet.descriptions(self._hub, services)
                await self._described.enter_async_context(described)
            await asyncio.gather(*(actor.enter() for actor in self._actors))
            self._say(f"{len(self._actors)} instances of {len(services)} services are registered")
            if self._has_store:
                await self._furnish()
            else:
                self._say("no lock and no tenants: those need a store beside the registry")
        except BaseException:
            await self._go()
            raise
        self._tasks.start(self._beat(), name="metrics of the demo")
        return self

    @property
    def _has_store(self) -> bool:
        """Whether there is one beside the registry, or below it."""
        try:
            return bool(self._hub.store.url)
        except InvalidRequest:
            return False

    async def _furnish(self) -> None:
        await self._opened.enter_async_context(fleet.queue(self._hub))
        self._say(f"{fleet.CONTENDERS} take turns at the lock {fleet.LOCK}")
        try:
            made = await self._opened.enter_async_context(fleet.tenants(self._hub))
        except MissingExtra as error:
            self._say(f"no tenants: {error}")
            return
        if made:
            self._say(f"tenants {' and '.join(map(str, made))} are published")

    async def __aexit__(self, *_: object) -> None:
        await self._go()

    async def _go(self) -> None:
        await cleanup(self._leave(), within=_GO_WITHIN)

    async def _leave(self) -> None:
        await self._tasks.aclose()
        leaving = [actor.leave() for actor in self._actors]
        ended = await asyncio.gather(*leaving, self._opened.aclose(), return_exceptions=True)
        await self._described.aclose()
        for error in ended:
            if isinstance(error, BaseException):
                raise error
        self._say("everything of the demo is gone again")

    async def play(self, rounds: int | None = None) -> None:
        """Round after round; without a number, until it is cancelled."""
        number = 0
        while rounds is None or number < rounds:
            number += 1
            await self._round()

    async def _round(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for act in ACTS:
            await asyncio.sleep(max(began + act.at / self._hurry - loop.time(), 0.0))
            await self._perform(act)
        await asyncio.sleep(max(began + LASTS / self._hurry - loop.time(), 0.0))
        for actor in self._actors:
            if actor.taken_out:
                self._say(f"{actor.name}: somebody took it out: it starts anew")
                await self._return(actor)

    async def _perform(self, act: Act) -> None:
        actors = [actor for actor in self._actors if _plays(actor, act)]
        who = actors[0].name if len(actors) == 1 else act.service
        self._say(f"{who}: {act.text}")
        for actor in actors:
            try:
                await self._do(actor, act)
            except MooringError as error:
                self._say(f"{actor.name}: {error}")

    async def _do(self, actor: Actor, act: Act) -> None:
        match act.verb:
            case "fail":
                actor.fail()
            case "recover":
                actor.recover()
            case "drain":
                await actor.drain()
            case "leave":
                await actor.leave()
            case "return":
                await self._return(actor)

    async def _return(self, actor: Actor) -> None:
        if actor.present:
            await actor.leave()
        await actor.enter()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(METRICS_EVERY)
            for actor in self._actors:
                actor.beat()


def _plays(actor: Actor, act: Act) -> bool:
    return actor.role.service == act.service and act.number in (0, actor.role.number)
