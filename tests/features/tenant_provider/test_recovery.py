"""Updates that cannot be applied lose nothing, and are repaired."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from mooring.errors import InvalidRequest, Unavailable
from mooring.messages import message
from mooring.store import Delete, Entry, Put, Store, key
from mooring.tasks import SlicedWork
from mooring.tenants.read.disk_cache import TenantCache
from mooring.tenants.read.parser import Changed, KeyChange, SnapshotParser, SnapshotUpdate
from mooring.tenants.read.provider import Provider
from mooring.tenants.read.snapshot import TenantSnapshot
from mooring.tenants.read.tenants import Tenants
from mooring.tenants.secrets import Keyring
from tests.features.tenant_provider.support import (
    KEYS,
    WHOLE,
    common,
    content,
    how,
    part,
    provider,
    where,
)
from tests.waiting import eventually


class Stumbling:
    """A parser that fails as long as the test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.updates = self.rebuilds = self.waits = False
        apply, onto, rebuild = SnapshotParser.apply, SnapshotUpdate.onto, SnapshotParser.rebuild

        def stumbling_apply(
            reading: SnapshotParser, snapshot: TenantSnapshot, changes: Iterable[KeyChange]
        ) -> SnapshotUpdate:
            if self.updates:
                raise RuntimeError("a mistake")
            return apply(reading, snapshot, changes)

        def stumbling_onto(outcome: SnapshotUpdate, snapshot: TenantSnapshot) -> SnapshotUpdate:
            """The same for an update that a read of everything causes."""
            if self.updates:
                raise RuntimeError("a mistake")
            return onto(outcome, snapshot)

        def stumbling_rebuild(
            reading: SnapshotParser, shown: TenantSnapshot, entries: Mapping[bytes, Entry]
        ) -> SlicedWork[SnapshotUpdate]:
            while self.waits:
                yield
            if self.rebuilds:
                raise RuntimeError("another mistake")
            return (yield from rebuild(reading, shown, entries))

        monkeypatch.setattr(SnapshotParser, "apply", stumbling_apply)
        monkeypatch.setattr(SnapshotUpdate, "onto", stumbling_onto)
        monkeypatch.setattr(SnapshotParser, "rebuild", stumbling_rebuild)


@pytest.fixture
def stumbling(monkeypatch: pytest.MonkeyPatch) -> Stumbling:
    return Stumbling(monkeypatch)


