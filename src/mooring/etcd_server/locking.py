"""The Lock and Election services. Who stands in line for what is not this server's business: it is
handed in, since locks are built on stores and not the other way round."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from mooring.errors import Closed, LockLost, MooringError
from mooring.etcd_server.errors import EMPTY_KEY, Refusal, Refused, refusal
from mooring.etcd_server.messages import header, key_value
from mooring.store.contract import Entry
from mooring.store.embedded.store import Host
from mooring.store.etcd import proto

T = TypeVar("T")

# In etcd these services are clients of the others, and hand their errors on without a code.
NO_KEY = Refusal(grpc.StatusCode.UNKNOWN, EMPTY_KEY.text)
EXPIRED = Refusal(grpc.StatusCode.UNKNOWN, "mutex: session is expired")
NO_LEADER = Refusal(grpc.StatusCode.UNKNOWN, "election: no leader")
NOT_LEADER = Refusal(grpc.StatusCode.UNKNOWN, "election: not leader")
NO_LEADER_GIVEN = Refusal(grpc.StatusCode.UNKNOWN, '"leader" field must be provided')


class OwnedKey(Protocol):
    """What somebody holds."""

    @property
    def key(self) -> bytes: ...
    @property
    def created(self) -> int: ...
    @property
    def lease(self) -> int: ...


class ServerLocks(Protocol):
    """Who stands in line: see `mooring.locks.server_locks`."""

    async def win(self, name: bytes, lease: int, value: bytes) -> OwnedKey: ...
    async def drop(self, name: bytes, created: int = 0) -> bool: ...
    async def proclaim(self, won: Any, value: bytes) -> bool: ...
    async def first(self, name: bytes) -> Entry | None: ...
    def observe(self, name: bytes) -> AbstractAsyncContextManager[AsyncIterator[Entry]]: ...


class Locking:
    def __init__(self, host: Host, contests: ServerLocks) -> None:
        self._host, self._contests = host, contests

    # What waits is served as a stream is, so that it ends when the server stops.

    async def lock(self, context: grpc.aio.ServicerContext) -> None:
        request = await _only_request(context)
        won = await _handed_on(self._contests.win(request.name, request.lease, b""))
        await context.write(proto.LockResponse(header=self._header(), key=won.key))

    async def unlock(self, request: Any) -> Any:
        if not request.key:
            raise Refused(NO_KEY)
        await _handed_on(self._contests.drop(request.key))
        return proto.UnlockResponse(header=self._header())

    async def campaign(self, context: grpc.aio.ServicerContext) -> None:
        request = await _only_request(context)
        won = await _handed_on(self._contests.win(request.name, request.lease, request.value))
        leader = proto.LeaderKey(name=request.name, key=won.key, rev=won.created, lease=won.lease)
        await context.write(proto.CampaignResponse(header=self._header(), leader=leader))

    async def proclaim(self, request: Any) -> Any:
        if not await _handed_on(self._contests.proclaim(_leader(request), request.value)):
            raise Refused(NOT_LEADER)
        return proto.ProclaimResponse(header=self._header())

    async def leader(self, request: Any) -> Any:
        first = await _handed_on(self._contests.first(request.name))
        if first is None:
            raise Refused(NO_LEADER)
        return proto.LeaderResponse(header=self._header(), kv=key_value(first))

    async def observe(self, context: grpc.aio.ServicerContext) -> None:
        request = await _only_request(context)
        async with self._contests.observe(request.name) as leaders:
            async for first in leaders:
                answer = proto.LeaderResponse(header=self._header(), kv=key_value(first))
                await context.write(answer)

    async def resign(self, request: Any) -> Any:
        leader = _leader(request)
        await _handed_on(self._contests.drop(leader.key, leader.created))
        return proto.ResignResponse(header=self._header())

    def _header(self) -> Any:
        return header(self._host.read(lambda engine: engine.confirmed))


async def _handed_on(work: Awaitable[T]) -> T:
    try:
        return await work
    except LockLost:
        raise Refused(EXPIRED) from None
    except Closed:
        raise
    except MooringError as error:
        raise Refused(Refusal(grpc.StatusCode.UNKNOWN, refusal(error).text)) from error


class _Leader:
    def __init__(self, leader: Any) -> None:
        self.key, self.created, self.lease = leader.key, leader.rev, leader.lease


def _leader(request: Any) -> _Leader:
    if not request.HasField("leader"):
        raise Refused(NO_LEADER_GIVEN)
    if not request.leader.key:
        raise Refused(NO_KEY)
    return _Leader(request.leader)


async def _only_request(context: grpc.aio.ServicerContext) -> Any:
    request = await context.read()
    if isinstance(request, Refusal):
        raise Refused(request)
    if request is grpc.aio.EOF:
        raise Refused(Refusal(grpc.StatusCode.INTERNAL, "no request"))
    return request
