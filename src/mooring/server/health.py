"""The HTTP face: is the process alive, and can it serve?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mooring.errors import InvalidRequest, StoreError
from mooring.hub import Hub
from mooring.store import key

_PATIENCE = 2.0
_NOWHERE = b"/mooring/ready"


class Question(NamedTuple):
    """Something cheap to ask of what is served."""

    where: str
    ask: Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Readiness:
    """How far the server is: it comes up before its store, and goes down after it."""

    questions: tuple[Question, ...] | None = None
    """What must be answered to be ready, once everything listens."""
    stopping: bool = False


def application(readiness: Readiness) -> Starlette:
    async def healthz(_: Request) -> Response:
        """200 as long as the process answers."""
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        """200 while store and registry can be read and we are not about to stop."""
        if readiness.stopping:
            return PlainTextResponse("stopping\n", 503)
        if readiness.questions is None:
            return PlainTextResponse("starting\n", 503)
        told = await asyncio.gather(*(_problem(question) for question in readiness.questions))
        if problems := [problem for problem in told if problem]:
            return PlainTextResponse("".join(f"{problem}\n" for problem in problems), 503)
        return PlainTextResponse("ok\n")

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)])


def questions(hub: Hub, *, apart: bool, store: bool) -> Iterator[Question]:
    """What to ask of a hub: of its store, where there is one, and of a registry that is `apart`."""
    if store:
        yield Question(hub.store.url, lambda: hub.store.read(key(_NOWHERE), keys_only=True))
    if apart:
        yield Question(hub.registry.url, lambda: hub.registry.info(group="mooring"))


async def _problem(question: Question) -> str:
    """Why there is no answer; empty where there is one."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await question.ask()
    except TimeoutError:
        return f"{question.where} does not answer"
    except StoreError as error:
        return str(error)
    except InvalidRequest:
        pass  # it answered, and with something that somebody else wrote
    return ""
