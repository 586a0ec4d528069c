"""Copies on disk: each registry has its own, and one that is damaged is told and left alone."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest

from mooring.discovery.disk_cache import Copies, Copy
from mooring.model import Instance

ONE = Instance("Common/echo", "10.0.0.1", 80)
OTHER = Instance("Common/echo", "10.0.0.2", 80)
GOOD = msgspec.json.encode(
    Copy("echo", "etcd://a tree", datetime.datetime.now(datetime.UTC), (ONE,))
)
DEEP = b"[" * 100_000 + b"]" * 100_000


def the_only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_what_is_saved_is_loaded(tmp_path: Path):
    copies = Copies(tmp_path, "etcd://a tree")
    assert copies.load("Common/echo") is None
    copies.save("Common/echo", [ONE])
    copy = copies.load("Common/echo")
    assert copy is not None
    assert copy.instances == (ONE,)


def test_what_a_killed_process_left_is_removed(tmp_path: Path):
    (tmp_path / ".unfinished-abc").touch()
    Copies(tmp_path, "etcd://a tree").save("Common/echo", [ONE])
    assert the_only_file(tmp_path).suffix == ".json"


def test_registries_do_not_share_their_copies(tmp_path: Path):
    tree, plain = Copies(tmp_path, "etcd://a tree"), Copies(tmp_path, "etcd://a plain")
    tree.save("Common/echo", [ONE])
    assert plain.load("Common/echo") is None
    plain.save("Common/echo", [OTHER])
    copy = tree.load("Common/echo")
    assert copy is not None
    assert copy.instances == (ONE,)


def test_a_copy_under_another_name_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    tree, plain = Copies(tmp_path / "a", "etcd://a tree"), Copies(tmp_path / "b", "etcd://a plain")
    tree.save("Common/echo", [ONE])
    plain.save("Common/echo", [ONE])
    the_only_file(tmp_path / "a").replace(the_only_file(tmp_path / "b"))
    assert plain.load("Common/echo") is None
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
def test_a_damaged_copy_is_told_and_not_used(
    damaged: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    copies = Copies(tmp_path, "etcd://a tree")
    copies.save("echo", [ONE])
    the_only_file(tmp_path).write_bytes(damaged)
    assert copies.load("echo") is None
    assert "cannot be used" in caplog.text
