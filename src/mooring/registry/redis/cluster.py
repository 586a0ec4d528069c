"""A client of a Redis Cluster: finds the node that holds a slot and sends calls to it.

A node that is down or silent affects only the services on it. The cluster client of the driver
closes all its connections when one of them fails, and rediscovers the cluster through an arbitrary
node.
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

from mooring.messages import message
from mooring.registry.redis.errors import LOST, reason_of
from mooring.registry.redis.pipeline import LANES, RedisCall, plain, send
from mooring.tasks import Tasks

NodeAddress: TypeAlias = tuple[str, int]

_DISCOVERY_TIMEOUT = 1.0
"""Seconds that one node has to report the slots."""

_REDISCOVERY = 60.0
"""Seconds between discoveries: nothing else reports new nodes."""


class ClusterClient:
    def __init__(self, seeds: Sequence[NodeAddress], options: dict[str, Any]) -> None:
        self._seeds, self._options = tuple(seeds), options
        self._clients: dict[NodeAddress, Redis] = {}
        self._ranges: list[tuple[int, int, NodeAddress]] = []
        self._moved: dict[int, NodeAddress] = {}
        """Slots that moved since the last discovery."""
        self._known: set[NodeAddress] = set()
        """All nodes of the last discovery, with replicas: the masters may be gone since."""
        self._suspects: set[NodeAddress] = set()
        self._lanes: dict[NodeAddress, asyncio.Semaphore] = {}
        self._discovering = asyncio.Lock()
        self._discoveries = 0
        self._discovered_at = 0.0
        self._tasks = Tasks()
        self._rediscovery: asyncio.Task[object] | None = None

    def client(self, node: NodeAddress) -> Redis:
        if node not in self._clients:
            host, port = node
            self._clients[node] = Redis(host=host, port=port, **self._options)
        return self._clients[node]

    def node_of(self, call: RedisCall) -> NodeAddress | None:
        """The node that holds the keys of a call, if known; any node for a call without keys."""
        if not call.keys:
            return random.choice(self._ranges)[2] if self._ranges else None
        key = call.keys[0]
        slot = key_slot(key if isinstance(key, bytes) else str(key).encode())
        if slot in self._moved:
            return self._moved[slot]
        return next((node for first, last, node in self._ranges if first <= slot <= last), None)

    async def send(self, calls: Sequence[RedisCall]) -> list[Any]:
        """Returns the reply or the error of each call."""
        if any(node is None or node in self._suspects for node in map(self.node_of, calls)):
            await self._discover()
        elif self._moved or time.monotonic() - self._discovered_at > _REDISCOVERY:
            self._rediscover()
        placed: dict[NodeAddress | None, list[int]] = {}
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

    def _rediscover(self) -> None:
        """Discover in the background, while no call depends on it."""
        if self._rediscovery is None or self._rediscovery.done():
            work = self._discover_if_possible()
            self._rediscovery = self._tasks.start(work, name="discovery of the cluster")

    async def _discover_if_possible(self) -> None:
        with contextlib.suppress(driver.ConnectionError):
            await self._discover()

    async def _send_to(self, node: NodeAddress | None, calls: list[RedisCall]) -> list[Any]:
        if node is None:
            return [driver.ClusterDownError("CLUSTERDOWN no node holds this slot")] * len(calls)
        try:
            async with self._lanes.setdefault(node, asyncio.Semaphore(LANES)):
                results = await send(self.client(node), calls)
        except LOST as error:
            self._suspects.add(node)
            return [error] * len(calls)
        except asyncio.CancelledError:
            self._suspects.add(node)  # the caller's timeout expired
            raise
        return [
            await self._redirect(call, result) if isinstance(result, driver.AskError) else result
            for call, result in zip(calls, results, strict=True)
        ]

    async def _redirect(self, call: RedisCall, error: driver.AskError) -> Any:
        """Send a call to the node that its slot moved to (`MovedError` is an `AskError`), or is
        moving to."""
        node: NodeAddress = (error.host, error.port)
        asking: tuple[str, ...] = ("ASKING",)
        if isinstance(error, driver.MovedError):
            self._moved[error.slot_id] = node
            asking = ()
        try:
            return (await send(self.client(node), [call], before_each=asking))[0]
        except LOST as problem:
            self._suspects.add(node)
            return problem

    async def _discover(self) -> None:
        """Ask a node for the slots: first one without problems, and of those first a node that a
        slot has just moved to, because it learned that before the others."""
        discoveries = self._discoveries
        async with self._discovering:
            if discoveries != self._discoveries:
                return  # a concurrent call did it
            holders = {*self._moved.values()}
            nodes = [*{*self._seeds, *self._known, *holders}]
            random.shuffle(nodes)
            nodes.sort(key=lambda node: (node in self._suspects, node not in holders))
            problem: Exception | None = None
            for node in nodes:
                try:
                    async with asyncio.timeout(_DISCOVERY_TIMEOUT):
                        call = plain("CLUSTER", "SLOTS", what=message("op_cluster_discovery"))
                        (reply,) = await send(self.client(node), [call])
                    if isinstance(reply, Exception):
                        raise reply
                    self._update(reply, node)
                    return
                except LOST as error:
                    problem = error
                    self._suspects.add(node)
            raise driver.ConnectionError(
                message("redis_no_node", problem=problem and reason_of(problem))
            ) from problem

    def _update(self, slots: list[list[Any]], asked: NodeAddress) -> None:
        ranges = [
            (first, last, [(node[0].decode() or asked[0], int(node[1])) for node in nodes])
            for first, last, *nodes in slots
        ]
        self._ranges = [(first, last, nodes[0]) for first, last, nodes in ranges]
        self._known = {node for _, _, nodes in ranges for node in nodes}
        self._moved.clear()
        self._suspects.clear()
        self._discoveries += 1
        self._discovered_at = time.monotonic()

    async def masters(self) -> list[NodeAddress]:
        """The current masters."""
        await self._discover()
        return [*{node for _, _, node in self._ranges}]

    async def scan_iter(self, pattern: str, *, count: int) -> AsyncIterator[bytes]:
        """Keys of all nodes. If a node fails, the keys of the others come before the error."""
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
