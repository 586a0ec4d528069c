"""The blocking API: the same names as the async one, for code without an event loop.

    with mooring.sync.connect("etcd://127.0.0.1:2379") as hub:
        with hub.register(mooring.Instance("echo", port=8080)):
            with hub.discover("mail") as mail, mail.pick() as instance: ...

It is no second copy: one event loop in a daemon thread (`portal`) runs the async API, and stand-ins
(`proxy`) wait for it. It may be used from many threads at once.

Callbacks (`subscribe`, `where=`, `blame=`) are called on the loop's thread: they must not block,
and a blocking call from one raises `InvalidRequest`. Where a caller is interrupted, what it waited
for is cancelled. After a fork everything is `Closed` in the child, and the parent goes on. What is
not closed when the interpreter ends is closed then, for a few seconds at most.
"""

from __future__ import annotations

import importlib
from typing import Any

import mooring.hub
from mooring.store.url import parse
from mooring.sync.api import API
from mooring.sync.portal import Portal, timeout
from mooring.sync.proxy import blocking
from mooring.sync.shutdown import until_stopped

__all__ = [*API, "connect", "timeout", "until_stopped"]


def connect(url: str = "memory://", **options: Any) -> Any:
    """A hub, blocking: the same arguments, the same errors. Enter it, or `open` and `close` it."""
    hub = mooring.hub.connect(url, **options)
    portal = Portal(str(parse(url)), hub.__aenter__, lambda: hub.__aexit__(None, None, None))
    return blocking(type(hub))(portal, hub, owns=True)


def __getattr__(name: str) -> type:
    if name not in API:
        raise AttributeError(f"module 'mooring.sync' has no attribute '{name}'")
    return blocking(getattr(importlib.import_module(API[name]), name))
