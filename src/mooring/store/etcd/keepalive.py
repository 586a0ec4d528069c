"""Lease renewals: one stream for all leases of a store."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from mooring.errors import LeaseNotFound, Unavailable
from mooring.store.etcd.connection import Cluster
from mooring.store.etcd.proto import LeaseKeepAliveRequest
from mooring.store.etcd.streams import Stream
from mooring.tasks import Tasks

_SILENT = 0.5  # seconds without an answer after which a stream that fails a renewal is given up


class KeepAlives:
    def __init__(self, cluster: Cluster, tasks: Tasks) -> None:
        self._cluster, self._tasks = cluster, tasks
        self._stream: Stream | None = None
        self._waiting: dict[int, list[asyncio.Future[int]]] = {}

    async def renew(self, lease: int) -> int:
        """The lease's time-to-live, whole again. Tried on two streams at the most."""
        timeout = self._cluster.attempt
        try:
            return await self._renew(lease, timeout)
        except Unavailable:
            return await self._renew(lease, timeout)

    async def _renew(self, lease: int, timeout: float) -> int:
        await self._cluster.ready()
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lease, []).append(answer)
        stream = self._open()
        sent = time.monotonic()
        stream.send(LeaseKeepAliveRequest(ID=lease))
        try:
            async with asyncio.timeout(timeout):
                ttl = await answer
        except TimeoutError:
            raise Unavailable(
                f"renewal of lease {lease:x}: no answer of {stream.endpoint.address} "
                f"within {timeout:g} s"
            ) from None
        finally:
            # Also where the caller lost patience before us: others must not wait on it too.
            silent = stream.heard < sent and time.monotonic() - sent > _SILENT
            if silent and (answer.cancel() or answer.cancelled()):
                stream.abandon()
        if ttl <= 0:
            raise LeaseNotFound(lease)
        return ttl

    def _open(self) -> Stream:
        if self._stream is None or not self._stream.alive:
            self._stream = Stream(
                self._cluster, self._tasks, lambda m: m.keepalive, self._received, self._ended
            )
        return self._stream

    def _received(self, message: Any) -> None:
        for answer in self._waiting.pop(message.ID, ()):
            if not answer.done():
                answer.set_result(message.TTL)

    def _ended(self, reason: str) -> None:
        self._stream = None
        waiting, self._waiting = self._waiting, {}
        for answers in waiting.values():
            for answer in answers:
                if not answer.done():
                    answer.set_exception(self._cluster.broken("renewal of a lease", reason))
