"""The store or registry that a command works on, and the event loop that the command runs in."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from mooring.cli.io.options import LayoutOption, NamespaceOption, RegistryOption, StoreOption
from mooring.cli.io.streams import log_crashes, log_to_stderr, note, warn
from mooring.cli.io.tables import show_json
from mooring.errors import InvalidRequest, Unavailable
from mooring.hub import Hub, connect
from mooring.model import JSON, Instance
from mooring.registry.lookup import require_service
from mooring.settings import RegistrySettings, parse
from mooring.tasks import Tasks
from mooring.tenants.keys import NAMESPACE, TenantKeys

if TYPE_CHECKING:
    from mooring.tenants.publish.publisher import Publisher

T = TypeVar("T")
R = TypeVar("R")

LOCAL = "127.0.0.1:2379"
"""The default address of `mooring serve`."""

_NO_METRICS: dict[str, object] = {"registry": {"metrics": {"enabled-metrics": []}}}
"""The metrics of the command's own process are not those of the service that it registers."""

START_ONE = (
    "start `mooring serve`, or name a store with --store URL or MOORING_STORE, or a registry with "
    "--registry URL or MOORING_REGISTRY"
)


def run_command(work: Coroutine[object, object, T]) -> T:
    """Run a command's coroutine, on uvloop if it is installed. Ctrl-C exits with 130, silently."""
    log_crashes()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


@dataclass(frozen=True)
class RegistryTarget:
    """Options that name the registry that a command works on."""

    store: StoreOption = ""
    registry: RegistryOption = ""
    layout: LayoutOption = "tree"

    def connect(self) -> AbstractAsyncContextManager[Hub]:
        return open_hub(self.store, self.layout, registry=self.registry)


@dataclass(frozen=True)
class RedisTarget:
    """Options that name the Redis registry that a command works on. There is no default."""

    registry: Annotated[
        str,
        typer.Option(
            "--registry",
            envvar="MOORING_REGISTRY",
            metavar="URL",
            help="URL of the Redis registry, such as redis://HOST:6379 (no default)",
        ),
    ] = ""
    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="MOORING_STORE",
            metavar="URL",
            help="URL of the Redis registry, if --registry is not given",
        ),
    ] = ""

    def require(self) -> None:
        """Raise `InvalidRequest` if neither option is given."""
        if not (self.registry or self.store):
            raise InvalidRequest("name the Redis registry with --registry URL or MOORING_REGISTRY")

    def connect(self, settings: RegistrySettings | None = None) -> AbstractAsyncContextManager[Hub]:
        self.require()
        return open_hub(self.store, registry=self.registry, settings=settings)


@dataclass(frozen=True)
class TenantTarget:
    """Options that name the tenants that a command works on."""

    store: StoreOption = ""
    namespace: NamespaceOption = NAMESPACE

    @property
    def keys(self) -> TenantKeys:
        return TenantKeys(self.namespace)

    def connect(self) -> AbstractAsyncContextManager[Hub]:
        return open_hub(self.store)

    def run(self, work: Callable[[Publisher], Awaitable[T]], by: str = "") -> T:
        """Run some work with a publisher, in an event loop of its own."""

        async def with_publisher() -> T:
            log_to_stderr(
                "mooring.tenants.publish.committer", "mooring.tenants.publish.commit_loop"
            )
            async with self.connect() as hub:
                return await work(hub.publisher(namespace=self.namespace, by=by))

        return run_command(with_publisher())


async def run_until_stopped(
    start: Callable[[Callable[[R], None]], Coroutine[object, object, object]],
    record: Callable[[R], Mapping[str, JSON]],
    banner: str,
    *,
    as_json: bool,
) -> None:
    """Run background work until it ends, or SIGINT or SIGTERM stops it. `start` receives the
    callback for its reports, which are printed with `as_json`."""
    reports: asyncio.Queue[R | None] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, reports.put_nowait, None)
    note(banner)
    async with Tasks() as tasks:
        running = tasks.start(start(reports.put_nowait), name="background work")
        running.add_done_callback(lambda _: reports.put_nowait(None))
        while (report := await reports.get()) is not None:
            if as_json:
                show_json(record(report))
        if running.done():
            running.result()  # raises the error of a crash
    note("stopped")


@asynccontextmanager
async def open_hub(
    store: str,
    layout: str = "tree",
    *,
    registry: str = "",
    settings: RegistrySettings | None = None,
) -> AsyncIterator[Hub]:
    """Connect to the store, or to the registry alone if it is elsewhere: a command that needs only
    the registry works without the store. The default is the local server."""
    settings = settings or parse(_NO_METRICS)
    with registry_url(store, registry) as url:
        async with connect(url, layout=layout, settings=settings) as hub:
            yield hub


@contextmanager
def registry_url(store: str, registry: str) -> Iterator[str]:
    """The URL of the registry: of its own, of the store, or of the local server."""
    log_to_stderr("mooring.registry.redis.registry")  # warns of services that it leaves out
    if store and registry:
        connect(store, registry=registry)  # raises if the two cannot be combined
    with url_or_local(registry or store) as url:
        yield url


@contextmanager
def url_or_local(url: str) -> Iterator[str]:
    """The given URL, or that of the local server. If the local server does not answer, the error
    says how to start it."""
    try:
        yield url or f"etcd://{LOCAL}?timeout=2s"
    except Unavailable as error:
        if url:
            raise
        raise Unavailable(f"no store answers at {LOCAL}: {START_ONE}") from error


async def list_instances(hub: Hub, service: str) -> tuple[Instance, ...]:
    """The instances of a service. Warns of unreadable records. Raises `NotFound` if the service
    does not exist."""
    listing = await hub.registry.instances(service)
    for problem in listing.problems:
        warn(str(problem))
    if not listing.instances:
        await require_service(hub.registry, service)
    return listing.instances
