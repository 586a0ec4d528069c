"""A server of hprose in a process of its own: `python -m tests.features.hprose_server`.

It says `ready` once it listens, and, where a store is given, once it is registered there.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import socketserver
import struct
import subprocess
import sys
import time
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import hprose  # type: ignore[import-untyped]

import mooring.hprose
import mooring.sync
from mooring.testing.servers import free_port
from tests.waiting import until

calls = under_way = 0


def hello(name: str) -> str:
    return f"hello {name}"


def slowly(number: int, seconds: float) -> int:
    global under_way
    under_way += 1
    time.sleep(seconds)
    under_way -= 1
    return number * number


def running() -> int:
    return under_way


def fail(message: str) -> None:
    global calls
    calls += 1
    raise ValueError(message)


def failures() -> int:
    return calls


def user_get(id: int) -> dict[str, object]:
    return {"id": id, "name": "王"}


FUNCTIONS = (hello, slowly, running, fail, failures, user_get)


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Threaded(socketserver.ThreadingMixIn, WSGIServer):
    request_queue_size = 128
    daemon_threads = True


class Framed(socketserver.StreamRequestHandler):
    """hprose's TCP: the package has no server for it, so its service is put behind a socket."""

    def handle(self) -> None:
        while header := self.rfile.read(4):
            (length,) = struct.unpack(">I", header)
            answer = service._handle(self.rfile.read(length), None)
            self.wfile.write(struct.pack(">I", len(answer)) + answer)


class Sockets(socketserver.ThreadingTCPServer):
    request_queue_size = 128
    allow_reuse_address = True
    daemon_threads = True


service: Any = None


def main() -> None:
    global service
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--kind", choices=["plain", "http", "tcp"], default="http")
    parser.add_argument("--store", default="")
    parser.add_argument("--ttl", type=float, default=10.0)
    parser.add_argument("--domain", action="append", default=[])
    options = parser.parse_args()
    host, port = "127.0.0.1", options.port
    if options.kind == "plain":  # hprose's own, as it is
        service = hprose.HttpServer(host, port)
    else:
        service = hprose.HttpService() if options.kind == "http" else hprose.HproseService()
    for function in FUNCTIONS:
        service.addFunction(function)
    with contextlib.ExitStack() as stack:
        if options.store:
            hub = stack.enter_context(mooring.sync.connect(options.store, layout="hprose"))
            url = f"{'tcp' if options.kind == 'tcp' else 'http'}://{host}:{port}/"
            stack.enter_context(mooring.hprose.register(hub, options.domain, url, ttl=options.ttl))
        if options.kind == "plain":
            print("ready", flush=True)
            service.start()
        server: socketserver.BaseServer
        if options.kind == "http":
            server = make_server(host, port, service, Threaded, Quiet)
        else:
            server = Sockets((host, port), Framed)
        print("ready", flush=True)
        server.serve_forever()


class HproseServer:
    """The process, started and listening; leaving it kills it."""

    def __init__(self, *arguments: str, kind: str = "http", port: int = 0) -> None:
        self.port = port or free_port()
        self.url = f"{'tcp' if kind == 'tcp' else 'http'}://127.0.0.1:{self.port}/"
        self._command = [
            sys.executable,
            "-m",
            "tests.features.hprose_server",
            str(self.port),
            f"--kind={kind}",
            *arguments,
        ]

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        until(self._listens, what=f"{self.url} listens")
        return self

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


if __name__ == "__main__":
    main()
