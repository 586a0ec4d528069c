"""Locks from code without an event loop."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import mooring.sync
from mooring.errors import Conflict, LockLost, LockTimeout, Reentered
from mooring.store import Put
from mooring.sync.portal import Caller
from tests.backends import in_memory
from tests.waiting import until


@pytest.fixture
def hub(store_url: str) -> Iterator[mooring.sync.Hub]:
    with mooring.sync.connect(store_url) as opened:
        yield opened


def test_threads_exclude_each_other(hub: mooring.sync.Hub):
    holding, most, tokens = 0, 0, []

    def work() -> None:
        nonlocal holding, most
        for _ in range(3):
            with hub.lock("lock") as held:
                holding += 1
                most = max(most, holding)
                tokens.append(held.token)
                time.sleep(0.005)  # in this time another thread would enter without the lock
                holding -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 12
    assert hub.locks() == []


def test_a_thread_cannot_wait_for_itself(hub: mooring.sync.Hub):
    with hub.lock("lock"), pytest.raises(Reentered), hub.lock("lock"):
        pass
    with hub.lock("lock", timeout=0):
        pass


def test_another_thread_times_out(hub: mooring.sync.Hub):
    late: list[Exception] = []

    def work() -> None:
        try:
            with hub.lock("lock", timeout=0.2):
                pass
        except LockTimeout as error:
            late.append(error)

    with hub.lock("lock") as held:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert held.state == "held"
    assert len(late) == 1
    assert hub.locks() == []


def lose(hub: mooring.sync.Hub, held: mooring.sync.Held) -> None:
    hub.store.revoke(int(held.key.rpartition(b"/")[2], 16))


def test_a_loss_is_visible_and_raised_and_the_check_fails(hub: mooring.sync.Hub):
    def body() -> None:
        with hub.lock("lock", ttl=15) as held:
            lose(hub, held)
            until(held.lost.is_set)
            assert held.state == "lost"
            with pytest.raises(Conflict):
                hub.store.commit(Put(b"/x", b""), require=[held.check])

    with pytest.raises(LockLost):
        body()
    with hub.lock("lock", timeout=20):
        pass


def test_closing_the_hub_is_a_loss(store_url: str):
    hub = mooring.sync.connect(store_url).open()
    held, closed = threading.Event(), threading.Event()
    seen: list[object] = []

    def body() -> None:
        with hub.lock("lock", ttl=5) as mine:
            lost = mine.lost
            held.set()
            assert closed.wait(20)
            seen.extend([lost.is_set(), mine.lost.is_set(), mine.state])
            with pytest.raises(LockLost):
                mine.ensure()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        running = thread.submit(body)
        assert held.wait(20)
        hub.close()
        closed.set()
        with pytest.raises(LockLost, match="the hub was closed"):
            running.result(timeout=20)
    assert seen == [True, True, "lost"]


def test_leaving_while_the_hub_closes_releases_or_reports_the_loss(store_url: str):
    for _ in range(10):
        hub = mooring.sync.connect(store_url).open()
        lock = hub.lock("lock", ttl=5)
        lock.open()
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            closing = thread.submit(hub.close)
            with contextlib.suppress(LockLost):
                lock.close()
            closing.result(timeout=20)
    with mooring.sync.connect(store_url) as hub, hub.lock("lock", timeout=0):
        pass


@in_memory
def test_a_blocking_body_keeps_the_lock(hub: mooring.sync.Hub):
    with hub.lock("lock", ttl=4) as held:
        time.sleep(4.5)
        assert held.state == "held"
        hub.store.commit(Put(b"/x", b""), require=[held.check])


def test_a_lock_can_be_opened_and_closed(hub: mooring.sync.Hub):
    lock = hub.lock("lock")
    held = lock.open()
    assert held.state == "held"
    lock.close()
    taken = hub.lock("lock").try_acquire()
    assert taken is not None
    taken.release()
    assert hub.locks() == []


ACQUIRE: dict[str, Callable[[mooring.sync.Hub], Callable[[], mooring.sync.Held | None]]] = {
    "acquire": lambda hub: hub.lock("lock").acquire,
    "try_acquire": lambda hub: hub.lock("lock").try_acquire,
    "campaign": lambda hub: hub.election("lock").campaign("me").acquire,
}


@pytest.mark.parametrize("way", ACQUIRE)
def test_a_lock_acquired_as_its_timeout_ends_is_released(hub: mooring.sync.Hub, way: str):
    class Late(Caller):
        """A caller whose time ends in the instant before the reply."""

        def notify(self) -> None: ...

    acquire = ACQUIRE[way](hub)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mooring.sync.proxy.Caller", Late)
        with pytest.raises(TimeoutError), mooring.sync.timeout(0.5):
            acquire()
    assert hub.locks() == []
    with hub.lock("lock", timeout=20):
        pass


def test_all_other_kinds_block_too(hub: mooring.sync.Hub):
    with hub.semaphore("sem", 2), hub.rwlock("rw").read():
        assert {info.name for info in hub.locks()} == {"sem", "rw"}
    election = hub.election("boss")
    with election.observe() as leaders:
        assert next(leaders) is None
        with election.campaign("me") as leadership:
            leader = next(leaders)
            assert leader is not None
            assert leader.text == "me"
            leadership.proclaim("you")
            leader = election.leader()
            assert leader is not None
            assert leader.text == "you"
    threads = [threading.Thread(target=hub.barrier("start", 3, timeout=30).wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
