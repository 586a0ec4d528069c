"""Chooses an instance for a request, and decides whether to retry it on another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypedDict
from urllib.parse import unquote
from weakref import WeakValueDictionary

import httpx

from mooring.discovery.balance import Node
from mooring.discovery.last_known_good import Empty
from mooring.discovery.resilience import Resilience
from mooring.discovery.view import Pick, View
from mooring.errors import MooringError, NoInstance, Unavailable
from mooring.hub import Hub
from mooring.model import Instance
from mooring.names import nearest

Stream = httpx.AsyncByteStream | httpx.SyncByteStream
End = Callable[[BaseException | None], None]


class RequestBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request's body, and whether it can be sent from its beginning."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._begun = False

    @property
    def whole(self) -> bool:
        return not self._begun or isinstance(self._stream, httpx.ByteStream)

    def __iter__(self) -> Iterator[bytes]:
        self._begun = True
        assert isinstance(self._stream, httpx.SyncByteStream)
        return iter(self._stream)

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._begun = True
        assert isinstance(self._stream, httpx.AsyncByteStream)
        return aiter(self._stream)


class _ResponseBody:
    """A response's body. Closing it ends the call."""

    def __init__(self, end: End, failure: BaseException | None) -> None:
        self._end, self._failure = end, failure

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            self._failure = error
            raise

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._end(self._failure)


class AsyncBody(_ResponseBody, httpx.AsyncByteStream):
    def __init__(self, stream: Stream, end: End, failure: BaseException | None) -> None:
        super().__init__(end, failure)
        assert isinstance(stream, httpx.AsyncByteStream)
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._reading():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        with self._closing():
            await self._stream.aclose()


class Body(_ResponseBody, httpx.SyncByteStream):
    def __init__(self, stream: Stream, end: End, failure: BaseException | None) -> None:
        super().__init__(end, failure)
        assert isinstance(stream, httpx.SyncByteStream)
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with self._reading():
            yield from self._stream

    def close(self) -> None:
        with self._closing():
            self._stream.close()


REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
FAILED = frozenset({502, 503, 504})


class Refused(Exception):
    """An answer that stands for a failure: 502, 503 or 504."""


def refusal(response: httpx.Response) -> Refused | None:
    """What an answer stands for, where that is a failure."""
    if response.status_code not in FAILED:
        return None
    return Refused(f"{response.status_code} {response.reason_phrase}")


def blames(error: BaseException) -> bool:
    """Whether an error is the instance's fault, and not this client's own."""
    own = (httpx.PoolTimeout, httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.ProxyError)
    return isinstance(error, httpx.TransportError | Refused) and not isinstance(error, own)


class Tries:
    """One request on its way to one instance after another: what may still be done with it."""

    def __init__(self, request: httpx.Request, retries: int) -> None:
        self.request = request
        self.service = unquote(request.url.host)
        self.key: str | bytes | None = request.extensions.get("mooring_key")
        self._left = retries
        self._stream = RequestBody(request.stream)
        self._sent: httpx.URL | None = None

    def sent(self, instance: Instance) -> httpx.Request:
        """The request as it goes to an instance."""
        asked = self.request
        scheme = asked.url.scheme.partition("+")[0]
        port = instance.port_for("http")
        where = asked.url.copy_with(
            scheme=scheme,
            host=instance.host,
            port=instance.ports.get("https", port) if scheme == "https" else port,
        )
        self._sent = where
        headers = asked.headers.copy()
        if headers.get("Host", "") == asked.url.netloc.decode("ascii"):
            headers["Host"] = where.netloc.decode("ascii")
        return httpx.Request(
            asked.method, where, headers=headers, stream=self._stream, extensions=asked.extensions
        )

    def received(self, response: httpx.Response) -> httpx.Response:
        """The response as the caller gets it: a redirection to the instance is one to the service.

        Relative ones too, since nobody else knows how to join our schemes.
        """
        if response.has_redirect_location and self._sent is not None:
            there = self._sent.join(response.headers["location"])
            if (there.scheme, there.netloc) == (self._sent.scheme, self._sent.netloc):
                here = self.request.url.copy_with(
                    raw_path=there.raw_path, fragment=there.fragment or None
                )
                response.headers["location"] = str(here)
        return response

    def may_go_on(self, failure: BaseException | None) -> bool:
        """Whether to try another instance after this failure; one that is allowed is counted."""
        if failure is None or not blames(failure) or not self._left or not self._stream.whole:
            return False
        unsent = isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout)
        if not unsent and self.request.method not in REPEATABLE:
            return False
        self._left -= 1
        return True


