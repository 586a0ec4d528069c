"""Lease renewals: one stream for all leases of a store.

etcd answers the requests of a stream in order, so responses are matched by position, not by lease
id: a late response to an earlier renewal must not be taken for that of a later one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from mooring.errors import AccessDenied, LeaseNotFound, Unavailable
from mooring.messages import Message, message
from mooring.store.etcd.connection import EtcdConnection, Retries
from mooring.store.etcd.proto import LeaseKeepAliveRequest
from mooring.store.etcd.shared_stream import SharedStream
from mooring.tasks import Tasks, settle

_SILENT = 0.5  # seconds without a response, after which a failed renewal ends the stream


class KeepAlives:
    def __init__(self, cluster: EtcdConnection, tasks: Tasks) -> None:
        self._cluster, self._tasks = cluster, tasks
        self._renewals: _KeepAliveStream | None = None
        cluster.moved.append(self._move)

    def _move(self) -> None:
        """Let the next renewal open a stream to the endpoint in use."""
        renewals = self._renewals
        if renewals is not None and renewals.stream.endpoint is not self._cluster.endpoint:
            self._renewals = None
            renewals.stream.retire()

    async def renew(self, lease: int) -> int:
        """Renew a lease and return its time-to-live. Retries until the deadline."""
        deadline = time.monotonic() + self._cluster.settings.timeout
        retries = Retries(self._cluster, _renewal(lease), deadline)
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
                await retries.wait(error, renewals.stream.endpoint)
            else:
                if ttl <= 0:
                    raise LeaseNotFound(lease)
                return ttl

    async def _log_in(self) -> AccessDenied | None:
        """Log in before opening a stream. Returns a denial instead of raising it: etcd renews
        leases even for expired tokens, so leases survive while a password is rotated and its file
        is not updated yet."""
        try:
            await self._cluster.ready()
        except AccessDenied as error:
            return error
        return None


class _KeepAliveStream:
    def __init__(self, cluster: EtcdConnection, tasks: Tasks) -> None:
        self._cluster = cluster
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        self.stream = SharedStream(
            cluster, tasks, "keepalive", self._received, self._ended, lambda: not self._waiting
        )

    async def renew(self, lease: int, timeout: float) -> int:
        request = LeaseKeepAliveRequest(ID=lease)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # It keeps its position in the queue even if its caller stops waiting.
        self._waiting.append((lease, answer))
        sent = time.monotonic()
        self.stream.send(request)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise Unavailable(
                message(
                    "no_answer_within",
                    operation=_renewal(lease),
                    endpoint=self.stream.endpoint.address,
                    seconds=round(timeout, 1),
                )
            ) from None
        finally:
            # Also if the caller stops waiting first: others must not wait for a silent stream.
            silent = self.stream.heard < sent and time.monotonic() - sent > _SILENT
            if silent and answer.cancelled():
                self.stream.abandon(since=sent)

    def _received(self, message: Any) -> bool:
        lease, answer = self._waiting.popleft()
        if lease != message.ID:
            # Out of order: responses on this stream cannot be trusted any more.
            self._waiting.appendleft((lease, answer))
            self.stream.end()
        else:
            settle(answer, message.TTL)
        self.stream.end_if_unused()
        return False

    def _ended(self, reason: Message) -> None:
        while self._waiting:
            lease, answer = self._waiting.popleft()
            settle(answer, self._cluster.broken(_renewal(lease), reason))


def _renewal(lease: int) -> Message:
    return message("op_renewal", lease=f"{lease:x}")
