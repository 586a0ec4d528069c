"""Bring Debian's etcd 3.4 below .tools, unless this machine has one; nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mooring.testing.etcd import EtcdNotFound, find_etcd

PACKAGES = ("etcd-server", "etcd-client")
TARGET = Path(".tools/etcd-3.4")


def main() -> int:
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
            print(f"could not download: apt-get download {' '.join(PACKAGES)}", file=sys.stderr)
            return 1
        TARGET.mkdir(parents=True, exist_ok=True)
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, TARGET], check=True)
    print(f"etcd 3.4 is in {TARGET}")
    return 0


def download(folder: str) -> bool:
    command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *PACKAGES]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
