"""Real servers for the tests, started once; each test uses its own namespace."""

from __future__ import annotations

import itertools
import os
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import trustme
from coverage import Coverage
from hypothesis import settings

from mooring.backends import open_store
from mooring.durations import parse_duration
from mooring.store import Store
from mooring.testing.etcd import EtcdServer
from mooring.testing.redis import RedisCluster, RedisServer, SentinelGroup
from tests.acceptance.serving import Served
from tests.admin import Admin
from tests.asyncio_errors import asyncio_errors, nothing_is_left_running  # noqa: F401 (fixtures)
from tests.backends import USUAL, usual
from tests.deadlines import Deadlines
from tests.surroundings import settle
from tests.virtual_time import Clocks

# A test asserts no time but a promised one: many run at once. The usual run tries the same examples
# each time, so that a change is what makes it fail; the extended one looks for new ones.
settings.register_profile("usual", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("extended", deadline=None, max_examples=500)


def pytest_configure(config: pytest.Config) -> None:
    settle()
    settings.load_profile("extended" if config.getoption("--extended") else "usual")
    config.pluginmanager.register(Clocks())
    config.pluginmanager.register(Deadlines())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", default="", help="run the long campaigns for this long, e.g. 10m")
    parser.addoption("--extended", action="store_true", help="run the extended tests too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Exclude what only `make soak` and `make test-all` run."""
    for item in items:
        # Outside tests/unit, tests start processes and servers, which are slow in large numbers.
        if item.path.parent.name != "unit" and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(180))
    soaking = bool(config.getoption("--soak"))
    extended = bool(config.getoption("--extended"))
    chosen = [
        item
        for item in items
        if bool(item.get_closest_marker("soak")) is soaking
        and (extended or soaking or not item.get_closest_marker("extended"))
    ]
    if len(chosen) != len(items):
        config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
        items[:] = chosen


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Save the coverage of a worker. After its session it has only ten seconds: then xdist kills
    it."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and (measured := Coverage.current()):
        measured.stop()
        measured.save()
        saved = Path(measured.get_data().data_filename())
        saved.rename(saved.with_name(f".coverage.{worker}.{os.getpid()}"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once: an interrupted run prints no summary."""
    if report.failed and not os.environ.get("PYTEST_XDIST_WORKER"):
        text = f"\n{report.when} failed: {report.nodeid}\n{report.longreprtext}"
        encoding = sys.stdout.encoding  # it may lack characters that a test compares
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long the tests of each folder took, summed over all workers."""
    spent: defaultdict[str, float] = defaultdict(float)
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            spent["/".join(report.nodeid.split("/")[:2])] += report.duration
    if len(spent) > 1:
        times = ", ".join(f"{folder} {seconds:.0f} s" for folder, seconds in sorted(spent.items()))
        terminalreporter.write_line(f"time of all workers: {times}")


@pytest.fixture(scope="session", autouse=True)
def no_data_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands find neither the user's data folder nor the user's settings of curl."""
    folder = tmp_path_factory.mktemp("data")
    (folder / ".curlrc").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder))
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("CURL_HOME", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def few_authorities(certificates: Path) -> Iterator[None]:
    """Reading all authorities of the machine takes an HTTP client longer than its calls, so that
    clients trust only this one, which signs nothing, and those that a test names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(certificates / "other-ca.pem"))
        yield


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    """This campaign's share of the time given to all campaigns."""
    chosen = len(request.session.items)
    return parse_duration(request.config.getoption("--soak")) / chosen


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], EtcdServer]]:
    """The shared etcd of a series, started on first use."""
    servers: dict[str, EtcdServer] = {}

    def server(series: str) -> EtcdServer:
        if series not in servers:
            flags = ["--unsafe-no-fsync"] if series == "3.5" else []
            folder = tmp_path_factory.mktemp(f"etcd-{series}")
            servers[series] = EtcdServer(folder, series=series, flags=flags)
            servers[series].start()
        return servers[series]

    yield server
    for started in servers.values():
        started.kill()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RedisServer]]:
    """The shared Redis of a series, started on first use."""
    servers: dict[str, RedisServer] = {}

    def server(series: str) -> RedisServer:
        if series not in servers:
            folder = tmp_path_factory.mktemp(f"redis-{series}")
            servers[series] = RedisServer(folder, series=series)
            servers[series].start()
        return servers[series]

    yield server
    for started in servers.values():
        started.kill()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """The shared cluster of three masters, which no test may break. It tolerates a slow machine."""
    folder = tmp_path_factory.mktemp("redis-cluster")
    with RedisCluster(folder, node_timeout=20.0) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture(scope="session")
