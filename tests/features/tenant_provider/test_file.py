"""The cache file of the tenants, and a start from it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import mooring
from mooring.store import Delete, Store
from mooring.tenants.read.disk_cache import TenantCache
from mooring.tenants.read.parser import Changed
from tests.backends import in_memory
from tests.features.tenant_provider.support import KEYS, WHOLE, content, how, part, provider
from tests.waiting import eventually


class TestFile:
    async def test_the_file_is_readable_only_by_its_owner(self, store: Store, tmp_path: Path):
        file = tmp_path / "new" / "tenants.copy"
        await store.commit(*WHOLE)
        async with provider(store, file=file):
            await eventually(file.exists)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [path.name for path in file.parent.iterdir()] == [file.name]

    async def test_the_file_contains_the_last_state_when_the_provider_is_closed(
        self, store: Store, tmp_path: Path
    ):
        file = tmp_path / "tenants.copy"
        async with provider(store, file=file) as t:
            await eventually(file.exists)
            first = file.read_bytes()
            await store.commit(*WHOLE)
            await eventually(lambda: t.by_code("ten") == 10)
        assert file.read_bytes() != first
        assert b"acme.internal" in file.read_bytes()

    async def test_the_leftovers_of_a_killed_process_are_removed(
        self, store: Store, tmp_path: Path
    ):
        """They contain passwords."""
        file, left = tmp_path / "tenants.copy", tmp_path / ".unfinished-abc"
        left.write_bytes(b"s3cret")
        async with provider(store, file=file):
            await eventually(file.exists)
        assert not left.exists()
        left.write_bytes(b"s3cret")
        assert TenantCache(file, namespace="jxt").load() is not None
        assert not left.exists()

    async def test_a_disk_that_cannot_be_written_only_prevents_the_copy(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        (tmp_path / "file").touch()
        async with provider(store, file=tmp_path / "file" / "tenants.copy") as t:
            await store.commit(*WHOLE)
            await eventually(lambda: t.by_code("ten") == 10)
        assert caplog.text.count("no copy of the tenants is kept") == 1

    @pytest.mark.parametrize("how", ["group", "others", "owner"])
    async def test_a_file_that_another_user_may_have_written_is_not_used(
        self,
        store: Store,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        how: str,
    ):
        file = tmp_path / "tenants.copy"
        await store.commit(*WHOLE)
        async with provider(store, file=file):
            await eventually(file.exists)
        copy = TenantCache(file, namespace="jxt")
        assert copy.usable()
        assert copy.load() is not None
        if how == "owner":
            owner = file.stat().st_uid
            if owner == 0:  # every user trusts root
                os.chown(file, owner := 12345, -1)
            monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        else:
            file.chmod(0o620 if how == "group" else 0o602)
        assert not copy.usable()
        assert copy.load() is None
        expected = "another user owns it" if how == "owner" else "other users may write it"
        assert expected in caplog.text

    async def test_the_hub_keeps_the_file_in_its_cache_folder(self, store_url: str, tmp_path: Path):
        folder = tmp_path / "cache"
        async with mooring.connect(store_url, cache=folder) as hub:
            for namespace in ("jxt", "other/ns"):
                async with hub.tenants(namespace=namespace):
                    pass
        names = sorted(path.name.partition(".")[0] for path in folder.iterdir())
        assert names == ["tenants-jxt", "tenants-other%2Fns"]


class TestStartFromFile:
    async def test_the_file_is_used_while_the_store_is_read(self, store: Store, tmp_path: Path):
        """With a short wait, the provider starts from the file while what it read becomes
        tenants."""
        file = tmp_path / "tenants.copy"
        for first in range(1, 1500, 100):
            await store.commit(
                *(part(n, "meta", {"code": f"c{n}"}) for n in range(first, first + 100))
            )
        async with provider(store, file=file):
            pass
        await store.commit(
            Delete(KEYS.parts(7)),
            part(8, "meta", {"code": "other"}),
            part(2000, "meta", {"code": "new"}),
            *WHOLE[-4:],
        )
        async with provider(store, file=file, wait=0.0) as t:
            known = dict(t.snapshot.tenants)
            changes: list[Changed] = []
            t.subscribe(changes.append)
            await eventually(lambda: t.by_code("new") == 2000 and how(t) == "host")
            for change in changes:
                assert known.get(change.tenant) == change.before
                if change.after is None:
                    del known[change.tenant]
                else:
                    known[change.tenant] = change.after
            assert known == dict(t.snapshot.tenants)
            await eventually(lambda: t.health is not None and t.platform("limits") is not None)
            async with provider(store) as fresh:
                assert content(t) == content(fresh)

    @pytest.mark.parametrize(
        "damage",
        [
            lambda raw: b"",
            lambda raw: raw[:-1],
            lambda raw: raw + b"x",
            lambda raw: raw[: raw.index(b"\n")],
            lambda raw: raw.replace(b'"port": 3306', b'"port": 3307'),
            lambda raw: b"\xff" * 100_000,
            lambda raw: raw.replace(b'"format":2', b'"format":9'),
        ],
        ids=["empty", "short", "long", "head alone", "a digit", "rubbish", "format"],
    )
    @in_memory
    async def test_a_damaged_file_is_reported(
        self,
        store: Store,
        tmp_path: Path,
        damage: Callable[[bytes], bytes],
        caplog: pytest.LogCaptureFixture,
    ):
        file = tmp_path / "tenants.copy"
        await store.commit(*WHOLE)
        async with provider(store, file=file):
            pass
        assert TenantCache(file, namespace="jxt").load() is not None
        raw = file.read_bytes()
        file.write_bytes(damage(raw))
        assert file.read_bytes() != raw
        assert TenantCache(file, namespace="jxt").load() is None
        assert "tenants.copy cannot be used" in caplog.text
