"""`mooring store`: check, backup, export, import, as users type them."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from mooring.backends import open_store
from mooring.cli.io import connect as connecting
from mooring.store import Put, prefix
from mooring.testing.etcd import EtcdServer
from tests.acceptance.commands import Command, mooring_command


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
    assert (done.returncode, done.stdout) == (0, f"✓ {file} is healthy\n")
    file.with_name("text").write_text("no database at all, whatever it is called" * 10)
    assert mooring_command("store", "check", str(file.with_name("text"))).returncode == 1
    assert "does not exist" in mooring_command("store", "check", str(file / "none")).stderr


def test_backup(file: Path):
    copy = file.with_name("copy")
    assert mooring_command("store", "backup", str(file), str(copy)).returncode == 0
    assert mooring_command("store", "check", str(copy)).returncode == 0
    assert "exists" in mooring_command("store", "backup", str(file), str(copy)).stderr
    assert mooring_command("store", "backup", str(file)).returncode == 0
    assert len(list(file.parent.glob("store.2*"))) == 1


async def test_a_backup_contains_only_used_space_and_is_private(tmp_path: Path):
    path, copy = tmp_path / "store", tmp_path / "copy"
    async with open_store(f"sqlite://{path}") as store:
        for _ in range(50):
            done = await store.commit(Put(b"/a", b"x" * 100_000))
        await store.compact(done.revision)
        done = await store.commit(Put(b"/b", b""))
        assert mooring_command("store", "backup", str(path), str(copy)).returncode == 0
    assert copy.stat().st_size < 200_000 < path.stat().st_size
    assert copy.stat().st_mode & 0o777 == 0o600
    async with open_store(f"sqlite://{copy}") as store:
        assert (await store.read(prefix(b"/"))).revision == done.revision


def refused(*arguments: str, **environment: str) -> str:
    """The one line with which a command fails."""
    done = mooring_command(*arguments, **environment)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert done.stderr.startswith("mooring: "), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", ["none/none", "folder", "x" * 300])
def test_a_missing_file_is_reported_and_not_created(tmp_path: Path, name: str):
    (tmp_path / "folder").mkdir()
    path, copy = str(tmp_path / name), str(tmp_path / "copy")
    for arguments in (
        ("check", path),
        ("backup", path, copy),
        ("export", f"--store=sqlite://{path}", copy),
        ("import", "--store=memory://", path),
    ):
        assert name in refused("store", *arguments)
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_file_that_cannot_be_written_is_reported(file: Path):
    nowhere = str(file.parent / "none" / "copy")
    assert nowhere in refused("store", "backup", str(file), nowhere)
    assert nowhere in refused("store", "export", f"--store=sqlite://{file}", nowhere)
    folder = str(file.parent)
    assert "exists" in refused("store", "backup", str(file), folder)
    assert folder in refused("store", "export", f"--store=sqlite://{file}", folder)
    assert {path.name.partition("-")[0] for path in file.parent.iterdir()} == {
        "store",
        "store.owner",
    }


def test_files_of_any_name(file: Path):
    odd = file.with_name("a@b?c#d%41 100%\udcff'")
    file.rename(odd)
    url = f"sqlite://{quote(os.fsencode(odd))}"
    assert mooring_command("store", "check", os.fsdecode(odd)).returncode == 0
    done = mooring_command("store", "export", f"--store={url}", "--prefix=/b")
    assert done.stdout == '{"key": "/b", "value": ""}\n', done.stderr
    assert mooring_command("store", "backup", os.fsdecode(odd)).returncode == 0
    assert len(list(file.parent.glob("a@b*100%*2*"))) == 1


def test_an_existing_export_is_kept_if_the_next_fails(file: Path):
    lines = file.with_name("lines")
    lines.write_text("as it was")
    unreachable = "--store=etcd://127.0.0.1:1?timeout=100ms"
    assert mooring_command("store", "export", unreachable, str(lines)).returncode == 1
    assert lines.read_text() == "as it was"
    done = mooring_command("store", "export", f"--store=sqlite://{file}", str(lines))
    assert done.returncode == 0
    assert len(lines.read_text().splitlines()) == 3
    assert not list(file.parent.glob("*.unfinished"))


def test_a_dash_means_standard_input_and_output(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(file.parent)
    done = mooring_command("store", "export", f"--store=sqlite://{file}", "-")
    assert len(done.stdout.splitlines()) == 3
    copy = f"--store=sqlite://{file}.copy"
    assert mooring_command("store", "import", copy, "-", stdin=done.stdout).returncode == 0
    assert mooring_command("store", "export", copy).stdout == done.stdout
    assert not Path("-").exists()


async def test_the_reader_of_an_export_can_stop_early(tmp_path: Path):
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        for n in range(100):
            await store.commit(Put(b"/%d" % n, b"x" * 10_000))
    command = f"{sys.executable} -m mooring.cli store export --store=sqlite://{tmp_path}/store"
    process = await asyncio.create_subprocess_shell(
        f"{command} | head -c 100", stdout=PIPE, stderr=PIPE
    )
    output, errors = await process.communicate()
    assert (len(output), errors) == (100, b"")


@pytest.mark.parametrize("offset", [0, 8192])
async def test_a_damaged_file_is_explained(tmp_path: Path, offset: int):
    path = tmp_path / "store"
    async with open_store(f"sqlite://{path}") as store:
        for n in range(300):
            await store.commit(Put(b"/%d" % n, b"x" * 100))
    with path.open("r+b") as damaged:
        damaged.seek(offset)
        damaged.write(b"\xff" * 2000)
    done = mooring_command("store", "check", str(path))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    refused("store", "backup", str(path))
    assert str(path) in refused("store", "export", f"--store=sqlite://{path}")


def test_bytes_that_are_not_utf_8_are_reported(tmp_path: Path):
    (tmp_path / "lines").write_bytes(b'{"key": "\xff"}')
    assert "UTF-8" in refused("store", "import", "--store=memory://", str(tmp_path / "lines"))


async def test_export_and_import_between_two_kinds_of_store(
    file: Path, etcd: Callable[[str], EtcdServer]
):
    lines = file.with_name("lines")
    done = mooring_command(
        "store", "export", f"--store=sqlite://{file}", "--prefix=/a/", str(lines)
    )
    assert done.returncode == 0, done.stderr
    assert "2 keys, skipped 1 on a lease" in done.stderr
    assert '"数"' in lines.read_text()
    url = f"{etcd('3.5').url}?namespace=/imported"
    done = mooring_command("store", "import", str(lines), MOORING_STORE=url)
    assert done.returncode == 0, done.stderr
    async with open_store(url) as store:
        snapshot = await store.read(prefix(b"/"))
        assert [(e.key, e.value) for e in snapshot.entries] == [
            (b"/a/1", "数".encode()),
            (b"/a/2", b"\xff"),
        ]


def test_a_bad_line_writes_nothing(file: Path):
    lines = file.with_name("lines")
    lines.write_text('{"key": "/new", "value": ""}\nnonsense\n')
    done = mooring_command("store", "import", f"--store=sqlite://{file}", str(lines))
    assert done.returncode == 2
    assert "line 2" in done.stderr
    exported = mooring_command("store", "export", f"--store=sqlite://{file}", "--prefix=/new")
    assert exported.stdout == ""


def test_the_default_store_is_the_local_server(
    command: Command, etcd: Callable[[str], EtcdServer], monkeypatch: pytest.MonkeyPatch
):
    server = etcd("3.4")
    server.ctl("put", "/default/a", "1")
    monkeypatch.delenv("MOORING_STORE", raising=False)
    monkeypatch.setattr(connecting, "LOCAL", server.url.removeprefix("etcd://"))
    assert command("store", "export", "--prefix=/default/").stdout == (
        '{"key": "/default/a", "value": "1"}\n'
    )


async def test_keys_of_servers_are_exported_only_if_named(file: Path):
    async with open_store(f"sqlite://{file}") as store:
        await store.commit(Put(b"/mooring/tokens/1", b"{}"), Put(b"/mooringish", b"1"))
    done = mooring_command("store", "export", f"--store=sqlite://{file}", "--prefix=/mooring")
    assert done.stdout == '{"key": "/mooringish", "value": "1"}\n'
    assert "skipped 1 of Mooring's servers" in done.stderr
    named = mooring_command("store", "export", f"--store=sqlite://{file}", "--prefix=/mooring/")
    assert named.stdout == '{"key": "/mooring/tokens/1", "value": "{}"}\n'
