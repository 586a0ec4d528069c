"""SIGTERM in programs with and without their own handler."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mooring
import mooring.sync
from mooring.testing.etcd import EtcdServer
from mooring.testing.servers import free_port
from tests.acceptance.commands import python_program, start_program
from tests.waiting import until

TTL = 600  # seconds: an instance that is gone was deregistered


@pytest.fixture
def url(etcd: Callable[[str], EtcdServer]) -> str:
    return f"{etcd('3.5').url}?namespace=/{uuid.uuid4().hex}"


@pytest.fixture
def hub(url: str) -> Iterator[mooring.sync.Hub]:
    with mooring.sync.connect(url) as opened:
        yield opened


def registered(hub: mooring.sync.Hub) -> int:
    return len(hub.registry.instances("echo").instances)


READY = """
    import os, signal, sys, threading, time
    def ready():
        open(sys.argv[3], "w").close()
    def ready_to_be_stopped():
        installed = signal.getsignal(signal.SIGTERM)
        def look():
            while signal.getsignal(signal.SIGTERM) is installed:
                time.sleep(0.01)
            ready()
        threading.Thread(target=look).start()
"""


def terminated(
    hub: mooring.sync.Hub,
    url: str,
    program: str,
    *,
    count: int = 1,
    before: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """Send SIGTERM to a program once it is `ready` and has registered its instances. Returns its
    status and its output."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as printed:
        ready = Path(folder) / "ready"
        process = start_program(READY + program, url, str(TTL), str(ready), stdout=printed)
        try:
            until(ready.exists)
            assert registered(hub) == count
            before()
            process.send_signal(signal.SIGTERM)
            status = process.wait(timeout=20)
        finally:
            process.kill()
        printed.seek(0)
        return status, printed.read()


BLOCKING = """
    import sys, time
    import mooring.sync
    with mooring.sync.connect(sys.argv[1]) as hub:
        me = mooring.Instance("echo", "10.0.0.1", 80)
        with hub.register(me, ttl=float(sys.argv[2])):
            ready(); time.sleep(60)
"""

ASYNCIO = """
    import asyncio, sys
    import mooring
    async def main():
        async with mooring.connect(sys.argv[1]) as hub:
            me = mooring.Instance("echo", "10.0.0.1", 80)
            async with hub.register(me, ttl=float(sys.argv[2])):
                ready(); await asyncio.sleep(60)
    asyncio.run(main())
"""


@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_sigterm_deregisters_and_ends_the_process_by_the_signal(
    hub: mooring.sync.Hub, url: str, program: str
):
    status, _ = terminated(hub, url, program)
    assert status == -signal.SIGTERM
    assert registered(hub) == 0


def test_sigterm_deregisters_if_it_interrupts_code_that_holds_a_lock(
    hub: mooring.sync.Hub, url: str
):
    """As when it arrives while the main thread logs: the thread of the event loop logs too."""
    logging = """
    import logging
    handler = logging.StreamHandler()
    logging.basicConfig(level="DEBUG", handlers=[handler])
    def log_until_sigterm():
        installed = signal.getsignal(signal.SIGTERM)
        with handler.lock:
            ready()
            while signal.getsignal(signal.SIGTERM) is installed:
                time.sleep(0.01)
    """
    program = BLOCKING.replace("ready();", "log_until_sigterm();")
    status, _ = terminated(hub, url, logging + program)
    assert status == -signal.SIGTERM
    assert registered(hub) == 0


@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_a_handler_of_the_application_is_kept(hub: mooring.sync.Hub, url: str, program: str):
    own = """
    import signal, sys
    signal.signal(signal.SIGTERM, lambda *_: (print("mine"), sys.exit(3)))
    """
    status, printed = terminated(hub, url, own + program)
    assert (status, printed) == (3, "mine\n")
    assert registered(hub) == 0


def test_blocking_code_waits_for_a_signal_and_drains(hub: mooring.sync.Hub, url: str):
    waiting = BLOCKING.replace("]))", "])) as mine").replace(
        "ready(); time.sleep(60)",
        "ready_to_be_stopped(); "
        "print(mooring.sync.until_stopped(mine, linger=0.1).name, mine.state)",
    )
    assert terminated(hub, url, waiting) == (0, "SIGTERM closed\n")
    assert registered(hub) == 0


