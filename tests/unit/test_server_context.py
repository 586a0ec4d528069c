"""Readiness: public without details; the reason is only logged."""

from __future__ import annotations

import logging

import pytest

from mooring.errors import InvalidRequest, Unavailable
from mooring.server.context import Readiness, ReadinessProbe

URL = "etcd://10.0.0.1:2379"


async def test_readiness_names_the_failed_check_and_logs_its_reason_once(
    caplog: pytest.LogCaptureFixture,
):
    away = True

    async def ask() -> None:
        if away:
            raise Unavailable(f"{URL} refused the connection")

    async def well() -> None:
        raise InvalidRequest("somebody wrote nonsense there, and so it answers")

    readiness = Readiness(
        (ReadinessProbe("the store", URL, ask), ReadinessProbe("the registry", "x", well))
    )
    with caplog.at_level(logging.INFO, "mooring.server.context"):
        for _ in range(3):
            assert await readiness.problems() == ["the store does not answer"]
        away = False
        assert await readiness.problems() == await readiness.problems() == []
    assert [record.getMessage() for record in caplog.records] == [
        f"not ready: the store {URL}: {URL} refused the connection",
        f"the store {URL} answers again",
    ]
