"""Opens the store or registry that a URL names. Drivers are imported only when they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mooring.errors import InvalidRequest, MissingExtra
from mooring.messages import message, verbatim
from mooring.settings import RegistrySettings
from mooring.store import Store
from mooring.store.namespace import Namespaced
from mooring.store.url import REDIS, StoreURL, parse

if TYPE_CHECKING:
    from mooring.registry.redis.registry import RedisRegistry
    from mooring.store.embedded.engine import Engine
    from mooring.store.embedded.store import EngineRunner

EMBEDDED = ("memory", "sqlite")
"""The schemes of the stores that run in this process."""


def open_store(url: str | StoreURL) -> Store:
    """The store that a URL names (see `mooring.store.url`). It connects when it is first used.

    Must be called in a running event loop.
    """
    parsed = parse(url) if isinstance(url, str) else url
    if parsed.scheme in REDIS:
        raise no_store(parsed)
    store = _open_embedded(parsed) if parsed.scheme in EMBEDDED else _open_etcd(parsed)
    prefix = parsed.options.get("namespace")
    return store if prefix is None else Namespaced(store, prefix.encode())


def store_addresses(url: StoreURL) -> tuple[str, ...]:
    """The addresses of a store with its namespace: the same for all spellings of its URL."""
    if url.scheme == "sqlite":
        addresses = [str(url.file.absolute())]
    elif url.scheme == "memory":
        addresses = [f"memory://{url.location}"]
    else:
        addresses = sorted({host.lower() for host in url.hosts(2379)})
    prefix = url.options.get("namespace")
    return tuple(f"{address} {prefix}" if prefix else address for address in addresses)


def no_store(url: StoreURL) -> InvalidRequest:
    """The error for a feature that needs a store, when there is only Redis."""
    return InvalidRequest(message("registry_only", url=verbatim(str(url)), scheme=url.scheme))


def open_runner(url: StoreURL) -> EngineRunner:
    """The engine of an embedded store, shared with the store itself. Release it after use.

    Only for the schemes in `EMBEDDED`.
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


def missing_tenants(error: ImportError) -> ImportError:
    """The error to raise if the tenants cannot be imported: `MissingExtra`, unless it is a bug."""
    if (error.name or "").partition(".")[0] not in ("immutables", "cryptography"):
        return error
    return MissingExtra("the configuration of tenants", "tenants")


def open_redis(url: StoreURL, settings: RegistrySettings) -> RedisRegistry:
    try:
        from mooring.registry.redis.connection import Connection
        from mooring.registry.redis.layout import RedisKeys
        from mooring.registry.redis.registry import RedisRegistry
        from mooring.settings.connections import TLS, RedisConnectionSettings
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("redis", "hiredis"):
            raise  # a bug
        raise MissingExtra(f"{url.scheme}://", "redis") from error
    kind = {"redis+cluster": "cluster", "redis+sentinel": "sentinel"}.get(url.scheme, "single")
    encrypted = url.scheme == "rediss" or url.options.get("tls") == "on"
    tls = TLS(url.path("ca"), url.path("cert"), url.path("key")) if encrypted else None
    if tls is not None:
        tls.context()
    segments = list(url.segments)
    redis_settings = settings.redis
    connection = RedisConnectionSettings(
        hosts=url.hosts(26379 if kind == "sentinel" else 6379),
        kind=kind,  # type: ignore[arg-type]
        master=segments.pop(0) if kind == "sentinel" else "",
        database=int(segments[0]) if segments else 0,
        user=url.user,
        password=url.password,
        password_file=url.path("password_file"),
        sentinel_password=url.options.get("sentinel_password", ""),
        tls=tls,
        timeout=url.option("timeout", redis_settings.connection_timeout),
    )
    keys = RedisKeys(
        url.options.get("prefix", redis_settings.key_prefix),
        namespace=url.options.get("namespace", redis_settings.namespace),
        cluster=kind == "cluster",
    )
    if "expire" in url.options:
        redis_settings = msgspec.structs.replace(
            redis_settings, consumer_timeout=url.option("expire", 0.0)
        )
        settings = msgspec.structs.replace(settings, redis=redis_settings)
    return RedisRegistry(Connection(connection, url=str(url)), keys, settings)
