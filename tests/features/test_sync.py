"""The blocking API: the async one from threads, through interruptions, forks and exits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import assert_type

import pytest
from tools.blocking_types import TARGET, stub

import mooring
import mooring.sync
from mooring.discovery.resilience import Resilience
from mooring.discovery.view import Seen
from mooring.errors import Closed, InvalidRequest, InvalidURL, NoInstance
from mooring.mirror import Update
from mooring.model import Instance
from mooring.registry.contract import Listing
from mooring.store import Entry, Put, prefix
from mooring.sync.portal import Portal
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.waiting import eventually, until

ECHO = Instance("Common/Echo", "10.0.0.1", 80)


@pytest.fixture
def backend() -> str:
    return "memory"


@pytest.fixture
def hub(store_url: str) -> Iterator[mooring.sync.Hub]:
    with mooring.sync.connect(store_url) as opened:
        yield opened


@pytest.mark.parametrize("backend", ["memory", "sqlite", "etcd-3.5"])
def test_it_does_what_the_async_api_does(hub: mooring.sync.Hub):
    with hub.register(ECHO) as registration, hub.discover("Common/Echo") as view:
        view.wait(timeout=5)
        with view.pick() as instance:
            assert instance.id == registration.instance.id == "10.0.0.1:80"
        assert registration.state == "registered"
        assert [found.id for found in hub.registry.instances("Common/Echo").instances] == [
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
        assert_type(view.seen, Seen)
        assert_type(changes, Iterator[Update[str, Instance]])
    with hub.mirror(prefix(b"/")) as mirror:
        assert_type(mirror, mooring.sync.Mirror[bytes, Entry])


def test_the_types_are_in_step_with_the_async_api():
    assert TARGET.read_text() == stub(), "run: python tools/blocking_types.py"


def test_every_type_can_be_named():
    for name in mooring.sync.__all__:
        assert getattr(mooring.sync, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        mooring.sync.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_objects_are_blocking_and_data_is_as_it_is(hub: mooring.sync.Hub):
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


def test_a_live_mapping_comes_as_a_copy(hub: mooring.sync.Hub):
    hub.store.commit(Put(b"/a", b"1"))
    with hub.mirror(prefix(b"/")) as mirror:
        before = mirror.items
        hub.store.commit(Put(b"/b", b"2"))
        until(lambda: len(mirror.items) == 2)
        assert list(before) == [b"/a"]


def test_what_is_iterated_blocks_until_there_is_more(hub: mooring.sync.Hub):
    with hub.store.watch(prefix(b"/")) as watch:
        threading.Timer(0.05, lambda: hub.store.commit(Put(b"/a", b"1"))).start()
        assert next(watch).events[0].key == b"/a"
    with hub.mirror(prefix(b"/")) as mirror, mirror.changes() as changes:
        mirror.close()
        assert list(changes) == []


def test_what_is_private_stays_private(hub: mooring.sync.Hub):
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
    told = "".join(traceback.format_exception(caught.value))
    assert "test_errors_show_both_sides_of_the_portal" in told
    assert "rotation.py" in told


def test_it_can_be_opened_without_a_block(store_url: str):
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
    assert [each.name for each in threading.enumerate()].count("mooring") == 1


def test_what_failed_to_open_is_not_open(tmp_path: Path):
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


def test_callbacks_come_on_the_portals_thread_and_must_not_block(hub: mooring.sync.Hub):
    told: list[object] = []

    def hear(update: Update[str, Instance]) -> None:
        told.append(threading.current_thread().name)
        try:
            hub.store.status()
        except InvalidRequest as error:
            told.append(error)

    with hub.discover("Common/Echo") as view:
        end = view.subscribe(hear)
        with hub.register(ECHO):
            until(lambda: len(told) == 2)
        until(lambda: len(told) == 4)
        end()
        with hub.register(ECHO):
            view.wait(timeout=5)
        assert len(told) == 4
    assert told[0] == "mooring"
    assert "wait for itself" in str(told[1])


def test_a_function_that_is_awaited_there_runs_in_the_calling_thread(hub: mooring.sync.Hub):
    seen: list[object] = []

    def work(instance: Instance) -> str:
        seen.append(threading.current_thread())
        hub.store.status()  # may block: this is not the loop's thread
        if len(seen) == 1:
            raise ConnectionError("the first fails")
        return instance.id

    other = Instance("Common/Echo", "10.0.0.2", 80)
    with hub.register(ECHO), hub.register(other), hub.discover("Common/Echo") as view:
        view.wait(2, timeout=5)
        assert view.call(work) in ("10.0.0.1:80", "10.0.0.2:80")
    assert seen == [threading.current_thread()] * 2


def test_a_timeout_cancels_the_call(hub: mooring.sync.Hub):
    with hub.session(ttl=5) as session:
        with pytest.raises(TimeoutError), mooring.sync.timeout(0.05), mooring.sync.timeout(60):
            session.lost.wait()
        assert session.state == "alive"
    assert _calls_under_way(hub) == 0


def test_a_deadline_keeps_nothing_from_being_left(hub: mooring.sync.Hub):
    with pytest.raises(TimeoutError), mooring.sync.timeout(0.2), hub.register(ECHO):
        hub.session().lost.wait()
    assert hub.registry.instances("Common/Echo").instances == ()


def _calls_under_way(hub: mooring.sync.Hub) -> int:
    from mooring.sync.proxy import within

    def count(_: object) -> int:
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("blocking")]
        return len(tasks) - 1

    return within(hub, count)


def test_what_was_entered_too_late_is_left_again():
    undone: list[str] = []

    async def nothing() -> None: ...

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return  # it got what it wanted in the same instant

    async def undo() -> None:
        undone.append("undone")

    portal = Portal("test", nothing, nothing)
    portal.open()
    with pytest.raises(TimeoutError), mooring.sync.timeout(0.05):
        portal.call(stubborn, undo=undo)
    portal.close()
    assert undone == ["undone"]


def test_closing_ends_calls_that_are_under_way(store_url: str):
    hub = mooring.sync.connect(store_url).open()
    watch = hub.store.watch(prefix(b"/")).open()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, watch)
        until(lambda: _calls_under_way(hub) == 1)
        hub.close()
        with pytest.raises(Closed):
            waiting.result(timeout=5)


def test_closing_leaves_nobody_waiting(store_url: str):
    """Whenever a call meets the end of the loop, it has an answer or is told."""
    for _ in range(20):
        hub = mooring.sync.connect(store_url).open()
        store = hub.store

        def ask(store: mooring.sync.Store = store) -> None:
            while True:
                store.status()

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            asking = [threads.submit(ask) for _ in range(4)]
            hub.close()
            for each in asking:
                assert isinstance(each.exception(timeout=10), Closed)


def _run(script: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    if check:
        assert run.returncode == 0, run.stdout + run.stderr
        assert run.stderr == ""
    return run


def test_ctrl_c_cancels_the_call_and_the_hub_goes_on():
    _run("""
        import os, signal, threading
        import mooring.sync
        from mooring.store import prefix

        with mooring.sync.connect("memory://") as hub:
            with hub.session(ttl=5) as session:
                threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
                try:
                    session.lost.wait()
                except KeyboardInterrupt:
                    print("interrupted")
                assert session.state == "alive"
                hub.store.read(prefix(b"/"))
    """)


@pytest.fixture
def etcd_url(etcd: Callable[[str], EtcdServer]) -> str:
    return f"{etcd('3.5').url}?namespace=/{uuid.uuid4().hex}"


def _registered(url: str, service: str = "echo") -> list[str]:
    with mooring.sync.connect(url) as hub:
        return [found.id for found in hub.registry.instances(service).instances]


END = {
    "return": "pass",
    "error": "raise SystemExit(0)",
    "thread": "threading.Thread(target=time.sleep, args=(0.5,)).start()",
}


@pytest.mark.parametrize("end", END)
def test_the_end_of_the_interpreter_deregisters(etcd_url: str, end: str):
    _run(
        f"""
        import sys, threading, time
        import mooring.sync
        hub = mooring.sync.connect(sys.argv[1]).open()
        registration = hub.register(mooring.Instance("echo", "10.0.0.1", 80)).open()
        assert len(hub.registry.instances("echo").instances) == 1
        {END[end]}
        """,
        etcd_url,
    )
    assert _registered(etcd_url) == []


async def test_the_end_of_the_interpreter_does_not_wait_for_a_store_that_is_away(
    etcd: Callable[[str], EtcdServer],
):
    async with FaultProxy(etcd("3.5").address) as proxy:
        script = """
            import sys
            import mooring.sync
            hub = mooring.sync.connect(sys.argv[1]).open()
            registrations = [
                hub.register(mooring.Instance("echo", "10.0.0.1", port)).open()
                for port in range(1, 6)
            ]
            print("ready", flush=True)
            sys.stdin.readline()
        """
        url = f"etcd://{proxy.address}?namespace=/{uuid.uuid4().hex}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", textwrap.dedent(script), url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        proxy.blackhole()
        told = time.monotonic()
        await process.communicate(b"\n")
        assert process.returncode == 0
        assert time.monotonic() - told < 20  # promised: it never hangs


FORK = """
import os, sys, time
import mooring
import mooring.sync
from mooring.errors import Closed

