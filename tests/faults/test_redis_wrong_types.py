"""A key of the registry on Redis that holds another type: the last list is kept and flagged."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import mooring
from mooring.discovery.view import View
from mooring.mirror import Mirror
from mooring.model import Instance
from mooring.registry.redis.all_services_feed import AllServicesFeed
from mooring.registry.redis.service_feed import ServiceFeed
from mooring.testing.redis import RedisServer
from tests.faults.redis_actors import counted_looks, fleet, namespaced, quick, registry_of
from tests.waiting import eventually

SETTINGS = quick(timeout=6.0)
KINDS = ("heartbeats", "brake", "config")


def logged(caplog: pytest.LogCaptureFixture, *phrases: str) -> list[int]:
    """How often each phrase was logged."""
    messages = [record.getMessage() for record in caplog.records]
    return [sum(phrase in line for line in messages) for phrase in phrases]


@pytest.fixture
def looks() -> Iterator[Counter[ServiceFeed]]:
    with counted_looks() as counted:
        yield counted


async def looked_at_again(
    view: View | Mirror[tuple[str, str], Instance], feed: ServiceFeed, looks: Counter[ServiceFeed]
) -> None:
    """Assert that it stays flagged while the service is read again."""
    before = looks[feed]

    def looked() -> bool:
        assert view.stale
        return looks[feed] > before

    await eventually(looked)


async def just_looked(feed: ServiceFeed) -> None:
    """Wait until the change channel is subscribed and the next read is as far away as possible."""
    await eventually(lambda: feed.subscribed)
    for _ in range(2):  # the first may have been planned before that
        last = feed.refreshed_at
        await eventually(partial(_later, feed, last))


def _later(feed: ServiceFeed, than: float) -> bool:
    return feed.refreshed_at > than


@pytest.mark.deadline
async def test_an_unreadable_service_is_stale_and_logged_once(
    redis: Callable[[str], RedisServer],
    looks: Counter[ServiceFeed],
    caplog: pytest.LogCaptureFixture,
):
    server = redis("7.0")

    async def broken(kind: str) -> None:
        async with mooring.connect(namespaced(server.url), settings=SETTINGS) as hub:
            key = getattr(registry_of(hub).keys.of("echo"), kind)
            async with fleet(hub, 2), hub.discover("echo") as view:
                assert len(view.instances) == 2
                feed = view._retained._feed
                assert isinstance(feed, ServiceFeed)
                await just_looked(feed)
                server.command("SET", key, "something else")
                await eventually(lambda: view.stale, within=5)
                for _ in range(4):
                    await looked_at_again(view, feed, looks)
                assert len(view.instances) == 2
                assert logged(caplog, f"{key} is a string and should be a") == [1]
                server.command("DEL", key)
                await eventually(lambda: not view.stale)
                await eventually(lambda: len(view.instances) == 2)

    await asyncio.gather(*map(broken, KINDS))
    assert logged(caplog, "no longer followed", "followed again") == [len(KINDS)] * 2


@pytest.mark.deadline
async def test_an_unreadable_registry_is_stale_and_logged_once(
    redis: Callable[[str], RedisServer],
    looks: Counter[ServiceFeed],
    caplog: pytest.LogCaptureFixture,
):
    server = redis("7.0")

    async def broken(kind: str) -> None:
        async with mooring.connect(namespaced(server.url), settings=SETTINGS) as hub:
            name = f"echo-{kind}"
            key = getattr(registry_of(hub).keys.of(name), kind)
            every = hub.registry.follow_all()
            assert isinstance(every, AllServicesFeed)
            async with fleet(hub, 2, service=name), Mirror(every) as mirror:
                server.command("SET", key, "something else")
                await eventually(lambda: mirror.stale, within=5)
                await looked_at_again(mirror, every.feed(name), looks)
                assert len(mirror.items) == 2
                reports = (f"{name} cannot be read", f"{name} can be read again")
                assert logged(caplog, *reports) == [1, 0]
                server.command("DEL", key)
                await eventually(lambda: not mirror.stale)
                assert logged(caplog, *reports) == [1, 1]

    await asyncio.gather(*map(broken, KINDS))
