"""A record that a server has seen end stays ended, in the store where it ended."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from mooring.errors import InvalidRequest
from mooring.server.auth import signed_records as ended_module
from mooring.server.auth.data_dir import DataDir
from mooring.server.auth.signed_records import EndedRecords, RecordVersion


@pytest.fixture
def folder(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "data")
    made.prepare()
    return made


def record(
    mac: str, version: int = 2, *, created: int = 1, until: float | None = None
) -> RecordVersion:
    return RecordVersion(mac, created, version, until)


def of(ended: EndedRecords, store: str = "s") -> set[str]:
    return {mac for mac in "abcde" if ended.has(store, mac)}


async def test_deleted_and_replaced_records_stay_ended_after_a_restart(folder: DataDir):
    ended = EndedRecords(folder)
    for id, mac in (("1", "a"), ("2", "b"), ("3", "c")):
        ended.add_valid("s", id, record(mac))
        ended.add_valid("s", id, record(mac))
    assert of(ended) == set()
    ended.add_ended("s", "1")
    ended.add_ended("s", "unknown")
    ended.add_valid("s", "2", record("d", 3))
    assert of(ended) == {"a", "b"}
    await ended.aclose()
    again = EndedRecords(folder)
    assert of(again) == {"a", "b"}
    again.add_valid("s", "3", record("e", created=7))
    assert of(again) == {"a", "b", "c"}, "it was replaced while no server ran"
    await again.aclose()
    assert of(EndedRecords(folder)) == {"a", "b", "c"}


async def test_an_older_record_ends_nothing(folder: DataDir):
    """The history of the store may be read again from its beginning."""
    ended = EndedRecords(folder)
    ended.add_valid("s", "1", record("c", created=7))
    for repeated in (record("a", 2), record("b", 3), record("c", created=7)):
        assert not ended.has("s", repeated.mac)
        ended.add_valid("s", "1", repeated)
    assert of(ended) == {"a", "b"}
    await ended.aclose()


async def test_records_of_another_store_are_separate(folder: DataDir):
    ended = EndedRecords(folder)
    ended.add_valid("s", "1", record("a"))
    ended.add_valid("other", "1", record("b"))
    ended.add_ended("other", "1")
    assert (of(ended), of(ended, "other")) == (set(), {"b"})
    await ended.aclose()


async def test_the_oldest_ended_records_are_forgotten(
    folder: DataDir, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ended_module, "MAX_ENDED", 2)
    ended = EndedRecords(folder)
    for version, mac in enumerate("abcd"):
        ended.add_valid("s", "1", record(mac, version))
    assert of(ended) == {"b", "c"}
    await ended.aclose()


async def test_records_that_expired_long_ago_are_forgotten(folder: DataDir):
    now = time.time()
    ended = EndedRecords(folder)
    times = (now - 30 * 86400, now - 60, now + 60, None)
    for version, (mac, until) in enumerate(zip("abcd", times, strict=True)):
        ended.add_valid("s", "1", record(mac, version, until=until))
    ended.add_valid("s", "2", record("e", until=now - 30 * 86400))
    await ended.aclose()
    again = EndedRecords(folder)
    assert of(again) == {"b", "c"}
    again.add_ended("s", "1")
    again.add_ended("s", "2")
    assert of(again) == {"b", "c", "d"}
    await again.aclose()


async def test_many_records_are_written_without_blocking_the_loop(
    folder: DataDir, monkeypatch: pytest.MonkeyPatch
):
    threads = []
    monkeypatch.setattr(EndedRecords, "_write", lambda _, __: threads.append(threading.get_ident()))
    ended = EndedRecords(folder)
    for number in range(1000):
        ended.add_valid("s", "1", record(str(number), number))
    await ended.aclose()
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"s": 1}'])
def test_a_damaged_file_is_refused(folder: DataDir, content: bytes):
    file = folder.path / "ended-tokens.json"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"ended-tokens\.json is damaged"):
        EndedRecords(folder)
    file.write_bytes(b"{}")
    file.chmod(0o666)
    with pytest.raises(InvalidRequest, match="other users can write"):
        EndedRecords(folder)


async def test_a_full_folder_is_reported_and_known_ends_still_count(
    folder: DataDir, caplog: pytest.LogCaptureFixture
):
    ended = EndedRecords(folder)
    ended.add_valid("s", "1", record("a"))
    await ended.aclose()
    folder.path.rename(folder.path.with_name("away"))
    folder.path.write_bytes(b"")
    ended.add_ended("s", "1")
    await ended.aclose()
    assert of(ended) == {"a"}
    assert "ended tokens are not remembered" in caplog.text
