"""`mooring migrate redis-v1`, as users type it."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from mooring.testing.redis import RedisServer
from tests.acceptance.commands import Command, Done, in_terminal, running
from tests.waiting import until


class Place:
    """A Redis with v1 and v2 side by side, and the commands on it."""

    def __init__(self, command: Command, server: RedisServer, folder: Path) -> None:
        self.command, self.server, self.v2 = command, server, uuid.uuid4().hex[:8]
        self.v1 = f"v1-{self.v2}"
        self.url = f"{server.url}?prefix={self.v2}&expire=10m"
        self.verified = folder / "verified"

    def register(self, service: str, id: str, **changed: str) -> None:
        now = round(time.time() * 1000)
        fields = {"host": "10.0.0.1", "port": "80", "timestamp": str(now), **changed}
        words = [word for pair in fields.items() for word in pair]
        self.server.command("HSET", f"{self.v1}:services:{service}:{id}", *words)
        self.server.command("SADD", f"{self.v1}:service_instances:{service}", id)
        self.server.command("ZADD", f"{self.v1}:heartbeat:{service}", now, id)

    def arguments(self, step: str, *more: str) -> list[str]:
        file = [f"--verified={self.verified}"] if step in ("verify", "delete") else []
        where = [f"--registry={self.url}", f"--v1-prefix={self.v1}"]
        return ["migrate", "redis-v1", step, *where, *file, *more]

    def run(self, step: str, *more: str) -> Done:
        return self.command(*self.arguments(step, *more))

    def listed(self, service: str) -> list[str]:
        done = self.command("instances", service, f"--registry={self.url}", "--json")
        return [json.loads(line)["id"] for line in done.stdout.splitlines()]

    def v1_keys(self) -> list[str]:
        return sorted(cast("list[str]", self.server.command("KEYS", f"{self.v1}:*")))


@pytest.fixture
def place(command: Command, redis: Callable[[str], RedisServer], tmp_path: Path) -> Place:
    return Place(command, redis("6.2"), tmp_path)


def test_from_plan_to_delete(place: Place):
    place.register("svc", "a")
    place.register("svc", "b", port="many")
    planned = place.run("plan")
    assert planned.code == 0, planned.stderr
    assert planned.stdout.splitlines() == [
        "svc\ta\tmissing\tv2 has no details of it; v2 has no heartbeat of it",
        "svc\tb\tunreadable\thas an invalid port: 'many' is not a number",
    ]
    assert planned.stderr == "mooring: 1 missing, 1 unreadable\n"
    assert place.listed("svc") == []

    refused = place.run("delete")
    assert (refused.code, refused.stdout) == (1, "")
    assert "nothing is deleted before it finds no difference" in refused.stderr

    early = place.run("verify")
    assert early.code == 1
    assert "v1 cannot be deleted yet" in early.stderr
    assert not place.verified.exists()

    copied = place.run("copy")
    assert copied.stdout.startswith("svc\ta\twritten\t")
    assert place.listed("svc") == ["a"]
    assert "nothing to write" in place.run("copy").stderr

    verified = place.run("verify")
    assert verified.code == 0, verified.stdout + verified.stderr
    assert "1 equal, 1 unreadable" in verified.stderr

    deleted = place.run("delete")
    assert deleted.code == 0, deleted.stderr
    assert "3 records, names and heartbeats of v1 deleted" in deleted.stderr
    assert place.v1_keys() == [
        f"{place.v1}:{rest}"
        for rest in ("heartbeat:svc", "service_instances:svc", "services:svc:b")
    ]
    assert place.listed("svc") == ["a"]


def test_verify_fails_while_v1_has_an_instance_that_v2_cannot_have(place: Place):
    for id in "ab":
        place.register("svc", id)
    place.server.command("SET", f"{place.v2}:services:svc:instance:b", "x")
    assert place.run("copy").code == 0
    refused = place.run("verify")
    assert refused.code == 1
    assert "svc\tb\tstranded\t" in refused.stdout
    assert "v2 is complete" not in refused.stderr
    assert not place.verified.exists()
    place.server.command("DEL", f"{place.v2}:services:svc:instance:b")
    assert place.run("copy").code == 0
    assert place.run("verify").code == 0
    assert place.listed("svc") == ["a", "b"]


def test_json_output_is_complete(place: Place):
    place.register("svc", "a", metadata="just words")
    assert place.run("copy", "--json").code == 0
    (record,) = [json.loads(line) for line in place.run("plan", "--json").stdout.splitlines()]
    assert record.pop("why").startswith("v2 has the same; metadata is neither")
    assert record == {
        "service": "svc",
        "id": "a",
        "verdict": "equal",
        "differences": [],
        "notes": ["metadata is neither JSON nor a=1,b=2: the text is kept under the name metadata"],
    }
    place.register("svc", "a", weight="5")
    (record,) = [json.loads(line) for line in place.run("verify", "--json").stdout.splitlines()]
    assert record["verdict"] == "differs"
    assert {"field": "weight", "v1": "5", "v2": "1"} in record["differences"]


def test_delete_refuses_another_migration_and_later_changes(place: Place):
    place.register("svc", "a")
    place.run("copy")
    assert place.run("verify").code == 0
    other = place.run("delete", "--v1-prefix=other")
    assert other.code == 1
    assert "another migration" in other.stderr
    place.register("svc", "b")
    refused = place.run("delete")
    assert refused.code == 1
    assert "v1 changed since it was verified: svc b was added" in refused.stderr
    assert len(place.v1_keys()) == 4
    assert place.run("verify").code == 1
    assert not place.verified.exists(), "what was verified before no longer counts"


def test_a_bridge_runs_until_it_is_stopped(place: Place, tmp_path: Path):
    with running(tmp_path, *place.arguments("bridge", "--interval=100ms", "--json")) as bridge:
        place.register("svc", "a")
        moved = [{"service": "svc", "id": "a"}]
        until(lambda: any(json.loads(line)["toV2"] == moved for line in bridge.lines()), within=40)
        assert place.listed("svc") == ["a"]
        bridge.process.send_signal(signal.SIGTERM)
        assert bridge.process.wait(40) == 0
    logged = bridge.err.read_text()
    assert logged.splitlines()[-1] == "mooring: stopped"
    assert "mooring: svc a: from v1 to v2" in logged


def test_a_killed_copy_can_be_continued(place: Place, tmp_path: Path):
    for number in range(300):
        place.register(f"s{number % 30}", f"i{number}")
    heartbeats = f"{place.v2}:services:s0:heartbeats"
    with running(tmp_path, *place.arguments("copy")):
        until(lambda: place.server.command("EXISTS", heartbeats), within=40)
    assert place.run("copy").code == 0
    done = place.run("verify")
    assert "300 equal" in done.stderr, done.stderr


def test_a_store_is_refused(command: Command, tmp_path: Path):
    done = command("migrate", "redis-v1", "plan", f"--store=sqlite://{tmp_path}/store")
    assert done.code == 2
    assert "is not a Redis" in done.stderr


def test_a_terminal_shows_a_progress_bar_and_a_table(place: Place):
    place.register("svc", "a")
    code, screen = in_terminal(*place.arguments("plan"))
    assert code == 0, screen
    assert "compared" in screen
    assert "verdict" in screen
    assert "missing" in screen


def test_the_commands_of_the_page_work(place: Place):
    page = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text()
    commands = [
        line.removeprefix("$ ").replace("redis://127.0.0.1:6379", place.url).split()
        for line in page.splitlines()
        if line.startswith("$ ")
    ]
    assert [command[3] for command in commands] == ["plan", "copy", "bridge", "verify", "delete"]
    place.register("svc", "a")
    for _, *words in commands:
        more = [f"--v1-prefix={place.v1}"]
        if words[2] == "bridge":  # it would not end: only its options are checked
            more.append("--help")
        if words[2] in ("verify", "delete"):
            more.append(f"--verified={place.verified}")
        done = place.command(*words, *more)
        assert done.code == 0, done.stdout + done.stderr
    assert place.v1_keys() == []
