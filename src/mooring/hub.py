"""`connect(url)`: the one place that puts the parts together."""

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

import msgspec

from mooring.discovery.last_known_good import HOLD, Empty
from mooring.discovery.resilience import blames
from mooring.errors import Closed, InvalidRequest, MissingExtra
from mooring.heartbeat.scheduler import Collecting
from mooring.mirror import Mirror, RangeFeed
from mooring.model import Instance
from mooring.registry.kv.layouts import layout_of
from mooring.registry.shutdown import handle_sigterm
from mooring.session import Session
from mooring.settings.registry import RegistrySettings
from mooring.settings.registry import parse as parse_settings
from mooring.store import Entry, Range, Store
from mooring.store.namespace import Namespaced
from mooring.store.url import REDIS, StoreURL, parse
from mooring.tasks import cleanup
from mooring.tenants.keys import KEEP, KEEP_FOR, TenantKeys

# What a hub makes is imported when it is first made: no program uses all of it, and each waits for
# what it loads.
if TYPE_CHECKING:
    from mooring.discovery.eligibility import Explanation
    from mooring.discovery.resilience import Resilience
    from mooring.discovery.view import View
    from mooring.heartbeat.collectors import Collector
    from mooring.locks.barrier import Barrier
    from mooring.locks.election import Election
    from mooring.locks.inspect import LockInfo
    from mooring.locks.lock import Lock, ReadWriteLock, Semaphore
    from mooring.locks.queue import Queue
    from mooring.registry.contract import Registry
    from mooring.registry.registration import Registration
    from mooring.store.embedded.engine import Engine
    from mooring.store.embedded.store import EngineRunner
    from mooring.tenants.publish.publisher import Publisher
    from mooring.tenants.read.provider import Provider
    from mooring.tenants.secrets import Keyring

_CLOSE_WITHIN = 30.0  # seconds; each of its parts has a bound of its own, which is less


def open_store(url: str | StoreURL) -> Store:
    """The store that a URL names (see `mooring.store.url`). It connects when it is first used.

    Must be called in a running event loop.
    """
    where = parse(url) if isinstance(url, str) else url
    if where.scheme in REDIS:
        raise no_store(where)
    store = _OPENERS[where.scheme](where)
    prefix = where.options.get("namespace")
    return store if prefix is None else Namespaced(store, prefix.encode())


def _addresses(url: StoreURL) -> tuple[str, ...]:
    """Where a store is, and below which prefix; the same for every way to write its URL."""
    if url.scheme == "sqlite":
        places = [str(url.file.absolute())]
    elif url.scheme == "memory":
        places = [f"memory://{url.location}"]
    else:
        places = sorted({host.lower() for host in url.hosts(2379)})
    prefix = url.options.get("namespace")
    return tuple(f"{place} {prefix}" if prefix else place for place in places)


def no_store(url: StoreURL) -> InvalidRequest:
    """What to say to who wants more of Redis than a registry."""
    return InvalidRequest(
        f"{url} keeps a registry and nothing else: locks, tenants and keys of your own need a "
        f'store. Use both: connect("etcd://…", registry="{url.scheme}://…"), or --store and '
        "--registry"
    )


def open_runner(url: StoreURL) -> EngineRunner:
    """The engine behind an embedded store, to be shared with it; release it after use.

    Only for `memory://` and `sqlite://`: see `EMBEDDED`.
    """
    if url.scheme == "memory":
        from mooring.store.embedded.store import memory_runner

        return memory_runner(url.location, lambda: _engine(url))
    from mooring.store.embedded.durable import durable_runner

    return durable_runner(url.file, lambda: _engine(url))


def _open_embedded(url: StoreURL) -> Store:
    from mooring.store.embedded.store import EmbeddedStore

    return EmbeddedStore(open_runner(url), url=str(url))


def _engine(url: StoreURL) -> Engine:
    from mooring.store.embedded.engine import HISTORY, HISTORY_AGE, HISTORY_BYTES, QUOTA, Engine

    return Engine(
        history=url.option("history", HISTORY),
        history_age=url.option("history_age", HISTORY_AGE),
        history_bytes=url.option("history_bytes", HISTORY_BYTES),
        quota=url.option("quota", QUOTA),
    )


def _open_etcd(url: StoreURL) -> Store:
    try:
        from mooring.settings.connections import TLS, EtcdConnectionSettings
        from mooring.store.etcd.store import EtcdStore
    except ImportError as error:
        raise MissingExtra(f"{url.scheme}://", "etcd") from error
    tls = TLS(url.path("ca"), url.path("cert"), url.path("key"), url.options.get("server_name"))
    settings = EtcdConnectionSettings(
        endpoints=url.hosts(2379),
        tls=tls if url.scheme == "etcds" else None,
        user=url.user,
        password=url.password,
        password_file=url.path("password_file"),
        timeout=url.option("timeout", 5.0),
    )
    return EtcdStore(settings, url=str(url))


