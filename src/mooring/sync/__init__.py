"""The blocking API: the same names as the async one, for code without an event loop.

    with mooring.sync.connect("etcd://127.0.0.1:2379") as hub:
        with hub.register(mooring.sync.Instance("echo", port=8080)):
            with hub.discover("mail") as mail, mail.pick() as instance: ...

One event loop in a daemon thread (`portal`) runs the async API, and proxies (`proxy`) wait for its
results. Proxies are thread-safe. Types that are plain data, and errors, are those of `mooring`; any
other type is the type of its proxies. Type checkers read `__init__.pyi`, which
`tools/blocking_types.py` generates.

Callbacks (`subscribe`, `where=`, `blame=`) run in the thread of the loop: they must not block, and
a blocking call from one raises `InvalidRequest`. If a caller is interrupted, its call is cancelled.
After a fork everything is `Closed` in the child; the parent is not affected. Hubs that are still
open when the interpreter exits are closed then, within a few seconds.
"""

from __future__ import annotations

from typing import Any

import mooring
import mooring.hub
from mooring.store.url import parse
from mooring.sync.portal import Portal
from mooring.sync.portal import timeout as timeout
from mooring.sync.portal import until_stopped as until_stopped
from mooring.sync.proxy import blocking, is_data

__all__ = [*sorted({*mooring.__all__} - {"__version__"} | {"timeout"})]


def connect(url: str = "memory://", **options: Any) -> Any:
    """As `mooring.connect`, but blocking: a context manager, or `open` and `close` it."""
    hub = mooring.hub.connect(url, **options)
    portal = Portal(str(parse(url)), hub.__aenter__, lambda: hub.__aexit__(None, None, None))
    return blocking(type(hub))(portal, hub, owns=True)


def __getattr__(name: str) -> object:
    if name not in __all__ and name != "Provider":  # it needs an extra, as in `mooring`
        raise AttributeError(f"module 'mooring.sync' has no attribute '{name}'")
    value = getattr(mooring, name)
    return blocking(value) if isinstance(value, type) and not is_data(value) else value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "Provider"})
