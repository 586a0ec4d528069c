"""`/healthz` and `/readyz`: is the process alive, and can it serve?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from mooring.errors import InvalidRequest, StoreError
from mooring.hub import Hub
from mooring.server.auth.authorization import OPEN
from mooring.server.http.request import ApiCall
from mooring.server.http.response import Response
from mooring.server.http.routing import ApiRoute
from mooring.store import key

log = logging.getLogger(__name__)

_PATIENCE = 2.0
_NOWHERE = b"/mooring/ready"


class Question(NamedTuple):
    """Something cheap to ask of what is served."""

    what: str
    """What it is to everybody: the store, the registry."""
    where: str
    """Its URL, for the log."""
    ask: Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Readiness:
    """How far the server is: it comes up before its store, and goes down after it."""

    questions: tuple[Question, ...] | None = None
    """What must be answered to be ready, once everything listens."""
    stopping: bool = False
    _known: dict[str, str] = field(default_factory=dict)
    """Why each did not answer when it was last asked, by its URL."""

    async def problems(self) -> list[str]:
        """Why it is not ready, in words; nothing while store and registry can be read and it is
        not about to stop."""
        if self.stopping:
            return ["stopping"]
        if self.questions is None:
            return ["starting"]
        whys = await asyncio.gather(*map(_why, self.questions))
        for question, why in zip(self.questions, whys, strict=True):
            self._tell(question, why)
        pairs = zip(self.questions, whys, strict=True)
        return [f"{question.what} does not answer" for question, why in pairs if why]

    def _tell(self, question: Question, why: str) -> None:
        """In the log, once."""
        before = self._known.get(question.where, "")
        self._known[question.where] = why
        if why and not before:
            log.warning("not ready: %s %s: %s", question.what, question.where, why)
        elif before and not why:
            log.info("%s %s answers again", question.what, question.where)


def questions(hub: Hub, *, apart: bool, store: bool) -> Iterator[Question]:
    """What to ask of a hub: of its store, where there is one, and of a registry that is `apart`."""
    if store:
        yield Question(
            "the store", hub.store.url, lambda: hub.store.read(key(_NOWHERE), keys_only=True)
        )
    if apart:
        where = hub.registry.url
        yield Question("the registry", where, lambda: hub.registry.info(group="mooring"))


async def _why(question: Question) -> str:
    """Why there is no answer; empty where there is one."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await question.ask()
    except TimeoutError:
        return f"no answer within {_PATIENCE:g} s"
    except StoreError as error:
        return str(error)
    except InvalidRequest:
        pass  # it answered, and with something that somebody else wrote
    return ""


_TEXT = "text/plain; charset=utf-8"
_FRESH = {"Cache-Control": "no-store"}


async def healthz(_: ApiCall) -> Response:
    """200 as long as the process answers."""
    return Response(b"ok\n", headers=_FRESH, media=_TEXT)


async def readyz(call: ApiCall) -> Response:
    """200 while store and registry can be read and we are not about to stop. A store that refuses
    writes is no reason to send callers elsewhere: reads go on, and every server has that store."""
    problems, alarms = await call.server.readiness.problems(), call.server.alarms
    well = "ok, but the store has an alarm\n" if alarms and alarms.raised else "ok\n"
    told = "".join(f"{problem}\n" for problem in problems) or well
    return Response(told.encode(), 503 if problems else 200, headers=_FRESH, media=_TEXT)


ENDPOINTS = (
    ApiRoute(
        "GET",
        "/healthz",
        OPEN,
        healthz,
        "Liveness probe",
        answers={200: None},
        media=_TEXT,
    ),
    ApiRoute(
        "GET",
        "/readyz",
        OPEN,
        readyz,
        "Readiness probe: the store and the registry can be read",
        answers={200: None, 503: None},
        media=_TEXT,
    ),
)
