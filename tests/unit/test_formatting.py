"""Messages show external values and exceptions in plain words, never in Python's notation."""

from __future__ import annotations

import ast
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mooring
from mooring.durations import format_duration, parse_duration
from mooring.errors import InvalidRequest
from mooring.formatting import describe, printable, quoted, readable

ROOT = Path(mooring.__file__).parent

NOT_SHOWN = {
    "discovery/rotation.py": "the key that a consistent hash places",
    "migrate/redis_v1/bridge.py": "a score for Redis with all its digits",
    "migrate/redis_v1/migration.py": "a score for Redis with all its digits",
    "server/api/openapi.py": "the sort key of a type",
    "etcd_server/maintenance.py": "the input of a checksum",
}
"""Where Python's notation is used, but shown to nobody."""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("api", "'api'"),
        ("it's", '"it\'s"'),
        ("a\x00b\x1b[31m\n", "'a<U+0000>b<U+001B>[31m<U+000A>'"),
        ("\u202egnp", "'<U+202E>gnp'"),
        ("\ud800", "'<U+D800>'"),
        (b"\xff\x00k".decode(errors="surrogateescape"), "'<FF><U+0000>k'"),
        (b"\xffk\xe6\x95\xb0", "'<FF>k数'"),
        (b"", "''"),
        ("x" * 300, f"'{'x' * 200}'…"),
        (b"x" * 3000, f"'{'x' * 200}'…"),
        (None, "null"),
        (True, "true"),
        (-1.5, "-1.5"),
        pytest.param(10**5000, "a very large number", id="large"),
        ([1, "secret"], "a list"),
        ((1,), "a list"),
        ({"a": 1}, "a map"),
        ({1}, "a set"),
        (int, "the type int"),
        (Path("/x"), f"an object of type {type(Path()).__name__}"),
    ],
)
def test_a_value_in_a_message(value: object, words: str):
    assert quoted(value) == words


def test_a_value_is_cut_where_the_message_says():
    assert quoted("abcdef", 3) == "'abc'…"
    assert quoted("abc", 3) == "'abc'"


def test_text_for_a_terminal_is_one_safe_line():
    assert printable("数 ok") == "数 ok"
    assert printable("a\tb\r\n\x9b") == "a<U+0009>b<U+000D><U+000A><U+009B>"


def test_a_key_in_a_message_is_text():
    assert readable(b"/registry/\xe6\x95\xb0") == "/registry/数"
    assert readable(b"\x00\xff\n") == "<U+0000><FF><U+000A>"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InvalidRequest("the port is missing"), "the port is missing"),
        (KeyError("a\x00"), "'a<U+0000>' is missing"),
        (
            OSError(2, "No such file or directory", "/x\x1b"),
            "/x<U+001B>: No such file or directory",
        ),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(113, "Connect call failed ('10.0.0.1', 2379)"), "No route to host"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ssl.SSLError(1, "wrong version number"), "wrong version number"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "the text is not UTF-8"),
        (TimeoutError(), "timeout error"),
        (RuntimeError("first\nsecond"), "first"),
        (ZeroDivisionError(), "zero division error"),
    ],
)
def test_an_exception_in_words(error: Exception, words: str):
    assert describe(error) == words


def _python_notation(tree: ast.Module) -> Iterator[int]:
    """The lines that write `!r`, `%r` or `repr(…)`, outside of `__repr__`."""
    within = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__repr__"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        match node:
            case _ if node in within:
                pass
            case ast.FormattedValue(conversion=conversion) if conversion in (ord("r"), ord("a")):
                yield node.lineno
            case ast.Constant(value=str() as text) if "%r" in text or "!r}" in text:
                yield node.lineno
            case ast.Call(func=ast.Name(id="repr" | "ascii")):
                yield node.lineno


def test_no_message_is_written_in_pythons_notation():
    wrong = {
        f"{file.relative_to(ROOT)}:{line}"
        for file in ROOT.rglob("*.py")
        if str(file.relative_to(ROOT)) not in NOT_SHOWN
        for line in _python_notation(ast.parse(file.read_text()))
    }
    assert wrong == set()
    for name in NOT_SHOWN:
        assert [*_python_notation(ast.parse((ROOT / name).read_text()))], f"{name} needs no entry"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("5m", 300), ("1m30s", 90), ("250ms", 0.25), ("1.5h", 5400), ("1d", 86400)],
)
def test_a_duration_is_read(text: str, seconds: float):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "s", "-1s", "10 s", "1x", "1s2"])
def test_an_invalid_duration_is_refused(text: str):
    with pytest.raises(InvalidRequest, match="10s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000004, "4µs"),
        (0.0005, "500µs"),
        (0.25, "250ms"),
        (3.14159, "3.14s"),
        (90, "1m30s"),
        (90061, "1d1h"),
        (-2, "-2s"),
    ],
)
def test_a_duration_is_shown(seconds: float, text: str):
    assert format_duration(seconds) == text


@given(st.integers(10, 10**6))
def test_formatted_durations_keep_their_two_largest_units(seconds: int):
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.05)
