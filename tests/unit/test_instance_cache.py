"""Copies on disk: each registry has its own; a damaged one is logged and ignored."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest

from mooring.discovery.last_known_good import CachedInstances, InstanceCache
from mooring.model import Instance

ONE = Instance("Common/echo", "10.0.0.1", 80)
OTHER = Instance("Common/echo", "10.0.0.2", 80)
GOOD = msgspec.json.encode(
    CachedInstances("echo", "etcd://a tree", datetime.datetime.now(datetime.UTC), (ONE,))
)
DEEP = b"[" * 100_000 + b"]" * 100_000


def the_only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_saved_instances_are_loaded(tmp_path: Path):
    cache = InstanceCache(tmp_path, "etcd://a tree", "Common/echo")
    assert cache.load() is None
    cache.save([ONE])
    copy = cache.load()
    assert copy is not None
    assert copy.instances == (ONE,)


def test_the_leftovers_of_a_killed_process_are_removed(tmp_path: Path):
    (tmp_path / ".unfinished-abc").touch()
    InstanceCache(tmp_path, "etcd://a tree", "Common/echo").save([ONE])
    assert the_only_file(tmp_path).suffix == ".json"


def test_registries_do_not_share_their_copies(tmp_path: Path):
    tree = InstanceCache(tmp_path, "etcd://a tree", "Common/echo")
    plain = InstanceCache(tmp_path, "etcd://a plain", "Common/echo")
    tree.save([ONE])
    assert plain.load() is None
    plain.save([OTHER])
    copy = tree.load()
    assert copy is not None
    assert copy.instances == (ONE,)


def test_a_copy_under_another_name_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    tree = InstanceCache(tmp_path / "a", "etcd://a tree", "Common/echo")
    plain = InstanceCache(tmp_path / "b", "etcd://a plain", "Common/echo")
    tree.save([ONE])
    plain.save([ONE])
    the_only_file(tmp_path / "a").replace(the_only_file(tmp_path / "b"))
    assert plain.load() is None
    assert "another registry" in caplog.text


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        GOOD[:-20],
        GOOD.replace(b'"10.0.0.1"', b'"\xff\xfe"'),
        GOOD.replace(b'"port":80', b'"port":99999'),
        GOOD.replace(b'"metadata":{}', b'"metadata":{"a":' + DEEP + b"}"),
        GOOD.replace(b'"metrics":{}', b'"metrics":{"a":' + DEEP + b"}"),
        DEEP,
    ],
)
def test_a_damaged_copy_is_logged_and_not_used(
    damaged: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    cache = InstanceCache(tmp_path, "etcd://a tree", "echo")
    cache.save([ONE])
    the_only_file(tmp_path).write_bytes(damaged)
    assert cache.load() is None
    assert "cannot be used" in caplog.text


def test_a_copy_that_other_users_may_write_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    cache = InstanceCache(tmp_path, "etcd://a tree", "echo")
    cache.save([ONE])
    the_only_file(tmp_path).chmod(0o620)
    assert cache.load() is None
    assert "other users may write it" in caplog.text


def test_a_save_that_fails_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").touch()
    cache = InstanceCache(tmp_path / "file", "etcd://a tree", "echo")
    cache.save([ONE])
    cache.save([ONE])
    assert caplog.text.count("no copy of echo is kept") == 1
