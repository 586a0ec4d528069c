"""Output whose reader is gone, or that cannot be written."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

import mooring
from mooring.store import Put
from tests.acceptance.commands import mooring_command
from tests.acceptance.forking import Forked

UNREAD = 141


def into(output: int, *arguments: str) -> tuple[int, str]:
    """A command that prints into a file: its exit code and its standard error."""
    with tempfile.TemporaryFile("r+", encoding="utf-8") as errors:
        process = Forked(*arguments, environment=os.environ, stdout=output, stderr=errors)
        code = process.wait(timeout=60)
        errors.seek(0)
        return code, errors.read()


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize(
    "command",
    ["version", "doctor memory://", "doctor memory:// --json", "--help", "services --help"],
)
def test_a_command_ends_quietly_if_its_reader_is_gone(unread: int, command: str):
    assert into(unread, *command.split()) == (UNREAD, "")


def test_an_export_ends_quietly_if_its_reader_is_gone(unread: int, tmp_path: Path):
    lines, url = tmp_path / "lines", f"sqlite://{tmp_path}/store"
    lines.write_text('{"key": "/a", "value": ""}\n')
    assert mooring_command("store", "import", "--store", url, str(lines)).returncode == 0
    assert into(unread, "store", "export", "--store", url) == (UNREAD, "")
    assert into(unread, "store", "export", "--store", url, "/dev/stdout") == (UNREAD, "")


async def test_a_watch_ends_quietly_once_its_reader_has_enough(served: Callable[[], str]):
    url = f"{served()}?namespace=/enough"
    async with mooring.connect(url) as hub:
        await hub.store.commit(Put(b"/registry/default/orders/10.0.0.1:80/data", b"{}"))
        reading, writing = os.pipe()
        watch = asyncio.create_task(
            asyncio.to_thread(into, writing, "watch", "orders", "--store", url)
        )
        first = await asyncio.to_thread(os.read, reading, 1000)
        assert first == b"+ 10.0.0.1:80 state up, version 0.0.0\n"
        os.close(reading)
        await hub.store.commit(Put(b"/registry/default/orders/10.0.0.2:80/data", b"{}"))
        assert await watch == (UNREAD, "")
    os.close(writing)


def test_an_interpreter_ends_quietly_if_its_reader_is_gone(unread: int):
    """At its end it tries once more to write the rest."""
    command = [sys.executable, "-m", "mooring.cli", "services", "--help"]
    done = subprocess.run(command, stdout=unread, stderr=PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (UNREAD, "")


def test_a_full_disk_is_reported():
    with open("/dev/full", "wb") as full:
        code, stderr = into(full.fileno(), "version")
    assert code == 1
    assert stderr == "mooring: the output cannot be written: No space left on device\n"
