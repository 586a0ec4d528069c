"""Two servers of etcd's API, a real etcd and the embedded engine's, with the same requests."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from mooring.store.embedded.durable import durable_runner
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.store import EngineRunner, memory_runner
from mooring.store.etcd import proto
from mooring.store.etcd.endpoints import MAX_MESSAGE
from mooring.store.etcd.grpc_shutdown import settled
from mooring.store.etcd.proto import Methods

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.use_local_subchannel_pool", 1),
]


def host_at(revision: int, folder: Path | None = None) -> EngineRunner:
    """An empty engine at a revision, in memory or in a file of a folder; release it after use."""
    if folder is None:
        return memory_runner("", lambda: Engine(revision=revision))
    path = folder / "store"
    durable_runner(path).release()
    with sqlite3.connect(path) as database:
        values = [(revision, name) for name in ("revision", "compacted")]
        database.executemany("UPDATE meta SET value = ? WHERE name = ?", values)
    return durable_runner(path)


@asynccontextmanager
async def methods(address: str) -> AsyncIterator[Methods]:
    async with grpc.aio.insecure_channel(address, _OPTIONS) as channel:
        yield Methods(channel)
    await settled()


class Pair:
    """The two servers, which get the same requests."""

    def __init__(self, etcd: Methods, wire: Methods, host: EngineRunner) -> None:
        self.etcd, self.wire, self.host = etcd, wire, host

    async def ask(self, name: str, request: Any) -> Any:
        """Call both, and compare. Returns the response of the embedded engine: a message, or
        (code, text) of an error."""
        theirs, ours = [
            await outcome(getattr(one, name), request) for one in (self.etcd, self.wire)
        ]
        assert plain(ours) == plain(theirs), request
        return ours

    async def put(self, key: bytes, value: bytes = b"", **options: Any) -> Any:
        return await self.ask("put", proto.PutRequest(key=key, value=value, **options))

    async def get(self, key: bytes, end: bytes = b"", **options: Any) -> Any:
        return await self.ask("range", proto.RangeRequest(key=key, range_end=end, **options))

    async def delete(self, key: bytes, end: bytes = b"", **options: Any) -> Any:
        request = proto.DeleteRangeRequest(key=key, range_end=end, **options)
        return await self.ask("delete_range", request)

    async def txn(
        self, compare: Sequence[Any] = (), success: Sequence[Any] = (), failure: Sequence[Any] = ()
    ) -> Any:
        return await self.ask("txn", txn(compare, success, failure))

    async def watch(self, use: Callable[[Stream], Awaitable[list[Any]]]) -> list[Any]:
        """Use a watch stream of each server in the same way, and compare the messages."""
        messages = []
        for server in (self.etcd, self.wire):
            async with Stream(server.watch()) as stream:
                messages.append(await use(stream))
        theirs, ours = messages
        assert list(map(plain, ours)) == list(map(plain, theirs))
        return ours


class Stream:
    """A two-way stream, read with a deadline."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, message: Any) -> None:
        await self.call.write(message)

    async def create(self, key: bytes, end: bytes = b"", **options: Any) -> None:
        request = proto.WatchCreateRequest(key=key, range_end=end, **options)
        await self.send(proto.WatchRequest(create_request=request))

    async def cancel(self, watch_id: int) -> None:
        request = proto.WatchCancelRequest(watch_id=watch_id)
        await self.send(proto.WatchRequest(cancel_request=request))

    async def ask_for_progress(self) -> None:
        await self.send(proto.WatchRequest(progress_request=proto.WatchProgressRequest()))

    async def take(self, count: int, *, within: float = 20.0) -> list[Any]:
        async with asyncio.timeout(within):
            return [await self.call.read() for _ in range(count)]

    async def is_silent(self) -> None:
        """Assert that nothing precedes the reply to a request for progress."""
        await self.ask_for_progress()
        (message,) = await self.take(1)
        assert message.watch_id == -1

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()


async def outcome(call: Any, request: Any, **options: Any) -> Any:
    """The result of a call: its response, or (code, text) of its error."""
    try:
        return await call(request, timeout=30, **options)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()


def plain(answer: Any) -> Any:
    """A response without the fields that identify the cluster and its term."""
    if not hasattr(answer, "header"):
        return answer
    copy = type(answer)()
    copy.CopyFrom(answer)
    for field in ("cluster_id", "member_id", "raft_term"):
        copy.header.ClearField(field)
    return str(copy)


def txn(
    compare: Sequence[Any] = (), success: Sequence[Any] = (), failure: Sequence[Any] = ()
) -> Any:
    return proto.TxnRequest(compare=compare, success=success, failure=failure)


def op_put(key: bytes, value: bytes = b"", **options: Any) -> Any:
    return proto.RequestOp(request_put=proto.PutRequest(key=key, value=value, **options))


def op_get(key: bytes, end: bytes = b"", **options: Any) -> Any:
    request = proto.RangeRequest(key=key, range_end=end, **options)
    return proto.RequestOp(request_range=request)


def op_delete(key: bytes, end: bytes = b"", **options: Any) -> Any:
    request = proto.DeleteRangeRequest(key=key, range_end=end, **options)
    return proto.RequestOp(request_delete_range=request)


def op_txn(*parts: Sequence[Any]) -> Any:
    return proto.RequestOp(request_txn=txn(*parts))


def version(key: bytes, result: int, number: int, end: bytes = b"") -> Any:
    return proto.Compare(
        key=key, range_end=end, target=proto.VERSION, result=result, version=number
    )


def merged(messages: list[Any]) -> list[Any]:
    """Messages with their events joined by watch: the number of revisions in one is not
    promised."""
    joined: dict[int, Any] = {}
    rest = []
    for message in messages:
        if not message.events:
            rest.append(message)
        elif (first := joined.get(message.watch_id)) is None:
            joined[message.watch_id] = message
        else:
            first.events.extend(message.events)
            first.header.revision = message.header.revision
    for message in joined.values():
        message.header.ClearField("revision")
    return rest + list(joined.values())
