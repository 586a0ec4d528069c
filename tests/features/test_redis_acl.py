"""The minimal permissions of a Redis user: exactly those in `docs/redis.md`."""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mooring
from mooring import Instance
from mooring.errors import AccessDenied, Unavailable
from mooring.hub import Hub
from mooring.testing.redis import RedisServer
from tests.backends import usual
from tests.faults.redis_actors import evictions_of, fleet, quick, registry_of, silence
from tests.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "redis.md"
RULES = dict(re.findall(r"^user (\w+) on >PASSWORD (.*)$", PAGE.read_text(), re.MULTILINE))

SETTINGS = quick(beat=0.2, interval=0.2, timeout=4.0)


class Guarded:
    """The users of the page on a shared Redis, with names and a prefix of this test."""

    def __init__(self, server: RedisServer) -> None:
        self.prefix = uuid.uuid4().hex
        self._server = server
        for user, rules in RULES.items():
            self.allow(
                user, "on", ">secret", *rules.replace("registry:", f"{self.prefix}:").split()
            )
        self.command("ACL", "LOG", "RESET")

    def command(self, *words: str | int) -> object:
        return self._server.command(*words)

    def name(self, user: str) -> str:
        return f"{user}-{self.prefix}"

    def allow(self, user: str, *rules: str) -> None:
        self.command("ACL", "SETUSER", self.name(user), *rules)

    def url(self, user: str, password: str = ":secret") -> str:
        url = self._server.url.replace("redis://", f"redis://{self.name(user)}{password}@")
        return f"{url}?prefix={self.prefix}"

    def connect(self, user: str) -> Hub:
        return mooring.connect(self.url(user), settings=SETTINGS)

    def connect_as_operator(self) -> Hub:
        return mooring.connect(f"{self._server.url}?prefix={self.prefix}", settings=SETTINGS)

    def refusals(self) -> list[str]:
        """The commands that Redis refused so far, except for those with which the driver starts."""
        log = self.command("ACL", "LOG")
        assert isinstance(log, list)
        entries = [str(entry) for entry in log]
        return [entry for entry in entries if "client" not in entry.split("'object', ")[1][:9]]

    def remove(self) -> None:
        self.command("ACL", "DELUSER", *map(self.name, RULES))


