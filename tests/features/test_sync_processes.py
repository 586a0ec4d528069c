"""The blocking API in processes that are interrupted, fork, and end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import mooring
import mooring.sync
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.acceptance.commands import python_program
from tests.waiting import eventually


def _run(program: str, *arguments: str) -> None:
    run = python_program(program, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""


def _run_from_the_start(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a new interpreter, for tests that depend on what is imported, and when."""
    # As a user starts it: importing mooring sets the variable, also for children of this process.
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run


def test_ctrl_c_cancels_the_call_and_the_hub_still_works():
    _run("""
        import os, signal, threading
        import mooring.sync
        from mooring.store import prefix

        with mooring.sync.connect("memory://") as hub:
            with hub.session(ttl=30) as session:
                try:
                    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
                    session.lost.wait()
                except KeyboardInterrupt:
                    print("interrupted")
                assert session.state == "alive"
                hub.store.read(prefix(b"/"))
    """)


def test_a_signal_that_another_thread_receives_is_handled_during_a_blocking_call():
    """Such a signal does not wake the main thread, nor does one that arrives just before the thread
    starts to wait."""
    _run("""
        import asyncio, signal, threading
        import mooring.sync
        from mooring.sync.portal import Portal

        handled = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: handled.set())

        async def enter():
            await asyncio.sleep(0.2)  # so that the main thread waits
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            while not handled.is_set():
                await asyncio.sleep(0.01)

        async def leave():
            pass

        portal = Portal("it", enter, leave)
        portal.open()
        portal.close()
    """)


SIGNALLED = """
import asyncio, os, signal, sys
from mooring.errors import Closed
from mooring.sync.portal import Portal

events = []

async def change(what):
    events.append(what)
    if what == sys.argv[1] and events.count(what) == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        while "handled" not in events:
            await asyncio.sleep(0.01)
    events.append(f"{what} done")

def on_term(*_):
    portal.close()
    events.append("handled")

signal.signal(signal.SIGTERM, on_term)
portal = Portal("it", lambda: change("enter"), lambda: change("leave"))
"""


def test_a_signal_handler_can_close_what_is_being_closed():
    script = """
        portal.open()
        portal.close()
        assert not portal.running
        assert events[2:] == ["leave", "handled", "leave done"], events
    """
    _run(SIGNALLED + textwrap.dedent(script), "leave")


def test_a_context_closed_by_a_signal_handler_while_it_opens_is_not_open():
    script = """
        try:
            portal.open()
        except Closed as error:
            assert "while it was opened" in str(error), error
        else:
            sys.exit("open")
        assert not portal.running
        assert events == ["enter", "handled", "enter done", "leave", "leave done"], events
        portal.open()
        assert portal.running
        portal.close()
    """
    _run(SIGNALLED + textwrap.dedent(script), "enter")


@pytest.fixture
def etcd_url(etcd: Callable[[str], EtcdServer]) -> str:
    return f"{etcd('3.5').url}?namespace=/{uuid.uuid4().hex}"


def _registered(url: str, service: str = "echo") -> list[str]:
    with mooring.sync.connect(url) as hub:
        return [instance.id for instance in hub.registry.instances(service).instances]


END = {
    "return": "pass",
    "error": "raise SystemExit(0)",
    "thread": "threading.Thread(target=time.sleep, args=(0.5,)).start()",
}


@pytest.mark.parametrize("end", END)
def test_the_end_of_the_interpreter_closes_all_hubs(etcd_url: str, end: str):
    """Even those that nothing references any more."""
    _run(
        f"""
        import gc, logging, sys, threading, time
        import mooring.sync
        logging.getLogger("mooring.locks").setLevel(logging.CRITICAL)  # the locks are lost
        for port in (1, 2):
            hub = mooring.sync.connect(sys.argv[1]).open()
            hub.register(mooring.Instance("echo", "10.0.0.1", port)).open()
            hub.lock(f"lock-{{port}}", ttl=600).acquire()
        assert len(hub.registry.instances("echo").instances) == len(hub.locks()) == 2
        del hub
        gc.collect()
        {END[end]}
        """,
        etcd_url,
    )
    assert _registered(etcd_url) == []
    with mooring.sync.connect(etcd_url) as hub:
        assert hub.locks() == []


@pytest.mark.deadline
async def test_the_end_of_the_interpreter_does_not_wait_for_an_unavailable_store(
    etcd: Callable[[str], EtcdServer],
):
    async with FaultProxy(etcd("3.5").address) as proxy:
        script = """
            import sys
            import mooring.sync
            for port in range(1, 6):
                hub = mooring.sync.connect(sys.argv[1]).open()
                hub.register(mooring.Instance("echo", "10.0.0.1", port)).open()
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
        signalled = time.monotonic()
        await process.communicate(b"\n")
        assert process.returncode == 0
        assert time.monotonic() - signalled < 8  # 5 s for all hubs together, and the loop's end


FORK = """
import os, sys, time
import mooring
import mooring.sync
from mooring.errors import Closed

