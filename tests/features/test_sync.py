"""The blocking API: the async one, from threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import pytest
from tools.blocking_types import TARGET, stub

import mooring
import mooring.sync
from mooring.discovery.resilience import Resilience
from mooring.discovery.view import ViewState
from mooring.errors import Closed, InvalidRequest, InvalidURL, NoInstance
from mooring.mirror import Update
from mooring.model import Instance
from mooring.registry.contract import Listing
from mooring.settings import parse
from mooring.store import Entry, Put, prefix
from mooring.sync.loop_thread import LoopThread
from mooring.sync.portal import Caller, Portal
from tests.waiting import until

ECHO = Instance("Common/Echo", "10.0.0.1", 80)


@pytest.fixture
def backend() -> str:
    return "memory"


@pytest.fixture
def hub(store_url: str) -> Iterator[mooring.sync.Hub]:
    with mooring.sync.connect(store_url) as opened:
        yield opened


@pytest.mark.parametrize("backend", ["memory", "sqlite", "etcd-3.5"])
def test_blocking_code_does_the_same_as_async_code(hub: mooring.sync.Hub):
    with hub.register(ECHO) as registration, hub.discover("Common/Echo") as view:
        view.wait(timeout=20)
        with view.pick() as instance:
            assert instance.id == registration.instance.id == "10.0.0.1:80"
        assert registration.state == "registered"
        assert [instance.id for instance in hub.registry.instances("Common/Echo").instances] == [
            "10.0.0.1:80"
        ]
    assert hub.registry.instances("Common/Echo").instances == ()


def test_types_are_known_to_a_type_checker(hub: mooring.sync.Hub):
    assert_type(hub, mooring.sync.Hub)
    assert_type(hub.registry.instances("echo"), Listing)
    with hub.register(ECHO) as registration:
        assert_type(registration, mooring.sync.Registration)
        assert_type(registration.instance, Instance)
    with hub.discover("echo", resilience=Resilience()) as view, view.changes() as changes:
        assert_type(view.seen, ViewState)
        assert_type(changes, Iterator[Update[str, Instance]])
    with hub.mirror(prefix(b"/")) as mirror:
        assert_type(mirror, mooring.sync.Mirror[bytes, Entry])


def test_the_types_match_the_async_api():
    assert TARGET.read_text() == stub(), "run: python tools/blocking_types.py"


def test_every_type_can_be_named():
    for name in mooring.sync.__all__:
        assert getattr(mooring.sync, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        mooring.sync.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_objects_are_blocking_and_data_is_unchanged(hub: mooring.sync.Hub):
    assert isinstance(hub, mooring.sync.Hub)
    assert isinstance(hub.store, mooring.sync.Store)
    assert isinstance(hub.registry, mooring.sync.Registry)
    assert type(hub.registry.instances("echo")) is Listing
    with hub.session(ttl=5) as session:
        assert isinstance(session, mooring.sync.Session)
        assert not session.lost.is_set()
        assert session.state == "alive"
        hub.store.revoke(session.lease)
        assert session.lost.wait()


def test_a_live_mapping_is_copied(hub: mooring.sync.Hub):
    hub.store.commit(Put(b"/a", b"1"))
    with hub.mirror(prefix(b"/")) as mirror:
        before = mirror.items
        hub.store.commit(Put(b"/b", b"2"))
        until(lambda: len(mirror.items) == 2)
        assert list(before) == [b"/a"]


def test_iterators_block_until_there_is_more(hub: mooring.sync.Hub):
    with hub.store.watch(prefix(b"/")) as watch:
        threading.Timer(0.05, lambda: hub.store.commit(Put(b"/a", b"1"))).start()
        assert next(watch).events[0].key == b"/a"
    with hub.mirror(prefix(b"/")) as mirror, mirror.changes() as changes:
        mirror.close()
        assert list(changes) == []


def test_private_attributes_stay_private(hub: mooring.sync.Hub):
    with pytest.raises(AttributeError):
        hub._store  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError):
        hub.nonsense  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError):
        hub.store = None  # type: ignore[assignment, misc]
    assert "register" in dir(hub)
    assert "memory://" in repr(hub)


def test_a_bad_url_is_refused_at_once():
    with pytest.raises(InvalidURL):
        mooring.sync.connect("mysql://here")


def test_errors_show_both_sides_of_the_portal(hub: mooring.sync.Hub):
    with hub.discover("nobody") as view, pytest.raises(NoInstance) as caught, view.pick():
        pass
    trace = "".join(traceback.format_exception(caught.value))
    assert "test_errors_show_both_sides_of_the_portal" in trace
    assert "rotation.py" in trace


def test_a_hub_can_be_opened_without_a_block(store_url: str):
    hub = mooring.sync.connect(store_url).open()
    assert hub.open() is hub
    registration = hub.register(ECHO).open()
    assert registration.state == "registered"
    with mooring.sync.connect(store_url) as other:
        registration.close()
        assert other.registry.instances("Common/Echo").instances == ()
    hub.close()
    hub.close()
    registration.close()
    with pytest.raises(Closed, match="not open"):
        hub.store  # noqa: B018


def test_all_hubs_share_one_thread(store_url: str):
    for _ in range(3):
        with mooring.sync.connect(store_url), mooring.sync.connect(store_url):
            pass
    assert [thread.name for thread in threading.enumerate()].count("mooring") == 1


def test_a_hub_that_failed_to_open_is_not_open(tmp_path: Path):
    (tmp_path / "file").write_text("no store")
    hub = mooring.sync.connect(f"sqlite://{tmp_path}/file/below")
    with pytest.raises(mooring.MooringError):
        hub.open()
    with pytest.raises(Closed, match="not open"):
        hub.store  # noqa: B018


def test_many_threads_share_one_hub(hub: mooring.sync.Hub):
    def work(number: int) -> None:
        for turn in range(20):
            hub.store.commit(Put(f"/{number}/{turn}".encode(), b""))

    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        list(threads.map(work, range(20)))
    assert len(hub.store.read(prefix(b"/")).entries) == 400


def test_callbacks_run_on_the_thread_of_the_portal_and_must_not_block(store_url: str):
    outcomes: list[object] = []
    quiet = parse({"registry": {"metrics": {"enabled-metrics": []}}})
    hub = mooring.sync.connect(store_url, settings=quiet)

    def on_update(update: Update[str, Instance]) -> None:
        outcomes.append(threading.current_thread().name)
        try:
            hub.store.status()
        except InvalidRequest as error:
            outcomes.append(error)

    with hub, hub.discover("Common/Echo") as view:
        end = view.subscribe(on_update)
        with hub.register(ECHO):
            until(lambda: len(outcomes) == 2)
        until(lambda: len(outcomes) == 4)
        end()
        with hub.register(ECHO):
            view.wait(timeout=20)
        assert len(outcomes) == 4
    assert outcomes[0] == "mooring"
    assert "wait for itself" in str(outcomes[1])


def test_an_awaited_callback_runs_in_the_calling_thread(hub: mooring.sync.Hub):
    seen: list[object] = []

    def work(instance: Instance) -> str:
        seen.append(threading.current_thread())
        hub.store.status()  # may block: this is not the thread of the loop
        if len(seen) == 1:
            raise ConnectionError("the first fails")
        return instance.id

    other = Instance("Common/Echo", "10.0.0.2", 80)
    with hub.register(ECHO), hub.register(other), hub.discover("Common/Echo") as view:
        view.wait(2, timeout=20)
        assert view.call(work) in ("10.0.0.1:80", "10.0.0.2:80")
    assert seen == [threading.current_thread()] * 2


def test_a_timeout_cancels_the_call(hub: mooring.sync.Hub):
    with hub.session(ttl=5) as session:
        with pytest.raises(TimeoutError), mooring.sync.timeout(0.05), mooring.sync.timeout(60):
            session.lost.wait()
        assert session.state == "alive"
    assert _calls_under_way(hub) == 0


def test_a_call_cancelled_before_it_begins_does_not_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mooring.sync.portal._CANCEL_TIMEOUT", 3600)
    began: list[str] = []

    async def work() -> None:
        began.append("began")

    class Late(Caller):
        def wait(self) -> None:
            try:
                super().wait()
            finally:  # its time is over: the cancellation is posted next
                monkeypatch.setattr(LoopThread, "post", posted)

    post = LoopThread.post

    def posted(thread: LoopThread, *arguments: Any, **options: Any) -> None:
        post(thread, *arguments, **options)
        busy.set()

    def interrupted() -> None:
        with pytest.raises(TimeoutError), mooring.sync.timeout(0.05):
            portal.call(work, caller=Late())

    portal = _portal()
    busy = threading.Event()
    portal.post(lambda: busy.wait(30))  # so that both reach the loop at once
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(interrupted).result(timeout=20)
    portal.close()
    assert began == []


def _portal() -> Portal:
    async def nothing() -> None: ...

    portal = Portal("test", nothing, nothing)
    portal.open()
    return portal


def test_a_block_can_be_left_after_its_deadline(hub: mooring.sync.Hub):
    with pytest.raises(TimeoutError), mooring.sync.timeout(0.2), hub.register(ECHO):
        hub.session().lost.wait()
    assert hub.registry.instances("Common/Echo").instances == ()


def _calls_under_way(hub: mooring.sync.Hub) -> int:
    from mooring.sync.proxy import within

    def count(_: object) -> int:
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("blocking")]
        return len(tasks) - 1

    return within(hub, count)


def test_a_context_entered_too_late_is_left_again():
    undone: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return  # it succeeded in the same instant

    async def undo() -> None:
        undone.append("undone")

    portal = _portal()
    with pytest.raises(TimeoutError), mooring.sync.timeout(1):
        portal.call(stubborn, undo=undo)
    portal.close()
    assert undone == ["undone"]


def test_a_result_long_after_its_caller_left_is_undone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mooring.sync.portal._CANCEL_TIMEOUT", 0.05)
    undone = threading.Event()
    events: list[asyncio.Event] = []

    async def stubborn() -> None:
        events.append(asyncio.Event())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await events[0].wait()

    async def undo() -> None:
        undone.set()

    portal = _portal()
    with pytest.raises(TimeoutError), mooring.sync.timeout(1):
        portal.call(stubborn, undo=undo)
    assert not undone.is_set()
    portal.post(lambda: events[0].set())
    assert undone.wait(20)
    portal.close()


def test_closing_ends_calls_in_progress(store_url: str):
    hub = mooring.sync.connect(store_url).open()
    watch = hub.store.watch(prefix(b"/")).open()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, watch)
        until(lambda: _calls_under_way(hub) == 1)
        hub.close()
        with pytest.raises(Closed):
            waiting.result(timeout=20)


def test_objects_closed_with_their_hub_can_be_read_and_left(store_url: str):
    hub = mooring.sync.connect(store_url).open()
    with hub.register(ECHO) as registration, hub.session() as session, hub.discover("a") as view:
        watch = hub.store.watch(prefix(b"/")).open()
        hub.close()
        assert registration.state == "closed"
        assert view.seen.instances == ()
        with pytest.raises(Closed):
            session.lost.wait()
    watch.close()
    with pytest.raises(Closed, match="not open"):
        hub.lock("lock")


def test_closing_leaves_no_caller_waiting(store_url: str):
    """Whenever a call meets the end of the loop, it gets a result or an error."""
    for _ in range(20):
        hub = mooring.sync.connect(store_url).open()
        store = hub.store

        def ask(store: mooring.sync.Store = store) -> None:
            while True:
                store.status()

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            asking = [threads.submit(ask) for _ in range(4)]
            hub.close()
            for call in asking:
                assert isinstance(call.exception(timeout=20), Closed)
