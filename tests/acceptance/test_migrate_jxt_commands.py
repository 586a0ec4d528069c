"""`mooring migrate jxt`, as users type it, and killed at random."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mooring.backends import open_store
from mooring.errors import NotConfigured
from mooring.store import Delete, Put, Store, prefix
from mooring.store.contract import key
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring
from mooring.testing.etcd import EtcdServer
from tests.acceptance.commands import Command, Done, Running, running
from tests.features.jxt_store import OldStore, dump, encoded, level, made, new_parts, verdicts
from tests.waiting import eventually, until

log = logging.getLogger(__name__)

pytestmark = pytest.mark.timeout(180)  # each starts several processes

META = {"id": 1, "code": "acme", "name": "Acme / 甲"}


class Place:
    """A store with old keys, and the commands on it."""

    def __init__(
        self, command: Command, server: EtcdServer, folder: Path, *, timeout: str = "10s"
    ) -> None:
        self.command = command
        self.url = f"{server.url}?namespace=/{uuid.uuid4().hex}/&timeout={timeout}"
        self.verified = folder / "verified"

    def arguments(self, step: str, *more: str) -> list[str]:
        file = [f"--verified={self.verified}"] if step in ("verify", "cutover", "delete") else []
        return ["migrate", "jxt", step, f"--store={self.url}", *file, *more]

    def run(self, step: str, *more: str) -> Done:
        return self.command(*self.arguments(step, *more))

    def running(self, step: str, *more: str) -> AbstractContextManager[Running]:
        return running(self.verified.parent, *self.arguments(step, *more))

    @contextlib.asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with open_store(self.url) as store:
            yield store

    def put(self, **values: object) -> None:
        async def write() -> None:
            async with self.store() as store:
                for key, value in values.items():
                    await store.commit(Put(key.encode(), encoded(value)))

        asyncio.run(write())

    def dump(self) -> dict[str, bytes]:
        async def read() -> dict[str, bytes]:
            async with self.store() as store:
                return await dump(store)

        return asyncio.run(read())


@pytest.fixture
def place(command: Command, etcd: Callable[[str], EtcdServer], tmp_path: Path) -> Place:
    return Place(command, etcd("3.5"), tmp_path)


def test_from_plan_to_delete(place: Place):
    place.put(
        **{
            "jxt//tenants/1/meta": META,
            "jxt//tenants/by-code/acme": {"id": 1},
            "jxt//hosts/nowhere.example.com": {"tenantId": 7},
            "jxt//common/resolver": {"httpType": "host"},
        }
    )
    planned = place.run("plan")
    assert planned.code == 0, planned.stderr
    assert planned.stdout.splitlines() == [
        "-\tjxt//common/resolver\tmissing\tit is not among the new keys",
        "1\tjxt//tenants/1/meta\tmissing\tit is not among the new keys",
        "1\tjxt//tenants/by-code/acme\tindex\tit refers to a part that is not copied yet",
        "7\tjxt//hosts/nowhere.example.com\torphan\ttenant 7 not found",
    ]
    assert planned.stderr == "mooring: 2 missing, 1 index, 1 orphan\n"

    refused = place.run("delete")
    assert (refused.code, refused.stdout) == (1, "")
    assert "nothing is deleted before it finds no difference" in refused.stderr
    early = place.run("verify")
    assert early.code == 1
    assert "the old keys cannot be deleted yet" in early.stderr
    assert not place.verified.exists()

    done = place.run("copy")
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines() == ["-\tcommon/resolver\tto new\t-", "1\tmeta\tto new\t-"]
    assert place.run("verify").code == 0
    assert "there was no cut-over" in place.run("delete").stderr
    cut = place.run("cutover")
    assert cut.code == 0, cut.stderr
    assert "only the new keys have been authoritative since 2" in cut.stderr

    deleted = place.run("delete", "--json")
    assert deleted.code == 0, deleted.stderr
    assert json.loads(deleted.stdout) == {"deleted": 3, "stays": []}
    assert "3 old keys deleted" in deleted.stderr
    old = [key for key in place.dump() if key.startswith("jxt//")]
    assert old == ["jxt//hosts/nowhere.example.com"]


def test_a_cut_over_can_be_undone(place: Place):
    place.put(**{"jxt//tenants/1/meta": META})
    assert "(missing)" in place.run("cutover").stderr
    assert place.run("copy").code == 0
    assert place.run("cutover").code == 0
    assert "only the new keys have been authoritative since" in place.run("copy").stderr
    assert "both formats are authoritative again" in place.run("cutover", "--undo").stderr
    assert "nothing to write" in place.run("copy").stderr


def test_a_copy_reports_what_it_skipped(place: Place):
    place.put(
        **{
            "jxt//tenants/1/meta": META,
            "jxt//tenants/1/storage": {"quotaBytes": "x"},
            "jxt//tenants/2/storage": [1],
            "jxt//common/resolver": {"httpType": "host"},
        }
    )
    done = place.run("copy")
    assert done.code == 0, done.stderr
    assert "2 parts of 1 tenant and the common settings written" in done.stderr
    assert "remaining: 1 refused, 1 unreadable; `plan` lists them" in done.stderr
    assert place.run("verify").code == 0
    strict = place.run("verify", "--strict")
    assert (strict.code, place.verified.exists()) == (1, False)


def test_a_migration_can_start_again(place: Place):
    place.put(**{"jxt//tenants/1/meta": META})
    for step in ("copy", "cutover", "delete"):
        assert place.run(step).code == 0, step
    place.put(**{"jxt//tenants/2/storage": {"uploadQuotaGb": 1}})
    assert "cutover --restart" in place.run("copy").stderr
    assert "cutover --restart" in place.run("cutover", "--undo").stderr
    assert "both formats are authoritative again" in place.run("cutover", "--restart").stderr
    assert place.run("copy").code == 0
    assert "jxt/tenants/2/storage" in place.dump()


def test_an_interrupted_copy_reports_its_progress(place: Place):
    async def write() -> None:
        async with place.store() as store:
            await made(4, 600).write(store)

    async def begun() -> None:
        async with place.store() as store:

            async def copying() -> bool:
                return len((await store.read(prefix(b"jxt/_migration/"))).entries) > 40

            await eventually(copying, within=60)

    asyncio.run(write())
    with place.running("copy") as copy:
        asyncio.run(begun())
        copy.process.send_signal(signal.SIGINT)
        code = copy.process.wait(60)
    logged = copy.err.read_text()
    assert code == 130, logged
    assert "to new" in copy.out.read_text()
    assert "stopped before the end: run `copy` again" in logged


def test_the_verified_file_is_named_after_its_namespace(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    place.put(**{"a/b//tenants/1/meta": META})
    for step in ("copy", "verify"):
        done = place.command("migrate", "jxt", step, f"--store={place.url}", "--namespace=a/b")
        assert done.code == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a-b.verified"]
    refused = place.run("delete", f"--verified={tmp_path / 'a-b.verified'}")
    assert "another migration, the namespace 'a/b' in " in refused.stderr


def test_a_store_without_old_keys(place: Place):
    assert "is --namespace right?" in place.run("plan").stderr


def test_a_bridge_runs_until_it_is_stopped(place: Place):
    with place.running("bridge", "--json") as bridge:
        place.put(**{"jxt//tenants/1/meta": META})
        moved = {"part": "meta", "move": "to new", "conflict": False}
        until(
            lambda: any(moved in json.loads(line)["changes"] for line in bridge.lines()), within=40
        )
        assert "jxt/tenants/1/meta" in place.dump()
        bridge.process.send_signal(signal.SIGTERM)
        code = bridge.process.wait(20)
    logged = bridge.err.read_text()
    assert code == 0, logged
    assert logged.splitlines()[-1] == "mooring: stopped"
    assert "mooring: tenant 1: meta to new" in logged


@pytest.mark.parametrize(
    ("rounds", "tenants"),
    [(1, 10), pytest.param(3, 29, marks=pytest.mark.extended("the same once, with fewer tenants"))],
)
async def test_a_bridge_that_is_killed_repeatedly_loses_nothing(
    place: Place, rounds: int, tenants: int
):
    async with place.store() as store:
        publisher = Publisher(store, ring=Keyring())

        async def write(value: int) -> None:
            """Write on both sides."""
            for unit in range(1, tenants + 1):
                root = f"jxt//tenants/{unit}"
                quota = encoded({"uploadQuotaGb": value})
                await store.commit(Put(f"{root}/storage".encode(), quota))
                alias = encoded([f"a{value}.t{unit}.example.com"])
                await store.commit(Put(f"{root}/domain/aliases".encode(), alias))
                await publisher.put(unit, f"ftp/user{unit}", {"description": f"{value}"})

        async def under_way() -> bool:
            return (await store.read(key(b"jxt/tenants/5/storage"))).first is not None

        async def delete_five() -> None:
            with contextlib.suppress(NotConfigured):
                await publisher.delete(5)
            old = [name for name in await dump(store) if ".t5." in name or name.endswith("/user5")]
            await store.commit(
                Delete(prefix(b"jxt//tenants/5/")),
                *(Delete(key(name.encode())) for name in old if name.startswith("jxt//")),
            )

        for round in range(rounds):
            await delete_five()
            with place.running("bridge") as bridge:
                await write(2 * round)
                await eventually(under_way, within=30)
                bridge.process.kill()
            await write(2 * round + 1)
            await store.commit(Delete(prefix(f"jxt//tenants/{round + 1}/".encode())))

        with place.running("bridge"):
            await eventually(lambda: level(store, Keyring()), within=60)
        entries = new_parts("jxt", await dump(store))
    last, value = tenants, 2 * rounds - 1
    assert entries[last] == {
        "storage": {"tenantId": last, "uploadQuotaGb": value},
        "domain/aliases": [f"a{value}.t{last}.example.com"],
        f"ftp/user{last}": {
            "tenantId": last,
            "username": f"user{last}",
            "description": f"{value}",
        },
    }


def test_no_secret_is_shown(place: Place):
    database = {"driver": "mysql", "password": "s3cret", "port": "x"}
    place.put(
        **{
            "jxt//tenants/1/ftp": [{"username": "a", "passwordHash": "$2a$s3cret"}],
            "jxt//jxt/config/tenants/1/services/a/database": database,
            "jxt//jxt/config/tenants/1/services/b/database": {"password": "s3cret"},
        }
    )
    for step, *more in (["plan", "--json"], ["copy"], ["verify", "--json"]):
        done = place.run(step, *more)
        assert "s3cret" not in done.stdout + done.stderr, step
    assert "s3cret" not in place.verified.read_text()


class Killed:
    """The commands, each killed repeatedly on the way."""

    def __init__(self, place: Place, store: Store, patience: float) -> None:
        self.place, self.store, self.patience = place, store, patience

    async def count(self, start: str) -> int:
        return len((await self.store.read(prefix(start.encode()), keys_only=True)).entries)

    async def kill(self, step: str, far: Callable[[], Awaitable[bool]]) -> None:
        with self.place.running(step) as command:

            async def enough() -> bool:
                started = time.monotonic()
                if command.process.poll() is not None or await far():
                    return True
                # Counting a hundred thousand keys all the time would starve the command.
                await asyncio.sleep(0.05 + 5 * (time.monotonic() - started))
                return False

            await eventually(enough, within=self.patience)
            command.process.kill()

    async def finish(self, step: str, *more: str) -> Done:
        return await asyncio.to_thread(self.place.run, step, *more)

    async def steps(self, step: str) -> list[tuple[str, str]]:
        done = await self.finish(step, "--json")
        records = [json.loads(line) for line in done.stdout.splitlines()]
        return [(record["key"], record["verdict"]) for record in records]

    async def copy_until(self, count: float) -> None:
        async def far() -> bool:
            return await self.count("jxt/_migration/jxt/") > count

        await self.kill("copy", far)

    async def delete_until(self, count: float) -> None:
        async def far() -> bool:
            return await self.count("jxt//") < count

        await self.kill("delete", far)


async def migrate_killed(
    killed: Killed, old: OldStore, chance: random.Random, *, copies: int = 4, deletions: int = 3
) -> None:
    """From the first step to the last, with this number of killed copies and deletions."""
    store, place = killed.store, killed.place
    await old.write(store)
    before = await dump(store)
    verdicts(old, await killed.steps("plan"), copied=False)
    for share in sorted(chance.uniform(0.02, 0.9) for _ in range(copies)):
        await killed.copy_until(share * len(old.expected))
    done = await killed.finish("copy")
    assert "warning: tenant" in done.stderr, "taken names are reported"
    entries = await dump(store)
    old.check_new(entries)
    assert all(entries[key] == value for key, value in before.items()), "nothing old was touched"

    verdicts(old, await killed.steps("verify"), copied=True)
    listed = [json.loads(line)["key"] for line in place.verified.read_text().splitlines()[1:]]
    assert sorted(listed) == sorted(old.goes)
    cut = await killed.finish("cutover")
    assert cut.code == 0, cut.stderr

    total = await killed.count("jxt//")
    for share in sorted((chance.uniform(0.1, 0.95) for _ in range(deletions)), reverse=True):
        await killed.delete_until(share * total)
    done = await killed.finish("delete")
    assert done.code == 0, done.stderr
    entries = await dump(store)
    old.check_left(entries)
    old.check_new(entries)
    assert {key for key in entries if key.startswith("jxt//")} <= old.stays.keys()


async def test_a_migration_that_is_killed_repeatedly(place: Place):
    async with place.store() as store:
        await migrate_killed(
            Killed(place, store, 120), made(11, 60), random.Random(11), copies=1, deletions=1
        )


@pytest.mark.extended("a migration of sixty tenants is killed twice")
@pytest.mark.timeout(400)
async def test_five_hundred_tenants_with_killed_commands(place: Place):
    async with place.store() as store:
        await migrate_killed(Killed(place, store, 120), made(11, 500), random.Random(11))


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_ten_thousand_tenants_with_killed_commands(
    command: Command, fresh_etcd: Callable[..., EtcdServer], tmp_path: Path
):
    seed = random.randrange(1 << 30)
    log.info("seed %d", seed)
    server = fresh_etcd(series="3.5", flags=["--unsafe-no-fsync"])
    place = Place(command, server, tmp_path, timeout="60s")
    async with place.store() as store:
        await migrate_killed(Killed(place, store, 1800), made(seed, 10_000), random.Random(seed))