_OPENERS: Mapping[str, Callable[[StoreURL], Store]] = {
    "memory": _open_embedded,
    "sqlite": _open_embedded,
    "etcd": _open_etcd,
    "etcds": _open_etcd,
}


def missing_tenants(error: ImportError) -> ImportError:
    """What to raise where tenants cannot be imported: the extra's name, or a mistake of ours."""
    if (error.name or "").partition(".")[0] not in ("immutables", "cryptography"):
        return error
    return MissingExtra("the configuration of tenants", "tenants")


def _open_redis(url: StoreURL, settings: RegistrySettings) -> Registry:
    try:
        from mooring.registry.redis.connection import Connection
        from mooring.registry.redis.layout import RedisKeys
        from mooring.registry.redis.registry import RedisRegistry
        from mooring.settings.connections import TLS, RedisConnectionSettings
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("redis", "hiredis"):
            raise  # a mistake of ours
        raise MissingExtra(f"{url.scheme}://", "redis") from error
    kind = {"redis+cluster": "cluster", "redis+sentinel": "sentinel"}.get(url.scheme, "single")
    encrypted = url.scheme == "rediss" or url.options.get("tls") == "on"
    tls = TLS(url.path("ca"), url.path("cert"), url.path("key")) if encrypted else None
    if tls is not None:
        tls.context()
    segments = list(url.segments)
    told = settings.redis
    where = RedisConnectionSettings(
        hosts=url.hosts(26379 if kind == "sentinel" else 6379),
        kind=kind,  # type: ignore[arg-type]
        master=segments.pop(0) if kind == "sentinel" else "",
        database=int(segments[0]) if segments else 0,
        user=url.user,
        password=url.password,
        password_file=url.path("password_file"),
        sentinel_password=url.options.get("sentinel_password", ""),
        tls=tls,
        timeout=url.option("timeout", told.connection_timeout),
    )
    keys = RedisKeys(
        url.options.get("prefix", told.key_prefix),
        namespace=url.options.get("namespace", told.namespace),
        cluster=kind == "cluster",
    )
    if "expire" in url.options:
        told = msgspec.structs.replace(told, consumer_timeout=url.option("expire", 0.0))
        settings = msgspec.structs.replace(settings, redis=told)
    return RedisRegistry(Connection(where, url=str(url)), keys, settings)


EMBEDDED = ("memory", "sqlite")
"""The schemes whose engine is in this process."""


