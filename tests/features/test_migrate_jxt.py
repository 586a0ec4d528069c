"""The migration from the old keys of tenants to the new, on real stores."""

from __future__ import annotations

import pytest

from mooring.migrate.jxt.migration import Migration
from mooring.migrate.jxt.plan import DELETABLE, DIFFERENT
from mooring.store import Store
from mooring.tenants.secrets import Keyring
from tests.features.jxt_store import dump, made, verdicts


@pytest.fixture(params=["memory", "etcd-3.5"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_plan_then_copy_then_verify_then_cut_over_then_delete(store: Store):
    old = made(1, 60)
    await old.write(store)
    migration = Migration(store, ring=Keyring())
    before = await dump(store)
    steps = await migration.plan()
    assert await dump(store) == before, "a plan writes nothing"
    verdicts(old, [(step.name, step.verdict) for step in steps])
    assert {step.name for step in steps} == {key for key in old.entries if old.stays.get(key) != ""}
    done = [settled async for settled in migration.copy()]
    assert {settled.unit for settled in done if settled.problems} == {13}
    there = await dump(store)
    old.check_new(there)
    assert all(there[key] == value for key, value in before.items()), "nothing old was touched"
    steps, listed = await migration.verify()
    verdicts(old, [(step.name, step.verdict) for step in steps])
    assert not [step for step in steps if step.verdict in DIFFERENT]
    assert {step.name for step in steps if step.verdict in DELETABLE} == old.goes
    assert {each.key for each in listed.listed} == old.goes
    marker, _, listed = await migration.cutover()
    assert marker.revision > 0
    gone, stays = await migration.delete(listed)
    assert (gone, stays) == (len(old.goes), [])
    there = await dump(store)
    old.check_new(there)
    old.check_left(there)
    assert [key for key in there if "_migration" in key] == ["jxt/_migration/jxt/cutover"]
    assert await migration.delete(listed) == (0, []), "once more changes nothing"
