"""Bring what the tests need and no wheel of ours brings, below .tools; nothing is installed.

- Debian's etcd 3.4, unless this machine has one: it survives SIGKILL, which 3.5.0 to 3.5.2 may not;
- older protobuf runtimes, for our messages must work with each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mooring.testing.etcd import EtcdNotFound, find_etcd

TOOLS = Path(".tools")
ETCD = ("etcd-server", "etcd-client")
PROTOBUFS = ("5.29.6", "6.33.6")


def main() -> int:
    TOOLS.mkdir(exist_ok=True)
    return fetch_etcd() or fetch_protobufs()


def fetch_etcd() -> int:
    try:
        find_etcd("3.4")
        return 0
    except EtcdNotFound as missing:
        if shutil.which("apt-get") is None:
            print(missing, file=sys.stderr)
            return 1
    with tempfile.TemporaryDirectory() as folder:
        if not download(folder) and os.geteuid() == 0:
            subprocess.run(["apt-get", "update", "-qq"], check=False)
        if not any(Path(folder).glob("*.deb")) and not download(folder):
            print(f"could not download: apt-get download {' '.join(ETCD)}", file=sys.stderr)
            return 1
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, TOOLS / "etcd-3.4"], check=True)
    return 0


def download(folder: str) -> bool:
    command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *ETCD]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode == 0


def fetch_protobufs() -> int:
    for version in PROTOBUFS:
        target = TOOLS / f"protobuf-{version}"
        if target.exists():
            continue
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command = [*pip, "--no-deps", f"--target={target}", f"protobuf=={version}"]
        if subprocess.run(command, check=False).returncode:
            shutil.rmtree(target, ignore_errors=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
