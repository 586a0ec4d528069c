"""What ended stays ended for a server that saw it, in the store where that was."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooring.errors import InvalidRequest
from mooring.server.access import ended as ended_module
from mooring.server.access.ended import Ended
from mooring.server.access.folder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "data")
    made.prepare()
    return made


def of(ended: Ended, store: str = "s") -> set[str]:
    return {mac for mac in "abcde" if ended.has(store, mac)}


def test_what_was_valid_and_is_no_longer_has_ended_also_after_a_restart(folder: Folder):
    ended = Ended(folder)
    ended.look("s", ["a", "b", "c"])
    assert of(ended) == set()
    ended.look("s", ["b", "d"])
    assert of(ended) == {"a", "c"}
    again = Ended(folder)
    assert of(again) == {"a", "c"}
    again.look("s", ["d"])
    assert of(again) == {"a", "b", "c"}, "it ended while no server ran"
    assert of(Ended(folder)) == {"a", "b", "c"}


def test_another_store_ends_nothing(folder: Folder):
    ended = Ended(folder)
    ended.look("s", ["a", "b"])
    ended.look("other", [])
    ended.look("other", ["a"])
    ended.look("other", [])
    assert (of(ended), of(ended, "other")) == (set(), {"a"})


def test_the_oldest_are_forgotten(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ended_module, "MOST", 2)
    ended = Ended(folder)
    for valid in ("a", "b", "c", "d"):
        ended.look("s", [valid])
    assert of(ended) == {"b", "c"}


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"s": 1}'])
def test_a_damaged_file_is_refused(folder: Folder, content: bytes):
    file = folder.path / "ended-tokens.json"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"ended-tokens\.json is damaged"):
        Ended(folder)
    file.write_bytes(b"{}")
    file.chmod(0o666)
    with pytest.raises(InvalidRequest, match="others may write"):
        Ended(folder)


def test_a_folder_that_is_full_is_reported_and_what_is_known_counts(
    folder: Folder, caplog: pytest.LogCaptureFixture
):
    ended = Ended(folder)
    ended.look("s", ["a"])
    folder.path.rename(folder.path.with_name("away"))
    folder.path.write_bytes(b"")
    ended.look("s", [])
    assert of(ended) == {"a"}
    assert "which tokens ended is not remembered" in caplog.text
