"""A client of a domain: calls go to its primary server, and to another one where that fails."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar, overload

from mooring.hprose.failover import Calls, Connect, Server
from mooring.hprose.transports import TIMEOUT, transport
from mooring.hub import Hub
from mooring.sync.portal import Caller, Portal
from mooring.sync.proxy import behind

if TYPE_CHECKING:
    import mooring.sync

R = TypeVar("R", covariant=True)

_THREADS = 64  # calls of one client that are under way at once; more wait for their turn


class Method(Generic[R]):
    """A remote function: `remote.hello("x")`; `remote.user.get(3)` calls `user_get`."""

    def __init__(self, remote: Remote[R], name: str) -> None:
        self._remote, self._name = remote, name

    def __getattr__(self, name: str) -> Method[R]:
        return Method(self._remote, f"{self._name}_{name}")

    def __call__(
        self, *args: object, byref: bool = False, resultMode: int = 0, simple: bool | None = None
    ) -> R:
        return self._remote.invoke(
            self._name, list(args), byref=byref, resultMode=resultMode, simple=simple
        )


class Remote(ABC, Generic[R]):
    """The remote functions of a domain, as attributes."""

    def __getattr__(self, name: str) -> Method[R]:
        if name.startswith("_"):
            raise AttributeError(f"no remote function is called {name}: use invoke where one is")
        return Method(self, name)

    @abstractmethod
    def invoke(
        self,
        name: str,
        args: Sequence[object] = (),
        *,
        byref: bool = False,
        resultMode: int = 0,
        simple: bool | None = None,
    ) -> R:
        """Call a remote function; the keywords are those of hprose's own `invoke`.

        What the function raises passes through (`HproseException`). Where the call fails on its
        way, the list is read anew, and it is tried at another server: it may have run twice.
        Raises `NoInstance` where there is no server, and the last error of the way (`OSError`,
        `HTTPException`) after `tries`.
        """


class Client(Remote[Awaitable[object]]):
    """Made by `client`; use it as an async context manager. Entering raises as `hub.discover` does.

    A call runs in a thread of the client's own. A call that is cancelled is not tried again, and
    its thread is left to its timeout.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._threads = ThreadPoolExecutor(_THREADS, f"hprose {calls.domain}")

    @property
    def primary(self) -> Server | None:
        """The server that is called at present."""
        return self._calls.primary

    @property
    def servers(self) -> tuple[Server, ...]:
        """Those of the domain that can be called."""
        return self._calls.servers

    async def invoke(
        self,
        name: str,
        args: Sequence[object] = (),
        *,
        byref: bool = False,
        resultMode: int = 0,
        simple: bool | None = None,
    ) -> object:
        threads = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        return await self._calls.invoke(
            name, args, threads, byref=byref, resultMode=resultMode, simple=simple
        )

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False)
        await self._calls.aclose()

    async def __aenter__(self) -> Self:
        await self._calls.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class BlockingClient(Remote[object]):
    """Made by `client` from a hub of `mooring.sync`; use it as a context manager.

    A call runs in the thread that makes it; many may call at once.
    """

    def __init__(self, portal: Portal, calls: Calls) -> None:
        self._portal, self._calls = portal, calls

    @property
    def primary(self) -> Server | None:
        """The server that is called at present."""
        return self._calls.primary

    @property
    def servers(self) -> tuple[Server, ...]:
        """Those of the domain that can be called."""
        return self._calls.servers

    def invoke(
        self,
        name: str,
        args: Sequence[object] = (),
        *,
        byref: bool = False,
        resultMode: int = 0,
        simple: bool | None = None,
    ) -> object:
        here = Caller()
        options = {"byref": byref, "resultMode": resultMode, "simple": simple}
        return self._portal.call(
            partial(self._calls.invoke, name, args, here.do, **options), caller=here
        )

    def close(self) -> None:
        if self._portal.running:
            self._portal.call(self._calls.aclose)

    def __enter__(self) -> Self:
        self._portal.call(self._calls.__aenter__, undo=self._calls.aclose)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@overload
def client(
    hub: Hub,
    domain: str,
    *,
    tries: int = ...,
    pause: float = ...,
    timeout: float = ...,
    connect: Connect | None = ...,
    wait: float = ...,
) -> Client: ...


@overload
def client(
    hub: mooring.sync.Hub,
    domain: str,
    *,
    tries: int = ...,
    pause: float = ...,
    timeout: float = ...,
    connect: Connect | None = ...,
    wait: float = ...,
) -> BlockingClient: ...


def client(
    hub: Hub | mooring.sync.Hub,
    domain: str,
    *,
    tries: int = 10,
    pause: float = 3.0,
    timeout: float = TIMEOUT,
    connect: Connect | None = None,
    wait: float = 5.0,
) -> Client | BlockingClient:
    """A client of a domain, on whatever servers it has at the time.

    A call goes out at most `tries` times, each for at most `timeout` seconds; with `tries=1` it is
    never repeated. Between two tries there is a `pause` only where no server is known that did not
    fail, and a new one ends it. `connect` makes hprose's client for a URL: `transport` unless you
    need filters, headers or a scheme of your own. `wait` is for the first list: see `hub.discover`.
    """
    make = partial(
        Calls,
        domain=domain,
        tries=tries,
        pause=pause,
        connect=connect or partial(transport, timeout=timeout),
        wait=wait,
    )
    if isinstance(hub, Hub):
        return Client(make(hub))
    portal, inner = behind(hub)

    async def make_there() -> Calls:
        return make(inner)

    return BlockingClient(portal, portal.call(make_there))
