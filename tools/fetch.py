"""Bring what the tests need and no wheel of ours brings, below .tools; nothing is installed.

- Debian's etcd 3.4, unless this machine has one: it survives SIGKILL, which 3.5.0 to 3.5.2 may not;
- older protobuf runtimes, for our messages must work with each;
- other people's etcd clients, for our server must work with them.
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
PYTHON_PACKAGES = {
    "protobuf-5": ("--no-deps", "protobuf==5.29.6"),
    "protobuf-6": ("--no-deps", "protobuf==6.33.6"),
    "aetcd": ("aetcd==1.0.0", "grpcio==1.85.1", "protobuf==7.36.2"),
    "etcetra": ("etcetra==0.1.19", "grpcio==1.62.2", "protobuf==4.25.9"),
}
"""What pip brings into a folder of its own, by the folder's name."""


def main() -> int:
    TOOLS.mkdir(exist_ok=True)
    return fetch_etcd() or fetch_python_packages()


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


def fetch_python_packages() -> int:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for name, requirements in PYTHON_PACKAGES.items():
        target = TOOLS / name
        if target.exists():
            continue
        if subprocess.run([*pip, f"--target={target}", *requirements], check=False).returncode:
            shutil.rmtree(target, ignore_errors=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
