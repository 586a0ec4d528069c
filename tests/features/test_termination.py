"""SIGTERM in programs without a handler of their own, and with one."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import mooring
import mooring.sync
from mooring.testing.etcd import EtcdServer
from mooring.testing.servers import free_port
from tests.waiting import until

TTL = 600  # seconds: an instance that is gone was deregistered


@pytest.fixture
def url(etcd: Callable[[str], EtcdServer]) -> str:
    return f"{etcd('3.5').url}?namespace=/{uuid.uuid4().hex}"


def registered(url: str) -> int:
    with mooring.sync.connect(url) as hub:
        return len(hub.registry.instances("echo").instances)


def terminated(url: str, *command: str, folder: Path | None = None) -> tuple[int, str]:
    """Wait until the program is registered, and send SIGTERM; its status, and what it printed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
    try:
        until(lambda: registered(url) == 1, within=30)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    return process.returncode, printed


def script(text: str, url: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(text), url, str(TTL))


BLOCKING = """
    import sys, time
    import mooring.sync
    with mooring.sync.connect(sys.argv[1]) as hub:
        me = mooring.Instance("echo", "10.0.0.1", 80)
        with hub.register(me, ttl=float(sys.argv[2])):
            time.sleep(60)
"""

ASYNCIO = """
    import asyncio, sys
    import mooring
    async def main():
        async with mooring.connect(sys.argv[1]) as hub:
            me = mooring.Instance("echo", "10.0.0.1", 80)
            async with hub.register(me, ttl=float(sys.argv[2])):
                await asyncio.sleep(60)
    asyncio.run(main())
"""


@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_sigterm_deregisters_and_ends_the_process_by_the_signal(url: str, program: str):
    status, _ = terminated(url, *script(program, url))
    assert status == -signal.SIGTERM
    assert registered(url) == 0


@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_a_handler_of_the_application_is_left_alone(url: str, program: str):
    own = """
    import signal, sys
    signal.signal(signal.SIGTERM, lambda *_: (print("mine"), sys.exit(3)))
    """
    status, printed = terminated(url, *script(own + program, url))
    assert (status, printed) == (3, "mine\n")
    assert registered(url) == 0


def test_blocking_code_waits_for_a_signal_and_drains(url: str):
    waiting = BLOCKING.replace("]))", "])) as mine").replace(
        "time.sleep(60)", "print(mooring.sync.until_stopped(mine, linger=0.1).name, mine.state)"
    )
    assert terminated(url, *script(waiting, url)) == (0, "SIGTERM closed\n")
    assert registered(url) == 0


def test_flask_run_deregisters(url: str, tmp_path: Path):
    (tmp_path / "app.py").write_text(
        textwrap.dedent(f"""
        import flask
        import mooring.sync
        app = flask.Flask(__name__)
        hub = mooring.sync.connect("{url}").open()
        hub.register(mooring.Instance("echo", "10.0.0.1", 80), ttl={TTL}).open()
        """)
    )
    command = (sys.executable, "-m", "flask", "run", "--port", str(free_port()))
    status, _ = terminated(url, *command, folder=tmp_path)
    assert status == -signal.SIGTERM
    assert registered(url) == 0


def status_of(program: str) -> int:
    command = (sys.executable, "-c", textwrap.dedent(program))
    return subprocess.run(command, timeout=20, check=False, stderr=subprocess.DEVNULL).returncode


def test_a_process_that_the_signal_does_not_end_exits():
    """The kernel ignores SIGTERM with the default action for PID 1, as a blocked signal is."""
    program = """
    import signal
    from mooring.registry import termination
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    termination._end()
    """
    assert status_of(program) == 128 + signal.SIGTERM


def test_the_process_ends_if_nothing_is_left_to_close():
    program = """
    import asyncio
    from mooring.registry import termination
    asyncio.run(termination._leave())
    """
    assert status_of(program) == -signal.SIGTERM


def test_the_process_ends_if_leaving_the_registry_is_cancelled():
    program = """
    import asyncio
    from mooring.registry import termination
    class Hanging:
        async def aclose(self):
            await asyncio.sleep(60)
    async def main():
        hanging = Hanging()
        termination._entered.add(hanging)
        leaving = asyncio.create_task(termination._leave())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
    asyncio.run(main())
    """
    assert status_of(program) == -signal.SIGTERM
