"""Servers of hprose: one in a thread of this process, and one in a separate process that registers
itself (`python -m tests.features.hprose_server`) and then prints `ready`."""

from __future__ import annotations

import argparse
import contextlib
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import warnings
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import hprose  # type: ignore[import-untyped]

import mooring.hprose
import mooring.sync
from mooring.testing.servers import free_port


class Functions:
    """The functions that clients can call."""

    def __init__(self) -> None:
        self._calls = self._under_way = 0
        self.killed = threading.Event()

    def add_to(self, service: Any) -> None:
        for name in ("hello", "slowly", "running", "fail", "failures", "user_get"):
            service.addMethod(name, self)

    def hello(self, name: str) -> str:
        return f"hello {name}"

    def slowly(self, number: int, seconds: float) -> int:
        self._under_way += 1
        self.killed.wait(seconds)
        self._under_way -= 1
        return number * number

    def running(self) -> int:
        return self._under_way

    def fail(self, message: str) -> None:
        self._calls += 1
        raise ValueError(message)

    def failures(self) -> int:
        return self._calls

    def user_get(self, id: int) -> dict[str, object]:
        return {"id": id, "name": "王"}


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Killable(socketserver.TCPServer):
    """A server that knows its connections, to cut them as the end of a process does."""

    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client disconnected, or this server was killed."""

    def kill(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in tuple(self._open):
            with contextlib.suppress(OSError):  # it ended meanwhile
                connection.shutdown(socket.SHUT_RDWR)


class Single(Killable, WSGIServer):
    """A server as hprose itself starts it."""


class Threaded(socketserver.ThreadingMixIn, Single):
    daemon_threads = True


class Sockets(socketserver.ThreadingMixIn, Killable):
    """hprose over TCP: the package has no server for it, so this puts its service behind a
    socket."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], service: Any) -> None:
        self.service = service
        super().__init__(address, Framed)


class Framed(socketserver.StreamRequestHandler):
    server: Sockets

    def handle(self) -> None:
        while header := self.rfile.read(4):
            (length,) = struct.unpack(">I", header)
            answer = self.server.service._handle(self.rfile.read(length), None)
            self.wfile.write(struct.pack(">I", len(answer)) + answer)


def make(kind: str, port: int, functions: Functions) -> Killable:
    address = ("127.0.0.1", port)
    if kind == "tcp":
        service = hprose.HproseService()
        functions.add_to(service)
        return Sockets(address, service)
    # Its constructor calls `utcnow`, which Python 3.12 deprecates:
    # https://github.com/hprose/hprose-python/blob/master/hprose/httpserver.py
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="hprose")
        service = hprose.HttpServer(*address) if kind == "plain" else hprose.HttpService()
    functions.add_to(service)
    return make_server(*address, service, Single if kind == "plain" else Threaded, Quiet)


class HproseServer:
    """A server in a thread; leaving it kills it."""

    def __init__(self, *, kind: str = "http", port: int = 0) -> None:
        self._kind, self._port = kind, port

    def __enter__(self) -> Self:
        self._functions = Functions()
        self._server = make(self._kind, self._port, self._functions)
        self.port = self._server.server_address[1]
        self.url = f"{'tcp' if self._kind == 'tcp' else 'http'}://127.0.0.1:{self.port}/"
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def kill(self) -> None:
        """Cut all connections, and answer no more calls."""
        if self._thread.is_alive():
            self._server.kill()
            self._functions.killed.set()
            self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.kill()


class RegisteredServer:
    """A process that registers itself; leaving it kills it."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def __enter__(self) -> Self:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        command = [sys.executable, "-m", "tests.features.hprose_server", str(port)]
        self._process = subprocess.Popen(
            [*command, *self._arguments], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--store", required=True)
    parser.add_argument("--ttl", type=float, required=True)
    parser.add_argument("--domain", action="append", required=True)
    options = parser.parse_args()
    server = make("http", options.port, Functions())
    url = f"http://127.0.0.1:{options.port}/"
    with (
        mooring.sync.connect(options.store, layout="hprose") as hub,
        mooring.hprose.register(hub, options.domain, url, ttl=options.ttl),
    ):
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