url = sys.argv[1]
states = []
with mooring.sync.connect(url) as hub:
    with hub.register(mooring.Instance("echo", "10.0.0.1", 80), ttl=4) as registration:
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
        time.sleep({wait})
        assert registration.state == "registered"
        assert states == [], states
        assert len(hub.registry.instances("echo").instances) == 1
"""


def _forked(url: str, *, child: str = "", wait: float = 0.1) -> None:
    """Run this in a child, and wait this long before the parent checks its registration."""
    indented = textwrap.indent(textwrap.dedent(child), " " * 12)
    _run(FORK.replace("            {child}", indented).replace("{wait}", str(wait)), url)


@pytest.mark.parametrize("store", ["etcd", "memory"])
def test_a_forked_child_does_not_touch_the_registration_of_its_parent(etcd_url: str, store: str):
    longer_than_the_lease_lives_without_its_parent = 5.0
    _forked(
        etcd_url if store == "etcd" else "memory://",
        wait=longer_than_the_lease_lives_without_its_parent,
    )


def test_a_forked_child_can_connect_again(tmp_path: Path):
    again = """
            with mooring.sync.connect("memory://") as anew:
                with anew.register(mooring.Instance("echo", "10.0.0.2", 80)) as mine:
                    assert mine.state == "registered"
    """
    _forked("memory://", child=again)


def test_a_forked_child_cannot_open_the_file_of_its_parent(tmp_path: Path):
    again = """
            try:
                mooring.sync.connect(url).open()
            except mooring.errors.InUse as error:
                assert str(os.getppid()) in str(error), error
            else:
                os._exit(3)
    """
    _forked(f"sqlite://{tmp_path}/store", child=again)


def test_a_forked_child_cannot_use_grpc_of_its_parent(etcd_url: str):
    """It would hang, and consume the responses of the watches of its parent."""
    again = """
            try:
                mooring.sync.connect(url).open()
            except mooring.errors.InvalidRequest as error:
                assert "fork" in str(error), error
            else:
                os._exit(3)
    """
    _forked(etcd_url, child=again)


CROWD = """
import os, sys
{imports}
import mooring.sync
with mooring.sync.connect(sys.argv[1]) as hub:
    with hub.register(mooring.Instance("echo", "10.0.0.1", 80)):
        for turn in range(6):
            child = os.fork()
            if not child:
                sys.exit(0) if turn % 2 else os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("first", ["mooring.sync", "mooring.grpc", "mooring, grpc, grpc.aio"])
def test_children_do_not_crash_if_etcd_is_connected(etcd_url: str, first: str):
    assert not _run_from_the_start(CROWD.format(imports=f"import {first}"), etcd_url).stderr


def test_a_fork_is_warned_of_if_grpc_was_imported_before_mooring(etcd_url: str):
    """The fork handlers of gRPC are enabled then, and children may crash."""
    crowd = CROWD.format(imports="import grpc").replace("range(6)", "range(2)")
    run = _run_from_the_start(crowd.replace("== 0", "is not None"), etcd_url)
    assert run.stderr.count("grpc was imported before mooring: import mooring before grpc") == 1


@pytest.mark.parametrize("first", ["mooring.sync", "mooring.grpc", "grpc"])
def test_a_parent_can_fork_after_its_hubs_are_closed(etcd_url: str, first: str):
    """And the children can connect. The parent keeps the closed hubs, as programs do."""
    script = f"""
        import os, sys
        import {first}
        import mooring.sync
        hubs = [mooring.sync.connect(sys.argv[1]) for _ in range(2)]
        kept = []
        for hub in hubs:
            with hub, hub.register(mooring.Instance("echo", "10.0.0.1", 80)) as registration:
                kept.append(registration)
        for turn in range(2):
            child = os.fork()
            if not child:
                with mooring.sync.connect(sys.argv[1]) as hub:
                    me = mooring.Instance("echo", "10.0.0.1", 81 + turn)
                    with hub.register(me) as registration:
                        assert registration.state == "registered"
                sys.exit(0) if turn % 2 else os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        with hubs[0] as hub:
            assert hub.registry.instances("echo").instances == ()
    """
    assert not _run_from_the_start(script, etcd_url).stderr


def test_a_hub_that_was_not_opened_before_a_fork_is_opened_after_it(etcd_url: str):
    """Like an application that is loaded before its workers are forked."""
    _run(
        """
        import os, sys
        import mooring.sync
        hub = mooring.sync.connect(sys.argv[1])
        child = os.fork()
        if not child:
            with hub, hub.register(mooring.Instance("echo", "10.0.0.1", 80)) as mine:
                assert mine.state == "registered"
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
        etcd_url,
    )


async def test_a_killed_process_expires_with_its_lease(etcd_url: str):
    """No exit handler runs: the lease ends the registration."""
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

        await eventually(gone)
