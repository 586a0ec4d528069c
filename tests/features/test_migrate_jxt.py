"""The migration from the old keys of tenants to the new, on real stores."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator

import pytest

from mooring.errors import MigrationError, NotConfigured, Taken
from mooring.migrate.jxt.bridge import Bridge
from mooring.migrate.jxt.migration import (
    Migration,
    VerifiedKey,
)
from mooring.migrate.jxt.plan import DELETABLE, DIFFERENT
from mooring.migrate.jxt.state import SyncedState
from mooring.migrate.jxt.sync_unit import SyncResult
from mooring.migrate.verified_file import Verified
from mooring.model import JSON
from mooring.store import Delete, Put, Store, everything
from mooring.store.contract import key as key_range
from mooring.tasks import Tasks
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring
from tests.backends import USUAL, usual
from tests.features.jxt_store import (
    differing,
    dump,
    encoded,
    indexed,
    level,
    made,
    new_parts,
    old_indexed,
    verdicts,
)
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

on_etcd_too = pytest.mark.parametrize("backend", USUAL, indirect=True)


@pytest.fixture(params=usual(["memory"], ["etcd-3.5"]))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_the_environment_sets_the_namespace(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOORING_TENANTS_NAMESPACE", "acme")
    assert Migration(store, ring=Keyring()).header.namespace == "acme"


@on_etcd_too
async def test_plan_then_copy_then_verify_then_cut_over_then_delete(store: Store):
    old = made(1, 80)
    await old.write(store)
    migration = Migration(store, ring=Keyring())
    before = await dump(store)
    steps = await migration.plan()
    assert await dump(store) == before, "a plan writes nothing"
    verdicts(old, [(step.name, step.verdict) for step in steps], copied=False)
    assert {step.name for step in steps} == {key for key in old.entries if old.stays.get(key) != ""}
    done = [settled async for settled in migration.copy()]
    assert {settled.unit for settled in done if settled.problems} == {13, 42, 45, 46, 48, 63}
    entries = await dump(store)
    old.check_new(entries)
    assert all(entries[key] == value for key, value in before.items()), "nothing old was touched"
    steps, listed = await migration.verify()
    verdicts(old, [(step.name, step.verdict) for step in steps], copied=True)
    assert not [step for step in steps if step.verdict in DIFFERENT]
    assert {step.name for step in steps if step.verdict in DELETABLE} == old.goes
    assert {listed_key.key for listed_key in listed.items} == old.goes
    marker, _, listed = await migration.cutover()
    assert marker.revision > 0
    gone, stays = await migration.delete(listed)
    assert (gone, stays) == (len(old.goes), [])
    entries = await dump(store)
    old.check_new(entries)
    old.check_left(entries)
    kept = {key.removeprefix("jxt/_migration/jxt/") for key in entries if "_migration" in key}
    assert kept == {"cutover", "48", "72"}, "what is said of keys that are still there"
    assert await migration.delete(listed) == (0, []), "once more changes nothing"
    assert await dump(store) == entries


async def put(store: Store, key: str, value: object) -> None:
    raw = value if isinstance(value, bytes) else encoded(value)
    await store.commit(Put(key.encode(), raw))


async def drop(store: Store, key: str) -> None:
    await store.commit(Delete(key_range(key.encode())))


async def copied(migration: Migration) -> dict[int, SyncResult]:
    return {settled.unit: settled async for settled in migration.copy()}


async def planned(migration: Migration) -> dict[str, str]:
    return {step.name: step.verdict for step in await migration.plan()}


def changes(settled: SyncResult) -> list[tuple[str, str]]:
    return [(change.path, change.move) for change in settled.changes]


META = {"id": 1, "code": "acme", "name": "Acme / 甲"}


async def test_a_repeated_copy_changes_nothing(store: Store):
    old = made(2, 30)
    await old.write(store)
    migration = Migration(store, ring=Keyring())
    assert await copied(migration)
    before = await store.read(everything())
    done = await copied(migration)
    assert [settled.changes for settled in done.values()] == [[]], "except for taken names"
    assert await store.read(everything()) == before


async def test_an_interrupted_copy_can_be_continued(store: Store):
    old = made(3, 60)
    await old.write(store)
    migration = Migration(store, ring=Keyring())
    copying = migration.copy()
    for _ in range(10):
        await anext(copying)
    await copying.aclose()  # type: ignore[attr-defined]
    assert "missing" in (await planned(migration)).values()
    await copied(migration)
    old.check_new(await dump(store))


async def test_changes_of_the_old_keys_are_copied_again(store: Store):
    migration = Migration(store)
    await put(store, "jxt//tenants/1/meta", META)
    await put(store, "jxt//tenants/1/ftp", [{"username": "a"}, {"username": "b"}])
    await copied(migration)
    await put(store, "jxt//tenants/1/meta", {**META, "code": "other"})
    await put(store, "jxt//tenants/1/ftp", [{"username": "b"}])
    assert await planned(migration) == {
        "jxt//tenants/1/meta": "differs",
        "jxt//tenants/1/ftp": "equal",
        "jxt/tenants/1/ftp/a": "surplus",
    }
    assert changes((await copied(migration))[1]) == [("ftp/a", "out of new"), ("meta", "to new")]
    entries = await dump(store)
    assert new_parts("jxt", entries)[1].keys() == {"meta", "ftp/b"}
    index = {key for key in entries if "/_index/" in key}
    assert index == {
        "jxt/tenants/_index/by-code/other",
        "jxt/tenants/_index/by-name/Acme%20%2F%20%E7%94%B2",
        "jxt/tenants/_index/ftp-user/b",
    }


async def test_a_copy_keeps_later_and_new_parts(store: Store):
    migration, publisher = Migration(store), Publisher(store)
    await put(store, "jxt//tenants/1/meta", META)
    await put(store, "jxt//tenants/1/storage", {"uploadQuotaGb": 1})
    await copied(migration)
    await publisher.put(1, "storage", {"uploadQuotaGb": 5})
    await publisher.put(1, "domain/primary", "a.example.com")
    await publisher.put(2, "meta", {"code": "two", "name": "Two"})
    await drop(store, "jxt//tenants/1/storage")
    before = new_parts("jxt", await dump(store))
    assert await copied(migration) == {}
    assert new_parts("jxt", await dump(store)) == before
    assert before[1]["storage"]["uploadQuotaGb"] == 5, "a change counts more than a deletion"


async def test_an_unreadable_new_part_is_a_difference(store: Store):
    migration = Migration(store)
    await put(store, "jxt//tenants/1/meta", META)
    await put(store, "jxt/tenants/1/meta", b"{")
    assert await planned(migration) == {"jxt//tenants/1/meta": "blocked"}
    assert await copied(migration) == {}
    assert (await dump(store))["jxt/tenants/1/meta"] == b"{"
    with pytest.raises(MigrationError, match="still needed: jxt//tenants/1/meta"):
        await migration.cutover()


async def test_passwords_are_sealed_during_the_copy_if_there_is_a_key(store: Store):
    ring = Keyring([b"k" * 32])
    migration = Migration(store, ring=ring)
    key = "jxt//jxt/config/tenants/1/services/a/database"
    await put(store, key, {"driver": "mysql", "database": "d", "password": "s3cret"})
    await copied(migration)
    written = json.loads((await dump(store))["jxt/tenants/1/database/a"])
    assert "password" not in written
    assert ring.unseal(written["passwordEncrypted"], written["passwordKeyId"]) == "s3cret"
    assert await planned(migration) == {key: "equal"}
    assert await copied(migration) == {}
    history = b"".join(v for k, v in (await dump(store)).items() if "_history" in k)
    assert b"s3cret" not in history


@on_etcd_too
async def test_a_tenant_too_large_for_one_commit_is_copied_completely(store: Store):
    migration = Migration(store)
    users = [{"username": f"user{number}"} for number in range(300)]
    await put(store, "jxt//tenants/1/meta", META)
    await put(store, "jxt//tenants/1/ftp", users)
    for number in range(150):
        name = f"jxt//jxt/config/tenants/1/services/s{number}/database"
        await put(store, name, {"driver": "x"})
    for number in range(150):
        await put(store, f"jxt//platform/configs/{number}", number)
    await copied(migration)
    assert set((await planned(migration)).values()) == {"equal"}
    entries = new_parts("jxt", await dump(store))
    assert (len(entries[1]), len(entries[0])) == (451, 150)
    _, _, listed = await migration.cutover()
    assert await migration.delete(listed) == (302, [])


async def test_names_that_move_between_tenants(store: Store):
    migration = Migration(store)
    await put(store, "jxt//tenants/1/domain/primary", b"a.example.com")
    await put(store, "jxt//tenants/2/domain/primary", b"b.example.com")
    await copied(migration)
    await put(store, "jxt//tenants/1/domain/primary", b"b.example.com")
    await put(store, "jxt//tenants/2/domain/primary", b"c.example.com")
    assert set((await planned(migration)).values()) == {"differs"}
    await copied(migration)
    assert set((await planned(migration)).values()) == {"equal"}


async def test_the_old_keys_win_until_the_cut_over(store: Store):
    migration = Migration(store, by="alice")
    await put(store, "jxt//tenants/1/meta", META)
    with pytest.raises(MigrationError, match=r"still needed: .*missing"):
        await migration.cutover()
    await copied(migration)
    _, listed = await migration.verify()
    with pytest.raises(MigrationError, match="there was no cut-over"):
        await migration.delete(listed)
    with pytest.raises(MigrationError, match="there was no cut-over"):
        await migration.undo()
    marker, _, _ = await migration.cutover()
    assert marker.by == "alice"
    assert (await migration.cutover())[0] == marker
    with pytest.raises(MigrationError, match="only the new keys have been authoritative since"):
        await copied(migration)
    await migration.undo()
    assert await copied(migration) == {}
    await migration.cutover()
    assert await migration.delete(listed) == (1, [])
    with pytest.raises(MigrationError, match="cannot be undone"):
        await migration.undo()
    assert "jxt/tenants/1/meta" in await dump(store)


@on_etcd_too
async def test_only_verified_keys_are_deleted(store: Store):
    migration = Migration(store)
    await put(store, "jxt//tenants/1/meta", META)
    await put(store, "jxt//tenants/1/storage", {"uploadQuotaGb": 1})
    await put(store, "jxt//hosts/nowhere.example.com", {"tenantId": 9})
    await copied(migration)
    _, _, listed = await migration.cutover()
    await put(store, "jxt//tenants/1/storage", {"uploadQuotaGb": 1})
    await put(store, "jxt//tenants/2/meta", {"code": "late"})
    gone, stays = await migration.delete(listed)
    assert (gone, stays) == (1, ["jxt//tenants/1/storage"])
    left = {key for key in await dump(store) if key.startswith("jxt//")}
    assert left == {
        *("jxt//tenants/1/storage", "jxt//tenants/2/meta", "jxt//hosts/nowhere.example.com")
    }
    assert (await planned(migration))["jxt//tenants/2/meta"] == "late"


async def test_a_file_of_another_migration_is_refused(store: Store):
    migration = Migration(store)
    await put(store, "jxt//tenants/1/meta", META)
    await copied(migration)
    _, _, listed = await migration.cutover()
    for wrong in ("jxt/tenants/1/meta", "jxt//tenants/1/unknown", "/registry/x", "jxt2//hosts/a"):
        forged = Verified(listed.header, [*listed.items, VerifiedKey(1, wrong, 3)])
        with pytest.raises(MigrationError, match="is not an old key"):
            await migration.delete(forged)
    with pytest.raises(MigrationError, match="another migration"):
        await Migration(store, namespace="other").delete(listed)
    assert "jxt//tenants/1/meta" in await dump(store)


async def test_namespaces_are_migrated_separately(store: Store):
    for namespace in ("one", "one2", "a/b"):
        old = made(5, 12, namespace)
        await store.commit(Delete(everything()))
        await old.write(store)
        migration = Migration(store, namespace=namespace, ring=Keyring())
        await copied(migration)
        old.check_new(await dump(store))


@contextlib.asynccontextmanager
async def bridging(store: Store) -> AsyncIterator[list[SyncResult]]:
    tasks: Tasks = Tasks()
    results: list[SyncResult] = []
    bridge = Bridge(Migration(store, ring=Keyring()), retry_after=0.1)
    running = tasks.start(bridge.run(results.append), name="bridge")
    try:
        yield results
        assert not running.done()
    finally:
        await tasks.aclose()


async def holds(store: Store, key: str, value: object) -> None:
    """Wait until a key has this value; None: until it is deleted."""

    async def is_stored() -> bool:
        raw = (await dump(store)).get(key)
        return raw is None if value is None else raw is not None and json.loads(raw) == value

    await eventually(is_stored, within=20, what=f"{key} is {value}")


async def becomes_level(store: Store) -> None:
    try:
        await eventually(lambda: level(store, Keyring()), within=40)
    except AssertionError:
        assert await differing(store, Keyring()) == []


@on_etcd_too
async def test_a_bridge_copies_writes_in_both_directions(store: Store):
    publisher = Publisher(store, ring=Keyring())
    await put(store, "jxt//tenants/1/meta", META)
    async with bridging(store):
        await holds(store, "jxt/tenants/1/meta", META)
        await put(store, "jxt//tenants/1/storage", {"quotaBytes": 2**31})
        await holds(store, "jxt/tenants/1/storage", {"tenantId": 1, "uploadQuotaGb": 2})
        await publisher.put(1, "storage", {"uploadQuotaGb": 3})
        await holds(store, "jxt//tenants/1/storage", {"tenantId": 1, "quotaBytes": 3 * 2**30})

        await publisher.put(2, "meta", {"code": "Two", "name": "二/2"})
        two = {"id": 2, "code": "Two", "name": "二/2", "status": "active"}
        await holds(store, "jxt//tenants/2/meta", two)
        await holds(store, "jxt//tenants/by-code/Two", {"id": 2, "code": "Two", "name": "二/2"})
        led = {"id": 2, "code": "Two", "primaryDomain": ""}
        await holds(store, "jxt//tenants/by-name/二/2", led)

        await publisher.put(2, "ftp/bob", {"status": "active"})
        bob = {"tenantId": 2, "username": "bob", "status": "active"}
        await holds(store, "jxt//tenants/2/ftp", {"ftpConfigs": [bob]})
        fields = {"tenantId": 2, "code": "Two", "name": "二/2"}
        await holds(store, "jxt//ftp-users/bob", fields)
        await publisher.put(2, "meta", {"code": "Zwei", "name": "二/2"})
        await holds(store, "jxt//tenants/by-code/Zwei", {"id": 2, "code": "Zwei", "name": "二/2"})
        await holds(store, "jxt//tenants/by-code/Two", None)
        await holds(store, "jxt//ftp-users/bob", {**fields, "code": "Zwei"})

        await put(store, "jxt//tenants/2/ftp", {"ftpConfigs": [{"username": "eve"}]})
        await holds(store, "jxt/tenants/2/ftp/eve", {"tenantId": 2, "username": "eve"})
        await holds(store, "jxt/tenants/2/ftp/bob", None)
        await holds(store, "jxt/tenants/_index/ftp-user/bob", None)

        await publisher.delete(2)
        await holds(store, "jxt//tenants/2/meta", None)
        await holds(store, "jxt//tenants/2/ftp", None)
        await holds(store, "jxt//tenants/by-code/Zwei", None)
        await drop(store, "jxt//tenants/1/meta")
        await holds(store, "jxt/tenants/1/meta", None)

        await publisher.put_common("platform/configs/a", [1])
        await holds(store, "jxt//platform/configs/a", [1])
        await put(store, "jxt//common/resolver", {"httpType": "host"})
        await holds(store, "jxt/common/resolver", {"httpType": "host"})
        await publisher.remove_common("platform/configs/a")
        await holds(store, "jxt//platform/configs/a", None)


@on_etcd_too
async def test_a_restarted_bridge_has_lost_nothing(store: Store):
    publisher = Publisher(store, ring=Keyring())
    for unit in (1, 2, 3, 4):
        meta = {"id": unit, "code": f"t{unit}", "name": f"T{unit}"}
        await put(store, f"jxt//tenants/{unit}/meta", meta)
        await put(store, f"jxt//tenants/{unit}/storage", {"uploadQuotaGb": unit})
    async with bridging(store):
        for unit in (1, 2, 3, 4):
            storage = {"tenantId": unit, "uploadQuotaGb": unit}
            await holds(store, f"jxt/tenants/{unit}/storage", storage)
    await drop(store, "jxt//tenants/1/storage")
    await publisher.delete(2)
    await drop(store, "jxt//tenants/3/meta")
    await drop(store, "jxt//tenants/3/storage")
    await put(store, "jxt//tenants/4/storage", {"uploadQuotaGb": 40})
    await publisher.put(4, "storage", {"uploadQuotaGb": 41})
    async with bridging(store) as results:
        await holds(store, "jxt/tenants/1/storage", None)
        await holds(store, "jxt//tenants/2/meta", None)
        await holds(store, "jxt/tenants/3/meta", None)
        await holds(store, "jxt//tenants/4/storage", {"tenantId": 4, "uploadQuotaGb": 41})
        await eventually(lambda: any(settled.unit == 4 for settled in results))
    (four,) = [settled for settled in results if settled.unit == 4]
    assert [(change.path, change.move, change.conflict) for change in four.changes] == [
        ("storage", "to old", True)
    ]


async def test_after_the_cut_over_a_bridge_writes_only_the_old_keys(store: Store):
    publisher = Publisher(store, ring=Keyring())
    migration = Migration(store, ring=Keyring())
    await put(store, "jxt//tenants/1/meta", META)
    await put(store, "jxt//tenants/1/storage", {"uploadQuotaGb": 1})
    await put(store, "jxt//tenants/1/domain/primary", b"a.example.com")
    async with bridging(store) as results:
        await holds(store, "jxt/tenants/1/meta", META)
        await holds(store, "jxt/tenants/1/storage", {"tenantId": 1, "uploadQuotaGb": 1})
        await migration.cutover()
        await put(store, "jxt//tenants/1/storage", {"uploadQuotaGb": 66})
        await drop(store, "jxt//tenants/1/meta")
        await eventually(
            lambda: any(sorted(settled.late_writes) == ["meta", "storage"] for settled in results),
            within=20,
        )
        await publisher.put(1, "domain/primary", "b.example.com")
        await holds(store, "jxt//hosts/b.example.com", INDEXED)
        entries = await dump(store)
        assert json.loads(entries["jxt/tenants/1/meta"]) == META
        assert json.loads(entries["jxt/tenants/1/storage"])["uploadQuotaGb"] == 1
        assert json.loads(entries["jxt//tenants/1/storage"])["uploadQuotaGb"] == 66
        await publisher.put(1, "storage", {"uploadQuotaGb": 7})
        await holds(store, "jxt//tenants/1/storage", {"tenantId": 1, "uploadQuotaGb": 7})


INDEXED = {"tenantId": 1, "code": "acme", "hostType": "frontend"}


async def test_a_bridge_ends_when_the_old_keys_are_deleted(store: Store):
    migration = Migration(store, ring=Keyring())
    await put(store, "jxt//tenants/1/meta", META)
    await copied(migration)
    running = asyncio.ensure_future(Bridge(Migration(store, ring=Keyring())).run())

    async def is_level() -> bool:
        indexes = {"jxt//tenants/by-code/acme", "jxt//tenants/by-name/Acme / 甲"}
        return indexes <= set(await dump(store))

    await eventually(is_level)
    _, _, listed = await migration.cutover()
    await migration.delete(listed)
    await asyncio.wait_for(running, 20)
    entries = await dump(store)
    assert json.loads(entries["jxt/tenants/1/meta"]) == META
    left = {key for key in entries if key.startswith("jxt//")}
    assert left <= {"jxt//_health/sentinel"}, "which the bridge may have written at the last moment"


async def test_a_broken_old_key_is_neither_followed_nor_overwritten(store: Store):
    publisher = Publisher(store, ring=Keyring())
    await put(store, "jxt//tenants/1/ftp", [{"username": "a"}])
    async with bridging(store):
        await holds(store, "jxt/tenants/1/ftp/a", {"username": "a", "tenantId": 1})
        await put(store, "jxt//tenants/1/ftp", b"[{")
        await publisher.put(1, "ftp/a", {"status": "inactive"})
        await publisher.put(1, "meta", {"code": "acme", "name": "Acme"})
        await holds(store, "jxt//tenants/by-code/acme", {"id": 1, "code": "acme", "name": "Acme"})
        entries = await dump(store)
        assert entries["jxt//tenants/1/ftp"] == b"[{"
        assert json.loads(entries["jxt/tenants/1/ftp/a"])["status"] == "inactive"


async def test_a_taken_name_is_written_once_it_is_free(store: Store):
    publisher = Publisher(store, ring=Keyring())
    await publisher.put(9, "domain/primary", "a.example.com")
    async with bridging(store) as results:
        await put(store, "jxt//tenants/1/domain/aliases", ["a.example.com"])
        await put(store, "jxt//tenants/1/meta", META)
        await holds(store, "jxt/tenants/1/meta", META)
        await eventually(
            lambda: any(
                "the host 'a.example.com' is tenant 9's" in "".join(settled.problems)
                for settled in results
            )
        )
        await publisher.remove(9, "domain/primary")
        await holds(store, "jxt/tenants/1/domain/aliases", ["a.example.com"])


@on_etcd_too
async def test_two_bridges_and_writers_on_both_sides_end_level(store: Store):
    publisher, chance = Publisher(store, ring=Keyring()), random.Random(7)

    async def write_old() -> None:
        unit = chance.randint(1, 4)
        root = f"jxt//tenants/{unit}"
        value = chance.randint(1, 9)
        users = [{"username": f"u{unit}{n}", "description": f"{value}"} for n in range(value % 3)]
        name, written = chance.choice(
            [
                (f"{root}/meta", {"code": f"c{unit}_{value}", "name": f"n{unit} {value}"}),
                (f"{root}/ftp", {"ftpConfigs": users}),
                (f"{root}/storage", {"quotaBytes": value * 2**30}),
                (f"jxt//jxt/config/tenants/{unit}/services/s{value % 2}/database", {"port": value}),
                (f"jxt/tenants/{unit}/database", {"serviceCode": "s1", "port": value + 100}),
                (f"jxt//platform/configs/{unit}", value),
            ]
        )
        if chance.random() < 0.3:
            await drop(store, name)
        else:
            await put(store, name, written)

    async def write_new() -> None:
        unit, value = chance.randint(1, 4), chance.randint(1, 9)
        parts: list[tuple[str, JSON]] = [
            ("meta", {"code": f"c{unit}_{value}", "name": f"n{unit} {value}"}),
            ("meta", {"code": f"shared{value % 3}", "name": f"shared {value % 3}"}),
            ("domain/primary", f"shared{value % 3}.example.com"),
            ("ftp/shared", {"description": f"{value}"}),
            (f"ftp/u{unit}{value % 3}", {"description": f"{value}"}),
            ("storage", {"uploadQuotaGb": value}),
            (f"database/s{value % 2}", {"driver": "x", "database": "d", "port": value}),
        ]
        path, written = chance.choice(parts)
        with contextlib.suppress(NotConfigured, Taken):
            if chance.random() < 0.1:
                await publisher.delete(unit)
            elif chance.random() < 0.3 and path != "meta":
                await publisher.remove(unit, path)
            else:
                await publisher.put(unit, path, written)

    async with bridging(store), bridging(store):
        for _ in range(30):
            await asyncio.gather(write_old(), write_new())

        await becomes_level(store)


async def wrong_indexes(migration: Migration) -> dict[str, str]:
    steps, _ = await migration.verify()
    return {step.name: step.verdict for step in steps if step.verdict in DIFFERENT}


async def test_wrong_new_indexes_are_a_difference(store: Store):
    migration, root = Migration(store, ring=Keyring()), "jxt/tenants/_index"
    for unit in (1, 2):
        meta = {"code": f"c{unit}", "name": f"n{unit}"}
        await put(store, f"jxt//tenants/{unit}/meta", meta)
        await put(store, f"jxt//tenants/{unit}/ftp", [{"username": f"u{unit}"}])
        await put(store, f"jxt//tenants/{unit}/domain/primary", f"h{unit}.example.com".encode())
    await copied(migration)
    right = indexed("jxt", await dump(store))
    await drop(store, f"{root}/host/h1.example.com")
    await drop(store, f"{root}/by-code/c1")
    await put(store, f"{root}/ftp-user/u1", {"tenantId": 2, "code": "c2", "name": "n2"})
    await put(store, f"{root}/host/ghost.example.com", {"tenantId": 1, "code": "c1"})
    await put(store, f"{root}/host/nobody.example.com", {"tenantId": 77})
    wrong = {
        f"{root}/host/h1.example.com": "unindexed",
        f"{root}/by-code/c1": "unindexed",
        f"{root}/ftp-user/u1": "unindexed",
        f"{root}/host/ghost.example.com": "dangling",
        f"{root}/host/nobody.example.com": "dangling",
    }
    assert await wrong_indexes(migration) == wrong
    with pytest.raises(MigrationError, match=r"still needed: .*unindexed"):
        await migration.cutover()
    done = await copied(migration)
    assert {name for settled in done.values() for name in settled.repaired} == wrong.keys()
    assert indexed("jxt", await dump(store)) == right
    assert await wrong_indexes(migration) == {}
    assert await copied(migration) == {}


async def test_indexes_are_repaired_after_the_cut_over_too(store: Store):
    migration = Migration(store, ring=Keyring())
    await put(store, "jxt//tenants/1/meta", META)
    await copied(migration)
    await migration.cutover()
    await drop(store, "jxt/tenants/_index/by-code/acme")
    assert await wrong_indexes(migration) == {"jxt/tenants/_index/by-code/acme": "unindexed"}
    with pytest.raises(MigrationError, match="nothing is copied any more"):
        await copied(migration)
    assert await wrong_indexes(migration) == {}


async def test_a_name_that_two_tenants_have_in_the_new_keys_is_a_difference(store: Store):
    migration, publisher = Migration(store, ring=Keyring()), Publisher(store, ring=Keyring())
    await put(store, "jxt//tenants/1/domain/primary", b"h1.com")
    await copied(migration)
    await drop(store, "jxt/tenants/_index/host/h1.com")
    await publisher.put(9, "domain/primary", "h1.com")
    assert await wrong_indexes(migration) == {"jxt/tenants/_index/host/h1.com": "contested"}
    await publisher.put(9, "domain/primary", "h9.com")
    await copied(migration)
    assert indexed("jxt", await dump(store)) == {"host/h1.com": 1, "host/h9.com": 9}
    assert await wrong_indexes(migration) == {}


async def test_a_new_key_that_was_deleted_manually_is_a_difference(store: Store):
    migration, publisher = Migration(store, ring=Keyring()), Publisher(store, ring=Keyring())
    for path in ("storage", "meta"):
        await put(store, f"jxt//tenants/1/{path}", {"code": "acme"} if path == "meta" else {})
    await put(store, "jxt//common/resolver", {"httpType": "host"})
    await copied(migration)
    await drop(store, "jxt/tenants/1/storage")
    await drop(store, "jxt/common/resolver")
    assert await wrong_indexes(migration) == {
        "jxt//tenants/1/storage": "deleted",
        "jxt//common/resolver": "deleted",
    }
    await publisher.put(1, "storage", {"uploadQuotaGb": 3})
    await drop(store, "jxt//common/resolver")
    assert await wrong_indexes(migration) == {}
    await publisher.remove(1, "storage")
    assert await wrong_indexes(migration) == {}, "the deletion was intended, and is in the history"
    assert (await planned(migration))["jxt//tenants/1/storage"] == "newer"


async def test_writes_after_the_cut_over_survive_every_deletion(store: Store):
    migration = Migration(store, ring=Keyring())
    await put(store, "jxt//tenants/1/storage", {"uploadQuotaGb": 1})
    await put(store, "jxt//tenants/1/meta", META)
    await put(store, "jxt//tenants/2/storage", {"uploadQuotaGb": 1})
    await copied(migration)
    _, _, first = await migration.cutover()
    await put(store, "jxt//tenants/1/storage", {"uploadQuotaGb": 500})
    await drop(store, "jxt//tenants/2/storage")
    assert await migration.delete(first) == (1, ["jxt//tenants/1/storage"])
    await put(store, "jxt//tenants/2/storage", {"uploadQuotaGb": 500})
    for _ in range(2):
        steps, listed = await migration.verify()
        verdicts = {step.name: step.verdict for step in steps}
        assert verdicts == {"jxt//tenants/1/storage": "late", "jxt//tenants/2/storage": "late"}
        assert await migration.delete(listed) == (0, [])
    entries = await dump(store)
    assert json.loads(entries["jxt//tenants/1/storage"]) == {"uploadQuotaGb": 500}
    assert new_parts("jxt", entries)[1]["storage"]["uploadQuotaGb"] == 1


async def test_a_migration_can_start_again_after_a_deletion(store: Store):
    migration = Migration(store, ring=Keyring())
    await put(store, "jxt//tenants/1/storage", {"uploadQuotaGb": 1})
    await put(store, "jxt//tenants/1/meta", META)
    await copied(migration)
    _, _, listed = await migration.cutover()
    await migration.delete(listed)
    await put(store, "jxt//tenants/1/storage", {"uploadQuotaGb": 500})
    await put(store, "jxt//tenants/2/meta", {"code": "late", "name": "late"})
    with pytest.raises(MigrationError, match="cutover --restart"):
        await copied(migration)
    await migration.undo(restart=True)
    await copied(migration)
    entries = new_parts("jxt", await dump(store))
    assert entries[1]["meta"] == META, "an intended deletion has no other effect"
    assert entries[1]["storage"]["uploadQuotaGb"] == 500
    assert entries[2]["meta"]["code"] == "late"
    _, _, listed = await migration.cutover()
    assert await migration.delete(listed) == (2, [])
    assert [key for key in await dump(store) if key.startswith("jxt//")] == []


async def test_old_indexes_follow_names_that_move_between_tenants(store: Store):
    publisher, units = Publisher(store, ring=Keyring()), range(1, 9)
    for unit in units:
        await publisher.put(unit, "meta", {"code": f"c{unit}", "name": f"n{unit}"})
        await publisher.put(unit, "domain/primary", f"h{unit}.com")
        await publisher.put(unit, f"ftp/u{unit}", {})
    async with bridging(store):
        await becomes_level(store)
    await publisher.put(1, "meta", {"code": "x", "name": "x"})
    await publisher.put(1, "domain/primary", "x.com")
    for unit in units[1:]:  # each one takes the name of its predecessor
        await publisher.put(unit, "meta", {"code": f"c{unit - 1}", "name": f"n{unit - 1}"})
        await publisher.put(unit, "domain/primary", f"h{unit - 1}.com")
    async with bridging(store):
        await becomes_level(store)


async def test_an_old_index_is_deleted_with_its_part(store: Store):
    for unit in (1, 2):
        await put(store, f"jxt//tenants/{unit}/domain/aliases", [f"a{unit}.com", f"b{unit}.com"])
    async with bridging(store):
        await becomes_level(store)
    await put(store, "jxt//tenants/1/domain/aliases", ["b1.com", "c1.com"])
    await drop(store, "jxt//tenants/2/domain/aliases")
    async with bridging(store):
        await becomes_level(store)
    assert {key for key in await dump(store) if key.startswith("jxt//hosts/")} == {
        "jxt//hosts/b1.com",
        "jxt//hosts/c1.com",
    }


@pytest.mark.parametrize("how", ["the old later", "the new later", "alike", "one deleted"])
async def test_an_old_index_is_deleted_if_both_sides_dropped_its_name(store: Store, how: str):
    publisher = Publisher(store, ring=Keyring())
    await publisher.put(1, "meta", {"code": "c1", "name": "n/1"})
    await publisher.put(1, "ftp/u1", {})
    async with bridging(store):
        await becomes_level(store)
    old: JSON = {"code": "c2", "name": "n/2"}
    if how == "the new later":
        await put(store, "jxt//tenants/1/meta", old)
    if how == "one deleted":
        await publisher.delete(1)
    else:
        await publisher.put(1, "meta", old if how == "alike" else {"code": "c3", "name": "n/3"})
        await publisher.remove(1, "ftp/u1")
    if how != "the new later":
        await put(store, "jxt//tenants/1/meta", old)
    await put(store, "jxt//tenants/1/ftp", [{"username": "u2"}])
    async with bridging(store):
        await becomes_level(store)
    entries = old_indexed("jxt", await dump(store))
    last = 3 if how == "the new later" else 2
    assert entries.keys() == {f"by-code/c{last}", f"by-name/n/{last}", "ftp-user/u2"}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_index_that_the_old_writer_left_behind_is_deleted_eventually(
    store: Store, when: str
):
    """The old writer removes an alias from the list, but not the index that leads to it."""
    meta: JSON = {"id": 1, "code": "acme", "name": "Acme"}
    left = "jxt//hosts/old.example.com"
    await store.commit(
        Put(b"jxt//tenants/1/meta", encoded(meta)),
        Put(b"jxt//tenants/1/domain/aliases", b'["www.example.com", "old.example.com"]'),
        Put(b"jxt//hosts/www.example.com", b'{"tenantId": 1, "code": "acme"}'),
        Put(left.encode(), b'{"tenantId": 1, "code": "acme"}'),
        Put(b"jxt//hosts/nobody.example.com", b'{"tenantId": 7}'),
        Put(b"jxt//tenants/2/domain/aliases", b"[broken"),
        Put(b"jxt//hosts/two.example.com", b'{"tenantId": 2}'),
    )
    migration = Migration(store, ring=Keyring())
    shorter = Put(b"jxt//tenants/1/domain/aliases", b'["www.example.com"]')
    if when == "before":
        await store.commit(shorter)
    assert [settled.unit async for settled in migration.copy()] == [1]
    if when == "after":
        await store.commit(shorter)
        assert [settled.unit async for settled in migration.copy()] == [1]
    _, steps, listed = await migration.cutover()
    assert {step.name: step.verdict for step in steps}[left] == "abandoned"
    await migration.delete(listed)
    entries = await dump(store)
    assert sorted(name for name in entries if name.startswith("jxt//")) == [
        "jxt//hosts/nobody.example.com",
        "jxt//hosts/two.example.com",
        "jxt//tenants/2/domain/aliases",
    ]
    assert "jxt/tenants/_index/host/old.example.com" not in entries


async def test_an_old_index_is_deleted_in_every_spelling(store: Store):
    await put(store, "jxt//tenants/1/meta", META)
    await put(store, "jxt//tenants/by-code/acme", {"id": 1})
    for name in ("acme", "Acme%20%2F%20%E7%94%B2"):
        await put(store, f"jxt//tenants/by-name/{name}", {"id": 1})
    publisher = Publisher(store, ring=Keyring())
    async with bridging(store):
        await holds(store, "jxt/tenants/1/meta", META)
        await publisher.put(1, "meta", {"code": "other", "name": "Other"})
        await becomes_level(store)


async def test_indexes_written_ahead_of_parts_that_never_came_are_deleted(store: Store):
    """As when a bridge is stopped halfway, and then the parts change again."""
    ahead = {f"jxt//hosts/h{number}.com".encode(): "domain/aliases" for number in range(150)}
    for name in (*ahead, b"jxt//hosts/theirs.com"):
        await put(store, name.decode(), {"tenantId": 1})
    ledger = Migration(store).reader.ledger
    await store.commit(ledger.write(1, SyncedState(indexes=ahead)))
    await put(store, "jxt//tenants/1/domain/aliases", ["h7.com", "h200.com"])
    await put(store, "jxt//hosts/h8.com", {"tenantId": 2})
    async with bridging(store):
        left = {"host/h7.com": 1, "host/h200.com": 1, "host/h8.com": 2, "host/theirs.com": 1}

        async def agree() -> bool:
            return old_indexed("jxt", await dump(store)) == left

        await eventually(agree, within=20)
        await drop(store, "jxt//tenants/1/domain/aliases")
        del left["host/h7.com"], left["host/h200.com"]
        await eventually(agree, within=20)
        await holds(store, "jxt/_migration/jxt/1", None)


async def test_a_bridge_renames_a_tenant_with_many_names(store: Store):
    publisher = Publisher(store, ring=Keyring())
    for turn in range(3):
        names: JSON = [f"h{turn}-{number}.com" for number in range(130)]
        await publisher.put(1, "domain/aliases", names)
        async with bridging(store):
            await becomes_level(store)


async def test_a_missing_old_index_is_reported_and_written_by_a_bridge(store: Store):
    migration, publisher = Migration(store, ring=Keyring()), Publisher(store, ring=Keyring())
    for unit in (1, 2):
        await publisher.put(unit, "meta", {"code": f"c{unit}", "name": f"n{unit}"})
    async with bridging(store):
        await becomes_level(store)
    await drop(store, "jxt//tenants/by-code/c1")
    assert (await planned(migration))["jxt//tenants/by-code/c1"] == "index-missing"
    async with bridging(store):
        await becomes_level(store)


async def test_a_bridge_catches_up_when_the_cut_over_is_undone(store: Store):
    migration = Migration(store, ring=Keyring())
    for unit in (1, 2, 3):
        await put(store, f"jxt//tenants/{unit}/storage", {"uploadQuotaGb": unit})
    async with bridging(store) as results:
        await becomes_level(store)
        await migration.cutover()
        await put(store, "jxt//tenants/2/storage", {"uploadQuotaGb": 20})
        await eventually(lambda: any(settled.late_writes == ["storage"] for settled in results))
        await migration.undo()
        await holds(store, "jxt/tenants/2/storage", {"tenantId": 2, "uploadQuotaGb": 20})


async def test_a_bridge_without_the_key_does_not_touch_a_password_in_clear_text(store: Store):
    ring, key = Keyring([b"k" * 32]), "jxt//jxt/config/tenants/1/services/a/database"
    clear = {"driver": "mysql", "database": "d", "password": "s3cret"}
    await put(store, key, clear)
    await copied(Migration(store, ring=ring))
    fields: JSON = {"driver": "mysql", "database": "d", "maxOpenConns": 7}
    await Publisher(store, ring=ring).put(1, "database/a", fields)
    async with bridging(store) as results:
        await eventually(
            lambda: any("in clear text" in "".join(settled.problems) for settled in results)
        )
        assert json.loads((await dump(store))[key]) == clear
    (problem,) = {problem for settled in results for problem in settled.problems}
    assert ring.seal("x")[1] in problem, "the problem names the necessary key"


async def test_a_bridge_gives_a_contested_name_to_the_lowest_id(store: Store):
    for unit in (*range(10, 20), 2):
        await put(store, f"jxt//tenants/{unit}/domain/primary", b"same.com")
    async with bridging(store):
        await holds(store, "jxt/tenants/_index/host/same.com", HOST_OF_TWO)


HOST_OF_TWO = {"tenantId": 2, "code": "", "hostType": "frontend"}
