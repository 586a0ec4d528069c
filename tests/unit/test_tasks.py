"""Tasks end with their owner, crashes are logged, and cleanup is bounded and not interrupted."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.tasks import Backoff, Schedule, Tasks, cleanup


async def test_a_crash_is_logged_at_once(caplog: pytest.LogCaptureFixture):
    async def crash() -> None:
        raise ValueError("boom")

    tasks = Tasks()
    task = tasks.start(crash(), name="the crasher")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert "the crasher" in caplog.text
    assert "boom" in caplog.text
    await tasks.aclose()


async def test_closing_cancels_and_waits():
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(1)

    tasks = Tasks()
    tasks.start(work(), name="worker")
    await asyncio.sleep(0)
    await tasks.aclose()
    assert ended == [1]


async def test_a_lost_cancellation_is_repeated(monkeypatch: pytest.MonkeyPatch):
    """In Python 3.11 `asyncio.wait_for` loses a cancellation that arrives with its result."""
    monkeypatch.setattr("mooring.tasks._CANCEL_AGAIN_AFTER", 0.05)
    lost = 0

    async def work() -> None:
        nonlocal lost
        while lost < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
        await asyncio.Event().wait()

    tasks = Tasks()
    tasks.start(work(), name="worker")
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await tasks.aclose()
    assert lost == 2


async def test_cleanup_outlives_a_cancellation():
    done = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0.05)
        done.set()

    task = asyncio.get_running_loop().create_task(cleanup(work(), within=20))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


async def test_cleanup_is_bounded():
    started = time.monotonic()
    assert not await cleanup(asyncio.Event().wait(), within=0.1)
    assert time.monotonic() - started < 0.3


async def test_cleanup_raises_its_own_error():
    async def work() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await cleanup(work(), within=1)


@given(st.integers(1, 50))
def test_pauses_stay_below_their_bound(tries: int):
    backoff = Backoff(first=0.1, most=1.0)
    pauses = [backoff.next() for _ in range(tries)]
    assert all(0 <= pause <= min(0.1 * 2**n, 1.0) for n, pause in enumerate(pauses))


async def test_a_schedule_returns_each_key_once_at_its_earliest_time():
    schedule: Schedule[str] = Schedule()
    now = time.monotonic()
    schedule.plan("later", now + 60)
    schedule.plan("later", now + 0.01)
    schedule.plan("first", now)
    schedule.plan("first", now + 60)
    assert [await schedule.next(), await schedule.next()] == ["first", "later"]
    waiting = asyncio.ensure_future(schedule.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    schedule.plan("new", time.monotonic())
    assert await waiting == "new"
