"""The commands of the registry as users type them: in a pipe, in a terminal, with --json."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mooring
from mooring import Instance
from mooring.cli import app
from mooring.cli.io import connect as connecting
from mooring.hub import Hub
from mooring.masking import MASK
from mooring.model import JSON
from mooring.store import Put, prefix
from tests.acceptance.commands import Command, mooring_command
from tests.acceptance.forking import Forked
from tests.acceptance.serving import Served
from tests.waiting import eventually

BLUE, GREEN = "10.0.0.1:8080", "[2001:db8::1]:8080"


@pytest.fixture
def url(served: Callable[[], str]) -> str:
    return f"{served()}?namespace=/{uuid.uuid4().hex}"


@pytest.fixture
async def hub(url: str) -> AsyncIterator[Hub]:
    async with mooring.connect(url) as opened:
        yield opened


@pytest.fixture
async def shop(hub: Hub) -> AsyncIterator[Hub]:
    """Two instances of one service, and a service of a group with a Chinese name.

    They get no heartbeats while a test waits for a command: their TTL exceeds any test.
    """
    blue = Instance(
        "orders",
        "10.0.0.1",
        8080,
        version="1.0",
        zone="a",
        ports={"http": 8081},
        metadata={"colour": "blue"},
    )
    green = Instance("orders", "2001:db8::1", 8080, version="2.0", zone="b", weight=2.5)
    pay = Instance("商店/支付", "pay.internal", 9000, metadata={"地区": "北京"})
    async with (
        hub.register(blue, ttl=600),
        hub.register(green, ttl=600),
        hub.register(pay, ttl=600),
    ):
        yield hub


@pytest.fixture
def run(url: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command on the store of the test, to its end."""

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return mooring_command(*arguments, MOORING_STORE=url)

    return command


Run = Callable[..., subprocess.CompletedProcess[str]]


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    return [line.split("\t") for line in ok(done).splitlines()]


def objects(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ok(done).splitlines()]


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    assert (done.returncode in (1, 2), done.stdout) == (True, ""), done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("mooring: ")
    return lines[-1]


