"""The live stream: one frame a tick, encoded once for all, and no listener waits for a slow one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from mooring.server import event_stream as streaming
from mooring.server.auth.authorization import Principal
from mooring.server.event_stream import (
    ChangeLog,
    EventSource,
    EventStream,
    EventSubscription,
)
from mooring.server.http.response import HTTPError
from mooring.server.live.problems import FleetProblem


@given(some.lists(some.sets(some.sampled_from("abcdef"), max_size=4), max_size=20), some.data())
def test_changes_since_a_position_name_everything_once(
    ticks: list[set[str]], data: some.DataObject
):
    changes: ChangeLog[str] = ChangeLog(limit=1000)
    for number, things in enumerate(ticks, start=1):
        changes.add(things, number)
    position = data.draw(some.integers(0, len(ticks)))
    changed = changes.since(position)
    assert changed is not None
    assert len(changed) == len(set(changed))
    assert set(changed) == set().union(*ticks[position:])


@given(some.lists(some.sets(some.integers(0, 30), max_size=5), max_size=30), some.integers(1, 8))
def test_forgotten_changes_are_never_skipped_silently(ticks: list[set[int]], kept: int):
    changes: ChangeLog[int] = ChangeLog(limit=kept)
    for number, things in enumerate(ticks, start=1):
        changes.add(things, number)
    for position in range(len(ticks) + 1):
        changed = changes.since(position)
        assert changed is None or set(changed) == set().union(*ticks[position:])


class Fleet(EventSource):
    """Services as plain data, with a count of how often each was rendered."""

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
        removed = list(self.services[service]) if not id else [id]
        for removed_id in removed:
            del self.services[service][removed_id]
        if not self.services[service]:
            del self.services[service]
        self._callback([(service, removed_id) for removed_id in removed])

    def service(self, name: str) -> object | None:
        self.shown[name] += 1
        instances = self.services.get(name)
        return None if instances is None else {"serviceName": name, "instances": len(instances)}

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
    """A stream that ticks when the test calls `advance`."""
    monkeypatch.setattr(streaming, "HEALTH_INTERVAL", 3600.0)
    monkeypatch.setattr(streaming, "TICK", 3600.0)
    monkeypatch.setattr(streaming, "MAX_LISTENERS", 3)
    async with EventStream(fleet) as opened:
        await settled(fleet)
        yield opened


async def settled(fleet: Fleet) -> None:
    """Wait for the first tick of the stream's own timer; the next is an hour away."""
    fleet._callback([])
    for _ in range(10):
        await asyncio.sleep(0)


ALL = EventSubscription()
ANN = Principal("ann", "viewer")
OPERATOR = Principal("operator", "operator")


class Listener:
    """A client that listens and parses the frames."""

    def __init__(
        self, stream: EventStream, ask: EventSubscription = ALL, last: str = "", **named: Any
    ) -> None:
        self.listener = stream.open(ask, last, **{"caller": ANN, **named})
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


async def test_a_new_listener_gets_hello_and_the_full_state(stream: EventStream, fleet: Fleet):
    fleet.change("orders")
    hello = await Listener(stream).next()
    assert hello["hello"]["resumed"] is False
    assert hello["health"]["totalServices"] == 1
    assert hello["problems"] == []
    assert "reset" not in hello


async def test_many_changes_of_a_tick_are_one_frame(stream: EventStream, fleet: Fleet):
    listener = Listener(stream)
    await listener.next()
    for value in range(100):
        fleet.change("orders", value=value)
    fleet.change("billing")
    stream.advance()
    frame = await listener.next()
    names = {summary["serviceName"] for summary in frame["services"]["changed"]}
    assert names == {"orders", "billing"}
    assert fleet.shown["orders"] == 1


async def test_frames_are_encoded_once_and_shared(stream: EventStream, fleet: Fleet):
    listening = [Listener(stream) for _ in range(3)]
    for listener in listening:
        await listener.next()
    fleet.change("orders")
    stream.advance()
    for listener in listening:
        await listener.next()
    assert fleet.shown["orders"] == 1
    assert listening[0].raw is listening[1].raw is listening[2].raw


async def test_scoped_listeners_share_encoded_services_and_see_only_their_own(
    stream: EventStream, fleet: Fleet
):
    everything, scoped = Listener(stream), Listener(stream, EventSubscription(frozenset({"a"})))
    await everything.next()
    await scoped.next()
    fleet.change("a/one")
    fleet.change("b/two")
    stream.advance()
    assert len((await everything.next())["services"]["changed"]) == 2
    frame = await scoped.next()
    assert [summary["serviceName"] for summary in frame["services"]["changed"]] == ["a/one"]
    assert b"two" not in scoped.raw
    assert fleet.shown["a/one"] == 1