@pytest.mark.parametrize(
    "wait", ["mooring.sync.until_stopped()", "asyncio.run(mooring.until_stopped())"]
)
def test_a_signal_that_another_thread_receives_is_noticed(wait: str):
    """It does not wake the main thread, in which Python runs the handler."""
    program = f"""
    import asyncio, signal, threading, time
    import mooring.sync
    def signal_this_thread():
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            time.sleep(0.01)
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Thread(target=signal_this_thread).start()
    print({wait}.name)
    """
    assert python_program(program).stdout == "SIGTERM\n"


def waiting(text: str, *, blocking: bool = False) -> str:
    """A program that runs this code while `one` is registered."""
    program, sleeping = (BLOCKING, "time.sleep") if blocking else (ASYNCIO, "await asyncio.sleep")
    before, after = program.replace("]))", "])) as one").split(f"ready(); {sleeping}(60)")
    spaces = before[before.rindex("\n") + 1 :]
    needed = """
    import os, signal
    def two(hub):
        return hub.register(mooring.Instance("echo", "10.0.0.2", 80), ttl=float(sys.argv[2]))
    """
    used = textwrap.indent(textwrap.dedent(text), spaces).lstrip()
    return needed + before + used + after


CANCELLED = """
    try:
        async with asyncio.timeout(0.1):
            await asyncio.gather(mooring.until_stopped(one), mooring.until_stopped(one))
    except TimeoutError:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)
"""

TIMED_OUT = """
    try:
        with mooring.sync.timeout(0.1):
            mooring.sync.until_stopped(one)
    except TimeoutError:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
"""


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asyncio"])
def test_sigterm_deregisters_after_a_wait_for_signals_has_timed_out(
    hub: mooring.sync.Hub, url: str, blocking: bool
):
    program = waiting(TIMED_OUT if blocking else CANCELLED, blocking=blocking)
    assert python_program(program, url, str(TTL)).returncode == -signal.SIGTERM
    assert registered(hub) == 0


def test_a_handler_of_the_event_loop_works_after_a_wait_for_signals(
    hub: mooring.sync.Hub, url: str
):
    own = """
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: print("mine") or exit(3))
    """
    run = python_program(waiting(own + CANCELLED), url, str(TTL))
    assert (run.returncode, run.stdout) == (3, "mine\n")
    assert registered(hub) == 0


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asyncio"])
def test_another_signal_after_the_wait_deregisters_the_rest(
    hub: mooring.sync.Hub, url: str, blocking: bool
):
    program = """
    with two(hub):
        ready_to_be_stopped()
        mooring.sync.until_stopped(one, linger=0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    """
    if not blocking:
        program = (
            program.replace("with", "async with")
            .replace("mooring.sync.until", "await mooring.until")
            .replace("time.sleep", "await asyncio.sleep")
        )
    status, _ = terminated(hub, url, waiting(program, blocking=blocking), count=2)
    assert status == -signal.SIGTERM
    assert registered(hub) == 0


def test_two_concurrent_waits_for_signals_both_end(hub: mooring.sync.Hub, url: str):
    program = """
    async with two(hub) as other:
        ready_to_be_stopped()
        waits = [mooring.until_stopped(each, linger=0.1) for each in (one, other)]
        print(*(number.name for number in await asyncio.gather(*waits)), one.state, other.state)
    """
    status, printed = terminated(hub, url, waiting(program), count=2)
    assert (status, printed) == (0, "SIGTERM SIGTERM closed closed\n")


IN_A_THREAD = """
    import asyncio, sys, threading
    import mooring
    hub = mooring.connect(sys.argv[1])
    async def main():
        async with hub:
            me = mooring.Instance("echo", "10.0.0.1", 80)
            async with hub.register(me, ttl=float(sys.argv[2])):
                ready(); await asyncio.sleep(60)
    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    thread.join()
"""


def test_an_event_loop_of_another_thread_deregisters(hub: mooring.sync.Hub, url: str):
    status, _ = terminated(hub, url, IN_A_THREAD)
    assert status == -signal.SIGTERM
    assert registered(hub) == 0


