"""Balanced HTTP: transports for httpx, for which the host of a URL is a service.

    transport = mooring.httpx.AsyncTransport(hub)
    async with httpx.AsyncClient(mounts={"http+mooring://": transport}) as client:
        await client.get(mooring.httpx.url("Common/VerifyCodeService", "/codes"))

**Names.** httpx converts hosts to lower case, and `%2F` stands for the slash of a group: the URL
above is `http+mooring://common%2Fverifycodeservice/codes`. It resolves to the service of exactly
that name, or else to the only one that differs in case. Names in `services` resolve without a
lookup in the registry, and therefore also while the registry is unreachable.

**Ports.** `http+mooring://` uses the instance's port `http`, `https+mooring://` uses `https` or
`http`; without them both use its main port. The `Host` header is the instance's address unless the
request sets another, and a redirect to that address becomes one to the service.

**Retries** go to another instance: always if no connection was made; otherwise only for idempotent
methods (GET, HEAD, OPTIONS, PUT, DELETE, TRACE), after a transport error or 502, 503, 504; never
once a streamed body was partly sent; and within the view's retry budget. If there is no other
instance, the caller gets the first response or error.

**Feedback.** A call is in flight until its response is closed. Its latency is the time to the
response headers, so that a long stream does not make an instance look slow. The errors and status
codes above count against the instance. `response.extensions["mooring_instance"]` is the instance
that responded; `extensions={"mooring_key": …}` of a request is the key for consistent hashing.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Unpack
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

import mooring.sync
from mooring.discovery.balance import Node
from mooring.discovery.view import DiscoveryOptions, Pick, View
from mooring.errors import MissingExtra, MooringError, NoInstance, Unavailable
from mooring.hub import Hub
from mooring.model import Instance
from mooring.names import nearest
from mooring.sync.proxy import behind

if importlib.util.find_spec("httpx") is None:
    raise MissingExtra("mooring.httpx", "httpx")

import httpx

__all__ = ["LIMITS", "RETRIES", "AsyncTransport", "Transport", "TransportOptions", "url"]

RETRIES = 2
"""The maximum number of retries of a request."""

LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=1.5)
"""The defaults of httpx, except that idle connections expire before servers close them: gunicorn
does so after 2 s, uvicorn after 5 s. A request fails if its connection is being closed, and is lost
if it is not idempotent."""

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
FAILURE_STATUSES = frozenset({502, 503, 504})

_UNKNOWN_FOR = 1.0  # seconds until an unknown service is looked up again

BodyStream = httpx.AsyncByteStream | httpx.SyncByteStream
EndCall = Callable[[BaseException | None], None]


class TransportOptions(DiscoveryOptions, total=False):
    """How instances are chosen: the arguments of `hub.discover`."""

    policy: str
    wait: float


def url(service: str, path: str = "/", *, scheme: str = "http") -> str:
    """The URL of a path at a service. `scheme` is `http` or `https`."""
    return f"{scheme}+mooring://{quote(service, safe='')}{path}"


class AsyncTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient(mounts={"http+mooring://": …, "https+mooring://": …})`.

    `transport` makes the connections (`httpx.AsyncHTTPTransport(verify=…, http2=…)`); the default
    has the `LIMITS` of this module. A view is opened at the first request to a service, and closed
    with the transport, which the client closes. Raises `httpx.ConnectError` if there is no instance
    to call.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        retries: int = RETRIES,
        services: Iterable[str] = (),
        transport: httpx.AsyncBaseTransport | None = None,
        **discovery: Unpack[TransportOptions],
    ) -> None:
        self._balancer = Balancer(hub, services, discovery)
        self._retries = retries
        self._transport = transport or httpx.AsyncHTTPTransport(limits=LIMITS)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        attempts = Attempts(request, self._retries)
        call = await self._balancer.first(attempts)
        while True:
            try:
                response = await self._transport.handle_async_request(attempts.to(call.instance))
            except BaseException as error:
                if (other := await self._balancer.retry(call, attempts, error)) is None:
                    call.end(error)
                    raise
            else:
                failure = status_failure(response)
                if (other := await self._balancer.retry(call, attempts, failure)) is None:
                    call.responded(response)
                    response.stream = AsyncResponseBody(response.stream, call.end, failure)
                    return attempts.with_redirect_to_service(response)
                await response.aclose()
            call = other

    async def aclose(self) -> None:
        await self._balancer.aclose()
        await self._transport.aclose()


class Transport(httpx.BaseTransport):
    """As `AsyncTransport`, for `httpx.Client(mounts=…)` on a blocking hub. Thread-safe."""

    def __init__(
        self,
        hub: mooring.sync.Hub,
        *,
        retries: int = RETRIES,
        services: Iterable[str] = (),
        transport: httpx.BaseTransport | None = None,
        **discovery: Unpack[TransportOptions],
    ) -> None:
        self._portal, async_hub = behind(hub)
        self._balancer = Balancer(async_hub, services, discovery)
        self._retries = retries
        self._transport = transport or httpx.HTTPTransport(limits=LIMITS)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        attempts = Attempts(request, self._retries)
        call = self._first(attempts)
        while True:
            try:
                response = self._transport.handle_request(attempts.to(call.instance))
            except BaseException as error:
                if (other := self._retry(call, attempts, error)) is None:
                    self._end(call, error)
                    raise
            else:
                failure = status_failure(response)
                if (other := self._retry(call, attempts, failure)) is None:
                    call.responded(response)
                    end = functools.partial(self._end, call)
                    response.stream = ResponseBody(response.stream, end, failure)
                    return attempts.with_redirect_to_service(response)
                response.close()
            call = other

    def _first(self, attempts: Attempts) -> InstanceCall:
        try:
            return self._portal.call(lambda: self._balancer.first(attempts))
        except MooringError as error:  # the hub is closed, or was inherited over a fork
            raise httpx.ConnectError(str(error), request=attempts.request) from error

    def _retry(
        self, call: InstanceCall, attempts: Attempts, failure: BaseException | None
    ) -> InstanceCall | None:
        if failure is None:
            return None
        return self._portal.call(lambda: self._balancer.retry(call, attempts, failure))

    def _end(self, call: InstanceCall, error: BaseException | None) -> None:
        self._portal.post(lambda: call.end(error))

    def close(self) -> None:
        if self._portal.running:
            self._portal.call(self._balancer.aclose)
        self._transport.close()


class RequestBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of a request, which knows whether it can be sent from its beginning."""

    def __init__(self, stream: BodyStream) -> None:
        self._stream = stream
        self._started = False

    @property
    def replayable(self) -> bool:
        return not self._started or isinstance(self._stream, httpx.ByteStream)

    def __iter__(self) -> Iterator[bytes]:
        self._started = True
        assert isinstance(self._stream, httpx.SyncByteStream)
        return iter(self._stream)

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._started = True
        assert isinstance(self._stream, httpx.AsyncByteStream)
        return aiter(self._stream)


