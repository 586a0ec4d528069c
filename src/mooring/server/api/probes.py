"""`/healthz` and `/readyz`, for who watches over the process. Open to all: they tell nothing."""

from __future__ import annotations

from mooring.server.auth.authorization import OPEN
from mooring.server.http.request import Call
from mooring.server.http.response import Answer
from mooring.server.http.routing import Endpoint

_TEXT = "text/plain; charset=utf-8"
_FRESH = {"Cache-Control": "no-store"}


async def healthz(_: Call) -> Answer:
    """200 as long as the process answers."""
    return Answer(b"ok\n", headers=_FRESH, media=_TEXT)


async def readyz(call: Call) -> Answer:
    """200 while store and registry can be read and we are not about to stop. A store that refuses
    writes is no reason to send callers elsewhere: reads go on, and every server has that store."""
    problems, alarms = await call.parts.readiness.problems(), call.parts.alarms
    well = "ok, but the store has an alarm\n" if alarms and alarms.raised else "ok\n"
    told = "".join(f"{problem}\n" for problem in problems) or well
    return Answer(told.encode(), 503 if problems else 200, headers=_FRESH, media=_TEXT)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/healthz",
        OPEN,
        healthz,
        "Liveness probe",
        answers={200: None},
        media=_TEXT,
    ),
    Endpoint(
        "GET",
        "/readyz",
        OPEN,
        readyz,
        "Readiness probe: the store and the registry can be read",
        answers={200: None, 503: None},
        media=_TEXT,
    ),
)
