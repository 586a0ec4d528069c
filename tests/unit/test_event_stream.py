"""The live stream: told once a tick, encoded once for all, and nobody waits for who is slow."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from mooring.server import event_stream as streaming
from mooring.server.event_stream import (
    ChangeLog,
    EventSource,
    EventStream,
    EventSubscription,
    TooManyListeners,
    TooManyPerToken,
)
from mooring.server.live.problems import FleetProblem


@given(some.lists(some.sets(some.sampled_from("abcdef"), max_size=4), max_size=20), some.data())
def test_what_changed_since_is_each_thing_once(ticks: list[set[str]], data: some.DataObject):
    changes: ChangeLog[str] = ChangeLog(limit=1000)
    for number, things in enumerate(ticks, start=1):
        changes.add(things, number)
    position = data.draw(some.integers(0, len(ticks)))
    found = changes.since(position)
    assert found is not None
    assert len(found) == len(set(found))
    assert set(found) == set().union(*ticks[position:])


@given(some.lists(some.sets(some.integers(0, 30), max_size=5), max_size=30), some.integers(1, 8))
def test_what_is_forgotten_is_never_passed_over(ticks: list[set[int]], kept: int):
    changes: ChangeLog[int] = ChangeLog(limit=kept)
    for number, things in enumerate(ticks, start=1):
        changes.add(things, number)
    for position in range(len(ticks) + 1):
        found = changes.since(position)
        assert found is None or set(found) == set().union(*ticks[position:])


class Fleet(EventSource):
    """Services as plain data, counted each time that one is shown."""

    def __init__(self) -> None:
        self.services: dict[str, dict[str, int]] = {}
        self.wrong: list[FleetProblem] = []
        self.shown: Counter[str] = Counter()
        self._callback: Callable[[Collection[tuple[str, str]]], None] = lambda _: None

    def subscribe(
        self, callback: Callable[[Collection[tuple[str, str]]], None]
    ) -> Callable[[], None]:
        self._callback = callback
        return lambda: None

    def change(self, service: str, id: str = "1", value: int = 0) -> None:
        self.services.setdefault(service, {})[id] = value
        self._callback([(service, id)])

    def remove(self, service: str, id: str = "") -> None:
        gone = list(self.services[service]) if not id else [id]
        for each in gone:
            del self.services[service][each]
        if not self.services[service]:
            del self.services[service]
        self._callback([(service, each) for each in gone])

    def service(self, name: str) -> object | None:
        self.shown[name] += 1
        there = self.services.get(name)
        return None if there is None else {"serviceName": name, "instances": len(there)}

    def instance(self, service: str, id: str) -> object | None:
        self.shown[f"{service} {id}"] += 1
        value = self.services.get(service, {}).get(id)
        return None if value is None else {"instanceId": id, "value": value}

    def health(self, sees: Callable[[str], bool]) -> object:
        return {"totalServices": sum(map(sees, self.services)), "timestamp": str(id(object()))}

    def problems(self) -> list[FleetProblem]:
        return self.wrong


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
async def stream(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EventStream]:
    """One that ticks when the test says so."""
    monkeypatch.setattr(streaming, "HEALTH_INTERVAL", 3600.0)
    async with EventStream(fleet, tick=3600.0, max_listeners=3) as opened:
        await settled(fleet)
        yield opened


async def settled(fleet: Fleet) -> None:
    """Let the stream tick once by itself; the next would be in an hour."""
    fleet._callback([])
    for _ in range(10):
        await asyncio.sleep(0)


ALL = EventSubscription()


class Heard:
    """Somebody who listens, and understands."""

    def __init__(
        self, stream: EventStream, ask: EventSubscription = ALL, last: str = "", **named: Any
    ) -> None:
        self.listener = stream.open(ask, last, **named)
        self._frames = self.listener.frames()
        self.raw = b""
        self.last = last

    async def next(self) -> dict[str, Any]:
        """The events of the next frame, by name."""
        self.raw = await asyncio.wait_for(anext(self._frames), 20)
        events: dict[str, Any] = {}
        for block in self.raw.decode().removesuffix("\n\n").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            self.last = fields.get("id", self.last)
            if "event" in fields:
                events[fields["event"]] = msgspec.json.decode(fields["data"])
        return events


async def test_it_says_hello_with_what_is_told_whole(stream: EventStream, fleet: Fleet):
    fleet.change("orders")
    hello = await Heard(stream).next()
    assert hello["hello"]["resumed"] is False
    assert hello["health"]["totalServices"] == 1
    assert hello["problems"] == []
    assert "reset" not in hello


async def test_many_changes_of_a_tick_are_one_frame(stream: EventStream, fleet: Fleet):
    heard = Heard(stream)
    await heard.next()
    for value in range(100):
        fleet.change("orders", value=value)
    fleet.change("billing")
    stream.advance()
    frame = await heard.next()
    names = {each["serviceName"] for each in frame["services"]["changed"]}
    assert names == {"orders", "billing"}
    assert fleet.shown["orders"] == 1


async def test_what_is_said_is_encoded_once_and_shared(stream: EventStream, fleet: Fleet):
    listening = [Heard(stream) for _ in range(3)]
    for each in listening:
        await each.next()
    fleet.change("orders")
    stream.advance()
    for each in listening:
        await each.next()
    assert fleet.shown["orders"] == 1
    assert listening[0].raw is listening[1].raw is listening[2].raw


async def test_scopes_share_the_words_of_a_service_and_see_their_own_alone(
    stream: EventStream, fleet: Fleet
):
    everything, scoped = Heard(stream), Heard(stream, EventSubscription(frozenset({"a"})))
    await everything.next()
    await scoped.next()
    fleet.change("a/one")
    fleet.change("b/two")
    stream.advance()
    assert len((await everything.next())["services"]["changed"]) == 2
    told = await scoped.next()
    assert [each["serviceName"] for each in told["services"]["changed"]] == ["a/one"]
    assert b"two" not in scoped.raw
    assert fleet.shown["a/one"] == 1


async def test_what_others_do_wakes_nobody_outside(stream: EventStream, fleet: Fleet):
    scoped = Heard(stream, EventSubscription(frozenset({"a"})))
    await scoped.next()
    fleet.change("b/two")
    stream.advance()
    fleet.change("a/one")
    waiting = asyncio.ensure_future(scoped.next())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    stream.advance()
    assert "b/two" not in str(await waiting)


async def test_what_is_gone_is_named(stream: EventStream, fleet: Fleet):
    fleet.change("orders")
    fleet.change("billing", "1")
    fleet.change("billing", "2")
    stream.advance()
    heard = Heard(stream, EventSubscription(service="billing"))
    await heard.next()
    fleet.remove("orders")
    fleet.remove("billing", "2")
    stream.advance()
    frame = await heard.next()
    assert frame["services"]["removed"] == ["orders"]
    assert frame["instances"] == {"service": "billing", "changed": [], "removed": ["2"]}


async def test_instances_are_told_of_the_service_that_was_asked_for(
    stream: EventStream, fleet: Fleet
):
    heard = Heard(stream, EventSubscription(service="orders"))
    await heard.next()
    fleet.change("orders", "1", 7)
    fleet.change("billing", "1", 8)
    stream.advance()
    frame = await heard.next()
    assert frame["instances"]["changed"] == [{"instanceId": "1", "value": 7}]
    assert fleet.shown["billing 1"] == 0


async def test_only_the_kinds_that_were_asked_for(stream: EventStream, fleet: Fleet):
    heard = Heard(stream, EventSubscription(kinds=frozenset({"problems"})))
    assert set(await heard.next()) == {"hello", "problems"}


async def test_who_is_slow_hears_of_each_thing_once_as_it_is_now(stream: EventStream, fleet: Fleet):
    slow, quick = (
        Heard(stream, EventSubscription(service="orders")),
        Heard(stream, EventSubscription(service="orders")),
    )
    await slow.next()
    await quick.next()
    for value in range(1, 50):
        fleet.change("orders", "1", value)
        fleet.change("orders", str(1000 + value), value)
        stream.advance()
        assert len((await quick.next())["instances"]["changed"]) == 2
    told = (await slow.next())["instances"]["changed"]
    assert len(told) == 50
    assert {"instanceId": "1", "value": 49} in told


async def test_who_comes_back_hears_what_was_missed(stream: EventStream, fleet: Fleet):
    before = Heard(stream)
    await before.next()
    fleet.change("orders")
    stream.advance()
    await before.next()
    fleet.change("billing")
    stream.advance()
    again = Heard(stream, last=before.last)
    hello = await again.next()
    assert hello["hello"]["resumed"] is True
    assert "reset" not in hello
    missed = (await again.next())["services"]["changed"]
    assert [each["serviceName"] for each in missed] == ["billing"]


async def test_who_comes_back_and_goes_at_once_misses_nothing(stream: EventStream, fleet: Fleet):
    before = Heard(stream)
    await before.next()
    fleet.change("orders")
    stream.advance()
    cut_off = Heard(stream, last=before.last)
    assert (await cut_off.next())["hello"]["resumed"] is True
    again = Heard(stream, last=cut_off.last)
    await again.next()
    missed = (await again.next())["services"]["changed"]
    assert [each["serviceName"] for each in missed] == ["orders"]


async def test_who_comes_back_when_nobody_listened_hears_what_is_told_whole(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "HEALTH_INTERVAL", 0.0)
    async with EventStream(fleet, tick=3600.0) as stream:
        await settled(fleet)
        before = Heard(stream)
        await before.next()
        await before._frames.aclose()  # type: ignore[attr-defined]
        stream.advance()
        fleet.wrong = [FleetProblem("stale:", "critical", "stale", "", "", None, "it is away", "")]
        stream.advance()
        again = Heard(stream, last=before.last)
        assert (await again.next())["hello"]["resumed"] is True
        assert [each["text"] for each in (await again.next())["problems"]] == ["it is away"]


@pytest.mark.parametrize("last", ["0123abcd-5", "nonsense", "-1", "{epoch}-999", "{epoch}-x"])
async def test_who_comes_back_from_elsewhere_must_read_anew(stream: EventStream, last: str):
    heard = Heard(stream)
    await heard.next()
    epoch = heard.last.rpartition("-")[0]
    told = await Heard(stream, last=last.replace("{epoch}", epoch)).next()
    assert "reset" in told
    assert "health" in told


async def test_who_was_away_for_too_long_must_read_anew(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "HEALTH_INTERVAL", 3600.0)
    async with EventStream(fleet, tick=3600.0) as stream:
        await settled(fleet)
        stream._services = ChangeLog(limit=10)
        slow = Heard(stream)
        await slow.next()
        for number in range(20):
            fleet.change(f"service-{number}")
            stream.advance()
        assert "reset" in await slow.next()
        fleet.change("orders")
        stream.advance()
        assert set(await slow.next()) == {"services"}


async def test_health_and_problems_are_told_when_they_change(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "HEALTH_INTERVAL", 0.0)
    async with EventStream(fleet, tick=3600.0) as stream:
        await settled(fleet)
        heard = Heard(stream)
        await heard.next()
        fleet.wrong = [FleetProblem("stale:", "critical", "stale", "", "", None, "it is away", "")]
        stream.advance()
        assert [each["text"] for each in (await heard.next())["problems"]] == ["it is away"]
        position = stream.position
        stream.advance()
        assert stream.position == position
        fleet.change("orders")
        stream.advance()
        frame = await heard.next()
        assert frame["health"]["totalServices"] == 1
        assert "problems" not in frame


async def test_there_is_room_for_so_many(stream: EventStream):
    listening = [Heard(stream) for _ in range(3)]
    with pytest.raises(TooManyListeners):
        stream.open(EventSubscription())
    await listening[0].next()
    await listening[0]._frames.aclose()  # type: ignore[attr-defined]
    assert stream.clients == 2
    del listening[1]  # one that never began
    assert stream.clients == 1
    stream.open(EventSubscription())


async def test_one_token_has_so_much_of_it(fleet: Fleet):
    async with EventStream(fleet, max_listeners=20, max_per_token=2) as stream:
        listening = [
            Heard(stream, ask, token="a") for ask in (ALL, EventSubscription(frozenset({"shop"})))
        ]
        with pytest.raises(TooManyPerToken):
            stream.open(ALL, token="a")
        Heard(stream, token="b")
        listening.pop()
        Heard(stream, token="a")


async def test_there_is_room_left_for_who_can_act(fleet: Fleet):
    async with EventStream(fleet, max_listeners=20) as stream:
        listening = [Heard(stream) for _ in range(18)]
        with pytest.raises(TooManyListeners):
            stream.open(ALL)
        listening += [Heard(stream, acts=True) for _ in range(2)]
        with pytest.raises(TooManyListeners):
            stream.open(ALL, acts=True)


async def test_who_may_no_longer_listen_is_cut_off(
    stream: EventStream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "AUTH_INTERVAL", 0.02)
    may = True
    heard = Heard(stream, authorized=lambda: may)
    await heard.next()
    may = False
    with pytest.raises(StopAsyncIteration):
        await heard.next()
    assert stream.clients == 0


async def test_who_may_no_longer_listen_is_cut_off_amid_changes(
    stream: EventStream, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "AUTH_INTERVAL", 0.0)
    heard = Heard(stream, authorized=lambda: False)
    await heard.next()
    fleet.change("orders")
    stream.advance()
    with pytest.raises(StopAsyncIteration):
        await heard.next()


async def test_something_is_said_where_nothing_happens(
    stream: EventStream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "KEEPALIVE", 0.0)
    heard = Heard(stream)
    await heard.next()
    assert await heard.next() == {}
    assert heard.raw.endswith(b": still here\n\n")


async def test_leaving_ends_all(fleet: Fleet):
    async with EventStream(fleet) as stream:
        heard = Heard(stream)
        await heard.next()
    with pytest.raises(StopAsyncIteration):
        await heard.next()
    with pytest.raises(TooManyListeners):
        stream.open(EventSubscription())


async def test_it_ticks_by_itself(fleet: Fleet):
    async with EventStream(fleet, tick=0.01) as stream:
        heard = Heard(stream, EventSubscription(kinds=frozenset({"services"})))
        await heard.next()
        fleet.change("orders")
        assert "services" in await heard.next()


async def test_hostile_names_stay_within_their_line(stream: EventStream, fleet: Fleet):
    name = 'x\n\nevent: reset\ndata: "\r\u2028</script>'
    heard = Heard(stream)
    await heard.next()
    fleet.services[name] = {}
    fleet._callback([(name, "")])
    fleet._callback([("gone\r\n\r\nevent: reset", "")])
    stream.advance()
    frame = await heard.next()
    assert set(frame) == {"services"}
    assert frame["services"]["changed"][0]["serviceName"] == name
    assert b"\r" not in heard.raw
