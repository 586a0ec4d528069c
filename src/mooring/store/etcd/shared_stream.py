"""A two-way gRPC stream that is shared by many users, none of whom can break it for the others.

Cancelling a read or a write of `grpc.aio` cancels the whole call, so only the stream's own tasks
touch it: users put messages into a queue and are answered through futures.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from mooring.store.etcd.connection import EtcdConnection
from mooring.store.etcd.endpoints import EtcdEndpoint
from mooring.store.etcd.errors import Verdict, judge, shorten
from mooring.tasks import Tasks


class SharedStream:
    """One stream to the endpoint in use. When it ends, `ended` is told why, once.

    `received` says of a message whether somebody waits for what is in it.
    """

    def __init__(
        self,
        cluster: EtcdConnection,
        tasks: Tasks,
        method: str,
        received: Callable[[Any], bool],
        ended: Callable[[str], None],
    ) -> None:
        self.endpoint: EtcdEndpoint = cluster.endpoint
        self.heard = time.monotonic()
        self.alive = True
        self._cluster = cluster
        self._method = method
        self._received = received
        self._ended = ended
        self._reason = "the store was closed"
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self._tasks = tasks
        task = tasks.start(self._run(), name=f"etcd stream to {self.endpoint.address}")
        self._task: asyncio.Task[object] | None = task
        task.add_done_callback(self._forget)

    def _forget(self, _: object) -> None:
        """A task that was cancelled refers to its call, and that to gRPC, which would go on."""
        self._task = None

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def send(self, message: Any) -> None:
        self._outgoing.put_nowait(message)

    def abandon(self, *, since: float) -> None:
        """Give it up, since it is silent: its users are told. The connection is not reused, unless
        something else came over it since."""
        if self.alive:
            self.alive = False
            self._reason = f"{self.endpoint.address} is silent"
            self._cancel()
            self._cluster.move_on(self.endpoint, silent_since=since)

    def leave(self, reason: str) -> None:
        """Give it up though the endpoint is heard: its users continue on another endpoint."""
        if self.alive:
            self.alive = False
            self._reason = f"{self.endpoint.address} {reason}"
            self._cancel()
            self._cluster.move_on(self.endpoint)

    def end(self) -> None:
        """Nobody needs it any more."""
        self.alive = False
        self._cancel()

    async def _run(self) -> None:
        metadata = self._cluster.metadata
        call = getattr(self.endpoint.methods, self._method)(metadata=metadata)
        # Given an iterator, gRPC sends in a task of its own, which may outlive a call that failed.
        sending = self._tasks.start(self._send_to(call), name=f"sending to {self.endpoint.address}")
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self.endpoint.answered()
                self.heard = self.endpoint.heard
                if self._received(message):
                    await asyncio.sleep(0)  # whoever was woken goes first: the next read takes time
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
            while True:  # until the call has ended; who reads it knows why
                await call.write(await self._outgoing.get())

    def _broken(self, code: grpc.StatusCode, text: str, metadata: object) -> None:
        self.alive = False
        self._reason = f"{self.endpoint.address} ended the stream ({shorten(text) or code.name})"
        verdict = judge(code, text)
        if verdict is Verdict.LOGIN:
            self._cluster.forget_token(metadata)
        elif verdict is not Verdict.FINAL:
            self._cluster.move_on(self.endpoint)
