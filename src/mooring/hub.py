"""`connect(url)` and the `Hub`, which composes stores, registries and features."""

from __future__ import annotations

import asyncio
import hashlib
import os
import urllib.parse
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mooring.backends import missing_tenants, no_store, open_redis, open_store, store_addresses
from mooring.discovery.last_known_good import HOLD, Empty, InstanceCache
from mooring.discovery.resilience import blames
from mooring.errors import Closed
from mooring.heartbeat.collectors import Collecting
from mooring.messages import message, verbatim
from mooring.mirror import Mirror, RangeFeed
from mooring.model import Instance
from mooring.registry.kv.layouts import layout_of
from mooring.registry.shutdown import handle_sigterm
from mooring.session import Session
from mooring.settings import RegistrySettings
from mooring.settings import parse as parse_settings
from mooring.store import Entry, Range, Store
from mooring.store.url import REDIS, parse
from mooring.tasks import cleanup
from mooring.tenants.keys import KEEP, KEEP_FOR, TenantKeys

# Features are imported when they are first used, since no program needs all of them.
if TYPE_CHECKING:
    from mooring.discovery.exclusion import Explanation
    from mooring.discovery.resilience import Resilience
    from mooring.discovery.view import View
    from mooring.heartbeat.collectors import Collector
    from mooring.locks.barrier import Barrier
    from mooring.locks.election import Election
    from mooring.locks.inspect import LockInfo
    from mooring.locks.lock import Lock
    from mooring.locks.queue import Queue
    from mooring.locks.rwlock import ReadWriteLock
    from mooring.locks.semaphore import Semaphore
    from mooring.registry.contract import Registry
    from mooring.registry.registration import Registration
    from mooring.tenants.publish.publisher import Publisher
    from mooring.tenants.read.provider import Provider
    from mooring.tenants.secrets import Keyring

_CLOSE_TIMEOUT = 30.0  # seconds; each part has its own shorter limit