def terminal(url: str, *arguments: str, columns: int = 100) -> str:
    """What a command shows in a terminal of this width, without its colours."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with tempfile.TemporaryFile("r+", encoding="utf-8") as errors:
        process = Forked(
            *arguments,
            environment={**environment, "MOORING_STORE": url, "TERM": "xterm"},
            stdin=its,
            stdout=its,
            stderr=errors,
        )
        os.close(its)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
        os.close(ours)
        code = process.wait(timeout=60)
        errors.seek(0)
        assert code == 0, errors.read()
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux reports this at the end of a terminal
        return b""


class Running:
    """A running command, with its output in files that can be read meanwhile."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files = folder / "out", folder / "err"
        with self._files[0].open("w") as out, self._files[1].open("w") as err:
            self.process = Forked(
                *arguments,
                environment={**os.environ, "MOORING_STORE": url},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> list[str]:
        return self._files[0].read_text().splitlines()

    @property
    def err(self) -> list[str]:
        return self._files[1].read_text().splitlines()

    def logged(self, words: str) -> bool:
        return any(words in line for line in self.err)

    async def end(self, within: float = 40.0) -> int:
        await eventually(
            lambda: self.process.poll() is not None, within=within, what=f"{self.out} {self.err}"
        )
        return self.process.wait()


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start a command on the store of the test."""
    started: list[Running] = []

    def command(*arguments: str, url: str = url) -> Running:
        started.append(Running(tmp_path / f"command{len(started)}", url, *arguments))
        return started[-1]

    yield command
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()


Start = Callable[..., Running]


async def ids(hub: Hub, service: str) -> list[str]:
    return [instance.id for instance in (await hub.registry.instances(service)).instances]


class TestListing:
    def test_services_are_listed_with_their_instance_counts(self, shop: Hub, run: Run, url: str):
        assert rows(run("services")) == [["orders", "2"], ["商店/支付", "1"]]
        assert rows(run("services", "商店")) == [["商店/支付", "1"]]
        assert objects(run("services", "default", "--json")) == [
            {"service": "orders", "instances": 2}
        ]
        shown = terminal(url, "services").splitlines()
        assert shown[0].split() == ["service", "instances"]
        assert shown[2].split() == ["orders", "2"]

    def test_groups(self, shop: Hub, run: Run):
        assert rows(run("groups")) == [["default"], ["商店"]]
        assert objects(run("groups", "--json")) == [{"group": "default"}, {"group": "商店"}]

    def test_an_unknown_group(self, shop: Hub, run: Run):
        assert "group 'defalt' not found: did you mean 'default'?" in refused(
            run("services", "defalt")
        )

    def test_an_empty_registry_is_no_error(self):
        done = mooring_command("services", "--store=memory://")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "mooring: no services yet\n"

    def test_instances_in_a_pipe(self, shop: Hub, run: Run):
        blue, green = rows(run("instances", "orders"))
        age = blue.pop(8), green.pop(8)
        assert all(re.fullmatch(r"\d+s", text) for text in age)
        assert blue == [
            *(BLUE, "up", "yes", "yes", "1", "a", "1.0", "tcp"),
            *("http=8081", "colour=blue"),
        ]
        assert green == [GREEN, "up", "yes", "yes", "2.5", "b", "2.0", "tcp", "-", "-"]

    def test_instances_as_json(self, shop: Hub, run: Run):
        (pay,) = objects(run("instances", "商店/支付", "--json"))
        assert (pay["service"], pay["id"]) == ("商店/支付", "pay.internal:9000")
        assert (pay["host"], pay["port"], pay["weight"]) == ("pay.internal", 9000, 1)
        assert (pay["state"], pay["healthy"], pay["enabled"]) == ("up", True, True)
        assert pay["metadata"] == {"地区": "北京"}
        assert pay["registeredAt"].endswith("Z")

    def test_instances_in_a_terminal(self, shop: Hub, url: str):
        wide = terminal(url, "instances", "orders", columns=140).splitlines()
        assert wide[0].split() == [
            *("id", "state", "healthy", "enabled", "weight", "zone", "version", "protocol"),
            *("age", "ports", "metadata"),
        ]
        assert [line.split()[0] for line in wide[2:]] == [BLUE, GREEN]
        narrow = terminal(url, "instances", "orders", columns=80).splitlines()
        assert narrow[0].split()[-1] == "age", "columns without room are omitted"
        assert len(narrow) == 4
        without_zones = terminal(url, "instances", "商店/支付", columns=140)
        assert "zone" not in without_zones
        assert "地区=北京" in without_zones

    def test_an_unknown_service(self, shop: Hub, run: Run):
        for command in ("instances", "resolve", "explain"):
            words = refused(run(command, "order"))
            assert "service 'order' not found: did you mean 'orders'?" in words

    async def test_a_service_without_instances(self, hub: Hub, run: Run):
        async with hub.register(Instance("gone", "h", 1)):
            pass
        done = await asyncio.to_thread(run, "instances", "gone")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "mooring: gone has no instances\n"
        assert rows(await asyncio.to_thread(run, "services")) == [["gone", "0"]]

    async def test_invalid_records_are_reported_and_the_rest_is_shown(
        self, shop: Hub, run: Run, start: Start
    ):
        await shop.store.commit(
            Put(b"/registry/default/orders/10.0.0.9:1/data", b"{"),
            Put(b"/registry/default/orders/what/is/this", b"\xff"),
            Put(b"/registry/nonsense", b""),
            Put(b"/registry/default/orders/\x1b[31mred/data", b"{}"),
        )
        for command in (["instances", "orders"], ["explain", "orders"]):
            done = await asyncio.to_thread(run, *command)
            assert [row[0] for row in rows(done)] == [BLUE, GREEN]
            warnings = done.stderr.splitlines()
            assert len(warnings) == 3
            assert all(line.startswith("mooring: warning: /registry/") for line in warnings)
            assert "10.0.0.9:1/data: is not valid JSON" in done.stderr
            assert "\x1b" not in done.stderr
        counted = rows(await asyncio.to_thread(run, "services"))
        assert ["orders", "2"] in counted
        done = await asyncio.to_thread(run, "resolve", "orders", "--count=9")
        assert sorted(ok(done).splitlines()) == [BLUE, GREEN]
        watch = start("watch", "orders")
        await eventually(lambda: len(watch.out) == 2, within=40)
        await eventually(lambda: watch.logged("10.0.0.9:1/data: is not valid JSON"))

    def test_a_name_that_the_terminal_cannot_show(self, shop: Hub, url: str):
        done = subprocess.run(
            [sys.executable, "-m", "mooring.cli", "groups"],
            env={**os.environ, "MOORING_STORE": url, "PYTHONIOENCODING": "latin-1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ok(done).splitlines() == ["default", r"\u5546\u5e97"]

    async def test_registered_text_cannot_control_the_terminal(self, hub: Hub, run: Run):
        evil = Instance("orders", "h", 1, metadata={"a": "\x1b[2J\t\nb"}, zone="\x07")
        async with hub.register(evil):
            (row,) = rows(await asyncio.to_thread(run, "instances", "orders"))
        assert row[5] == "<U+0007>"
        assert row[-1] == "a=<U+001B>[2J<U+0009><U+000A>b"


class TestCalling:
    def test_resolve_prints_callable_instances(self, shop: Hub, run: Run, url: str):
        assert ok(run("resolve", "orders")).strip() in (BLUE, GREEN)
        assert ok(run("resolve", "orders", "--version=2.0")) == f"{GREEN}\n"
        assert ok(run("resolve", "orders", "--zone=a", "--protocol=http")) == "10.0.0.1:8081\n"
        assert ok(run("resolve", "orders", "--tag=colour=blue")) == f"{BLUE}\n"
        assert terminal(url, "resolve", "商店/支付") == "pay.internal:9000\r\n"
        (instance,) = objects(
            run("resolve", "orders", "--version=1.0", "--protocol=http", "--json")
        )
        assert (instance["address"], instance["id"]) == ("10.0.0.1:8081", BLUE)

    def test_resolve_returns_different_instances(self, shop: Hub, run: Run):
        for policy in ("round_robin", "consistent_hash"):
            done = run("resolve", "orders", "--count=3", f"--policy={policy}")
            assert sorted(ok(done).splitlines()) == [BLUE, GREEN]
            assert "2 of 3 requested instances of orders can be called" in done.stderr

    def test_the_same_key_resolves_to_the_same_instance(self, shop: Hub, run: Run):
        ask = ("resolve", "orders", "--policy=consistent_hash", "--key=cart 7")
        assert len({ok(run(*ask)) for _ in range(3)}) == 1

    async def test_resolve_without_a_callable_instance(self, shop: Hub, run: Run):
        await shop.registry.configure("orders", set={"enabled": False})
        words = refused(await asyncio.to_thread(run, "resolve", "orders"))
        expected = "orders: none of its instances (2) can be called: 2 × disabled by an operator"
        assert expected in words

    def test_an_unknown_policy(self, run: Run):
        assert "did you mean 'random'" in refused(run("resolve", "orders", "--policy=randon"))

    async def test_explain(self, shop: Hub, run: Run, url: str):
        await shop.registry.configure("orders", GREEN, set={"weight": 0})
        blue, green = rows(await asyncio.to_thread(run, "explain", "orders", "--zone=a"))
        assert blue == [BLUE, "yes", "in rotation"]
        assert green[:2] == [GREEN, "no"]
        assert "its weight is 0" in green[2]
        _, explanation = objects(await asyncio.to_thread(run, "explain", "orders", "--json"))
        assert explanation == {
            "service": "orders",
            "id": GREEN,
            "called": False,
            "reasons": ["its weight is 0"],
        }
        shown = (await asyncio.to_thread(terminal, url, "explain", "orders")).splitlines()
        assert shown[0].split() == ["id", "called", "why"]

    async def test_wait_returns_once_enough_instances_are_callable(self, hub: Hub, start: Start):
        wait = start("wait", "orders", "--count=2")
        as_json = start("wait", "orders", "--version=2.0", "--json")
        async with (
            hub.register(Instance("orders", "h1", 1)),
            hub.register(Instance("orders", "h2", 1, version="2.0")),
        ):
            assert await wait.end() == 0
            assert await as_json.end() == 0
        assert sorted(wait.out) == ["h1:1", "h2:1"]
        assert [json.loads(line)["id"] for line in as_json.out] == ["h2:1"]

    async def test_wait_times_out(self, shop: Hub, run: Run):
        began = time.monotonic()
        words = refused(await asyncio.to_thread(run, "wait", "orders", "--count=3", "--timeout=1s"))
        assert time.monotonic() - began > 1
        assert "after 1s, 2 of 3 required instances of orders can be called" in words
        assert ok(await asyncio.to_thread(run, "wait", "orders", "--timeout=0s"))

    async def test_wait_also_waits_for_the_store(self, start: Start):
        server = Served("memory://")
        wait = start("wait", "orders", url=server.url)
        with server:
            async with (
                mooring.connect(server.url) as hub,
                hub.register(Instance("orders", "h", 1)),
            ):
                assert await wait.end() == 0
        assert wait.out == ["h:1"]


class TestWatching:
    async def test_watch_prints_each_change_on_a_line(self, hub: Hub, start: Start, shop: Hub):
        watch, as_json = start("watch", "orders"), start("watch", "orders", "--json")
        await eventually(lambda: len(watch.out) == len(as_json.out) == 2, within=40)
        assert watch.out[0].startswith(f"+ {BLUE} state up, zone a, version 1.0, ports.http 8081")
        third = Instance("orders", "10.0.0.3", 1)
        async with hub.register(third) as registration:
            await eventually(lambda: len(watch.out) == 3)
            registration.update(healthy=False)
            await eventually(lambda: len(watch.out) == 4)
            await hub.registry.configure(
                "orders", "10.0.0.3:1", set={"weight": 3, "metadata": {"a": "b"}, "limit": 5}
            )
            await eventually(lambda: len(watch.out) == 5)
        await eventually(lambda: len(watch.out) == len(as_json.out) == 7)
        assert watch.out[2:] == [
            "+ 10.0.0.3:1 state up, version 0.0.0",
            "~ 10.0.0.3:1 healthy yes → no",
            "~ 10.0.0.3:1 weight 1 → 3, metadata.a - → b, config.limit - → 5",
            "~ 10.0.0.3:1 state up → draining",
            "- 10.0.0.3:1",
        ]
        events = [json.loads(line) for line in as_json.out]
        assert [event["action"] for event in events] == [
            *("added", "added", "added"),
            *("updated", "updated", "updated", "removed"),
        ]
        assert events[3]["changed"] == ["healthy"]
        assert events[3]["instance"]["healthy"] is False
        assert events[4]["instance"]["config"] == {
            "weight": 3,
            "metadata": {"a": "b"},
            "limit": 5,
        }

    async def test_secrets_are_masked(self, hub: Hub, start: Start):
        instance = Instance("orders", "10.0.0.7", 1, metadata={"apiToken": "s3cret"})
        async with hub.register(instance):
            watch, as_json = start("watch", "orders"), start("watch", "orders", "--json")
            await eventually(lambda: len(watch.out) == len(as_json.out) == 1, within=40)
            await hub.registry.configure("orders", set={"password": "s3cret"})
            await eventually(lambda: len(watch.out) == len(as_json.out) == 2)
        for lines in (watch.out, as_json.out):
            assert "apiToken" in lines[0]
            assert "password" in lines[1]
            assert "s3cret" not in "".join(lines)

    async def test_ctrl_c_ends_watch_silently(self, hub: Hub, start: Start):
        watch = start("watch", "orders")
        await eventually(lambda: watch.logged("orders has no instances yet"), within=40)
        watch.process.send_signal(signal.SIGINT)
        assert await watch.end() == 130
        assert len(watch.err) == 1

    async def test_watch_reports_a_silent_store_and_its_return(self, start: Start):
        with Served("memory://") as server:
            watch = start("watch", "orders", url=server.url)
            await eventually(lambda: watch.logged("no instances yet"), within=40)
            server.signal(signal.SIGSTOP)
            await eventually(lambda: watch.logged("orders: stale"))
            server.signal(signal.SIGCONT)
            await eventually(lambda: watch.logged("orders: live again"))


class TestConfiguring:
    async def test_values_have_types(self, shop: Hub, run: Run, url: str):
        command = ("config", "set", "orders", "limit=5", "motd=早上好", 'text="5"', "tags=[1, 2]")
        shown = [["limit", "5"], ["motd", "早上好"], ["text", "5"], ["tags", "[1, 2]"]]
        assert rows(await asyncio.to_thread(run, *command)) == shown
        assert await shop.registry.config("orders") == {
            "limit": 5,
            "motd": "早上好",
            "text": "5",
            "tags": [1, 2],
        }
        assert rows(await asyncio.to_thread(run, "config", "get", "orders")) == shown
        assert ok(await asyncio.to_thread(run, "config", "get", "orders", "motd")) == "早上好\n"
        assert ok(await asyncio.to_thread(run, "config", "get", "orders", "text", "--json")) == (
            '"5"\n'
        )
        (config,) = objects(
            await asyncio.to_thread(run, "config", "unset", "orders", "motd", "text", "--json")
        )
        assert config == {"limit": 5, "tags": [1, 2]}
        in_terminal = await asyncio.to_thread(terminal, url, "config", "get", "orders")
        assert in_terminal.splitlines()[0].split() == ["key", "value"]

    async def test_secrets_are_masked_unless_requested(self, hub: Hub, run: Run):
        pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----"
        lines: list[JSON] = [*pem.split("\n")]
        secrets: dict[str, JSON] = {"password": "s3cret", "tls": {"cert": [pem]}, "lines": lines}
        instance = Instance("orders", "10.0.0.7", 1, metadata={"apiToken": "s3cret"})
        async with hub.register(instance):
            await hub.registry.configure("orders", set=secrets)
            await self._are_masked(run)
            shown = await asyncio.to_thread(run, "config", "get", "orders", "--json", "--reveal")
            assert objects(shown) == [secrets]
            assert "in clear text" in shown.stderr
            one = await asyncio.to_thread(run, "config", "get", "orders", "password", "--reveal")
            assert ok(one) == "s3cret\n"
            for command in ("instances", "resolve"):
                listed = await asyncio.to_thread(run, command, "orders", "--json", "--reveal")
                (instance_,) = objects(listed)
                assert instance_["metadata"] == {"apiToken": "s3cret"}
                assert instance_["config"] == secrets
                assert "in clear text" in listed.stderr
            for name, text in (("password", MASK), ("cert", MASK), ("lines", f'["{MASK}"]')):
                masked = await asyncio.to_thread(run, "config", "set", "orders", f"{name}={text}")
                assert masked.returncode == 2
                assert f"{name} is masked" in masked.stderr
        assert await hub.registry.config("orders") == secrets

    async def _are_masked(self, run: Run) -> None:
        for command in (
            ["config", "get", "orders"],
            ["config", "get", "orders", "password"],
            ["config", "get", "orders", "tls"],
            ["config", "set", "orders", "a=1"],
            ["config", "unset", "orders", "a"],
            ["instances", "orders"],
            ["resolve", "orders"],
        ):
            for more in ([], ["--json"]):
                shown = ok(await asyncio.to_thread(run, *command, *more))
                assert "s3cret" not in shown
                assert "MIIEvQ" not in shown

    async def test_the_configuration_of_one_instance(self, shop: Hub, run: Run):
        done = await asyncio.to_thread(
            run, "config", "set", "orders", "enabled=false", "zone=c", f"--instance={GREEN}"
        )
        assert rows(done) == [["enabled", "false"], ["zone", "c"]]
        assert done.stderr == ""
        blue, green = (await shop.registry.instances("orders")).instances
        assert (blue.enabled, blue.zone, green.enabled, green.zone) == (True, "a", False, "c")
        done = await asyncio.to_thread(run, "config", "get", "orders", f"--instance={GREEN}")
        assert rows(done)[0] == ["enabled", "false"]

    @pytest.mark.parametrize("value", ["weight=heavy", "weight=-1", "enabled=maybe", "zone=5"])
    def test_fields_that_affect_calls_are_validated(self, run: Run, value: str):
        assert value.partition("=")[0] in refused(run("config", "set", "orders", value))

    def test_an_unknown_key(self, shop: Hub, run: Run):
        assert "'limit' is not set on orders" in refused(run("config", "get", "orders", "limit"))
        done = run("config", "unset", "orders", "limit")
        assert (done.returncode, done.stdout) == (0, "")
        assert "'limit' was not set on orders" in done.stderr
        assert "service 'order' not found" in refused(run("config", "get", "order"))

    def test_a_service_can_be_configured_before_it_is_registered(self, run: Run):
        done = run("config", "set", "later", "weight=2", "--", "-odd=1")
        assert rows(done) == [["weight", "2"], ["-odd", "1"]]
        assert "later is not registered" in done.stderr

    def test_without_a_server(self, tmp_path: Path):
        store = f"--store=sqlite://{tmp_path}/store"
        assert ok(mooring_command("config", "set", "a", "b=1", store)) == "b\t1\n"
        assert ok(mooring_command("config", "get", "a", "b", store)) == "1\n"

    def test_a_layout_without_configuration(self, run: Run):
        done = run("config", "set", "orders", "weight=1", "--layout=plain:/services/")
        assert "the layout 'plain' has no configuration" in refused(done)


class TestDescribing:
    def test_a_service(self, shop: Hub, run: Run, url: str):
        done = run("info", "set", "orders", "displayName=Orders", "description=buy = pay")
        shown = [["service", "orders"], ["displayName", "Orders"], ["description", "buy = pay"]]
        assert rows(done) == shown
        assert rows(run("info", "get", "orders")) == shown
        assert objects(run("info", "get", "商店/支付", "--json")) == [
            {"service": "商店/支付", "displayName": "", "description": ""}
        ]
        assert terminal(url, "info", "get", "orders").splitlines()[3].split() == [
            "displayName",
            "Orders",
        ]

    def test_a_group(self, shop: Hub, run: Run):
        done = run("info", "set", "--group=商店", "department=零售", "--json")
        assert objects(done) == [
            {"group": "商店", "displayName": "", "department": "零售", "description": ""}
        ]
        assert rows(run("info", "get", "--group=商店"))[2] == ["department", "零售"]

    def test_unknown_names_and_invalid_descriptions(self, shop: Hub, run: Run):
        assert "service 'order' not found" in refused(run("info", "get", "order"))
        assert "group 'shop' not found" in refused(run("info", "get", "--group=shop"))
        assert "unknown description field 'colour'" in refused(
            run("info", "set", "orders", "colour=red")
        )
        for arguments in (
            ["get"],
            ["get", "orders", "--group=商店"],
            ["set", "displayName=x"],
            ["set", "orders"],
            ["set", "orders", "displayName"],
        ):
            assert run("info", *arguments).returncode == 2


class TestDeregistering:
    async def test_an_instance_is_evicted_for_good(self, hub: Hub, run: Run):
        async with (
            hub.register(Instance("orders", "h", 1)) as one,
            hub.register(Instance("orders", "::1", 2)) as two,
        ):
            done = await asyncio.to_thread(run, "deregister", "orders", "h:1")
            assert (ok(done), done.stderr) == ("", "mooring: deregistered orders h:1\n")
            assert objects(
                await asyncio.to_thread(run, "deregister", "orders", "[::1]:2", "--json")
            ) == [{"service": "orders", "id": "[::1]:2", "deregistered": True}]
            await eventually(lambda: {one.state, two.state} == {"removed"})
            words = refused(await asyncio.to_thread(run, "deregister", "orders", "h:1"))
            assert "orders has no instance 'h:1'" in words

    def test_an_unknown_instance(self, shop: Hub, run: Run):
        words = refused(run("deregister", "orders", "10.0.0.1:8081"))
        assert f"orders has no instance '10.0.0.1:8081': did you mean '{BLUE}'?" in words


STUBBORN = """
trap 'echo term >> signals; exit 7' TERM
trap 'echo int >> signals; exit 8' INT
echo $$ > started
while :; do sleep 0.05; done
"""


class TestRegistering:
    @pytest.fixture
    def script(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """A command that writes the signals that it receives to the file `signals`."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        return ["sh", "-c", STUBBORN]

    async def test_an_instance_is_registered_while_the_command_runs(
        self, hub: Hub, start: Start, tmp_path: Path
    ):
        go = tmp_path / "go"
        register = start(
            *("register", "商店/支付", "[::1]:9000", "--version=1.2", "--weight=0.5", "--zone=a"),
            *("--protocol=grpc", "--port=http=9001", "--meta=地区=北京", "--meta=a=b=c"),
            *("--", "sh", "-c", f"until test -e {go}; do sleep 0.05; done; exit 3"),
        )
        await eventually(lambda: register.logged("registered (was registering)"), within=40)
        (one,) = (await hub.registry.instances("商店/支付")).instances
        assert (one.id, one.version, one.weight, one.zone) == ("[::1]:9000", "1.2", 0.5, "a")
        assert (one.protocol, one.ports) == ("grpc", {"http": 9001})
        assert one.metadata == {"地区": "北京", "a": "b=c"}
        assert one.status.metrics == {}, "they would be the wrapper's, not the command's"
        go.touch()
        assert await register.end() == 3
        assert await ids(hub, "商店/支付") == []

    def test_register_exits_like_the_command(self, run: Run, tmp_path: Path):
        assert run("register", "a", "h:1", "--", "sh", "-c", "exit 3").returncode == 3
        assert run("register", "a", "h:1", "--", "sh", "-c", "kill -9 $$").returncode == 137
        done = run("register", "a", "h:1", "--", "no-such-command")
        assert done.returncode == 127
        assert "no-such-command: No such file" in done.stderr
        (tmp_path / "text").write_text("not a program")
        (tmp_path / "text").chmod(0o755)
        assert run("register", "a", "h:1", "--", str(tmp_path / "text")).returncode == 126

    def test_the_command_gets_its_port(self, run: Run):
        show = ("--", "sh", "-c", "echo port $PORT; echo $1", "sh", "--version")
        assert ok(run("register", "a", ":8080", *show)) == "port 8080\n--version\n"
        done = run("register", "a", "--json", *show)
        port = ok(done).split()[1]
        states = [json.loads(line) for line in done.stderr.splitlines()]
        assert [state["state"] for state in states] == ["registering", "registered", "closed"]
        assert all(state["id"].endswith(f":{port}") for state in states)

    def test_a_determined_host_is_reported(self, run: Run):
        done = run("register", "a", ":8080", "--", "true")
        # Without a network there is no other address.
        message = r"this machine is advertised as|no route leads out: 127\.0\.0\.1 is advertised"
        assert re.search(message, done.stderr)

    async def test_a_signal_drains_the_instance_before_the_command_gets_it(
        self, hub: Hub, start: Start, script: list[str], tmp_path: Path
    ):
        register = start("register", "orders", "h:1", "--", *script)
        async with hub.discover("orders", hold=0) as view:
            await view.wait(timeout=40)
            await eventually((tmp_path / "started").exists)
            seen: list[str] = []
            view.subscribe(
                lambda update: seen.extend(
                    change.after.status.state if change.after else "gone"
                    for change in update.changes
                )
            )
            os.killpg(register.process.pid, signal.SIGINT)  # as a terminal does
            await eventually(lambda: seen[-1:] == ["draining"])
            assert not (tmp_path / "signals").exists(), "callers may not know yet"
            assert await register.end() == 8
            await eventually(lambda: seen == ["draining", "gone"])
        assert (tmp_path / "signals").read_text() == "int\n"
        assert register.logged("draining (was registered)")

    async def test_a_second_signal_ends_the_linger_time(
        self, hub: Hub, start: Start, script: list[str], tmp_path: Path
    ):
        register = start("register", "orders", "h:1", "--", *script)
        await eventually((tmp_path / "started").exists, within=40)
        await eventually(lambda: register.logged("registered (was registering)"))
        register.process.send_signal(signal.SIGTERM)
        await eventually(lambda: register.logged("draining"))
        register.process.send_signal(signal.SIGTERM)
        assert await register.end() == 7
        assert await ids(hub, "orders") == []

    @pytest.mark.deadline
    async def test_a_killed_register_expires_with_its_ttl(
        self, hub: Hub, start: Start, script: list[str], tmp_path: Path
    ):
        register = start("register", "orders", "h:1", "--ttl=2s", "--", *script)
        await eventually(lambda: register.logged("registered (was registering)"), within=40)
        await eventually((tmp_path / "started").exists)
        register.process.kill()

        async def gone() -> bool:
            return not await ids(hub, "orders")

        try:
            await eventually(gone, within=5)
        finally:
            os.kill(int((tmp_path / "started").read_text()), signal.SIGKILL)

    async def test_register_without_a_command_runs_until_it_is_stopped(
        self, hub: Hub, start: Start
    ):
        register = start("register", "orders", "h:1")
        await eventually(lambda: register.logged("registered (was registering)"), within=40)
        assert await ids(hub, "orders") == ["h:1"]
        register.process.send_signal(signal.SIGTERM)
        assert await register.end() == 0
        assert await ids(hub, "orders") == []

    async def test_register_without_a_command_ends_when_the_instance_is_evicted(
        self, hub: Hub, start: Start
    ):
        register = start("register", "orders", "h:1")
        await eventually(lambda: register.logged("registered (was registering)"), within=40)
        assert await hub.registry.deregister("orders", "h:1")
        assert await register.end() == 1
        assert register.logged("was deregistered by an operator")

    async def test_an_unavailable_store_does_not_keep_the_command_from_starting(
        self, start: Start, script: list[str], tmp_path: Path
    ):
        server = Served("memory://")
        register = start("register", "orders", "h:1", "--", *script, url=server.url)
        await eventually((tmp_path / "started").exists, within=40)
        await eventually(lambda: register.logged("not registered yet"))
        with server:
            async with mooring.connect(server.url) as hub, hub.discover("orders") as view:
                await view.wait(timeout=40)
            register.process.send_signal(signal.SIGTERM)
            assert await register.end() == 7

    async def test_register_in_another_layout(self, hub: Hub, start: Start, run: Run):
        layout = "--layout=plain:/services/"
        register = start("register", "orders", "h:1", "--zone=a", layout)
        await eventually(lambda: register.logged("registered (was registering)"), within=40)
        await eventually(lambda: register.logged("the registry cannot store its zone"))
        (entry,) = (await hub.store.read(prefix(b"/services/"))).entries
        assert (entry.key, entry.value) == (b"/services/orders/h:1", b"h:1")
        assert ok(await asyncio.to_thread(run, "resolve", "orders", layout)) == "h:1\n"

    @pytest.mark.parametrize(
        "arguments",
        [
            ["a"],
            ["a", "h:1", "--"],
            ["a", "h:1", "sleep", "1"],
            ["a", "h:1", "--meta=b"],
            ["a", "h:1", "--ttl=5"],
            ["a", "h:1", "--port=http=x"],
            ["a", "h"],
            ["a", "0.0.0.0:80"],
            ["a/b/c", "h:1"],
            ["a", "h:1", "--layout=hprose"],
            ["a", "h:1", "--layout=hprose", "--protocol=smtp"],
            ["a", "h:1", "--ttl=0s"],
        ],
    )
    def test_a_wrong_call_is_rejected_before_the_command_starts(
        self, run: Run, arguments: list[str]
    ):
        command = [] if "--" in arguments or arguments == ["a"] else ["--", "echo", "started"]
        done = run("register", *arguments, *command)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        ("domain", "flags", "expected"),
        [
            ("http.hello", [], "http://10.0.0.1:80/"),
            ("tcp4.hello", [], "tcp4://10.0.0.1:80/"),
            ("hello", ["--protocol=ws"], "ws://10.0.0.1:80/"),
            ("http.hello", ["--protocol=tcp"], "tcp://10.0.0.1:80/"),
        ],
    )
    async def test_an_hprose_server_gets_the_protocol_of_its_domain(
        self, hub: Hub, start: Start, domain: str, flags: list[str], expected: str
    ):
        start("register", domain, "10.0.0.1:80", "--layout=hprose", *flags)

        async def registered() -> bool:
            snapshot = await hub.store.read(prefix(f"hprose-service/{domain}/".encode()))
            return [json.loads(entry.value)["ServerUrl"] for entry in snapshot.entries] == [
                expected
            ]

        await eventually(registered, within=40)


