"""Messages of the change channel, including those of foreign programs."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

import mooring
from mooring import Instance
from mooring.registry.redis.registry import RedisRegistry
from mooring.testing.redis import RedisServer
from tests.contract.registries import QUICK
from tests.waiting import eventually


@pytest.mark.deadline
@pytest.mark.parametrize("message", [b"", b"no JSON", b'{"action":"\xff"}', b"[" * 100_000])
async def test_an_unreadable_message_does_not_stop_the_consumer(
    redis: Callable[[str], RedisServer], message: bytes
):
    server, space = redis("6.2"), uuid.uuid4().hex
    url = f"{server.url}?namespace={space}"
    async with mooring.connect(url, settings=QUICK) as hub, hub.discover("echo") as view:
        channel = f"{space}:registry:services:echo:changes"

        def is_received() -> bool:
            return server.command("PUBSUB", "NUMSUB", channel) == [channel, 1]

        await eventually(is_received)
        assert isinstance(hub.registry, RedisRegistry)
        await hub.registry.connection.call("PUBLISH", channel, message, what="the test")
        async with hub.register(Instance("echo", "10.0.0.1", 1)):
            await eventually(lambda: len(view.instances) == 1, within=2)
