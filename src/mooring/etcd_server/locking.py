"""The Lock and Election services. Clients usually bring their own lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio

from mooring.errors import Closed, Conflict, LockLost, MooringError, Unavailable
from mooring.etcd_server.errors import EMPTY_KEY, RpcAborted, RpcStatus, status_of
from mooring.etcd_server.messages import header, key_value
from mooring.formatting import quoted
from mooring.locks.admission_rules import ELECTION_RULE
from mooring.locks.queue import Queue
from mooring.locks.watched_queue import Waiter
from mooring.store.contract import Check, Delete, Entry, Put, Store, Write, created_at, key
from mooring.store.embedded.store import EngineRunner
from mooring.store.etcd import proto
from mooring.tasks import cleanup

DEFAULT_TTL = 60.0
"""Seconds to live of the lease that is granted to a client without one (etcd's default)."""

_ENTER_WITHIN = 30.0
_LEAVE_WITHIN = 5.0


class OwnedKey(NamedTuple):
    """A held lock or leadership."""

    key: bytes
    created: int
    lease: int


class _PlaceCalls:
    """The calls that share one key: a client may call again with the same lease."""

    def __init__(self) -> None:
        self.count = 0
        self.created = False
        """Whether one of them created the key; else it may have been acquired long ago."""
        self.acquired = False
        self.changing = asyncio.Lock()


class ServerLocks:
    """Close it with `aclose`. Waiting calls are cancelled by their callers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue = Queue(store)
        self._calls: dict[bytes, _PlaceCalls] = {}

    async def acquire(self, name: bytes, lease: int, value: bytes) -> OwnedKey:
        """Join the queue with a lease (0: with a new one), and wait to be admitted. As in etcd, the
        owner of the lease renews it: a silent client must not stay in the queue. Calls with the
        same lease share one key.

        Raises `LockLost` if the lease ends meanwhile. Cancellation deletes the key, unless another
        call uses it or has acquired the lock.
        """
        start = name + b"/"
        if not lease:
            lease = (await self._store.grant(DEFAULT_TTL)).id
        at = start + b"%x" % lease
        calls = self._calls.setdefault(at, _PlaceCalls())
        calls.count += 1
        waiter: Waiter | None = None

        async def enter() -> None:
            nonlocal waiter
            async with calls.changing:
                waiter = await self._queue.join(start, lease, ELECTION_RULE, value)
                calls.created = calls.created or waiter.fresh

        try:
            # It completes even if cancelled: else it would be unknown whether the key was created.
            await cleanup(enter(), within=_ENTER_WITHIN)
            if waiter is None:
                raise Unavailable(
                    f"joining the queue of {quoted(name)} took more than {_ENTER_WITHIN:.0f} s"
                )
            if not waiter.admitted:
                await waiter.turn()
            calls.acquired = True
            return OwnedKey(waiter.key, waiter.token, lease)
        finally:
            calls.count -= 1
            if waiter is not None:
                self._queue.forget(waiter)
                if not (calls.acquired or calls.count or waiter.gone):
                    await cleanup(self._abandon(calls, waiter), within=_LEAVE_WITHIN)
            if not calls.count and self._calls.get(at) is calls:
                del self._calls[at]

    async def _abandon(self, calls: _PlaceCalls, waiter: Waiter) -> None:
        """Delete a key, unless another call has started to use it."""
        async with calls.changing:
            if not calls.count and calls.created:
                await self.release(waiter.key, waiter.token)

    async def release(self, name: bytes, created: int = 0) -> bool:
        """Release a lock; returns whether it existed. With `created`, only that very key."""
        require = [created_at(name, created)] if created else []
        return await self._commit(Delete(key(name)), require)

    async def proclaim(self, owned: OwnedKey, value: bytes) -> bool:
        """Change the value of a leader. Returns whether it still leads."""
        put = Put(owned.key, value, owned.lease)
        return await self._commit(put, [created_at(owned.key, owned.created)])

    async def _commit(self, write: Write, require: Sequence[Check]) -> bool:
        try:
            await self._store.commit(write, require=require)
        except Conflict:
            return False
        return True

    async def holder(self, name: bytes) -> Entry | None:
        """The first contender: the holder or leader."""
        return await self._queue.first(name + b"/")

    @asynccontextmanager
    async def observe(self, name: bytes) -> AsyncIterator[AsyncIterator[Entry]]:
        """Yields the current leader, every new leader, and every new value of the leader."""
        view = self._queue.view(name + b"/")
        changed = asyncio.Event()
        unsubscribe = view.subscribe(changed.set)

        async def leaders() -> AsyncIterator[Entry]:
            await view.mirror.ready()
            last: Entry | None = None
            while True:
                changed.clear()
                first = view.order.first
                if first is not None and first != last:
                    last = first
                    yield first
                else:
                    await changed.wait()

        try:
            yield leaders()
        finally:
            unsubscribe()

    async def aclose(self) -> None:
        await self._queue.aclose()


T = TypeVar("T")


# In etcd these services are clients of the others, and pass on their errors without a code.
NO_KEY = RpcStatus(grpc.StatusCode.UNKNOWN, EMPTY_KEY.text)
EXPIRED = RpcStatus(grpc.StatusCode.UNKNOWN, "mutex: session is expired")
NO_LEADER = RpcStatus(grpc.StatusCode.UNKNOWN, "election: no leader")
NOT_LEADER = RpcStatus(grpc.StatusCode.UNKNOWN, "election: not leader")
NO_LEADER_GIVEN = RpcStatus(grpc.StatusCode.UNKNOWN, '"leader" field must be provided')


class LockService:
    def __init__(self, runner: EngineRunner, locks: ServerLocks) -> None:
        self._runner, self._locks = runner, locks

    # Methods that wait are served as streams, so that they end when the server stops.

    async def lock(self, context: grpc.aio.ServicerContext) -> None:
        request = await _only_request(context)
        owned = await _with_etcd_errors(self._locks.acquire(request.name, request.lease, b""))
        await context.write(proto.LockResponse(header=header(self._runner.revision), key=owned.key))

    async def unlock(self, request: Any) -> Any:
        if not request.key:
            raise RpcAborted(NO_KEY)
        await _with_etcd_errors(self._locks.release(request.key))
        return proto.UnlockResponse(header=header(self._runner.revision))

    async def campaign(self, context: grpc.aio.ServicerContext) -> None:
        request = await _only_request(context)
        owned = await _with_etcd_errors(
            self._locks.acquire(request.name, request.lease, request.value)
        )
        leader = proto.LeaderKey(
            name=request.name, key=owned.key, rev=owned.created, lease=owned.lease
        )
        await context.write(
            proto.CampaignResponse(header=header(self._runner.revision), leader=leader)
        )

    async def proclaim(self, request: Any) -> Any:
        if not await _with_etcd_errors(self._locks.proclaim(_leader(request), request.value)):
            raise RpcAborted(NOT_LEADER)
        return proto.ProclaimResponse(header=header(self._runner.revision))

    async def leader(self, request: Any) -> Any:
        first = await _with_etcd_errors(self._locks.holder(request.name))
        if first is None:
            raise RpcAborted(NO_LEADER)
        return proto.LeaderResponse(header=header(self._runner.revision), kv=key_value(first))

    async def observe(self, context: grpc.aio.ServicerContext) -> None:
        request = await _only_request(context)
        async with self._locks.observe(request.name) as leaders:
            async for first in leaders:
                answer = proto.LeaderResponse(
                    header=header(self._runner.revision), kv=key_value(first)
                )
                await context.write(answer)

    async def resign(self, request: Any) -> Any:
        leader = _leader(request)
        await _with_etcd_errors(self._locks.release(leader.key, leader.created))
        return proto.ResignResponse(header=header(self._runner.revision))


async def _with_etcd_errors(work: Awaitable[T]) -> T:
    try:
        return await work
    except LockLost:
        raise RpcAborted(EXPIRED) from None
    except Closed:
        raise
    except MooringError as error:
        raise RpcAborted(RpcStatus(grpc.StatusCode.UNKNOWN, status_of(error).text)) from error


def _leader(request: Any) -> OwnedKey:
    if not request.HasField("leader"):
        raise RpcAborted(NO_LEADER_GIVEN)
    if not request.leader.key:
        raise RpcAborted(NO_KEY)
    return OwnedKey(request.leader.key, request.leader.rev, request.leader.lease)


async def _only_request(context: grpc.aio.ServicerContext) -> Any:
    request = await context.read()
    if isinstance(request, RpcStatus):
        raise RpcAborted(request)
    if request is grpc.aio.EOF:
        raise RpcAborted(RpcStatus(grpc.StatusCode.INTERNAL, "no request"))
    return request
