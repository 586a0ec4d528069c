"""The audit log: what it writes, keeps and reads back."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from mooring.server.api.endpoint import ANONYMOUS, ApiCall, ApiEndpoint
from mooring.server.auth.audit import Audit, _backwards
from mooring.server.auth.authorization import OPEN, Principal, Role
from mooring.server.auth.data_dir import DataDir
from mooring.server.context import ServerContext
from mooring.server.http.response import Response

ANN = Principal("ann", "operator", token="t1", session="s1")
VIC = Principal("vic", "viewer", token="t2")


async def nothing(_: ApiCall) -> Response:
    return Response()


ENDPOINT = ApiEndpoint("POST", "/{service}", OPEN, nothing, "")


def call(
    principal: Principal = ANN, path: str = "/a?secret=1", service: str = "a", **notes: Any
) -> ApiCall:
    raw, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "POST",
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "headers": [(b"authorization", b"Bearer hunter2"), (b"cookie", b"hunter2")],
        "client": ("192.0.2.7", 1),
    }
    made = ApiCall(
        cast(ServerContext, None), Request(scope), ENDPOINT, {"service": service}, principal
    )
    made.notes.update(notes)
    made.body = {"password": "hunter2"}
    return made


@pytest.fixture
def folder(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "data")
    made.prepare()
    return made


def test_an_entry_names_the_caller_and_the_action_without_secrets(folder: DataDir):
    audit = Audit(folder)
    audit.write(call(reason="because"), 200)
    text = (folder.path / "audit.jsonl").read_text()
    entry = json.loads(text)
    assert "hunter2" not in text
    assert "secret" not in text
    del entry["id"], entry["time"]
    assert entry == {
        "actor": "ann",
        "role": "operator",
        "token": "t1",
        "session": "s1",
        "from": "192.0.2.7",
        "method": "POST",
        "path": "/a",
        "service": "a",
        "tenant": "",
        "status": 200,
        "notes": {"reason": "because"},
        "leftOut": 0,
    }
    assert stat.S_IMODE((folder.path / "audit.jsonl").stat().st_mode) == 0o600


@given(st.text(), st.text())
def test_every_entry_is_one_line(tmp_path_factory: pytest.TempPathFactory, name: str, note: str):
    folder = DataDir(tmp_path_factory.mktemp("audit"))
    audit = Audit(folder)
    name, note = (text.encode("utf-8", "replace").decode() for text in (name, note))
    audit.write(call(Principal(name, "operator", token="t"), note=note), 200)
    audit.write(call(note="last"), 200)
    newest, oldest = audit.read(limit=10)
    assert (oldest.actor, oldest.notes["note"], newest.notes["note"]) == (name, note, "last")
    assert len((folder.path / "audit.jsonl").read_bytes().splitlines()) == 2


def test_the_newest_come_first_by_page_and_filter(folder: DataDir):
    audit = Audit(folder)
    for n in range(25):
        audit.write(call(VIC if n % 3 else ANN, number=n), 200 if n % 2 else 409)
    first = audit.read(limit=10)
    assert [entry.notes["number"] for entry in first] == list(range(24, 14, -1))
    second = audit.read(limit=10, before=first[-1].id)
    assert [entry.notes["number"] for entry in second] == list(range(14, 4, -1))
    failed = audit.read(limit=3, matches=lambda entry: entry.status == 409)
    assert [entry.notes["number"] for entry in failed] == [24, 22, 20]


def test_the_log_is_rotated_and_old_files_are_kept(folder: DataDir):
    audit = Audit(folder, max_bytes=2000, kept=3)
    for n in range(100):
        audit.write(call(number=n), 200)
    kept = sorted(file.name for file in folder.path.glob("audit*"))
    assert set(kept) <= {"audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"}
    assert len(kept) >= 3
    assert all(file.stat().st_size < 2600 for file in folder.path.glob("audit*"))
    numbers = [entry.notes["number"] for entry in audit.read(limit=1000)]
    assert numbers == list(range(99, 99 - len(numbers), -1))
    assert len(numbers) > 10


def stranger(address: str) -> ApiCall:
    made = call(ANONYMOUS)
    made.request.scope["client"] = (address, 1)
    return made


@pytest.mark.parametrize(
    ("principal", "status"), [(ANONYMOUS, 401), (VIC, 403), (VIC, 429), (ANN, 404)]
)
def test_repeated_refusals_are_counted(folder: DataDir, principal: Principal, status: int):
    audit = Audit(folder)
    for _ in range(500):
        audit.write(call(principal), status)
    audit.write(call(), 200)
    entries = audit.read(limit=1000)
    assert (entries[0].actor, entries[0].status) == ("ann", 200)
    assert 0 < len(entries) < 100
    assert sum(entry.left_out for entry in entries) + len(entries) == 501


def test_repeated_refusals_do_not_hide_other_callers(folder: DataDir):
    audit = Audit(folder)
    for _ in range(500):
        audit.write(stranger("192.0.2.1"), 401)
        audit.write(call(VIC), 403)
    audit.write(stranger("192.0.2.2"), 401)
    audit.write(call(), 403)
    newest = audit.read(limit=2)
    assert [(entry.actor, entry.client) for entry in newest] == [
        ("ann", "192.0.2.7"),
        ("anonymous", "192.0.2.2"),
    ]


def test_refusals_from_many_addresses_are_counted_together(folder: DataDir):
    audit = Audit(folder)
    for n in range(3000):
        audit.write(stranger(f"2001:db8:0:{n:x}::1"), 401)
    assert 100 < len(audit.read(limit=3000)) < 1000


def test_refusals_do_not_push_out_actions(folder: DataDir):
    audit = Audit(folder, max_bytes=2000, kept=2)
    audit.write(call(number=1), 200)
    audit.write(call(VIC, number=2), 201)
    for n in range(100):
        audit.write(call(Principal("eve", "viewer", token=f"t{n}")), 403)
    audit.write(call(number=3), 504)
    done = audit.read(limit=1000, matches=lambda entry: entry.status != 403)
    assert [entry.notes["number"] for entry in done] == [3, 2, 1]


@pytest.mark.parametrize("role", ["viewer", "service"])
def test_calls_of_lesser_roles_do_not_push_out_operator_actions(folder: DataDir, role: Role):
    audit = Audit(folder, max_bytes=2000, kept=2)
    audit.write(call(number=1), 200)
    for _ in range(100):
        audit.write(call(Principal("eve", role, token="t9")), 201)
    assert [entry.notes for entry in audit.read(limit=1000) if entry.actor == "ann"] == [
        {"number": 1}
    ]


def test_refusals_are_written_briefly(folder: DataDir):
    audit = Audit(folder)
    audit.write(call(VIC, path="/" + "x" * 60_000, service="\U0001f600" * 15_000), 403)
    (entry,) = audit.read(limit=10)
    assert len(entry.path) == 200
    assert entry.service == "\U0001f600" * 50
    assert (folder.path / "refused.jsonl").stat().st_size < 1000


def test_a_write_does_not_wait_for_the_lock_of_the_folder(folder: DataDir):
    audit = Audit(folder, max_bytes=2000, kept=3)
    with folder.locked():
        for n in range(30):
            audit.write(call(number=n), 200)
    assert [file.name for file in folder.path.glob("audit*")] == ["audit.jsonl"]
    audit.write(call(number=30), 200)
    assert (folder.path / "audit.jsonl.1").exists()
    assert [entry.notes["number"] for entry in audit.read(limit=40)] == list(range(30, -1, -1))
    assert audit.failures == 0


def test_a_failed_write_is_logged_and_counted(folder: DataDir, caplog: pytest.LogCaptureFixture):
    audit = Audit(folder)
    (folder.path / "audit.jsonl").mkdir()
    audit.write(call(), 200)
    assert audit.failures == 1
    assert "no entry for what ann did" in caplog.text
    (folder.path / "audit.jsonl").rmdir()
    audit.write(call(), 200)
    assert len(audit.read(limit=10)) == 1


def test_lines_that_are_not_entries_are_skipped(folder: DataDir):
    audit = Audit(folder)
    audit.write(call(number=1), 200)
    with (folder.path / "audit.jsonl").open("ab") as file:
        file.write(b'{"id": "half\n\n\xff\xfe\n[]\n')
    audit.write(call(number=2), 200)
    with (folder.path / "audit.jsonl").open("ab") as file:
        file.write(b'{"id": "not yet whole')
    assert [entry.notes["number"] for entry in audit.read(limit=10)] == [2, 1]


def test_long_values_are_truncated(folder: DataDir):
    audit = Audit(folder)
    audit.write(call(path="/" + "x" * 100_000, text="y" * 100_000), 200)
    audit.write(call(what=object()), 200)
    assert (folder.path / "audit.jsonl").stat().st_size < 5_000
    assert len(audit.read(limit=10)) == 2


@given(st.lists(st.binary(min_size=1, max_size=40).filter(lambda b: b"\n" not in b)), st.booleans())
def test_lines_are_read_backwards(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], torn: bool
):
    file = tmp_path_factory.mktemp("lines") / "file"
    file.write_bytes(b"".join(line + b"\n" for line in lines) + (b"torn" if torn else b""))
    assert list(_backwards(file)) == lines[::-1]


def test_a_line_longer_than_a_block_is_read_completely(tmp_path: Path):
    long = b"x" * 200_000
    (tmp_path / "file").write_bytes(b"a\n" + long + b"\nb\n")
    assert list(_backwards(tmp_path / "file")) == [b"b", long, b"a"]


def test_truncated_notes_keep_every_name(folder: DataDir):
    audit = Audit(folder)
    names = [f"n{n:02}" for n in range(99)]
    before: dict[str, Any] = {"weight": 1.5, **dict.fromkeys(names)}
    after = {"weight": None, **{name: {"text": f"{name}{'x' * 10_000}"} for name in names}}
    audit.write(call(before=before, after=after, reason="why" * 300), 200)
    (entry,) = audit.read(limit=1)
    assert entry.notes["before"] == before
    assert list(entry.notes["after"]) == ["weight", *names]
    assert entry.notes["after"]["n07"].startswith('{"text":"n07x')
    assert entry.notes["reason"].startswith("whywhy")
    assert len((folder.path / "audit.jsonl").read_bytes()) < 9000
    long = {f"{n:03}{'é' * 300}": "x" for n in range(500)}
    audit.write(call(after=long, changed=list(long)), 200)
    (entry,) = audit.read(limit=1)
    assert list(entry.notes["after"]) == [name[:200] for name in long][:100]
    assert len(entry.notes["changed"]) == 100
    assert "x" not in str(entry.notes["after"].values())
