"""Groups of Redis servers for tests: a cluster, or a master with replicas and Sentinel."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, cast

from mooring.formatting import quoted
from mooring.testing.redis import CommandFailed, RedisServer
from mooring.testing.servers import ServerFailed

SLOTS = 16384
"""The number of slots of a cluster."""


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