class TestStore:
    @pytest.fixture
    def local(self, command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
        """A command without a store. The default address is replaced, since something may be
        listening there."""
        monkeypatch.setattr(connecting, "LOCAL", "127.0.0.1:1")
        monkeypatch.setenv("MOORING_STORE", "")
        return command

    @pytest.mark.parametrize(
        "typed", ["services", "instances a", "watch a", "config get a", "store export"]
    )
    def test_the_error_without_a_store_says_what_to_do(self, local: Command, typed: str):
        assert local(*typed.split()) == (
            1,
            "",
            "mooring: no store answers at 127.0.0.1:1: start `mooring serve`, or name a store "
            "with --store URL or MOORING_STORE, or a registry with --registry URL or "
            "MOORING_REGISTRY\n",
        )

    def test_the_doctor_checks_the_local_server_by_default(self, local: Command):
        done = local("doctor")
        assert done.code == 1
        assert "nothing listens at 127.0.0.1:1" in done.stdout

    def test_a_registration_retries_and_reports_the_same(self, local: Command):
        done = local("register", "a", "h:1", "--", "echo", "runs")
        assert (done.code, done.stdout) == (0, "runs\n")
        assert "a h:1: not registered yet, retrying" in done.stderr
        assert "start `mooring serve`" in done.stderr

    def test_an_unavailable_named_store(self):
        done = mooring_command("services", "--store=etcd://u:secret@127.0.0.1:1?timeout=5s")
        assert "nothing listens at 127.0.0.1:1" in refused(done)
        assert "secret" not in done.stderr

    def test_the_layout_can_come_from_the_environment(self, url: str):
        done = mooring_command("services", MOORING_STORE=url, MOORING_LAYOUT="nonsense")
        assert "unknown layout 'nonsense'" in refused(done)


def test_every_command_of_the_registry_has_the_common_options():
    nouns = app.load()
    alone = ("register", "groups", "services", "instances", "watch", "resolve", "wait", "explain")
    commands = {name: nouns[name] for name in (*alone, "deregister")}
    for noun in ("config", "info"):
        commands |= {
            f"{noun} {name}": subcommand for name, subcommand in nouns[noun].commands.items()
        }
    for name, command in commands.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--store", "--registry", "--layout", "--json"} <= options, name
        assert command.help, name
