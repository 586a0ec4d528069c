"""A cluster: which node holds which slot, and calls that go to the right one.

A node that is down or silent costs those whose keys lie on it, and nobody else. The driver's own
client closes all its connections where one of them fails, and finds the cluster again through
whichever node comes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

from redis import exceptions as driver
from redis.asyncio import Redis
from redis.crc import key_slot

from mooring.registry.redis.errors import LOST
from mooring.registry.redis.pipeline import LANES, RedisCall, plain, send
from mooring.tasks import Tasks

Node: TypeAlias = tuple[str, int]

_LOOK_WITHIN = 1.0
"""Seconds that one node has to say who holds what."""

_LOOK_AFTER = 60.0
"""Seconds after which it is looked again: of nodes that came meanwhile nobody else tells."""


class ClusterClient:
    def __init__(self, seeds: Sequence[Node], options: dict[str, Any]) -> None:
        self._seeds, self._options = tuple(seeds), options
        self._clients: dict[Node, Redis] = {}
        self._ranges: list[tuple[int, int, Node]] = []
        self._moved: dict[int, Node] = {}
        """Slots that were said to be elsewhere since the last look."""
        self._known: set[Node] = set()
        """All that were named at the last look, replicas too: the masters may have gone since."""
        self._suspects: set[Node] = set()
        self._lanes: dict[Node, asyncio.Semaphore] = {}
        self._looking = asyncio.Lock()
        self._looks = 0
        self._looked = 0.0
        """When it was last looked, on the monotonic clock."""
        self._tasks = Tasks()
        self._renewing: asyncio.Task[object] | None = None

    def client(self, node: Node) -> Redis:
        if node not in self._clients:
            host, port = node
            self._clients[node] = Redis(host=host, port=port, **self._options)
        return self._clients[node]

    def node_of(self, call: RedisCall) -> Node | None:
        """Who holds the keys of a call, as far as is known; anybody for one without keys."""
        if not call.keys:
            return random.choice(self._ranges)[2] if self._ranges else None
        key = call.keys[0]
        slot = key_slot(key if isinstance(key, bytes) else str(key).encode())
        if slot in self._moved:
            return self._moved[slot]
        return next((node for first, last, node in self._ranges if first <= slot <= last), None)

    async def send(self, calls: Sequence[RedisCall]) -> list[Any]:
        """The reply to each, or the error in its place."""
        if any(self._is_doubtful(self.node_of(call)) for call in calls):
            await self._look()
        elif self._moved or time.monotonic() - self._looked > _LOOK_AFTER:
            self._renew()
        placed: dict[Node | None, list[int]] = {}
        for index, call in enumerate(calls):
            placed.setdefault(self.node_of(call), []).append(index)
        results: list[Any] = [None] * len(calls)
        parts = await asyncio.gather(
            *(self._send_to(node, [calls[i] for i in indexes]) for node, indexes in placed.items())
        )
        for indexes, part in zip(placed.values(), parts, strict=True):
            for index, result in zip(indexes, part, strict=True):
                results[index] = result
        return results

    def _renew(self) -> None:
        """Look again beside the calls, none of which needs it."""
        if self._renewing is None or self._renewing.done():
            self._renewing = self._tasks.start(self._look_if_possible(), name="look at the cluster")

    async def _look_if_possible(self) -> None:
        with contextlib.suppress(driver.ConnectionError):
            await self._look()

    def _is_doubtful(self, node: Node | None) -> bool:
        return node is None or node in self._suspects

    async def _send_to(self, node: Node | None, calls: list[RedisCall]) -> list[Any]:
        if node is None:
            return [driver.ClusterDownError("CLUSTERDOWN nobody holds this slot")] * len(calls)
        try:
            async with self._lanes.setdefault(node, asyncio.Semaphore(LANES)):
                results = await send(self.client(node), calls)
        except LOST as error:
            self._suspects.add(node)
            return [error] * len(calls)
        except asyncio.CancelledError:
            self._suspects.add(node)  # its time was over
            raise
        return [
            await self._follow(call, result) if isinstance(result, driver.AskError) else result
            for call, result in zip(calls, results, strict=True)
        ]

    async def _follow(self, call: RedisCall, error: driver.AskError) -> Any:
        """To where a slot has moved (`MovedError` is an `AskError`), or is just moving."""
        node: Node = (error.host, error.port)
        asking: tuple[str, ...] = ("ASKING",)
        if isinstance(error, driver.MovedError):
            self._moved[error.slot_id] = node
            asking = ()
        try:
            return (await send(self.client(node), [call], before_each=asking))[0]
        except LOST as problem:
            self._suspects.add(node)
            return problem

    async def _look(self) -> None:
        """Ask who holds what: those first of whom nothing bad is known, and of them those who were
        just said to hold something, who know it before the others do."""
        looks = self._looks
        async with self._looking:
            if looks != self._looks:
                return  # somebody else just did
            holders = {*self._moved.values()}
            nodes = [*{*self._seeds, *self._known, *holders}]
            random.shuffle(nodes)
            nodes.sort(key=lambda node: (node in self._suspects, node not in holders))
            problem: Exception | None = None
            for node in nodes:
                try:
                    async with asyncio.timeout(_LOOK_WITHIN):
                        call = plain("CLUSTER", "SLOTS", what="look at the cluster")
                        (told,) = await send(self.client(node), [call])
                    if isinstance(told, Exception):
                        raise told
                    self._take(told, node)
                    return
                except LOST as error:
                    problem = error
                    self._suspects.add(node)
            raise driver.ConnectionError(f"no node of the cluster answers: {problem}") from problem

    def _take(self, told: list[list[Any]], asked: Node) -> None:
        named = [
            (first, last, [(node[0].decode() or asked[0], int(node[1])) for node in nodes])
            for first, last, *nodes in told
        ]
        self._ranges = [(first, last, nodes[0]) for first, last, nodes in named]
        self._known = {node for _, _, nodes in named for node in nodes}
        self._moved.clear()
        self._suspects.clear()
        self._looks += 1
        self._looked = time.monotonic()

    async def masters(self) -> list[Node]:
        """As they are by now."""
        await self._look()
        return [*{node for _, _, node in self._ranges}]

    async def scan_iter(self, pattern: str, *, count: int) -> AsyncIterator[bytes]:
        """Keys of all nodes. Where one fails, those of the others come before the error."""
        problem: Exception | None = None
        for node in await self.masters():
            try:
                async for key in self.client(node).scan_iter(pattern, count=count):
                    yield key
            except LOST as error:
                problem = error
        if problem is not None:
            raise problem

    async def aclose(self) -> None:
        await self._tasks.aclose()
        for client in self._clients.values():
            await client.aclose()