_UNKNOWN_FOR = 1.0  # seconds until the registry is asked again for a service that it did not know


class Discovery(TypedDict, total=False):
    """How instances are chosen: as for `hub.discover`."""

    policy: str
    version: str
    tags: Mapping[str, str]
    zone: str
    zone_only: bool
    where: Callable[[Instance], bool]
    resilience: Resilience
    empty: Empty
    hold: float
    wait: float


class Call(Pick):
    """A pick that is ended when the response is closed, and timed up to the response's head."""

    __slots__ = ("_answered", "_ended", "instance", "key", "tried", "view")

    def __init__(
        self, view: View, node: Node, key: str | bytes | None, tried: tuple[str, ...] = ()
    ) -> None:
        super().__init__(view, key, tried)
        self.view, self.key = view, key
        self.instance: Instance = node.item.instance
        self.tried = (*tried, node.id)
        self._node, self._began = node, time.monotonic()
        self._answered: float | None = None
        self._ended = False
        view.rotation.picker.started(node)

    def answered(self, response: httpx.Response) -> None:
        """The head of the response is there."""
        self._answered = time.monotonic()
        response.extensions["mooring_instance"] = self.instance

    def end(self, error: BaseException | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        if self._answered is not None:
            self._began += time.monotonic() - self._answered  # what came after does not count
        self.__exit__(None if error is None else type(error), error, None)


class Balancer:
    """The views of the services that were asked for. Lives on the hub's loop."""

    def __init__(self, hub: Hub, services: Iterable[str], discovery: Discovery) -> None:
        self._hub, self._discovery = hub, discovery
        self._spelled = {name.casefold(): name for name in services}
        self._views: dict[str, View] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Only while somebody opens: anything may be asked for as a name."""
        self._unknown: dict[str, tuple[float, str]] = {}
        """Until when a name is taken for unknown, and why it is."""

    async def first(self, tries: Tries) -> Call:
        """The first try of a request. Raises `httpx.ConnectError`."""
        name = tries.service
        try:
            view = self._views.get(name)
            if view is None:
                async with self._opening.setdefault(name, asyncio.Lock()):
                    view = self._views.get(name) or await self._open(name)
            view.retries.request(time.monotonic())
            return Call(view, view.rotation.pick(tries.key), tries.key)
        except MooringError as error:
            # A caller that retries at once must not starve the loop that would add an instance.
            await asyncio.sleep(0)
            raise httpx.ConnectError(str(error), request=tries.request) from error

    async def _open(self, name: str) -> View:
        try:
            service = await self._resolve(name)
        except Unavailable:
            # A view may have a copy of its list on disk, and says what is wrong if not.
            view = await self._enter(name)
            if not view.instances:  # the registry is back: it can tell what this name stands for
                await view.aclose()
                view = await self._enter(await self._resolve(name))
        else:
            view = await self._enter(service)
        self._views[name] = view
        return view

    async def _enter(self, service: str) -> View:
        return await self._hub.discover(service, blame=blames, **self._discovery).__aenter__()

    async def _resolve(self, name: str) -> str:
        """The service that a host stands for. Raises `NoInstance` where that cannot be told, and
        `Unavailable` where it cannot be told now."""
        folded = name.casefold()
        if folded in self._spelled:
            return self._spelled[folded]
        now = time.monotonic()
        self._unknown = {each: told for each, told in self._unknown.items() if told[0] > now}
        if name in self._unknown:
            raise NoInstance(self._unknown[name][1])
        known = await self._hub.registry.names()
        alike = [name] if name in known else [each for each in known if each.casefold() == folded]
        if len(alike) == 1:
            return alike[0]
        if alike:
            told = f"{name} may be {' or '.join(alike)}: name the one that is meant in `services`"
        else:
            told = f"{name}: no such service is known{nearest(name, known) if known else ''}"
        self._unknown[name] = (time.monotonic() + _UNKNOWN_FOR, told)
        raise NoInstance(told)

    def another(self, call: Call, tries: Tries, failure: BaseException | None) -> Call | None:
        """End a failed call and begin one to another instance; None, and nothing ends, where it did
        not fail, nobody else is there, or retries are used up."""
        if not tries.may_go_on(failure):
            return None
        view = call.view
        try:
            node = view.rotation.pick(call.key, call.tried)
        except NoInstance:
            return None
        if node.id in call.tried or not view.retries.try_retry(time.monotonic()):
            return None
        call.end(failure)
        return Call(view, node, call.key, call.tried)

    async def aclose(self) -> None:
        views, self._views = list(self._views.values()), {}
        for view in views:
            await view.aclose()
