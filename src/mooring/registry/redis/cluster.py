"""A cluster: which node holds which slot, and calls that go to the right one.

A node that is down or silent costs those whose keys lie on it, and nobody else. The driver's own
client closes all its connections where one of them fails, and finds the cluster again through
whichever node comes first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

from redis import exceptions as driver
from redis.asyncio import Redis
from redis.crc import key_slot

from mooring.registry.redis.calls import LANES, Call, plain, send
from mooring.registry.redis.failures import LOST

Node: TypeAlias = tuple[str, int]

_LOOK_WITHIN = 1.0
"""Seconds that one node has to say who holds what."""


class Cluster:
    def __init__(self, seeds: Sequence[Node], options: dict[str, Any]) -> None:
        self._seeds, self._options = tuple(seeds), options
        self._clients: dict[Node, Redis] = {}
        self._ranges: list[tuple[int, int, Node]] = []
        self._moved: dict[int, Node] = {}
        """Slots that were said to be elsewhere since the last look."""
        self._suspects: set[Node] = set()
        self._lanes: dict[Node, asyncio.Semaphore] = {}
        self._looking = asyncio.Lock()
        self._looks = 0

    def client(self, node: Node) -> Redis:
        if node not in self._clients:
            host, port = node
            self._clients[node] = Redis(host=host, port=port, **self._options)
        return self._clients[node]

    def node_of(self, call: Call) -> Node | None:
        """Who holds the keys of a call, as far as is known; anybody for one without keys."""
        if not call.keys:
            return random.choice(self._ranges)[2] if self._ranges else None
        key = call.keys[0]
        slot = key_slot(key if isinstance(key, bytes) else str(key).encode())
        if slot in self._moved:
            return self._moved[slot]
        return next((node for first, last, node in self._ranges if first <= slot <= last), None)

    async def send(self, calls: Sequence[Call]) -> list[Any]:
        """The reply to each, or the error in its place."""
        if any(self._is_doubtful(self.node_of(call)) for call in calls):
            await self._look()
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

    def _is_doubtful(self, node: Node | None) -> bool:
        return node is None or node in self._suspects

    async def _send_to(self, node: Node | None, calls: list[Call]) -> list[Any]:
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

    async def _follow(self, call: Call, error: driver.AskError) -> Any:
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
        """Ask who holds what: those first of whom nothing bad is known."""
        looks = self._looks
        async with self._looking:
            if looks != self._looks:
                return  # somebody else just did
            nodes = [*{*self._seeds, *(node for _, _, node in self._ranges)}]
            random.shuffle(nodes)
            nodes.sort(key=lambda node: node in self._suspects)
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
            raise driver.ConnectionError(
                f"Error connecting to the cluster: no node answers: {problem}"
            ) from problem

    def _take(self, told: list[list[Any]], asked: Node) -> None:
        self._ranges = [
            (first, last, (holder[0].decode() or asked[0], int(holder[1])))
            for first, last, holder, *_ in told
        ]
        self._moved.clear()
        self._suspects.clear()
        self._looks += 1

    async def masters(self) -> list[Node]:
        if not self._ranges:
            await self._look()
        return [*{node for _, _, node in self._ranges}]

    async def scan_iter(self, pattern: str, *, count: int) -> AsyncIterator[bytes]:
        """Keys of all nodes."""
        for node in await self.masters():
            async for key in self.client(node).scan_iter(pattern, count=count):
                yield key

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()
