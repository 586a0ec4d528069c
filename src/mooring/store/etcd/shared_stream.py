"""A bidirectional gRPC stream with many users, isolated from each other.

Cancelling a read or write of `grpc.aio` cancels the whole call, so only the tasks of the stream
touch it. Its users put messages into a queue and get responses through futures.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from mooring.messages import Message, message
from mooring.store.etcd.connection import EtcdConnection
from mooring.store.etcd.endpoints import EtcdEndpoint
from mooring.store.etcd.errors import Verdict, judge, shorten
from mooring.tasks import Tasks


class SharedStream:
    """One stream to the endpoint in use. When it ends, `ended` is called once with the reason.
    `received` returns whether a message woke one of the users, `unused` whether it has none."""

    def __init__(
        self,
        cluster: EtcdConnection,
        tasks: Tasks,
        method: str,
        received: Callable[[Any], bool],
        ended: Callable[[Message], None],
        unused: Callable[[], bool],
    ) -> None:
        self.endpoint: EtcdEndpoint = cluster.endpoint
        self.heard = time.monotonic()
        self.alive = True
        self.retired = False
        self._cluster = cluster
        self._method = method
        self._received = received
        self._ended, self._unused = ended, unused
        self._reason = message("stream_closed")
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self._tasks = tasks
        task = tasks.start(self._run(), name=f"etcd stream to {self.endpoint.address}")
        self._task: asyncio.Task[object] | None = task
        task.add_done_callback(self._forget)

    def _forget(self, _: object) -> None:
        """A cancelled task keeps its call alive, and that keeps gRPC running."""
        self._task = None

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def send(self, message: Any) -> None:
        self._outgoing.put_nowait(message)

    def abandon(self, *, since: float) -> None:
        """End a silent stream, and replace its connection, unless something arrived since then."""
        if self.alive:
            self.alive = False
            self._reason = message("stream_silent", address=self.endpoint.address)
            self._cancel()
            self._cluster.move_on(self.endpoint, silent_since=since)

    def leave(self, reason: Message) -> None:
        """End the stream although the endpoint responds: its users continue on another one."""
        if self.alive:
            self.alive = False
            self._reason = reason
            self._cancel()
            self._cluster.move_on(self.endpoint)

    def end(self) -> None:
        """End a stream that is no longer needed."""
        self.alive = False
        self._cancel()

    def retire(self) -> None:
        """Accept no more users. The stream ends with the last of its users."""
        self.retired = True
        self.end_if_unused()

    def end_if_unused(self) -> None:
        """End a retired stream after its last user."""
        if self.retired and self._unused():
            self.end()

    async def _run(self) -> None:
        metadata = self._cluster.metadata
        call = getattr(self.endpoint.methods, self._method)(metadata=metadata)
        # With an iterator, gRPC would send in a task of its own, which may outlive a failed call.
        sending = self._tasks.start(self._send_to(call), name=f"sending to {self.endpoint.address}")
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self.endpoint.answered()
                self.heard = self.endpoint.heard
                if self._received(message):
                    await asyncio.sleep(0)  # users that were woken run first: a read takes time
            self._broken(await call.code(), await call.details() or "", metadata)
        except grpc.aio.AioRpcError as error:
            self._broken(error.code(), error.details() or "", metadata)
        finally:
            self.alive = False
            call.cancel()
            sending.cancel()
            self._ended(self._reason)

    async def _send_to(self, call: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:  # until the call has ended; the reader knows the reason
                await call.write(await self._outgoing.get())

    def _broken(self, code: grpc.StatusCode, text: str, metadata: object) -> None:
        self.alive = False
        address, reason = self.endpoint.address, shorten(text)
        self._reason = message("stream_ended", address=address, reason=reason)
        verdict = judge(code, text)
        if verdict is Verdict.LOGIN:
            self._cluster.forget_token(metadata)
        elif verdict is not Verdict.FINAL:
            self._cluster.move_on(self.endpoint)
