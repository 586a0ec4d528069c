"""Messages as data: every kind has a text in both languages, and no parameter forges a sentence."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import mooring
from mooring.errors import InvalidName, MissingExtra, MooringError
from mooring.messages import TEXTS, Message, joined, message, named, parameters, verbatim
from mooring.names import check_name

ROOT = Path(mooring.__file__).parent
ENGLISH = ROOT / "messages/en.json"
CHINESE = ROOT / "server/console/locales/zh_messages.js"
_ENTRY = re.compile(r'^  (\w+):\s+"(.*)",$', re.MULTILINE)
_COMMENT = re.compile(r"^  //.*\n", re.MULTILINE)


def chinese() -> dict[str, str]:
    _, _, table = CHINESE.read_text(encoding="utf-8").partition("export default {\n")
    table = _COMMENT.sub("", table)
    entries = _ENTRY.findall(table)
    assert len(entries) == table.count(",\n"), "an entry of the table could not be read"
    return dict(entries)


def test_every_kind_has_one_english_text():
    kinds = re.findall(r'^    "(\w+)":', ENGLISH.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(kinds) == sorted(TEXTS)


def test_the_chinese_table_has_the_same_kinds_with_the_same_parameters():
    assert {kind: parameters(text) for kind, text in chinese().items()} == {
        kind: parameters(text) for kind, text in TEXTS.items()
    }


MESSAGES_ONLY = (
    "addresses.py",
    "backends.py",
    "discovery/rotation.py",
    "discovery/view.py",
    "durations.py",
    "file_lock.py",
    "hub.py",
    "locks/held.py",
    "locks/lease_pool.py",
    "locks/lock.py",
    "locks/queue.py",
    "locks/watched_queue.py",
    "masking.py",
    "mirror.py",
    "model.py",
    "names.py",
    "registry/",
    "server/",
    "session.py",
    "store/embedded/",
    "store/etcd/",
    "tenants/",
)
"""Modules whose errors reach the API, so that each has a kind and parameters."""
NOT_SHOWN = (
    "server/alerts.py",
    "server/auth/data_dir.py",
    "server/auth/signed_records.py",
    "server/health_checks/checkers.py",
    "server/http_listener.py",
    "server/settings.py",
    "tenants/read/resolution.py",
)
"""Modules whose errors reach only the log, end the start of the server, or reach the command."""


def _calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    """The calls in a module, each with what is called."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_errors_that_reach_the_api_have_a_kind():
    ours = {kind.__name__ for kind in _subclasses(MooringError) - {MissingExtra}}
    plain = [
        f"{path}:{call.lineno}"
        for file in sorted(ROOT.rglob("*.py"))
        if (path := file.relative_to(ROOT).as_posix()).startswith(MESSAGES_ONLY)
        and path not in NOT_SHOWN
        for name, call in _calls(file)
        if name.rpartition(".")[2] in ours
        and call.args
        and isinstance(call.args[0], ast.Constant | ast.JoinedStr)
    ]
    assert plain == []


def test_every_message_has_a_text_with_its_parameters():
    """Of those whose kind is a constant; an unknown one would fail only when it is created."""
    wrong = []
    for file in sorted(ROOT.rglob("*.py")):
        if file.is_relative_to(ROOT / "xds"):
            continue  # its `message` creates protobuf messages
        for name, call in _calls(file):
            position = {"message": 0, "HTTPError": 2}.get(name, len(call.args))
            kind = call.args[position] if position < len(call.args) else None
            if not isinstance(kind, ast.Constant):
                continue
            names = {keyword.arg for keyword in call.keywords} - {"headers", "retry_after"}
            text = TEXTS.get(str(kind.value))
            if text is None or (None not in names and names != parameters(text)):
                wrong.append(f"{file.relative_to(ROOT)}:{call.lineno}")
    assert wrong == []


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))


def test_an_error_keeps_its_kind_and_parameters():
    with pytest.raises(InvalidName, match="the group name 'a/b' contains a slash") as raised:
        check_name("group", "a/b")
    problem = raised.value.message
    assert (problem.kind, problem.params["name"]) == ("name_invalid", "a/b")
    assert problem.params["problem"] == message("name_has_slash")
    assert MooringError("plain").message == verbatim("plain")


@pytest.mark.parametrize("value", [b"\xff", "\ud800", 10**400, float("nan"), [b"\xff"], object()])
def test_every_parameter_can_be_written_as_json(value: object):
    made = message("not_as_json", what=message("a_list"), problem=value)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Message) == made


def test_a_key_is_a_parameter():
    watch = message("op_watch", key=named(b"/a\xff"))
    assert watch.text == 'watch of "/a<FF>"'
    assert message("op_watch", key=named(b"\0")).text == "watch of all keys"


def test_an_exception_may_carry_a_message():
    problem = message("name_empty")
    for error in (InvalidName(problem), ConnectionError(problem)):
        assert message("not_as_json", what="x", problem=error).params["problem"] == problem


@pytest.mark.parametrize("value", ["x' exists", 'it\'s "x"', "x\n"])
def test_a_quoted_value_cannot_end_its_quotes(value: str):
    text = message("service_reserved", name=value).text
    shown = text.removeprefix("the service name 'info' in ").removesuffix(
        " is reserved for descriptions"
    )
    assert shown == (json.dumps(value) if "'" in value else "'x<U+000A>'")


def test_a_message_takes_exactly_the_parameters_of_its_text():
    assert message("moved", before="h:1", after="h:2").text == "moved from h:1 to h:2"
    with pytest.raises(ValueError, match="do not match"):
        message("moved", before="h:1")
    with pytest.raises(ValueError, match="do not match"):
        message("restarted", extra=1)
    with pytest.raises(KeyError):
        message("unknown")


def test_an_empty_optional_part_is_omitted():
    assert message("drained_by", by="root", reason="").text == "disabled by root"
    assert message("drained_by", by="root", reason="x").text == "disabled by root, reason: x"


@pytest.mark.parametrize(
    "reason",
    [
        "x; deregistered by root",
        'x"; deregistered by root; "',
        'x\\"; deregistered by root',
        "x\n; deregistered by root",
        "{by}; [deregistered by root]",
    ],
)
def test_a_reason_cannot_forge_a_sentence(reason: str):
    text = message("drained_by", by="ann", reason=reason).text
    start = "disabled by ann, reason: "
    assert text.startswith(start)
    assert json.loads(text.removeprefix(start)) == reason.replace("\n", "<U+000A>")


def test_a_value_that_an_instance_supplies_is_quoted_unless_it_is_one_word():
    messages = [message("is_down"), message("other_version", version="1; it is up", wanted="2")]
    assert joined(messages) == 'it is down; its version is "1; it is up", not 2'
    assert message("metadata_changed", names=["a", "b, c", "…"]).text == (
        'metadata changed: a, "b, c", …'
    )