def redis_sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    """The shared master, replica and sentinels, which no test may break. They tolerate a slow
    machine."""
    folder = tmp_path_factory.mktemp("redis-sentinel")
    with SentinelGroup(folder, down_after=20.0) as group:
        group.start()
        yield group


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """The shared `mooring serve`, started on first use; its URL for our client."""
    started: list[Served] = []

    def url() -> str:
        if not started:
            store = tmp_path_factory.mktemp("served") / "store"
            started.append(Served(f"sqlite://{store}").__enter__())
        return started[0].url

    yield url
    for server in started:
        server.__exit__()


@pytest.fixture
def store_url(
    request: pytest.FixtureRequest,
    backend: str,
    etcd: Callable[[str], EtcdServer],
    served: Callable[[], str],
    tmp_path: Path,
) -> str:
    """A URL of the backend with a fresh namespace; opened twice, it is the same store."""
    fresh = uuid.uuid4().hex
    if backend in ("redis-cluster", "redis-sentinel"):
        several = request.getfixturevalue(backend.replace("-", "_"))
        return f"{several.url}?namespace={fresh}"
    if backend.startswith("redis-"):
        server = request.getfixturevalue("redis")(backend.removeprefix("redis-"))
        return f"{server.url}?namespace={fresh}"
    if backend == "sqlite":
        return f"sqlite://{tmp_path}/store"
    if backend == "memory":
        return f"memory://{fresh}"
    if backend == "served":
        return f"{served()}?namespace=/{fresh}"
    return f"{etcd(backend.removeprefix('etcd-')).url}?namespace=/{fresh}"


@pytest.fixture(params=usual(USUAL))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    async with open_store(store_url) as opened:
        yield opened


@pytest.fixture
async def admin(store_url: str, tmp_path: Path) -> AsyncIterator[Admin]:
    """The HTTP server of `mooring serve` over that store."""
    async with Admin(store_url, folder=tmp_path) as started:
        yield started


@pytest.fixture
def fresh_etcd(tmp_path: Path) -> Iterator[Callable[..., EtcdServer]]:
    """Servers of a single test, which may break them."""
    servers: list[EtcdServer] = []

    def start(*, series: str = "3.5", flags: Sequence[str] = ()) -> EtcdServer:
        # A single member wins each election: with the default timeout a restart waits a second.
        quick = ["--heartbeat-interval=10", "--election-timeout=100"]
        no_sync = ["--unsafe-no-fsync"] if series == "3.5" else []
        folder = tmp_path / f"etcd{len(servers)}"
        server = EtcdServer(folder, series=series, flags=[*quick, *no_sync, *flags])
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def fresh_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Servers of a single test, which may break them."""
    servers: list[RedisServer] = []

    def start(**options: object) -> RedisServer:
        server = RedisServer(tmp_path / f"redis{len(servers)}", **options)  # type: ignore[arg-type]
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two authorities, and the certificates of a server and a client by the first."""
    folder = tmp_path_factory.mktemp("tls")
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    other.cert_pem.write_to_path(str(folder / "other-ca.pem"))
    for name in ("server", "client"):
        cert = authority.issue_cert("127.0.0.1", "etcd.test", common_name=name)
        cert.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        with (folder / f"{name}.pem").open("wb") as file:
            for blob in cert.cert_chain_pems:
                file.write(blob.bytes())
    return folder
