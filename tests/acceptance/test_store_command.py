"""`mooring store`: check, backup, export, import, as a user types them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.hub import open_store
from mooring.store import Put, prefix
from mooring.testing.etcd import EtcdServer
from tests.acceptance.test_cli import mooring_command


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    async with open_store(f"sqlite://{path}") as store:
        lease = await store.grant(1000)
        await store.commit(Put(b"/a/1", "数".encode()), Put(b"/a/2", b"\xff"), Put(b"/b", b""))
        await store.commit(Put(b"/a/leased", b"", lease.id))
    return path


def test_check(file: Path):
    done = mooring_command("store", "check", str(file))
    assert (done.returncode, done.stdout) == (0, f"✓ {file} is well\n")
    file.with_name("text").write_text("no database at all, whatever it is called" * 10)
    assert mooring_command("store", "check", str(file.with_name("text"))).returncode == 1
    assert "is not there" in mooring_command("store", "check", str(file / "none")).stderr


def test_backup(file: Path):
    copy = file.with_name("copy")
    assert mooring_command("store", "backup", str(file), str(copy)).returncode == 0
    assert mooring_command("store", "check", str(copy)).returncode == 0
    assert "exists" in mooring_command("store", "backup", str(file), str(copy)).stderr
    assert mooring_command("store", "backup", str(file)).returncode == 0
    assert len(list(file.parent.glob("store.2*"))) == 1


async def test_export_and_import_between_two_kinds_of_store(
    file: Path, etcd: Callable[[str], EtcdServer]
):
    lines = file.with_name("lines")
    done = mooring_command(
        "store", "export", f"--store=sqlite://{file}", "--prefix=/a/", str(lines)
    )
    assert done.returncode == 0, done.stderr
    assert "2 keys, 1 on a lease left out" in done.stderr
    assert '"数"' in lines.read_text()
    url = f"{etcd('3.5').url}?namespace=/imported"
    done = mooring_command("store", "import", str(lines), MOORING_STORE=url)
    assert done.returncode == 0, done.stderr
    async with open_store(url) as store:
        found = await store.read(prefix(b"/"))
        assert [(e.key, e.value) for e in found.entries] == [
            (b"/a/1", "数".encode()),
            (b"/a/2", b"\xff"),
        ]


def test_a_bad_line_writes_nothing(file: Path):
    lines = file.with_name("lines")
    lines.write_text('{"key": "/new", "value": ""}\nnonsense\n')
    done = mooring_command("store", "import", f"--store=sqlite://{file}", str(lines))
    assert done.returncode == 1
    assert "line 2" in done.stderr
    exported = mooring_command("store", "export", f"--store=sqlite://{file}", "--prefix=/new")
    assert exported.stdout == ""


def test_no_store_is_asked_for():
    assert "--store" in mooring_command("store", "export", MOORING_STORE="").stderr