async def test_changes_outside_the_scope_do_not_wake_a_listener(stream: EventStream, fleet: Fleet):
    scoped = Listener(stream, EventSubscription(frozenset({"a"})))
    await scoped.next()
    fleet.change("b/two")
    stream.advance()
    fleet.change("a/one")
    waiting = asyncio.ensure_future(scoped.next())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    stream.advance()
    assert "b/two" not in str(await waiting)


async def test_removed_services_are_named(stream: EventStream, fleet: Fleet):
    fleet.change("orders")
    fleet.change("billing", "1")
    fleet.change("billing", "2")
    stream.advance()
    listener = Listener(stream, EventSubscription(service="billing"))
    await listener.next()
    fleet.remove("orders")
    fleet.remove("billing", "2")
    stream.advance()
    frame = await listener.next()
    assert frame["services"]["removed"] == ["orders"]
    assert frame["instances"] == {"service": "billing", "changed": [], "removed": ["2"]}


async def test_only_instances_of_the_subscribed_service_are_sent(stream: EventStream, fleet: Fleet):
    listener = Listener(stream, EventSubscription(service="orders"))
    await listener.next()
    fleet.change("orders", "1", 7)
    fleet.change("billing", "1", 8)
    stream.advance()
    frame = await listener.next()
    assert frame["instances"]["changed"] == [{"instanceId": "1", "value": 7}]
    assert fleet.shown["billing 1"] == 0


async def test_only_the_requested_kinds_of_events_are_sent(stream: EventStream, fleet: Fleet):
    listener = Listener(stream, EventSubscription(kinds=frozenset({"problems"})))
    assert set(await listener.next()) == {"hello", "problems"}


async def test_a_slow_listener_gets_only_the_latest_state(stream: EventStream, fleet: Fleet):
    slow, quick = (
        Listener(stream, EventSubscription(service="orders")),
        Listener(stream, EventSubscription(service="orders")),
    )
    await slow.next()
    await quick.next()
    for value in range(1, 50):
        fleet.change("orders", "1", value)
        fleet.change("orders", str(1000 + value), value)
        stream.advance()
        assert len((await quick.next())["instances"]["changed"]) == 2
    changed = (await slow.next())["instances"]["changed"]
    assert len(changed) == 50
    assert {"instanceId": "1", "value": 49} in changed


async def test_a_reconnecting_listener_gets_what_it_missed(stream: EventStream, fleet: Fleet):
    before = Listener(stream)
    await before.next()
    fleet.change("orders")
    stream.advance()
    await before.next()
    fleet.change("billing")
    stream.advance()
    again = Listener(stream, last=before.last)
    hello = await again.next()
    assert hello["hello"]["resumed"] is True
    assert "reset" not in hello
    missed = (await again.next())["services"]["changed"]
    assert [summary["serviceName"] for summary in missed] == ["billing"]


async def test_a_listener_that_is_cut_off_after_hello_misses_nothing(
    stream: EventStream, fleet: Fleet
):
    before = Listener(stream)
    await before.next()
    fleet.change("orders")
    stream.advance()
    cut_off = Listener(stream, last=before.last)
    assert (await cut_off.next())["hello"]["resumed"] is True
    again = Listener(stream, last=cut_off.last)
    await again.next()
    missed = (await again.next())["services"]["changed"]
    assert [summary["serviceName"] for summary in missed] == ["orders"]


async def test_a_resumed_stream_sends_problems_that_began_without_listeners(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "HEALTH_INTERVAL", 0.0)
    monkeypatch.setattr(streaming, "TICK", 3600.0)
    async with EventStream(fleet) as stream:
        await settled(fleet)
        before = Listener(stream)
        await before.next()
        await before._frames.aclose()  # type: ignore[attr-defined]
        stream.advance()
        fleet.wrong = [
            FleetProblem("stale:", "critical", "stale", "", "", None, "the registry is down", "")
        ]
        stream.advance()
        again = Listener(stream, last=before.last)
        assert (await again.next())["hello"]["resumed"] is True
        assert [problem["text"] for problem in (await again.next())["problems"]] == [
            "the registry is down"
        ]


@pytest.mark.parametrize("last", ["0123abcd-5", "nonsense", "-1", "{epoch}-999", "{epoch}-x"])
async def test_a_position_of_another_stream_resets_the_listener(stream: EventStream, last: str):
    listener = Listener(stream)
    await listener.next()
    epoch = listener.last.rpartition("-")[0]
    frame = await Listener(stream, last=last.replace("{epoch}", epoch)).next()
    assert frame["reset"]["reason"] == "the last event is unknown"
    assert frame["reset"]["message"]["kind"] == "stream_event_unknown"
    assert "health" in frame


async def test_a_position_that_is_too_old_resets_the_listener(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "HEALTH_INTERVAL", 3600.0)
    monkeypatch.setattr(streaming, "TICK", 3600.0)
    async with EventStream(fleet) as stream:
        await settled(fleet)
        stream._services = ChangeLog(limit=10)
        slow = Listener(stream)
        await slow.next()
        for number in range(20):
            fleet.change(f"service-{number}")
            stream.advance()
        assert (await slow.next())["reset"]["message"]["kind"] == "stream_too_far_behind"
        fleet.change("orders")
        stream.advance()
        assert set(await slow.next()) == {"services"}


