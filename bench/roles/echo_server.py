"""A gRPC server whose methods return their request, with a bare broadcast.

python -m bench.roles.echo_server

Prints its port. A request to `/bench.Broadcast/Send` is written to all streams of
`/bench.Broadcast/Listen`, whose acknowledgements are read: the cost of a push to many clients in
Python's gRPC alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import uvloop

from bench.processes import emit

LISTEN, SEND, ECHO = "/bench.Broadcast/Listen", "/bench.Broadcast/Send", "/bench.Echo/Echo"


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[bytes]] = set()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        if details.method == LISTEN:
            return grpc.stream_stream_rpc_method_handler(self._listen)
        answer = self._send if details.method == SEND else self._echo
        return grpc.unary_unary_rpc_method_handler(answer)

    async def _echo(self, request: bytes, _: grpc.aio.ServicerContext) -> bytes:
        return request

    async def _send(self, request: bytes, _: grpc.aio.ServicerContext) -> bytes:
        for queue in self._queues:
            queue.put_nowait(request)
        return b""

    async def _listen(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._queues.add(queue)
        reading = asyncio.create_task(_read(requests))
        try:
            await context.write(b"")
            while True:
                await context.write(await queue.get())
        finally:
            self._queues.discard(queue)
            reading.cancel()


async def _read(requests: AsyncIterator[bytes]) -> None:
    async for _ in requests:
        pass


async def main() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Methods(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    emit(port)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
