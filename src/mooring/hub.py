"""`connect(url)`: the one place that puts the parts together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from mooring.errors import Closed, MissingExtra
from mooring.mirror import Mirror, RangeFeed
from mooring.session import Session
from mooring.store import Entry, Range, Store
from mooring.store.embedded.host import Host
from mooring.store.namespace import Namespaced
from mooring.store.url import StoreURL, parse


def open_store(url: str | StoreURL) -> Store:
    """The store that a URL names (see `mooring.store.url`). It connects when it is first used.

    Must be called in a running event loop.
    """
    where = parse(url) if isinstance(url, str) else url
    store = _OPENERS[where.scheme](where)
    prefix = where.options.get("namespace")
    return store if prefix is None else Namespaced(store, prefix.encode())


def open_host(url: StoreURL) -> Host:
    """The engine behind an embedded store, to be shared with it; release it after use.

    Only for `memory://` and `sqlite://`: see `EMBEDDED`.
    """
    history, age = _history(url)
    if url.scheme == "memory":
        from mooring.store.embedded.engine import Engine
        from mooring.store.embedded.host import memory_host

        return memory_host(url.location, lambda: Engine(history=history, history_age=age))
    from mooring.store.embedded.durable import durable_host

    path = Path(url.location).expanduser()
    return durable_host(path, history=history, history_age=age)


def _open_embedded(url: StoreURL) -> Store:
    from mooring.store.embedded.store import EmbeddedStore

    return EmbeddedStore(open_host(url), url=str(url))


def _history(url: StoreURL) -> tuple[int, float]:
    """How much of the past an embedded store keeps."""
    return url.count("history", 100_000), url.seconds("history_age", 3600.0)


def _open_etcd(url: StoreURL) -> Store:
    try:
        from mooring.store.etcd.settings import TLS, Settings
        from mooring.store.etcd.store import EtcdStore
    except ImportError as error:
        raise MissingExtra(f"{url.scheme}://", "etcd") from error
    tls = TLS(url.path("ca"), url.path("cert"), url.path("key"), url.options.get("server_name"))
    settings = Settings(
        endpoints=url.hosts(2379),
        tls=tls if url.scheme == "etcds" else None,
        user=url.user,
        password=url.password,
        timeout=url.seconds("timeout", 5.0),
    )
    return EtcdStore(settings, url=str(url))


_OPENERS: Mapping[str, Callable[[StoreURL], Store]] = {
    "memory": _open_embedded,
    "sqlite": _open_embedded,
    "etcd": _open_etcd,
    "etcds": _open_etcd,
}


EMBEDDED = ("memory", "sqlite")
"""The schemes whose engine is in this process."""


class Hub:
    """Everything on one store. Made by `connect`; use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self._url = parse(url)
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store itself, for reads, commits and watches of your own."""
        if self._store is None:
            raise Closed(f"{self._url} is not open: use `async with mooring.connect(…) as hub`")
        return self._store

    def session(self, *, ttl: float = 15.0) -> Session:
        """A lease that is kept alive; keys that hang on it vanish with this process."""
        return Session(self.store, ttl=ttl)

    def mirror(self, range: Range) -> Mirror[bytes, Entry]:
        """A live copy of a range."""
        return Mirror(RangeFeed(self.store, range))

    async def __aenter__(self) -> Self:
        self._store = open_store(self._url)
        return self

    async def __aexit__(self, *_: object) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.aclose()


def connect(url: str = "memory://") -> Hub:
    """A hub on the store that `url` names. Raises `InvalidURL` at once for one that cannot be.

        async with mooring.connect("etcd://127.0.0.1:2379") as hub: ...

    Entering does not wait for the store to be up: what needs it says so.
    """
    return Hub(url)