def test_a_thread_that_cannot_install_the_handler_reports_that(hub: mooring.sync.Hub, url: str):
    connecting = IN_A_THREAD.replace("    hub = mooring.connect(sys.argv[1])\n", "").replace(
        "async with hub:", "async with mooring.connect(sys.argv[1]) as hub:"
    )
    logged = """
    import logging, sys
    logging.basicConfig(stream=sys.stdout, level="WARNING", format="%(message)s")
    """
    status, printed = terminated(hub, url, logged + connecting)
    assert status == -signal.SIGTERM
    assert printed == (
        "SIGTERM will end this process without deregistering its instances: call mooring.connect "
        "in the main thread\n"
    )


CHAINING = """
    import signal, time
    import mooring.sync
    mooring.sync.connect("memory://")  # installs the handler
    def mine(number, frame):
        print("before", flush=True)
        previous(number, frame)
        time.sleep(0.5)
        print("after", flush=True)
    previous = signal.signal(signal.SIGTERM, mine)
"""


@pytest.mark.parametrize(
    "program", [BLOCKING, ASYNCIO, IN_A_THREAD], ids=["blocking", "asyncio", "thread"]
)
def test_a_handler_that_calls_the_handler_of_mooring_finishes(
    hub: mooring.sync.Hub, url: str, program: str
):
    status, printed = terminated(hub, url, CHAINING + program)
    assert (status, printed) == (-signal.SIGTERM, "before\nafter\n")
    assert registered(hub) == 0


def test_flask_run_deregisters(hub: mooring.sync.Hub, url: str, tmp_path: Path):
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
    process = subprocess.Popen(command, cwd=tmp_path)
    try:
        until(lambda: registered(hub) == 1)
        process.terminate()
        assert process.wait(timeout=20) == -signal.SIGTERM
    finally:
        process.kill()
    assert registered(hub) == 0


def test_a_process_that_survives_the_signal_exits():
    """The kernel ignores SIGTERM with the default action for PID 1, like a blocked signal."""
    program = """
    import signal
    from mooring.registry import shutdown
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    shutdown._end()
    """
    assert python_program(program).returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "program",
    [
        "time.sleep(60)",
        "asyncio.run(asyncio.sleep(60))",
    ],
    ids=["blocking", "asyncio"],
)
def test_the_process_ends_if_nothing_is_left_to_close(program: str):
    prepare = """
    import asyncio, os, signal, threading, time
    import mooring
    mooring.connect("memory://")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    """
    assert python_program(textwrap.dedent(prepare) + program).returncode == -signal.SIGTERM


def test_the_process_ends_if_leaving_the_registry_is_cancelled():
    program = """
    import asyncio, os, signal
    from mooring.registry import shutdown
    class Hanging:
        async def aclose(self):
            self.task = asyncio.current_task()
            await asyncio.sleep(60)
    async def main():
        hanging = Hanging()
        shutdown.close_on_sigterm(hanging, asyncio.get_running_loop())
        os.kill(os.getpid(), signal.SIGTERM)
        while not hasattr(hanging, "task"):
            await asyncio.sleep(0.01)
        hanging.task.cancel()
        await asyncio.sleep(3)
        os._exit(1)
    asyncio.run(main())
    """
    assert python_program(program).returncode == -signal.SIGTERM


def test_sigterm_during_a_registration_ends_the_process_by_the_signal(
    hub: mooring.sync.Hub, url: str
):
    """Not by the error of the registration, although another one takes longer to close."""
    program = """
    import asyncio, os, signal, sys
    import mooring
    from mooring.registry import shutdown
    class Slow:
        async def aclose(self):
            await asyncio.sleep(1)
    async def main():
        slow, loop = Slow(), asyncio.get_running_loop()
        shutdown.close_on_sigterm(slow, loop)
        async with mooring.connect(sys.argv[1]) as hub:
            registration = hub.register(mooring.Instance("echo", "10.0.0.1", 80), ttl=600)
            def stop(state):
                if state == "registered":
                    os.kill(os.getpid(), signal.SIGTERM)
            registration.subscribe(stop)
            async with registration:
                await asyncio.sleep(60)
    asyncio.run(main())
    """
    assert python_program(program, url).returncode == -signal.SIGTERM
    assert registered(hub) == 0