class TestRecovery:
    """An update that cannot be applied is not lost: the state is rebuilt."""

    async def test_a_failed_update_is_repaired_at_once(
        self, store: Store, stumbling: Stumbling, caplog: pytest.LogCaptureFixture
    ):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            changes: list[Changed] = []
            t.subscribe(changes.append)
            stumbling.updates = True
            last = await store.commit(
                Delete(KEYS.parts(10)),
                part(1, "storage", {"uploadQuotaGb": 6}),
                part(2, "meta", {"code": "two"}),
            )
            await eventually(lambda: t.by_code("two") == 2)
            assert t.revision >= last.revision
            assert {*t.ids()} == {1, 2}
            assert not t.stale
            assert [(c.tenant, *c.kinds) for c in changes] == [
                (1, "storage"),
                (2, "meta"),
                (10, "meta"),
            ]
            assert caplog.text.count("could not be applied") == 1
            assert caplog.text.count("was rebuilt and is complete") == 1
            stumbling.updates = False
            async with provider(store) as fresh:
                assert content(t) == content(fresh)

    async def test_until_the_repair_the_tenants_are_stale_and_keep_the_last_state(
        self, store: Store, stumbling: Stumbling, caplog: pytest.LogCaptureFixture
    ):
        await store.commit(*WHOLE)
        async with Provider(store, KEYS, Keyring(), afresh=0.3) as t:
            stumbling.updates = stumbling.rebuilds = True
            await store.commit(part(1, "meta", {"code": "one"}))
            await eventually(lambda: t.stale)
            stumbling.updates = False
            await store.commit(part(2, "meta", {"code": "two"}), WHOLE[-1])
            await store.commit(common("platform/configs/limits", {"a": [2]}))
            await eventually(lambda: caplog.text.count("another mistake") > 0)
            await asyncio.sleep(1)  # retries, and reads of everything
            assert t.stale
            assert t.age == float("inf")
            assert {*t.ids()} == {1, 10}
            assert t.by_code("acme") == 1
            assert caplog.text.count("could not be applied") == 2, "once for each mistake"
            stumbling.rebuilds = False
            await eventually(lambda: not t.stale)
            assert t.by_code("acme") is None
            assert (t.by_code("one"), t.by_code("two")) == (1, 2)
            assert t.platform("limits") == {"a": [2]}
            await store.commit(part(2, "meta", {"code": "newer"}))
            await eventually(lambda: t.by_code("newer") == 2)
            async with provider(store) as fresh:
                assert content(t) == content(fresh)

    async def test_changes_before_the_repair_are_not_lost(self, store: Store, stumbling: Stumbling):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            known, changes = dict(t.snapshot.tenants), list[Changed]()
            t.subscribe(changes.append)
            stumbling.updates = stumbling.waits = True
            await store.commit(part(1, "meta", {"code": "one"}))
            await eventually(lambda: t.stale)
            stumbling.updates = False
            await store.commit(part(2, "meta", {"code": "two"}), Delete(KEYS.parts(10)))
            await store.commit(common("common/resolver", {"httpType": "path"}))
            last = await store.commit(Delete(KEYS.parts(2)), part(3, "meta", {"code": "three"}))
            await asyncio.sleep(0.3)
            assert {*t.ids()} == {1, 10}
            stumbling.waits = False
            await eventually(lambda: how(t) == "path" and t.revision >= last.revision)
            async with provider(store) as fresh:
                assert content(t) == content(fresh)
            for change in changes:
                assert known.pop(change.tenant, None) == change.before
                if change.after is not None:
                    known[change.tenant] = change.after
            assert known == dict(t.snapshot.tenants)
            assert {*known} == {1, 3}

    async def test_settings_are_repaired_and_the_last_good_resolver_stays(
        self, store: Store, stumbling: Stumbling
    ):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            await store.commit(Put(b"jxt/common/resolver", b"{"))
            await eventually(lambda: "jxt/common/resolver" in t.problems)
            stumbling.updates = True
            await store.commit(Delete(key(b"jxt/common/storage-directory")))
            await eventually(lambda: where(t) == "tenants")
            assert how(t) == "host"
            assert "jxt/common/resolver" in t.problems
            await store.commit(Delete(KEYS.common))
            await eventually(lambda: how(t) == "header")
            await store.commit(Delete(KEYS.health))
            await eventually(lambda: t.health is None)
            assert not t.problems

    async def test_a_start_waits_for_the_repair(self, store: Store, stumbling: Stumbling):
        await store.commit(*WHOLE)
        stumbling.updates = True
        async with provider(store) as t:
            assert how(t) == "host"
            assert t.health is not None
            assert t.by_code("acme") == 1
        stumbling.rebuilds = True
        with pytest.raises(Unavailable, match="mistake"):
            async with provider(store, wait=0.3):
                pass

    async def test_a_failed_start_keeps_the_data_of_its_reason(
        self, store: Store, stumbling: Stumbling, monkeypatch: pytest.MonkeyPatch
    ):
        def refuse(*_: object) -> NoReturn:
            raise InvalidRequest(message("tenants_not_loaded"))

        stumbling.updates = True
        monkeypatch.setattr(SnapshotParser, "rebuild", refuse)
        with pytest.raises(Unavailable) as caught:
            async with provider(store, wait=0.3):
                pass
        assert caught.value.message.params["problem"] == message("tenants_not_loaded")

    async def test_the_file_contains_everything_that_was_read(
        self, store: Store, stumbling: Stumbling, tmp_path: Path
    ):
        file = tmp_path / "tenants.copy"
        await store.commit(*WHOLE)
        async with provider(store, file=file) as t:
            await eventually(file.exists)
            stumbling.updates = True
            await store.commit(part(2, "meta", {"code": "two"}))
            await eventually(lambda: t.by_code("two") == 2)
        copy = TenantCache(file, namespace="jxt").load()
        assert copy is not None
        assert copy.revision == t.revision
        assert part(2, "meta", {"code": "two"}).value in {entry.value for entry in copy.entries}

    async def test_a_deeply_nested_value_does_not_hide_others(self, store: Store, tenants: Tenants):
        """Some values can be decoded, but not compared: which ones depends on the depth of the
        caller."""
        for depth in (101, *range(960, 1000)):
            nested = "[" * depth + "]" * depth
            for n in range(2):
                done = await store.commit(
                    part(1, "database/q", f'{{"driver":"{n}","x":{nested}}}'),
                    part(2, "meta", {"code": f"{depth}-{n}"}),
                )
            revision = done.revision
            await eventually(lambda revision=revision: tenants.revision >= revision)  # type: ignore[misc]
            assert tenants.by_code(f"{depth}-1") == 2
        assert not tenants.stale
