"""Balanced HTTP: transports for httpx, for which the host of a URL is a service.

    transport = mooring.httpx.AsyncTransport(hub)
    async with httpx.AsyncClient(mounts={"http+mooring://": transport}) as client:
        await client.get(mooring.httpx.url("Common/VerifyCodeService", "/codes"))

**Names.** httpx writes hosts in small letters, and a group's slash is `%2F` in one: the URL above
is `http+mooring://common%2Fverifycodeservice/codes`. A service of exactly that name is taken; where
there is none, the only one that differs in its capitals alone. Names that are given as `services`
need no such look at the registry, nor does a start without it.

**Ports.** `http+mooring://` goes to the instance's port `http`, `https+mooring://` to `https` or
`http`; without them to its main port. The `Host` header is the instance's address, unless the
request brings one of its own, and a redirection to that address is made one to the service.

**Retries** go to another instance: always where no connection came about; otherwise only for
methods that may be repeated (GET, HEAD, OPTIONS, PUT, DELETE, TRACE), after an error on the way or
502, 503, 504; never once a streamed body was begun; and within the view's retry budget. Where
there is nobody else to ask, the caller gets the first answer or error.

**Feedback.** A call is under way until its response is closed; its latency is the time to the head
of the response, so that a long stream makes no instance look slow. The errors above, and those
statuses, count against the instance. The one that answered is in
`response.extensions["mooring_instance"]`; `extensions={"mooring_key": …}` of a request is the key
for consistent hashing.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypedDict, Unpack
from urllib.parse import quote, unquote

from mooring.discovery.balance import Node
from mooring.discovery.resilience import Resilience
from mooring.discovery.view import Empty, Pick, View
from mooring.errors import MissingExtra, MooringError, NoInstance, Unavailable
from mooring.hub import Hub
from mooring.model import Instance
from mooring.names import nearest
from mooring.sync.proxy import behind

try:
    import httpx
except ImportError as error:
    raise MissingExtra("mooring.httpx", "httpx") from error

if TYPE_CHECKING:
    import mooring.sync

RETRIES = 2
"""How often a request is tried again at the most."""

REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
FAILED = frozenset({502, 503, 504})

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
    wait: float


def url(service: str, path: str = "/", *, scheme: str = "http") -> str:
    """The URL of a path at a service. `scheme` is `http` or `https`."""
    return f"{scheme}+mooring://{quote(service, safe='')}{path}"


class AsyncTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient(mounts={"http+mooring://": …, "https+mooring://": …})`.

    `transport` makes the connections (`httpx.AsyncHTTPTransport(verify=…, http2=…)`). Views of
    services are opened when they are first asked for, and closed with the transport, which the
    client closes. Raises `httpx.ConnectError` where there is no instance to call.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        retries: int = RETRIES,
        services: Iterable[str] = (),
        transport: httpx.AsyncBaseTransport | None = None,
        **discovery: Unpack[Discovery],
    ) -> None:
        self._balancer = Balancer(hub, services, discovery)
        self._retries = retries
        self._transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        tries = Tries(request, self._retries)
        call = await self._balancer.first(tries)
        while True:
            try:
                response = await self._transport.handle_async_request(tries.sent(call.instance))
            except BaseException as error:
                if (other := self._balancer.another(call, tries, error)) is None:
                    call.end(error)
                    raise
            else:
                failure = refusal(response)
                if (other := self._balancer.another(call, tries, failure)) is None:
                    call.answered(response)
                    response.stream = _AsyncBody(response.stream, call.end, failure)
                    return tries.received(response)
                await response.aclose()
            call = other

    async def aclose(self) -> None:
        await self._balancer.aclose()
        await self._transport.aclose()


class Transport(httpx.BaseTransport):
    """For `httpx.Client(mounts=…)`, on a blocking hub; otherwise as `AsyncTransport`. May be used
    from many threads at once."""

    def __init__(
        self,
        hub: mooring.sync.Hub,
        *,
        retries: int = RETRIES,
        services: Iterable[str] = (),
        transport: httpx.BaseTransport | None = None,
        **discovery: Unpack[Discovery],
    ) -> None:
        self._portal, opened = behind(hub)
        self._balancer = Balancer(opened, services, discovery)
        self._retries = retries
        self._transport = transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        tries = Tries(request, self._retries)
        call = self._first(tries)
        while True:
            try:
                response = self._transport.handle_request(tries.sent(call.instance))
            except BaseException as error:
                if (other := self._another(call, tries, error)) is None:
                    self._end(call, error)
                    raise
            else:
                failure = refusal(response)
                if (other := self._another(call, tries, failure)) is None:
                    call.answered(response)
                    end = functools.partial(self._end, call)
                    response.stream = _Body(response.stream, end, failure)
                    return tries.received(response)
                response.close()
            call = other

    def _first(self, tries: Tries) -> Call:
        try:
            return self._portal.call(lambda: self._balancer.first(tries))
        except MooringError as error:  # the hub is closed, or was inherited over a fork
            raise httpx.ConnectError(str(error), request=tries.request) from error

    def _another(self, call: Call, tries: Tries, failure: BaseException | None) -> Call | None:
        async def on_loop() -> Call | None:
            return self._balancer.another(call, tries, failure)

        return None if failure is None else self._portal.call(on_loop)

    def _end(self, call: Call, error: BaseException | None) -> None:
        self._portal.post(lambda: call.end(error))

    def close(self) -> None:
        if self._portal.running:
            self._portal.call(self._balancer.aclose)
        self._transport.close()


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
        self._stream = _Watched(request.stream)
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
        self._opening: dict[str, asyncio.Lock] = {}
        self._unknown: dict[str, tuple[float, NoInstance]] = {}

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
            raise httpx.ConnectError(f"{name}: {error}", request=tries.request) from error

    async def _open(self, name: str) -> View:
        view = self._hub.discover(await self._resolve(name), blame=blames, **self._discovery)
        self._views[name] = await view.__aenter__()
        return view

    async def _resolve(self, name: str) -> str:
        """The service that a host stands for. Raises `NoInstance` where that cannot be told."""
        folded = name.casefold()
        if folded in self._spelled:
            return self._spelled[folded]
        until, problem = self._unknown.get(name, (0.0, None))
        if problem is not None and time.monotonic() < until:
            raise problem
        try:
            known = [service.name for service in await self._hub.registry.services()]
        except Unavailable:
            return name  # a view may have a copy of its list on disk, and says what is wrong if not
        alike = [name] if name in known else [each for each in known if each.casefold() == folded]
        if len(alike) == 1:
            self._unknown.pop(name, None)
            return alike[0]
        if alike:
            told = f"it may be {' or '.join(alike)}: name the one that is meant in `services`"
        else:
            told = f"no such service is known{nearest(name, known) if known else ''}"
        problem = NoInstance(told)
        self._unknown[name] = (time.monotonic() + _UNKNOWN_FOR, problem)
        raise problem

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


class _Watched(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request's body, and whether it can be sent from its beginning."""

    def __init__(self, stream: httpx.SyncByteStream | httpx.AsyncByteStream) -> None:
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


End = Callable[[BaseException | None], None]


class _AsyncBody(httpx.AsyncByteStream):
    """A response's body. Closing it ends the call."""

    def __init__(
        self,
        stream: httpx.AsyncByteStream | httpx.SyncByteStream,
        end: End,
        failure: BaseException | None,
    ) -> None:
        assert isinstance(stream, httpx.AsyncByteStream)
        self._stream, self._end, self._failure = stream, end, failure

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except httpx.TransportError as error:
            self._failure = error
            raise

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            self._end(self._failure)


class _Body(httpx.SyncByteStream):
    """The same, blocking."""

    def __init__(
        self,
        stream: httpx.AsyncByteStream | httpx.SyncByteStream,
        end: End,
        failure: BaseException | None,
    ) -> None:
        assert isinstance(stream, httpx.SyncByteStream)
        self._stream, self._end, self._failure = stream, end, failure

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._stream
        except httpx.TransportError as error:
            self._failure = error
            raise

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._end(self._failure)
