"""A fresh ZooKeeper, for kazoo: the peer most similar to our registry."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from kazoo.client import KazooClient  # type: ignore[import-untyped]

from bench.processes import ROOT, output
from mooring.testing.servers import ServerProcess, free_port

__all__ = ["KazooClient", "ZooKeeper", "client", "fresh_zookeeper"]

_JARS = ("zookeeper", "zookeeper-jute", "metrics-core", "slf4j-api", "slf4j-simple", "snappy-java")
_FETCH_WITHIN = 300.0
_WARM_UP = 4.0
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"

_SETTINGS = """
tickTime=2000
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
forceSync=no
4lw.commands.whitelist=ruok
"""


class ZooKeeper(ServerProcess):
    """One server, without fsync, like the etcd server that it is compared with."""

    def __init__(self, folder: Path, java: Path, jars: Path) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        settings = folder / "zoo.cfg"
        settings.write_text(_SETTINGS.format(folder=folder, port=self.port))
        path = ":".join(str(jars / f"{name}.jar") for name in _JARS)
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        command = [str(java), "-Xmx512m", _QUIET, "-cp", path, main, str(settings)]
        super().__init__(command, folder / "log")

    def start(self) -> None:
        super().start()
        self.wait_until(self.answers)

    def answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as asking:
            asking.sendall(b"ruok")
            return asking.recv(4) == b"imok"
        return False


@asynccontextmanager
async def fresh_zookeeper() -> AsyncIterator[ZooKeeper]:
    """A warmed-up server. Raises `ProcessFailed` if ZooKeeper is not available on this machine."""
    jars = ROOT / ".tools" / "zookeeper" / "usr" / "share" / "java"
    if not jars.is_dir() or _java() is None:
        await output(sys.executable, "tools/fetch.py", "zookeeper", within=_FETCH_WITHIN)
    java = _java()
    assert java is not None
    with (
        tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder,
        ZooKeeper(Path(folder), java, jars) as server,
    ):
        server.start()
        await asyncio.to_thread(_warm_up, server.address)
        yield server


def _warm_up(address: str) -> None:
    """Warms up the JIT compiler of the JVM."""
    end = time.monotonic() + _WARM_UP
    while time.monotonic() < end:
        with client(address) as kazoo:
            kazoo.ensure_path("/warm")
            results = [
                kazoo.create_async(f"/warm/{number}", b"x" * 500, ephemeral=True)
                for number in range(500)
            ]
            for result in results:
                result.get()
            kazoo.get_children("/warm")


@contextmanager
def client(address: str) -> Iterator[KazooClient]:
    """A connected client."""
    log = logging.getLogger("kazoo")
    log.setLevel(logging.ERROR)  # otherwise it logs the end of each connection
    kazoo = KazooClient(address, logger=log)
    kazoo.start()
    try:
        yield kazoo
    finally:
        kazoo.stop()
        kazoo.close()


def _java() -> Path | None:
    if java := shutil.which("java"):
        return Path(java)
    return next(iter(ROOT.glob(".tools/java/usr/lib/jvm/*/bin/java")), None)