@pytest.fixture(
    params=usual(["7.0"], ["6.2", "valkey-9"], reason="the rules themselves run on each series")
)
def series(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def server(series: str, redis: Callable[[str], RedisServer]) -> Iterator[Guarded]:
    guarded = Guarded(redis(series))
    yield guarded
    guarded.remove()


@pytest.mark.parametrize("series", ["6.2", "7.0", "valkey-9"])
async def test_the_rules_suffice_for_every_role(server: Guarded):
    async with (
        server.connect("provider") as provider,
        server.connect("consumer") as consumer,
        server.connect("sweeper") as sweeper,
        server.connect_as_operator() as operator,
        fleet(provider, 2) as echo,
        fleet(provider, 1, first=8, ephemeral=False) as stays,
        consumer.discover("echo") as view,
    ):
        server.command("SCRIPT", "FLUSH")
        echo[0].update(metadata={"a": "1"}, healthy=False)
        await eventually(lambda: any(i.metadata == {"a": "1"} for i in view.instances))
        await eventually(lambda: registry_of(consumer)._channels.hears("echo"))
        assert len((await consumer.registry.instances("echo")).instances) == 3
        assert [*await consumer.registry.services()] == [("echo", 3)]
        assert await consumer.registry.config("echo") == {}
        async with fleet(provider, 1, first=5) as dying:
            await silence(operator, [*dying, *stays])
            sweeps = evictions_of(registry_of(sweeper))
            server.command("SET", f"{server.prefix}:services:echo:evictions", "0")
            server.command("HSET", f"{server.prefix}:services:echo:instance:zombie", "host", "h")

            async def gone() -> bool:
                swept = await sweeps.sweep()
                assert swept.problems == []
                return len((await consumer.registry.instances("echo")).instances) == 3

            await eventually(gone)
            assert await sweeps.brakes() == {}
            assert not await sweeps.release("echo")
            await stays[0]._record.beat(stays[0].instance, update=False)
        async with fleet(provider, 4, service="many") as many:
            await silence(operator, many)

            async def held() -> bool:
                await sweeps.sweep()
                return bool(await sweeps.brakes())

            await eventually(held)
            assert await sweeps.release("many")

            async def empty() -> bool:
                await sweeps.sweep()
                return not (await consumer.registry.instances("many")).instances

            await eventually(empty)
    assert server.refusals() == []


async def test_every_permission_of_a_consumer_is_necessary(server: Guarded):
    """Without any of them, Redis refuses something that a consumer does."""
    many = [word for number in range(3000) for word in (number, f"m{number}")]
    server.command("ZADD", f"{server.prefix}:services:many:heartbeats", *many)
    idle = []
    async with server.connect("provider") as provider, fleet(provider, 1):
        for right in re.findall(r"\+(\S+)", RULES["consumer"]):
            server.allow("consumer", f"-{right}")
            server.command("ACL", "LOG", "RESET")
            server.command("SCRIPT", "FLUSH")
            with contextlib.suppress(AccessDenied, Unavailable):
                await _all_that_a_consumer_does(server)
            if not server.refusals():
                idle.append(right)
            server.allow("consumer", f"+{right}")
    assert idle == []


async def _all_that_a_consumer_does(server: Guarded) -> None:
    async with server.connect("consumer") as consumer:
        registry = registry_of(consumer)
        await registry.services()
        await registry.instances("many")
        await registry.heard_between("echo", 0)
        await registry.config("echo")
        async with consumer.discover("echo"):
            channel = registry._channels
            await eventually(lambda: channel.hears("echo") or bool(server.refusals()))
            subscribed = channel.heard
            # Nothing changes: the next message that it receives is the reply to a PING.
            await eventually(lambda: channel.heard > subscribed or bool(server.refusals()))
        with contextlib.suppress(AssertionError):
            await eventually(lambda: bool(server.refusals()))


async def test_a_consumer_learns_that_redis_accepts_no_writes(server: Guarded):
    async with (
        server.connect("provider") as provider,
        server.connect("consumer") as consumer,
        fleet(provider, 3),
    ):
        server.command("CONFIG", "SET", "min-replicas-to-write", 1)
        try:
            listing = await consumer.registry.instances("echo")
            assert any("rejects writes" in str(problem) for problem in listing.problems)
            server.allow("consumer", "-info")
            listing = await consumer.registry.instances("echo")
            assert any("rejects writes" in str(problem) for problem in listing.problems)
        finally:
            server.command("CONFIG", "SET", "min-replicas-to-write", 0)


async def test_a_consumer_cannot_write(server: Guarded):
    async with (
        server.connect("provider") as provider,
        server.connect("consumer") as consumer,
        fleet(provider, 1) as echo,
    ):
        with pytest.raises(AccessDenied):
            await consumer.registry.deregister("echo", echo[0].instance.id)
        with pytest.raises(AccessDenied):
            await consumer.registry.configure("echo", set={"weight": 1})
        with pytest.raises(AccessDenied):
            async with consumer.register(Instance("echo", "10.0.0.9", 9)):
                pass
        assert len((await consumer.registry.instances("echo")).instances) == 1


async def test_a_consumer_that_cannot_subscribe_reads_at_an_interval(
    server: Guarded, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    server.allow("consumer", "resetchannels", "-subscribe")
    async with (
        server.connect("provider") as provider,
        server.connect("consumer") as consumer,
        server.connect_as_operator() as operator,
        consumer.discover("echo") as view,
        fleet(provider, 1) as echo,
    ):
        await eventually(lambda: len(view.instances) == 1)
        assert not view.stale
        await silence(operator, echo)
        await eventually(lambda: len(view.instances) == 0)
    messages = [r.getMessage() for r in caplog.records if "changes" in r.getMessage()]
    assert len([text for text in messages if "no permission to subscribe" in text]) == 1


async def test_wrong_credentials_are_reported(server: Guarded):
    async with mooring.connect(server.url("provider", ":wrong"), settings=SETTINGS) as hub:
        with pytest.raises(AccessDenied, match=r"the login at .* failed"):
            await hub.registry.services()
        with pytest.raises(AccessDenied):
            async with hub.register(Instance("echo", "10.0.0.9", 9)):
                pass


async def test_a_consumer_without_messages_still_sees_instances_leave(server: Guarded):
    server.allow("consumer", "resetchannels", "-subscribe")
    async with (
        server.connect("provider") as provider,
        server.connect("consumer") as consumer,
        fleet(provider, 2),
        consumer.discover("echo") as view,
    ):
        assert len(view.instances) == 2
        async with fleet(provider, 1, first=7):
            await eventually(lambda: len(view.instances) == 3)
        await eventually(lambda: len(view.instances) == 2)


async def test_a_rotated_password_file_is_read_for_the_next_connection(
    server: Guarded, tmp_path: Path
):
    file = tmp_path / "password"
    file.write_text("secret\n")
    url = f"{server.url('provider', '')}&password_file={file}"
    async with mooring.connect(url, settings=SETTINGS) as hub, fleet(hub, 1) as (echo,):
        server.allow("provider", "resetpass", ">rotated")
        server.command("CLIENT", "KILL", "USER", server.name("provider"))
        await eventually(lambda: echo.state == "suspended")
        file.write_bytes(b"\xff")
        with pytest.raises(AccessDenied, match="cannot be read"):
            await hub.registry.instances("echo")
        file.unlink()
        for _ in range(2):  # no connection is kept that has not logged in
            with pytest.raises(AccessDenied, match="cannot be read"):
                await hub.registry.instances("echo")
        file.write_text("rotated\n")
        await eventually(lambda: echo.state == "registered")