class _CallEnd:
    """Ends a call when the body of its response is closed."""

    def __init__(self, stream: BodyStream, end: EndCall, failure: BaseException | None) -> None:
        self._stream, self._end, self._failure = stream, end, failure

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            self._failure = error
            raise


class AsyncResponseBody(_CallEnd, httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._stream, httpx.AsyncByteStream)
        with self._reading():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        assert isinstance(self._stream, httpx.AsyncByteStream)
        try:
            await self._stream.aclose()
        finally:
            self._end(self._failure)


class ResponseBody(_CallEnd, httpx.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        assert isinstance(self._stream, httpx.SyncByteStream)
        with self._reading():
            yield from self._stream

    def close(self) -> None:
        assert isinstance(self._stream, httpx.SyncByteStream)
        try:
            self._stream.close()
        finally:
            self._end(self._failure)


class StatusFailure(Exception):
    """A response with one of the `FAILURE_STATUSES`."""


def status_failure(response: httpx.Response) -> StatusFailure | None:
    if response.status_code not in FAILURE_STATUSES:
        return None
    return StatusFailure(f"{response.status_code} {response.reason_phrase}")


def blames(error: BaseException) -> bool:
    """Whether an error is the instance's fault, rather than this client's."""
    own = (httpx.PoolTimeout, httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.ProxyError)
    return isinstance(error, httpx.TransportError | StatusFailure) and not isinstance(error, own)


class Attempts:
    """The attempts to send one request, each to another instance."""

    def __init__(self, request: httpx.Request, retries: int) -> None:
        self.request = request
        self.service = unquote(request.url.host)
        self.key: str | bytes | None = request.extensions.get("mooring_key")
        self._retries_left = retries
        self._body = RequestBody(request.stream)
        self._url: httpx.URL | None = None

    def to(self, instance: Instance) -> httpx.Request:
        request = self.request
        scheme = request.url.scheme.partition("+")[0]
        port = instance.port_for("http")
        self._url = request.url.copy_with(
            scheme=scheme,
            host=instance.host,
            port=instance.ports.get("https", port) if scheme == "https" else port,
        )
        headers = request.headers.copy()
        if headers.get("Host", "") == request.url.netloc.decode("ascii"):
            headers["Host"] = self._url.netloc.decode("ascii")
        return httpx.Request(
            request.method,
            self._url,
            headers=headers,
            stream=self._body,
            extensions=request.extensions,
        )

    def with_redirect_to_service(self, response: httpx.Response) -> httpx.Response:
        """Make a redirect to the instance one to the service, also a relative redirect, which httpx
        cannot join to the `+mooring` schemes."""
        if response.has_redirect_location and self._url is not None:
            location = self._url.join(response.headers["location"])
            if (location.scheme, location.netloc) == (self._url.scheme, self._url.netloc):
                at_service = self.request.url.copy_with(
                    raw_path=location.raw_path, fragment=location.fragment or None
                )
                response.headers["location"] = str(at_service)
        return response

    def try_retry(self, failure: BaseException | None) -> bool:
        """Whether to retry after this failure; if so, the retry is counted."""
        if failure is None or not blames(failure):
            return False
        if not self._retries_left or not self._body.replayable:
            return False
        unsent = isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout)
        if not unsent and self.request.method not in IDEMPOTENT:
            return False
        self._retries_left -= 1
        return True


