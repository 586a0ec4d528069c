"""Which instances stay listed when no instance is callable any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import pytest

from mooring.discovery.exclusion import Selector
from mooring.discovery.last_known_good import RetainedFeed, Retention
from mooring.messages import verbatim
from mooring.mirror import Mirror, Step
from mooring.model import Instance, Status
from tests.waiting import eventually


def one(port: int, *, state: str = "up", incarnation: str = "first", **fields: object) -> Instance:
    status = Status(state=state)  # type: ignore[arg-type]
    made = Instance("echo", "10.0.0.1", port, status=status, incarnation=incarnation, **fields)  # type: ignore[arg-type]
    return made


class Shown:
    """A retention as a feed drives it. An instance is explained if it was draining."""

    def __init__(self, *instances: Instance, selector: Selector | None = None, **options: object):
        self.retention = Retention(selector or Selector(), **options)  # type: ignore[arg-type]
        self.put(*instances, at=0)

    def _change(self, changes: list[tuple[str, Instance | None]], at: float) -> None:
        retention = self.retention
        gone = retention.update(changes)
        if retention.held:
            retention.release(changes)
        suspects = retention.suspects(gone, at) if gone else {}
        if suspects:
            vanished = {id: i for id, i in suspects.items() if i.status.state == "up"}
            retention.keep(gone, vanished, at)

    def put(self, *instances: Instance, at: float) -> None:
        self._change([(instance.id, instance) for instance in instances], at)

    def remove(self, *ports: int, at: float) -> None:
        self._change([(f"10.0.0.1:{port}", None) for port in ports], at)

    def at(self, now: float) -> list[int]:
        self.retention.expire(now)
        shown: Iterable[Instance] = {**self.retention.held, **self.retention.items}.values()
        return sorted(instance.port for instance in shown)


def test_the_last_instance_that_leaves_is_held_briefly():
    shown = Shown(one(1), hold=2)
    shown.put(one(1, state="draining"), at=1)
    shown.remove(1, at=1)
    assert shown.at(2.9) == [1]
    assert not shown.retention.doubtful
    assert "left" in str(shown.retention.reason)
    assert shown.at(3.0) == []
    assert shown.retention.reason is None


def test_another_callable_instance_ends_the_hold():
    shown = Shown(one(1, state="draining"), hold=2)
    shown.remove(1, at=1)
    shown.put(one(2, enabled=False), at=1.1)
    assert shown.at(1.2) == [1, 2]
    shown.put(one(3), at=1.3)
    assert shown.at(1.3) == [2, 3]


def test_a_hold_of_0_empties_the_list_at_once():
    shown = Shown(one(1, state="draining"), hold=0)
    shown.remove(1, at=1)
    assert shown.at(1) == []


def test_the_durations_are_those_in_the_documentation():
    left, vanished = Shown(one(1)), Shown(one(1))
    left.put(one(1, state="draining"), at=0)
    left.remove(1, at=0)
    vanished.remove(1, at=0)
    assert (left.at(2.4), left.at(2.5)) == ([1], [])
    assert (vanished.at(9.9), vanished.at(10)) == ([1], [])


def test_keep_needs_no_hold():
    shown = Shown(one(1), hold=0, empty="keep")
    shown.put(one(1, state="draining"), at=1)
    shown.remove(1, at=2)
    assert shown.at(1000) == [1]
    assert "the last list is kept" in str(shown.retention.reason)


def test_an_instance_that_leaves_others_behind_is_removed_at_once():
    shown = Shown(one(1), one(2))
    shown.remove(1, at=1)
    assert shown.at(1) == [2]


@pytest.mark.parametrize("left", [one(2, enabled=False), one(2, version="1"), one(2, state="down")])
def test_instances_that_are_not_callable_do_not_count(left: Instance):
    shown = Shown(one(1, state="draining", version="2"), left, selector=Selector(version="2"))
    shown.remove(1, at=1)
    assert shown.at(1.5) == [1, 2]


def test_a_vanished_fleet_is_kept_in_doubt_until_every_instance_is_back():
    shown = Shown(*(one(port) for port in range(1, 6)))
    shown.remove(*range(1, 6), at=1)
    assert shown.at(2) == [1, 2, 3, 4, 5]
    assert shown.retention.doubtful
    assert "vanished without deregistering" in str(shown.retention.reason)
    shown.put(one(3), at=2)
    assert shown.at(9) == [1, 2, 3, 4, 5]
    assert shown.retention.doubtful
    shown.put(one(1), one(2), one(4), at=9)
    assert shown.at(10.9) == [1, 2, 3, 4, 5]
    assert shown.at(11) == [1, 2, 3, 4]
    assert not shown.retention.doubtful


def test_instances_that_vanish_one_after_another_are_kept_together():
    shown = Shown(*(one(port) for port in range(1, 6)))
    for port in range(1, 6):
        shown.remove(port, at=port)
    assert shown.at(6) == [1, 2, 3, 4, 5]


def test_instances_that_vanished_long_ago_stay_removed():
    shown = Shown(one(1), one(2))
    shown.remove(1, at=1)
    shown.remove(2, at=20)
    assert shown.at(21) == [2]
    assert shown.at(30) == []


def test_a_draining_instance_is_kept_rather_than_one_that_crashed_before():
    shown = Shown(one(1), one(2))
    shown.remove(1, at=1)
    shown.put(one(2, state="draining"), at=2)
    shown.remove(2, at=2)
    assert shown.at(3) == [2]
    assert not shown.retention.doubtful


def test_a_successor_ends_the_doubt():
    shown = Shown(one(1))
    shown.remove(1, at=1)
    shown.put(one(2), at=2)
    assert shown.at(2) == [2]
    again = Shown(one(1), one(2))
    again.remove(1, 2, at=1)
    again.put(one(1, incarnation="second"), at=2)
    assert again.at(2) == [1]


def test_keep_lasts_until_an_instance_is_callable():
    shown = Shown(one(1), empty="keep")
    shown.put(one(1, state="draining"), at=1)
    shown.remove(1, at=1)
    assert shown.at(1000) == [1]
    assert not shown.retention.doubtful
    shown.put(one(2), at=1001)
    assert shown.at(1001) == [2]


def test_keep_continues_after_the_doubt():
    shown = Shown(one(1), empty="keep")
    shown.remove(1, at=1)
    assert shown.retention.doubtful
    assert shown.at(1000) == [1]
    assert not shown.retention.doubtful
    assert "the last list is kept" in str(shown.retention.reason)


class SilentFeed:
    """Its only instance drains and leaves; then the feed is silent."""

    name, doubt, kept = verbatim("echo"), None, ()

    def __init__(self) -> None:
        self.heard = 0.0

    async def explained(self, gone: Mapping[str, Instance]) -> set[str]:
        return set(gone)

    async def snapshot(self) -> tuple[dict[str, Instance], int]:
        return {"10.0.0.1:1": one(1, state="draining")}, 1

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[str, Instance], *, known: float
    ) -> AsyncIterator[SilentFeed]:
        yield self

    async def __aiter__(self) -> AsyncIterator[Step[str, Instance]]:
        yield Step(2, [("10.0.0.1:1", None)])
        await asyncio.Event().wait()


async def test_elapsed_time_is_no_sign_of_the_registry():
    async with Mirror(RetainedFeed(SilentFeed(), hold=0.5)) as mirror:
        await eventually(lambda: mirror.mark == 2)
        assert mirror.items, "it is held"
        await eventually(lambda: not mirror.items)
        assert mirror.age >= 0.45
