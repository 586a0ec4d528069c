"""Files are replaced as a whole or not at all, and no unfinished file stays behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mooring.atomic_file import replacing, sweep

WRITER = """
import sys, time
from pathlib import Path
from mooring.atomic_file import replacing

with replacing(Path(sys.argv[1])) as out:
    out.write(b"s3cret")
    out.flush()
    print("half", flush=True)
    sys.stdin.readline()
    out.write(b" whole")
"""


def writer(file: Path) -> subprocess.Popen[str]:
    """A process in the middle of writing."""
    made = subprocess.Popen(
        [sys.executable, "-c", WRITER, file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "half\n"
    return made


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate("\n", timeout=30)
    return process.returncode


def test_the_file_is_complete_and_readable_only_by_its_owner(tmp_path: Path):
    file = tmp_path / "new" / "file"
    for text in (b"one", b"two"):
        with replacing(file) as out:
            out.write(text)
        assert file.read_bytes() == text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [*file.parent.iterdir()] == [file]


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"old")

    def fail() -> None:
        with replacing(file) as out:
            out.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert file.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("next", ["write", "sweep"])
def test_the_leftovers_of_a_killed_process_are_removed(tmp_path: Path, next: str):
    killed = writer(tmp_path / "file")
    killed.send_signal(signal.SIGKILL)
    assert ended(killed) == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() == b"s3cret"
    if next == "write":
        with replacing(tmp_path / "other") as out:
            out.write(b"x")
        assert [path.name for path in tmp_path.iterdir()] == ["other"]
    else:
        sweep(tmp_path)
        assert [*tmp_path.iterdir()] == []


def test_the_file_of_a_running_writer_is_not_removed(tmp_path: Path):
    file = tmp_path / "file"
    busy = writer(file)
    sweep(tmp_path)
    with replacing(file) as out:
        out.write(b"another")
    sweep(tmp_path)
    assert file.read_bytes() == b"another"
    assert ended(busy) == 0
    assert file.read_bytes() == b"s3cret whole"
    assert [*tmp_path.iterdir()] == [file]


def test_concurrent_writers_and_sweepers_do_not_hinder_one_another(tmp_path: Path):
    failed: list[BaseException] = []
    stopped = threading.Event()

    def write(name: str) -> None:
        try:
            for n in range(50):
                with replacing(tmp_path / name) as out:
                    out.write(b"%d" % n)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    def sweeping() -> None:
        while not stopped.is_set():
            sweep(tmp_path)

    broom = threading.Thread(target=sweeping)
    writers = [threading.Thread(target=write, args=(f"file{n % 2}",)) for n in range(4)]
    for thread in (broom, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stopped.set()
    broom.join()
    assert failed == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file0", "file1"]
    assert (tmp_path / "file0").read_bytes() == b"49"


def test_a_leftover_that_cannot_be_removed_does_not_stop_a_write(tmp_path: Path):
    (tmp_path / ".unfinished-folder").mkdir()
    (tmp_path / ".unfinished-link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / ".unfinished-pipe")
    with replacing(tmp_path / "file") as out:
        out.write(b"x")
    assert (tmp_path / "file").read_bytes() == b"x"
    assert (tmp_path / ".unfinished-folder").exists()
    sweep(tmp_path / "nowhere")