async def test_health_and_problems_are_sent_when_they_change(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "HEALTH_INTERVAL", 0.0)
    monkeypatch.setattr(streaming, "TICK", 3600.0)
    async with EventStream(fleet) as stream:
        await settled(fleet)
        listener = Listener(stream)
        await listener.next()
        fleet.wrong = [
            FleetProblem("stale:", "critical", "stale", "", "", None, "the registry is down", "")
        ]
        stream.advance()
        assert [problem["text"] for problem in (await listener.next())["problems"]] == [
            "the registry is down"
        ]
        position = stream.position
        stream.advance()
        assert stream.position == position
        fleet.change("orders")
        stream.advance()
        frame = await listener.next()
        assert frame["health"]["totalServices"] == 1
        assert "problems" not in frame


def bearer(token: str) -> Principal:
    return Principal("ann", "viewer", token=token)


@contextlib.contextmanager
def refused(status: int, kind: str) -> Iterator[None]:
    """The block raises the HTTP error with this status and kind of message."""
    with pytest.raises(HTTPError) as error:
        yield
    assert (error.value.status, error.value.message.kind) == (status, kind)


async def test_the_number_of_listeners_is_limited(stream: EventStream):
    listening = [Listener(stream) for _ in range(3)]
    with refused(503, "streams_of_server"):
        stream.open(EventSubscription(), caller=ANN)
    await listening[0].next()
    await listening[0]._frames.aclose()  # type: ignore[attr-defined]
    assert stream.clients == 2
    del listening[1]  # a stream that was never read
    assert stream.clients == 1
    stream.open(EventSubscription(), caller=ANN)


async def test_the_listeners_of_one_token_are_limited(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "MAX_PER_TOKEN", 2)
    async with EventStream(fleet) as stream:
        listening = [
            Listener(stream, ask, caller=bearer("a"))
            for ask in (ALL, EventSubscription(frozenset({"shop"})))
        ]
        with refused(429, "streams_of_token"):
            stream.open(ALL, caller=bearer("a"))
        Listener(stream, caller=bearer("b"))
        listening.pop()
        Listener(stream, caller=bearer("a"))


async def test_some_listeners_are_reserved_for_operators(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "MAX_LISTENERS", 20)
    async with EventStream(fleet) as stream:
        listening = [Listener(stream) for _ in range(18)]
        with refused(503, "streams_of_server"):
            stream.open(ALL, caller=ANN)
        listening += [Listener(stream, caller=OPERATOR) for _ in range(2)]
        with refused(503, "streams_of_server"):
            stream.open(ALL, caller=OPERATOR)


async def test_a_listener_whose_token_ended_is_disconnected(
    stream: EventStream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "AUTH_INTERVAL", 0.02)
    may = True
    listener = Listener(stream, authorized=lambda: may)
    await listener.next()
    may = False
    with pytest.raises(StopAsyncIteration):
        await listener.next()
    assert stream.clients == 0


async def test_a_listener_whose_token_ended_is_disconnected_amid_changes(
    stream: EventStream, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streaming, "AUTH_INTERVAL", 0.0)
    listener = Listener(stream, authorized=lambda: False)
    await listener.next()
    fleet.change("orders")
    stream.advance()
    with pytest.raises(StopAsyncIteration):
        await listener.next()


async def test_an_idle_stream_sends_comments(stream: EventStream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "KEEPALIVE", 0.0)
    listener = Listener(stream)
    await listener.next()
    assert await listener.next() == {}
    assert listener.raw.endswith(b": still here\n\n")


async def test_closing_ends_all_listeners(fleet: Fleet):
    async with EventStream(fleet) as stream:
        listener = Listener(stream)
        await listener.next()
    with pytest.raises(StopAsyncIteration):
        await listener.next()
    with refused(503, "streams_of_server"):
        stream.open(EventSubscription(), caller=ANN)


async def test_the_stream_ticks_without_help(fleet: Fleet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "TICK", 0.01)
    async with EventStream(fleet) as stream:
        listener = Listener(stream, EventSubscription(kinds=frozenset({"services"})))
        await listener.next()
        fleet.change("orders")
        assert "services" in await listener.next()


async def test_hostile_names_stay_within_their_line(stream: EventStream, fleet: Fleet):
    name = 'x\n\nevent: reset\ndata: "\r\u2028</script>'
    listener = Listener(stream)
    await listener.next()
    fleet.services[name] = {}
    fleet._callback([(name, "")])
    fleet._callback([("gone\r\n\r\nevent: reset", "")])
    stream.advance()
    frame = await listener.next()
    assert set(frame) == {"services"}
    assert frame["services"]["changed"][0]["serviceName"] == name
    assert b"\r" not in listener.raw
