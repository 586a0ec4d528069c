"""`python -m tests.features.grpc_echo URL NAME [threads]`: a server in a separate process, which
serves until it is terminated. Prints "ready" once it is registered, and "stopped" at the end."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

import mooring
import mooring.grpc
import mooring.sync
from tests.features.grpc_echo.servers import BlockingEcho, EchoServer, pb2_grpc

_LINGER = 2.0


async def serve(url: str, name: str) -> None:
    server = EchoServer(name)
    server.echo.slow = 0.3
    me = mooring.Instance("echo", "127.0.0.1", server.port)
    async with (
        mooring.connect(url) as hub,
        mooring.grpc.serve_and_register(server.server, hub, me, linger=_LINGER) as serving,
    ):
        print("ready", flush=True)
        await serving.until_stopped()
    print("stopped", flush=True)


def serve_with_threads(url: str, name: str) -> None:
    server = grpc.server(ThreadPoolExecutor(32), options=mooring.grpc.SERVER_OPTIONS)
    pb2_grpc.add_EchoServicer_to_server(BlockingEcho(name, slow=0.3), server)
    me = mooring.Instance("echo", "127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    with (
        mooring.sync.connect(url) as hub,
        mooring.grpc.serve_and_register(server, hub, me, linger=_LINGER) as serving,
    ):
        print("ready", flush=True)
        serving.until_stopped()
    print("stopped", flush=True)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100)  # shows where a test hangs
    if "threads" in sys.argv:
        serve_with_threads(sys.argv[1], sys.argv[2])
    else:
        asyncio.run(serve(sys.argv[1], sys.argv[2]))