url = sys.argv[1]
states = []
with mooring.sync.connect(url) as hub:
    with hub.register(mooring.Instance("echo", "10.0.0.1", 80), ttl=3) as registration:
        registration.subscribe(states.append)
        child = os.fork()
        if not child:
            for use in (lambda: hub.store, lambda: registration.state, hub.open):
                try:
                    use()
                except Closed as error:
                    assert "connect again" in str(error), error
                else:
                    os._exit(2)
            {child}
            sys.exit(0)  # leaves both blocks, and runs the exit handlers
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        time.sleep(4)  # longer than the lease lives without its parent
        assert registration.state == "registered"
        assert states == [], states
        assert len(hub.registry.instances("echo").instances) == 1
"""


@pytest.mark.parametrize("store", ["etcd", "memory"])
def test_a_forked_child_leaves_the_parents_registration_alone(etcd_url: str, store: str):
    _run(FORK.replace("{child}", "pass"), etcd_url if store == "etcd" else "memory://")


def test_a_forked_child_may_connect_again(tmp_path: Path):
    again = """
            with mooring.sync.connect("memory://") as anew:
                with anew.register(mooring.Instance("echo", "10.0.0.2", 80)) as mine:
                    assert mine.state == "registered"
    """
    _run(FORK.replace("            {child}", again.strip("\n")), "memory://")


def test_a_forked_child_is_told_that_the_file_is_its_parents(tmp_path: Path):
    again = """
            try:
                mooring.sync.connect(url).open()
            except mooring.errors.InUse as error:
                assert str(os.getppid()) in str(error), error
            else:
                os._exit(3)
    """
    _run(FORK.replace("            {child}", again.strip("\n")), f"sqlite://{tmp_path}/store")


def test_a_forked_child_is_told_that_grpc_does_not_outlive_a_fork(etcd_url: str):
    """It would hang, and swallow what the parent's watches wait for."""
    again = """
            try:
                mooring.sync.connect(url).open()
            except mooring.errors.InvalidRequest as error:
                assert "fork" in str(error), error
            else:
                os._exit(3)
    """
    _run(FORK.replace("            {child}", again.strip("\n")), etcd_url)


