"""The transports: a request goes to one instance after another, awaited or blocking."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack
from urllib.parse import quote

import httpx

from mooring.errors import MooringError
from mooring.httpx.balancer import AsyncBody, Balancer, Body, Call, Discovery, Tries, refusal
from mooring.hub import Hub
from mooring.sync.proxy import behind

if TYPE_CHECKING:
    import mooring.sync

RETRIES = 2
"""How often a request is tried again at the most."""

LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=1.5)
"""httpx's own, except that idle connections expire before servers close them: gunicorn does so
after 2 s, uvicorn after 5 s, as httpx itself would. A request that meets a connection as it is
closed fails, and one that may not be repeated is lost."""


def url(service: str, path: str = "/", *, scheme: str = "http") -> str:
    """The URL of a path at a service. `scheme` is `http` or `https`."""
    return f"{scheme}+mooring://{quote(service, safe='')}{path}"


class AsyncTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient(mounts={"http+mooring://": …, "https+mooring://": …})`.

    `transport` makes the connections (`httpx.AsyncHTTPTransport(verify=…, http2=…)`); the default
    one has the `LIMITS` of this module. Views of
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
        self._transport = transport or httpx.AsyncHTTPTransport(limits=LIMITS)

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
                    response.stream = AsyncBody(response.stream, call.end, failure)
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
        self._transport = transport or httpx.HTTPTransport(limits=LIMITS)

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
                    response.stream = Body(response.stream, end, failure)
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