class InstanceCall(Pick):
    """A pick that ends when the response is closed. Its latency ends at the response headers."""

    __slots__ = ("_ended", "_responded_at", "instance", "key", "tried", "view")

    def __init__(
        self, view: View, node: Node, key: str | bytes | None, tried: tuple[str, ...] = ()
    ) -> None:
        super().__init__(view, key, tried)
        self.view, self.key = view, key
        self.instance: Instance = node.item.instance
        self.tried = (*tried, node.id)
        self._node, self._began = node, time.monotonic()
        self._responded_at: float | None = None
        self._ended = False
        view.rotation.picker.started(node)

    def responded(self, response: httpx.Response) -> None:
        self._responded_at = time.monotonic()
        response.extensions["mooring_instance"] = self.instance

    def end(self, error: BaseException | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        if self._responded_at is not None:  # the time to read the body does not count
            self._began += time.monotonic() - self._responded_at
        self.__exit__(None if error is None else type(error), error, None)


def _only_match(name: str, known: Collection[str]) -> str:
    """The service of this name, or the only one that differs in case. Raises `NoInstance`."""
    if name in known:
        return name
    matches = [service for service in known if service.casefold() == name.casefold()]
    if not matches:
        raise NoInstance(f"{name}: unknown service{nearest(name, known) if known else ''}")
    if len(matches) > 1:
        raise NoInstance(f"{name} may be {' or '.join(matches)}: pass the right one in `services`")
    return matches[0]


class Balancer:
    """The views of the services that were requested. Lives on the hub's loop."""

    def __init__(self, hub: Hub, services: Iterable[str], discovery: TransportOptions) -> None:
        self._hub, self._discovery = hub, discovery
        self._services = {name.casefold(): name for name in services}
        self._views: dict[str, View] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One lock for each name whose view is being opened. Weak, since clients may request any
        number of names."""
        self._unknown: dict[str, tuple[float, str]] = {}
        """The names that are considered unknown, until when, and why."""

    async def first(self, attempts: Attempts) -> InstanceCall:
        """The first attempt of a request. Raises `httpx.ConnectError`."""
        name = attempts.service
        try:
            view = self._views.get(name)
            if view is None:
                async with self._opening.setdefault(name, asyncio.Lock()):
                    view = self._views.get(name) or await self._open(name)
            view.retries.request(time.monotonic())
            return InstanceCall(view, view.rotation.pick(attempts.key), attempts.key)
        except MooringError as error:
            # A caller that retries at once must not starve the loop that would add an instance.
            await asyncio.sleep(0)
            raise httpx.ConnectError(str(error), request=attempts.request) from error

    async def _open(self, name: str) -> View:
        try:
            service = await self._resolve(name)
        except Unavailable:
            # A view may have a copy of its list on disk, and otherwise raises the reason.
            view = await self._enter(name)
            if not view.instances:  # the registry is back, and can resolve the name
                await view.aclose()
                view = await self._enter(await self._resolve(name))
        else:
            view = await self._enter(service)
        self._views[name] = view
        return view

    async def _enter(self, service: str) -> View:
        return await self._hub.discover(service, blame=blames, **self._discovery).__aenter__()

    async def _resolve(self, name: str) -> str:
        """Raises `NoInstance` for an unknown host, `Unavailable` without an answer."""
        folded = name.casefold()
        if folded in self._services:
            return self._services[folded]
        now = time.monotonic()
        self._unknown = {key: entry for key, entry in self._unknown.items() if entry[0] > now}
        if name in self._unknown:
            raise NoInstance(self._unknown[name][1])
        try:
            return _only_match(name, await self._hub.registry.names())
        except NoInstance as error:
            self._unknown[name] = (time.monotonic() + _UNKNOWN_FOR, str(error))
            raise

    async def retry(
        self, call: InstanceCall, attempts: Attempts, failure: BaseException | None
    ) -> InstanceCall | None:
        """End a failed call and begin one to another instance. Returns None, and ends nothing, if
        the call did not fail, there is no other instance, or the retries are used up."""
        if not attempts.try_retry(failure):
            return None
        view = call.view
        try:
            node = view.rotation.pick(call.key, call.tried)
        except NoInstance:
            return None
        if node.id in call.tried or not view.retries.try_retry(time.monotonic()):
            return None
        call.end(failure)
        return InstanceCall(view, node, call.key, call.tried)

    async def aclose(self) -> None:
        views, self._views = list(self._views.values()), {}
        for view in views:
            await view.aclose()
