"""Lease renewals: one stream for all leases of a store.

etcd answers the requests of a stream in their order, so answers belong to requests by their place,
never by the lease's id: a late answer to an earlier renewal must not pass for that of a later one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from mooring.errors import AccessDenied, LeaseNotFound, Unavailable
from mooring.store.etcd.connection import EtcdConnection
from mooring.store.etcd.proto import LeaseKeepAliveRequest
from mooring.store.etcd.shared_stream import SharedStream
from mooring.tasks import Backoff, Tasks

_SILENT = 0.5  # seconds without an answer after which a stream that fails a renewal is given up


class KeepAlives:
    def __init__(self, cluster: EtcdConnection, tasks: Tasks) -> None:
        self._cluster, self._tasks = cluster, tasks
        self._renewals: _KeepAliveStream | None = None
        cluster.moved.append(self._move)

    def _move(self) -> None:
        """The next renewal opens a stream to the endpoint in use."""
        renewals = self._renewals
        if renewals is not None and renewals.stream.endpoint is not self._cluster.endpoint:
            self._renewals = None
            renewals.retire()

    async def renew(self, lease: int) -> int:
        """The lease's time-to-live, whole again. Tried again until the deadline."""
        deadline = time.monotonic() + self._cluster.settings.timeout
        backoff = Backoff()
        tries = 0
        denied: AccessDenied | None = None
        while True:
            if self._renewals is None or not self._renewals.stream.alive:
                denied = await self._log_in()
                self._renewals = _KeepAliveStream(self._cluster, self._tasks)
            renewals = self._renewals
            left = max(deadline - time.monotonic(), 0.05)
            try:
                ttl = await renewals.renew(lease, min(left, self._cluster.attempt))
            except Unavailable as error:
                if denied is not None:
                    raise denied from error
                pause = backoff.next()
                if time.monotonic() + pause >= deadline:
                    raise await self._cluster.explained(error) from error
                if not tries:
                    endpoint, what = renewals.stream.endpoint, f"renewal of lease {lease:x}"
                    await self._cluster.stop_if_hopeless(endpoint, what, 1.0)
                tries += 1
                await asyncio.sleep(pause)
                continue
            if ttl <= 0:
                raise LeaseNotFound(lease)
            return ttl

    async def _log_in(self) -> AccessDenied | None:
        """Log in before a new stream; returns a refusal instead of raising it. etcd renews leases
        for expired tokens too, so a lease survives the moments in which a password was rotated and
        its file is not written yet."""
        try:
            await self._cluster.ready()
        except AccessDenied as error:
            return error
        return None


class _KeepAliveStream:
    """One stream, and the requests on it that wait for their answers."""

    def __init__(self, cluster: EtcdConnection, tasks: Tasks) -> None:
        self._cluster = cluster
        self._retired = False
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        self.stream = SharedStream(cluster, tasks, "keepalive", self._received, self._ended)

    async def renew(self, lease: int, timeout: float) -> int:
        request = LeaseKeepAliveRequest(ID=lease)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # It keeps its place, though nobody waits for it any more.
        self._waiting.append((lease, answer))
        sent = time.monotonic()
        self.stream.send(request)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise Unavailable(
                f"renewal of lease {lease:x}: no answer of {self.stream.endpoint.address} "
                f"within {timeout:.1f} s"
            ) from None
        finally:
            # Also where the caller lost patience before us: others must not wait on it too.
            silent = self.stream.heard < sent and time.monotonic() - sent > _SILENT
            if silent and answer.cancelled():
                self.stream.abandon(since=sent)

    def _received(self, message: Any) -> bool:
        lease, answer = self._waiting.popleft()
        if lease != message.ID:
            # Out of step: no answer of this stream can be trusted any more.
            self._waiting.appendleft((lease, answer))
            self.stream.end()
        elif not answer.done():
            answer.set_result(message.TTL)
        self._end_if_done()
        return False

    def retire(self) -> None:
        """No more renewals on this stream; it ends with the last answer that is due."""
        self._retired = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._retired and not self._waiting:
            self.stream.end()

    def _ended(self, reason: str) -> None:
        while self._waiting:
            _, answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(self._cluster.broken("renewal of a lease", reason))
