"""An HTTP server that returns the bytes of a file to every request: the cost of uvicorn alone.

python -m bench.roles.http_server FILE

Prints its port.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from bench.processes import emit


async def main(body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(
        answer, http="httptools", lifespan="off", access_log=False, log_config=None
    )
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        emit(listening.getsockname()[1])
        await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]).read_bytes()))
