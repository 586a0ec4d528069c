"""Commands and programs in separate processes, forked from a process that has already imported
everything: starting an interpreter and importing are most of the cost of a command.

A forked command is a process like any other: it has its own arguments, environment, folder and
standard streams, and receives signals. Only what the interpreter does before it runs `mooring` is
shared, such as reading `PYTHONIOENCODING`.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from mooring.cli import app, main
from mooring.cli.typer_extensions import LazyCommand

_REQUEST = 1_000_000  # bytes: the arguments and the environment
_IMPORTED = (
    "mooring.registry.redis.registry",
    "mooring.server.lifecycle",
    "mooring.store.embedded.durable",
    "mooring.store.embedded.store",
    "mooring.store.etcd.store",
    "uvloop",
)
"""What a command imports when it knows its store, or that it serves."""

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that a process may ignore because its parent does."""


class Forked:
    """A running command, with the interface of `subprocess.Popen`."""

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str],
        stdin: IO[Any] | int | None = None,
        stdout: IO[Any] | int,
        stderr: IO[Any] | int,
        start_new_session: bool = False,
        process_group: bool = False,
        program: str = "",
    ) -> None:
        """`program` is Python code to run instead of the command."""
        self.returncode: int | None = None
        self._status, status = os.pipe()
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "folder": os.getcwd(),
            "session": start_new_session,
            "group": process_group,
            "ignored": [
                number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_IGN
            ],
            "program": program,
        }
        with open(status, "wb"), open(os.devnull) as nothing:
            streams = (nothing if stdin is None else stdin, stdout, stderr)
            numbers = [stream if isinstance(stream, int) else stream.fileno() for stream in streams]
            _server().send(request, [*numbers, status])
        self.pid = int(self._line())

    def _line(self) -> str:
        """The next number that the server sends about this command."""
        line = b""
        while not line.endswith(b"\n"):
            more = os.read(self._status, 1)
            assert more, "the process that forks the commands has ended"
            line += more
        return line.decode()

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("mooring", timeout or 0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._line())
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The process from which commands are forked, as seen by the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, its):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(its.fileno())],
                cwd=Path(__file__).parents[2],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def send(self, request: Mapping[str, object], descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_server = functools.cache(_Server)


def _import_all() -> None:
    """Import and build everything that commands use."""
    LazyCommand.load = functools.cache(LazyCommand.load)  # type: ignore[method-assign]
    app.load()
    for name in _IMPORTED:
        importlib.import_module(name)
    with (
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
    ):
        for call in ("version", "nonsense"):  # typer imports more when it is called
            sys.argv = ["mooring", call]
            with contextlib.suppress(SystemExit):
                main()


def _serve(requests: socket.socket) -> str:
    """Fork a command for each request. Returns in each child, ready to run it: the program, or an
    empty text for a command. Ends with the tests."""
    running: dict[int, int] = {}
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a byte in the pipe, and nothing else
    while True:
        ready, _, _ = select.select([requests.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 1000)
            _reap(running)
        if requests.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, _REQUEST, 4)
        if not message:
            sys.exit()
        *streams, status = descriptors
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            for descriptor in (ended, wake, status, *running.values()):
                os.close(descriptor)
            return _become(json.loads(message), streams)
        running[child] = status
        _report(status, child)
        for descriptor in streams:
            os.close(descriptor)


def _reap(running: dict[int, int]) -> None:
    """Report to the tests which commands have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        descriptor = running.pop(pid)
        _report(descriptor, os.waitstatus_to_exitcode(status))
        os.close(descriptor)


def _report(descriptor: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test is over
        os.write(descriptor, b"%d\n" % number)


def _become(request: dict[str, Any], streams: list[int]) -> str:
    """Do what the interpreter does when it starts."""
    if request["session"]:
        os.setsid()
    if request["group"]:
        os.setpgid(0, 0)
    for caught in _SIGNALS:
        default = signal.default_int_handler if caught == signal.SIGINT else signal.SIG_DFL
        signal.signal(caught, signal.SIG_IGN if caught in request["ignored"] else default)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    program: str = request["program"]
    sys.argv = ["-c" if program else "mooring", *request["arguments"]]
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        new = open(  # noqa: SIM115 - as long as the process
            number,
            "w" if number else "r",
            buffering=1 if name == "stderr" else -1,
            encoding=old.encoding,
            errors=old.errors,
            closefd=False,
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    return program


def _end(code: int) -> None:
    """Do what the interpreter does at its end, except for the cleanup, which would take longer than
    most commands."""
    threading._shutdown()  # type: ignore[attr-defined] # waits for the threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    faulthandler.enable()  # for commands that do not end
    asked = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    gc.freeze()
    if asked_program := _serve(asked):
        exec(compile(asked_program, "<program>", "exec"), {"__name__": "__main__"})
        sys.exit()
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            _end(ended.code)
        raise
