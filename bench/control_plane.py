"""`mooring serve --xds` on free ports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mooring.testing.servers import free_port


class Plane(NamedTuple):
    url: str
    """Of the registry."""
    xds: str
    pid: int


@contextmanager
def control_plane() -> Iterator[Plane]:
    etcd, xds = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    flags = ["--store=memory://", f"--etcd={etcd}", f"--xds={xds}", "--http=off"]
    command = [sys.executable, "-m", "mooring.cli", "serve", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while not process.stdout.readline().startswith("ready"):
                if process.poll() is not None:
                    raise RuntimeError(f"{command} did not start")
            yield Plane(f"etcd://{etcd}", xds, process.pid)
        finally:
            process.kill()
