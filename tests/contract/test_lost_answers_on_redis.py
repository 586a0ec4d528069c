"""A registration on Redis whose first reply is lost, with a predecessor or a successor."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import mooring
from mooring import Instance
from mooring.errors import OutcomeUnknown, Unavailable
from mooring.hub import Hub
from mooring.registry.redis.pipeline import Script
from mooring.registry.redis.registry import RedisRegistry
from mooring.testing.redis import RedisServer
from tests.contract.registries import QUICK, REDIS
from tests.waiting import eventually


@pytest.fixture(params=REDIS)
def url(request: pytest.FixtureRequest, redis: Callable[[str], RedisServer]) -> str:
    return f"{redis(request.param).url}?namespace={uuid.uuid4().hex}"


@pytest.fixture
async def hub(url: str) -> AsyncIterator[Hub]:
    async with mooring.connect(url, settings=QUICK) as opened:
        yield opened


@pytest.fixture
async def other(url: str) -> AsyncIterator[Hub]:
    """The same registry through another hub."""
    async with mooring.connect(url, settings=QUICK) as opened:
        yield opened


class LostAnswers:
    """Stands between a hub and Redis: the reply to the first registration is lost, and then the hub
    is disconnected until `cut` is reset. `arrives`: whether that first registration takes
    effect."""

    def __init__(self, hub: Hub, monkeypatch: pytest.MonkeyPatch, *, arrives: bool) -> None:
        assert isinstance(hub.registry, RedisRegistry)
        self.cut, self._tried, self._arrives = False, False, arrives
        self._run = hub.registry.connection.run
        monkeypatch.setattr(hub.registry.connection, "run", self.run)

    async def run(self, script: Script, *rest: Any, what: str) -> Any:
        if self.cut:
            raise Unavailable("cut off")
        first = script.name == "register" and not self._tried
        if not first or self._arrives:
            answer = await self._run(script, *rest, what=what)
        if not first:
            return answer
        self._tried = self.cut = True
        raise OutcomeUnknown("the answer was lost")


async def test_an_unconfirmed_registration_leaves_its_successor_alone(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    """Its record was written, but the reply was lost, and a newer process registered at its address
    before it could check."""
    lost = LostAnswers(hub, monkeypatch, arrives=True)
    one = Instance("echo", "10.0.0.1", 1)
    async with hub.register(one, wait=0.1) as older:
        await eventually(lambda: lost.cut)
        async with other.register(one) as newer:
            lost.cut = False
            await eventually(lambda: older.state == "superseded")
            await asyncio.sleep(0.5)  # longer than a heartbeat
            assert newer.state == "registered"
            (listed,) = (await other.registry.instances("echo")).instances
            assert listed.incarnation == newer.instance.incarnation


@pytest.mark.parametrize("arrives", [True, False])
async def test_an_unconfirmed_registration_replaces_an_older_process(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch, arrives: bool
):
    one = Instance("echo", "10.0.0.1", 1)
    async with other.register(one) as older:
        lost = LostAnswers(hub, monkeypatch, arrives=arrives)
        async with hub.register(one, wait=0.1) as newer:
            await eventually(lambda: lost.cut)
            lost.cut = False
            await eventually(lambda: newer.state == "registered")
            await eventually(lambda: older.state == "superseded")
            (listed,) = (await other.registry.instances("echo")).instances
            assert listed.incarnation == newer.instance.incarnation