def test_children_do_not_crash_where_etcd_is_connected(etcd_url: str):
    _run(
        """
        import os, sys
        import mooring.sync
        with mooring.sync.connect(sys.argv[1]) as hub:
            with hub.register(mooring.Instance("echo", "10.0.0.1", 80)):
                for turn in range(40):
                    child = os.fork()
                    if not child:
                        sys.exit(0) if turn % 2 else os._exit(0)
                    assert os.waitpid(child, 0)[1] == 0
        """,
        etcd_url,
    )


def test_what_was_not_opened_before_a_fork_is_opened_after_it(etcd_url: str):
    """As an application that is loaded before its workers are forked."""
    _run(
        """
        import os, sys
        import mooring.sync
        hub = mooring.sync.connect(sys.argv[1])
        for turn in range(2):
            child = os.fork()
            if not child:
                with hub, hub.register(mooring.Instance("echo", "10.0.0.1", 80 + turn)) as mine:
                    assert mine.state == "registered"
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        """,
        etcd_url,
    )


async def test_a_killed_process_is_no_worse_than_before(etcd_url: str):
    """No exit handler runs: the lease ends it."""
    script = """
        import sys, time
        import mooring.sync
        hub = mooring.sync.connect(sys.argv[1]).open()
        registration = hub.register(mooring.Instance("echo", "10.0.0.1", 80), ttl=2).open()
        print("ready", flush=True)
        time.sleep(60)
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(script), etcd_url), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    async with mooring.connect(etcd_url) as hub:

        async def gone() -> bool:
            return not (await hub.registry.instances("echo")).instances

        await eventually(gone, within=8)