class Hub:
    """A connection to a store, and to a registry if that is elsewhere. Created by `connect`; use it
    as an async context manager.

    Leaving closes everything that the hub has created: registrations deregister, views end. A
    cancellation meanwhile is raised afterwards. In a forked child the hub is closed: connect in
    the child, and with etcd do not connect before the fork.
    """

    def __init__(
        self,
        url: str,
        *,
        registry: str = "",
        layout: str = "tree",
        settings: RegistrySettings | None = None,
        collectors: Iterable[Collector] = (),
        cache: str | Path | None = None,
        tenants_namespace: str = "",
    ) -> None:
        self._url = parse(url)
        self._registry_url = parse(registry) if registry else self._url
        if registry and self._url.scheme in REDIS:
            raise no_store(self._url)
        self._layout = layout_of(layout)
        self._settings = settings or parse_settings({})
        self._policy = self._settings.policy  # shared by all registrations
        self._collectors = tuple(collectors)
        self._cache = None if cache is None else Path(cache)
        self.tenants_namespace: str = TenantKeys(tenants_namespace or None).namespace
        """The key prefix of `tenants()` and `publisher()`."""
        self._store: Store | None = None
        self._registry: Registry | None = None
        self._contenders: Queue | None = None
        self._process = os.getpid()
        handle_sigterm()  # here, since only the main thread can, and others may open the hub
        self._created: weakref.WeakSet[Registration | View | Provider | Queue] = weakref.WeakSet()

    @property
    def store(self) -> Store:
        """The store, for your own reads, commits and watches. Raises `InvalidRequest` if there is
        only a registry on Redis."""
        self._check_open()
        if self._store is None:
            raise no_store(self._url)
        return self._store

    def _check_open(self) -> None:
        if self._registry is None:
            raise Closed(message("hub_not_open", url=verbatim(str(self._url))))
        if self._process != os.getpid():
            raise Closed(message("hub_forked", url=verbatim(str(self._url))))

    @property
    def registry(self) -> Registry:
        """The registry: lists of instances, descriptions and operator overrides."""
        self._check_open()
        assert self._registry is not None
        return self._registry

    def register(
        self, instance: Instance, *, ttl: float | None = None, wait: float = 5.0
    ) -> Registration:
        """Keep an instance registered while the registration is entered. See `Registration`.

        The instance expires `ttl` seconds after its last heartbeat; the default depends on the
        layout.
        """
        from mooring.registry.registration import Registration

        registration = Registration(
            self.registry,
            instance,
            ttl=ttl,
            policy=self._policy,
            metrics=self._metrics,
            wait=wait,
        )
        self._created.add(registration)
        return registration

    def discover(
        self,
        service: str,
        *,
        policy: str = "p2c",
        version: str = "",
        tags: Mapping[str, str] | None = None,
        zone: str = "",
        zone_only: bool = False,
        where: Callable[[Instance], bool] | None = None,
        resilience: Resilience | None = None,
        empty: Empty = "accept",
        hold: float = HOLD,
        blame: Callable[[BaseException], bool] = blames,
        wait: float = 5.0,
    ) -> View:
        """A live view of a service. See `View`, `mooring.discovery.balance` for the policies, and
        `mooring.discovery.resilience` for the handling of failing instances.

        When the last instances leave, they remain callable for `hold` seconds, unless another
        instance is callable. With `empty="keep"` they remain until another instance registers.
        """
        from mooring.discovery.exclusion import Selector
        from mooring.discovery.view import View

        service = self.registry.canonical(service)
        cache = None if self._cache is None else InstanceCache(self._cache, self.scope, service)
        view = View(
            self.registry.follow(service),
            service,
            policy=policy,
            selector=Selector(version, tags or {}, zone, zone_only, where),
            resilience=resilience,
            empty=empty,
            hold=hold,
            cache=cache,
            blame=blame,
            wait=wait,
        )
        self._created.add(view)
        return view

    def tenants(
        self,
        *,
        namespace: str = "",
        file: str | Path | None = None,
        afresh: float = 3600.0,
        wait: float = 5.0,
        keyring: Keyring | None = None,
    ) -> Provider:
        """The live configuration of the tenants. See `Provider`, and `Tenants`, which it provides.

        `namespace` is the key prefix of the tenants; the default is the hub's
        `tenants_namespace`. `file` keeps the last state for a start without the store; the
        default is a file in the hub's cache folder, if there is one. Everything is read again
        every `afresh` seconds. Passwords are decrypted with `keyring`, by default with the keys in
        the environment.
        """
        try:
            from mooring.tenants.read.provider import Provider
            from mooring.tenants.secrets import Keyring
        except ImportError as error:
            raise missing_tenants(error) from error
        keys, store = TenantKeys(namespace or self.tenants_namespace), self.store
        addresses = store_addresses(self._url)
        if file is None and self._cache is not None:
            scope = "\n".join((*addresses, keys.namespace))
            mark = hashlib.sha256(scope.encode()).hexdigest()[:12]
            name = urllib.parse.quote(keys.namespace, safe="")
            file = self._cache / f"tenants-{name}.{mark}.copy"
        provider = Provider(
            store,
            keys,
            Keyring.from_environment() if keyring is None else keyring,
            file=None if file is None else Path(file),
            addresses=addresses,
            afresh=afresh,
            wait=wait,
        )
        self._created.add(provider)
        return provider

    @property
    def scope(self) -> str:
        """Identifies the registry: it differs between registries, even in the same store."""
        redis = self._settings.redis
        within = (
            f"{redis.namespace}:{redis.key_prefix}"
            if self._registry_url.scheme in REDIS
            else self._layout.scope
        )
        return f"{self._registry_url} {within}"

    async def explain(
        self,
        service: str,
        *,
        version: str = "",
        tags: Mapping[str, str] | None = None,
        zone: str = "",
    ) -> list[Explanation]:
        """Explain for each instance of a service why a caller with this selection would or would
        not call it."""
        from mooring.discovery.exclusion import Selector
        from mooring.discovery.resilience import Resilience
        from mooring.discovery.rotation import explain

        listing = await self.registry.instances(service)
        return explain(listing.instances, Selector(version, tags or {}, zone), Resilience())

    def session(self, *, ttl: float = 15.0) -> Session:
        """A lease with keepalive. Keys attached to it are deleted when this process ends."""
        return Session(self.store, ttl=ttl)

    def mirror(self, range: Range) -> Mirror[bytes, Entry]:
        """A live copy of a key range."""
        return Mirror(RangeFeed(self.store, range))

    def lock(self, name: str, *, ttl: float = 10.0, timeout: float | None = None) -> Lock:
        """A lock by name, compatible with `etcdctl lock NAME`. See `Lock`.

        A lock is released `ttl` seconds after the last heartbeat of its holder.
        """
        from mooring.locks.lock import Lock

        return Lock(self._queue(), name, ttl=ttl, timeout=timeout)

    def rwlock(
        self, name: str, *, ttl: float = 10.0, timeout: float | None = None
    ) -> ReadWriteLock:
        """A lock that readers share: enter `read()` or `write()`."""
        from mooring.locks.rwlock import ReadWriteLock

        return ReadWriteLock(self._queue(), name, ttl=ttl, timeout=timeout)

    def semaphore(
        self, name: str, places: int, *, ttl: float = 10.0, timeout: float | None = None
    ) -> Semaphore:
        """A lock with up to `places` holders at a time."""
        from mooring.locks.semaphore import Semaphore

        return Semaphore(self._queue(), name, places, ttl=ttl, timeout=timeout)

    def election(self, name: str, *, ttl: float = 10.0, timeout: float | None = None) -> Election:
        """An election by name, compatible with `etcdctl elect NAME`."""
        from mooring.locks.election import Election

        return Election(self._queue(), name, ttl=ttl, timeout=timeout)

    def barrier(
        self, name: str, parties: int, *, ttl: float = 10.0, timeout: float | None = None
    ) -> Barrier:
        """A barrier. Its `wait` returns when `parties` callers wait."""
        from mooring.locks.barrier import Barrier

        return Barrier(self._queue(), name, parties, ttl=ttl, timeout=timeout)

    async def locks(self, prefix: str = "") -> list[LockInfo]:
        """The holders and waiters of all locks with a name prefix. An empty prefix reads the whole
        store."""
        from mooring.locks.inspect import locks

        return await locks(self.store, prefix)

    def publisher(
        self,
        *,
        by: str = "",
        namespace: str = "",
        keep: int = KEEP,
        keep_for: float = KEEP_FOR,
        keyring: Keyring | None = None,
    ) -> Publisher:
        """Writes the configuration of tenants below a namespace. See `Publisher`.

        `by` is the author in the histories. Each history keeps `keep` entries for `keep_for`
        seconds. Passwords are encrypted with `keyring`, by default with the key in
        `MOORING_ENCRYPTION_KEY`.
        """
        from mooring.tenants.publish.publisher import Publisher

        return Publisher(
            self.store,
            TenantKeys(namespace or self.tenants_namespace),
            ring=keyring,
            by=by,
            keep=keep,
            keep_for=keep_for,
        )

    def _queue(self) -> Queue:
        store = self.store
        if self._contenders is None:
            from mooring.locks.queue import Queue

            self._contenders = Queue(store)
            self._created.add(self._contenders)
        return self._contenders

    async def __aenter__(self) -> Self:
        self._process = os.getpid()
        async with AsyncExitStack() as opened:  # closes everything if a step fails
            if self._url.scheme not in REDIS:
                self._store = open_store(self._url)
                opened.push_async_callback(self._store.aclose)
            registry = self._open_registry(opened)
            opened.push_async_callback(registry.aclose)
            self._metrics = Collecting(self._settings.metrics, self._collectors)
            opened.push_async_callback(self._metrics.aclose)
            self._registry, self._opened = registry, opened.pop_all()
        return self

    def _open_registry(self, opened: AsyncExitStack) -> Registry:
        url = self._registry_url
        if url.scheme in REDIS:
            return open_redis(url, self._settings)
        from mooring.registry.kv.registry import StoreRegistry

        if url is self._url:
            assert self._store is not None
            return StoreRegistry(self._store, self._layout)
        store = open_store(url)
        opened.push_async_callback(store.aclose)
        return StoreRegistry(store, self._layout)

    async def __aexit__(self, *_: object) -> None:
        if self._registry is not None and self._process == os.getpid():
            await cleanup(self._close(), within=_CLOSE_TIMEOUT)

    async def _close(self) -> None:
        """Close everything concurrently, even if a part fails. If the store does not answer, this
        takes about 3 s."""
        closing = [resource.aclose() for resource in list(self._created)]
        try:
            for error in await asyncio.gather(*closing, return_exceptions=True):
                if error is not None:
                    raise error
        finally:
            self._registry = self._store = self._contenders = None
            await self._opened.aclose()


def connect(
    url: str = "memory://",
    *,
    registry: str = "",
    layout: str = "tree",
    settings: RegistrySettings | None = None,
    collectors: Iterable[Collector] = (),
    cache: str | Path | None = None,
    tenants_namespace: str = "",
) -> Hub:
    """Connect to the store that `url` names. Raises `InvalidURL` for an invalid URL.

        async with mooring.connect("etcd://127.0.0.1:2379") as hub: ...

    `registry` is the URL of a registry outside the store, such as `redis://…`. With Redis alone,
    only the registry is available.

    Entering does not wait for the store: operations that need it report its errors. `layout` is
    the key layout of the instances: `tree`, `hprose`, `plain:ROOT/` or `endpoints:ROOT/`.
    `settings` control heartbeats and metrics (`mooring.settings.load`), and `collectors` add your
    own metrics. The folder `cache` keeps the last known instances for a start without the store.

    `tenants_namespace` is the key prefix of the tenants; the default is the environment variable
    `MOORING_TENANTS_NAMESPACE`, or `jxt`.
    """
    return Hub(
        url,
        registry=registry,
        layout=layout,
        settings=settings,
        collectors=collectors,
        cache=cache,
        tenants_namespace=tenants_namespace,
    )
