"""The HTTP face: is the process alive, and can it serve?"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mooring.errors import StoreError
from mooring.store import Store, key

_PATIENCE = 2.0


@dataclass(slots=True)
class Readiness:
    """How far the server is: it comes up before its store, and goes down after it."""

    store: Store | None = None
    """Once everything listens."""
    stopping: bool = False


def application(readiness: Readiness) -> Starlette:
    async def healthz(_: Request) -> Response:
        """200 as long as the process answers."""
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        """200 while the store can be read and we are not about to stop."""
        if readiness.stopping:
            return PlainTextResponse("stopping\n", 503)
        if readiness.store is None:
            return PlainTextResponse("starting\n", 503)
        try:
            async with asyncio.timeout(_PATIENCE):
                await readiness.store.read(key(b"/mooring/ready"), keys_only=True)
        except (StoreError, TimeoutError) as error:
            return PlainTextResponse(f"{str(error) or 'the store does not answer'}\n", 503)
        return PlainTextResponse("ok\n")

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)])