class Hub:
    """Everything on one store, or the registry on another. Made by `connect`; use it as an async
    context manager.

    Leaving closes what was made with it: registrations deregister, views end. A cancellation
    meanwhile is raised when that is done. In a forked child it is closed: connect there, and on
    etcd only there.
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
        self._policy = self._settings.policy  # one for all registrations
        self._collectors = tuple(collectors)
        self._cache = None if cache is None else Path(cache)
        self.tenants_namespace: str = TenantKeys(tenants_namespace or None).namespace
        """The key prefix of `tenants()` and `publisher()`."""
        self._store: Store | None = None
        self._registry: Registry | None = None
        self._contenders: Queue | None = None
        self._process = os.getpid()
        handle_sigterm()  # it may be opened in another thread, which cannot
        self._made: weakref.WeakSet[Registration | View | Provider | Queue] = weakref.WeakSet()

    @property
    def store(self) -> Store:
        """The store itself, for reads, commits and watches of your own."""
        self._check_open()
        if self._store is None:
            raise no_store(self._url)
        return self._store

    def _check_open(self) -> None:
        if self._registry is None:
            raise Closed(f"{self._url} is not open: use `async with mooring.connect(…) as hub`")
        if self._process != os.getpid():
            raise Closed(f"{self._url} was opened before a fork: open it after, in each process")

    @property
    def registry(self) -> Registry:
        """Who offers what: lists, descriptions, and the operator's word."""
        self._check_open()
        assert self._registry is not None
        return self._registry

    def register(
        self, instance: Instance, *, ttl: float | None = None, wait: float = 5.0
    ) -> Registration:
        """Keep an instance registered for as long as it is entered. See `Registration`.

        `ttl` is how long it stays without a sign of life: by default what its layout says.
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
        self._made.add(registration)
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
        `mooring.discovery.resilience` for what is done about instances that fail.

        The last instances to leave are called for `hold` seconds more, unless another can be
        called. With `empty="keep"` the last list stays for as long as there is none.
        """
        from mooring.discovery.disk_cache import InstanceCache
        from mooring.discovery.eligibility import Selector
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
        self._made.add(view)
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
        """The configuration of the tenants, live. See `Provider` and what it gives, `Tenants`.

        `namespace` is their key prefix: by default the hub's `tenants_namespace`.
        `file` is where the last state is kept for a start without the store: by default in the
        hub's cache folder, where it has one. Every `afresh` seconds everything is read anew.
        Passwords are unsealed with the keys of the environment, unless others are given.
        """
        try:
            from mooring.tenants.read.provider import Provider
            from mooring.tenants.secrets import Keyring
        except ImportError as error:
            raise missing_tenants(error) from error
        keys, store = TenantKeys(namespace or self.tenants_namespace), self.store
        addresses = _addresses(self._url)
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
        self._made.add(provider)
        return provider

    @property
    def scope(self) -> str:
        """What tells the instances of this registry from those of others, also of one store."""
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
        """For each instance of a service, why a caller that asks like this would or would not call
        it."""
        from mooring.discovery.eligibility import Selector
        from mooring.discovery.resilience import Resilience
        from mooring.discovery.rotation import explain

        listing = await self.registry.instances(service)
        return explain(listing.instances, Selector(version, tags or {}, zone), Resilience())

    def session(self, *, ttl: float = 15.0) -> Session:
        """A lease that is kept alive; keys that hang on it vanish with this process."""
        return Session(self.store, ttl=ttl)

    def mirror(self, range: Range) -> Mirror[bytes, Entry]:
        """A live copy of a range."""
        return Mirror(RangeFeed(self.store, range))

    def lock(self, name: str, *, ttl: float = 10.0, timeout: float | None = None) -> Lock:
        """A lock by name, the same as that of `etcdctl lock NAME`. See `Lock`.

        `ttl` is how long it stays held without a sign of life of the holder.
        """
        from mooring.locks.lock import Lock

        return Lock(self._queue(), name, ttl=ttl, timeout=timeout)

    def rwlock(
        self, name: str, *, ttl: float = 10.0, timeout: float | None = None
    ) -> ReadWriteLock:
        """A lock that readers share: enter its `read()` or its `write()`."""
        from mooring.locks.lock import ReadWriteLock

        return ReadWriteLock(self._queue(), name, ttl=ttl, timeout=timeout)

    def semaphore(
        self, name: str, places: int, *, ttl: float = 10.0, timeout: float | None = None
    ) -> Semaphore:
        """A lock that so many may hold at a time."""
        from mooring.locks.lock import Semaphore

        return Semaphore(self._queue(), name, places, ttl=ttl, timeout=timeout)

    def election(self, name: str, *, ttl: float = 10.0, timeout: float | None = None) -> Election:
        """An election by name, the same as that of `etcdctl elect NAME`."""
        from mooring.locks.election import Election

        return Election(self._queue(), name, ttl=ttl, timeout=timeout)

    def barrier(
        self, name: str, parties: int, *, ttl: float = 10.0, timeout: float | None = None
    ) -> Barrier:
        """A barrier: its `wait` returns once so many wait."""
        from mooring.locks.barrier import Barrier

        return Barrier(self._queue(), name, parties, ttl=ttl, timeout=timeout)

    async def locks(self, prefix: str = "") -> list[LockInfo]:
        """Who holds what and who waits, of the locks whose names start so. Without a prefix the
        whole store is read."""
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
        """Who writes the configuration of tenants below a namespace. See `Publisher`.

        `by` is named in the histories, of which `keep` entries stay for `keep_for` seconds. The
        keys that seal passwords come from `MOORING_ENCRYPTION_KEY`, or from a `keyring` of yours.
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
            self._made.add(self._contenders)
        return self._contenders

    async def __aenter__(self) -> Self:
        self._process = os.getpid()
        async with AsyncExitStack() as opened:  # closed again where something of it cannot be
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
        where = self._registry_url
        if where.scheme in REDIS:
            return _open_redis(where, self._settings)
        from mooring.registry.kv.registry import StoreRegistry

        if where is self._url:
            assert self._store is not None
            return StoreRegistry(self._store, self._layout)
        store = open_store(where)
        opened.push_async_callback(store.aclose)
        return StoreRegistry(store, self._layout)

    async def __aexit__(self, *_: object) -> None:
        if self._registry is not None and self._process == os.getpid():
            await cleanup(self._close(), within=_CLOSE_WITHIN)

    async def _close(self) -> None:
        """Close all, each whatever becomes of the others. What needs the store takes 3 s if that
        is silent, at the same time."""
        made = [made.aclose() for made in list(self._made)]
        try:
            for error in await asyncio.gather(*made, return_exceptions=True):
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
    """A hub on the store that `url` names. Raises `InvalidURL` at once for one that cannot be.

        async with mooring.connect("etcd://127.0.0.1:2379") as hub: ...

    `registry` is where the registry is, if elsewhere: `redis://…` beside a store for the rest. With
    Redis alone there is a registry and nothing else.

    Entering does not wait for the store to be up: what needs it says so. `layout` is how instances
    lie in the store: `tree`, `hprose`, `plain:ROOT/` or `endpoints:ROOT/`. `settings` are those of
    heartbeats and metrics (`mooring.heartbeat.load`), `collectors` metrics of your own. In the
    folder `cache` the last known instances are kept for a start without the store.

    `tenants_namespace` is the key prefix of the tenants: by default the environment variable
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
