"""Values and errors as one line of text, without Python reprs."""

from __future__ import annotations

import ast
import os
import re
from typing import Any

LONGEST = 200
"""Characters of a value in a message."""

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_KINDS: dict[type, str] = {
    dict: "a map",
    list: "a list",
    tuple: "a list",
    set: "a set",
    frozenset: "a set",
}


def printable(text: str) -> str:
    """Text of unknown origin, with everything escaped that could affect a terminal or start a new
    line."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(letter: str) -> str:
    if letter.isprintable():
        return letter
    if "\udc80" <= letter <= "\udcff":  # a byte that is not UTF-8, as Python decodes it
        return f"<{ord(letter) - 0xDC00:02X}>"
    return f"<U+{ord(letter):04X}>"


def readable(key: bytes) -> str:
    """A key for a message, with escapes for bytes that are not printable text."""
    if key == b"\0":
        return "all keys"  # the start of the range of all keys
    return printable(key.decode(errors="surrogateescape"))


def quoted(value: object, longest: int = LONGEST) -> str:
    """A value of unknown origin for a message: text in quotes, numbers as they are, other values
    by their type."""
    if isinstance(value, bytes | bytearray):
        value = value[: 4 * longest + 4].decode(errors="surrogateescape")
    if isinstance(value, str):
        mark = '"' if "'" in value else "'"
        return f"{mark}{printable(value[:longest])}{mark}{'…' if len(value) > longest else ''}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 3 * longest:
        return "a very large number"  # Python may refuse to convert it
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, type):
        return f"the type {value.__name__}"
    kind = type(value)
    return _KINDS.get(kind, f"an object of type {kind.__name__}")


def reason(error: OSError) -> str:
    """Why a system call failed. The text of the exception may contain Python reprs of addresses."""
    import socket  # both are slow to load, and only needed here
    import ssl

    if error.errno is None or isinstance(error, socket.gaierror | ssl.SSLError):
        return error.strerror or str(error)  # their numbers are not system error codes
    return os.strerror(error.errno)


def describe(error: BaseException) -> str:
    """An exception in words, without the name of its type."""
    if isinstance(error, KeyError) and error.args:
        return f"{quoted(error.args[0])} is missing"
    if isinstance(error, UnicodeError):
        return "the text is not UTF-8"
    if isinstance(error, OSError) and error.strerror:
        text = reason(error)
        return f"{printable(str(error.filename))}: {text}" if error.filename else text
    if text := str(error).strip().partition("\n")[0]:
        return printable(text)
    return _WORD.sub(" ", type(error).__name__).lower()


_TYPE_NAMES = {
    "array": "a list",
    "bool": "true or false",
    "bytes": "text in base64",
    "datetime": "a time such as 2026-01-31T09:26:53Z",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "text",
}
_PATH = re.compile(r" - at `(?:key in )?\$?([^`]*)`$")
_PATTERNS = (
    (re.compile(r"Expected `([^`]+)`, got `([^`]+)`"), "must be {0}, not {1}"),
    (re.compile(r"Expected `str` of length (<=|>=|==) (\d+)"), "must have {2} characters"),
    (re.compile(r"Expected `\w+` of length (<=|>=|==) (\d+)"), "must have {2} entries"),
    (re.compile(r"Expected `(?:int|float)` (<=|>=|<|>) (\S+)"), "must be {2}"),
    (re.compile(r"Expected `str` matching regex '(.*)'"), "does not match the pattern {0}"),
    (re.compile(r"Object missing required field `([^`]+)`"), "has no {0}"),
    (re.compile(r"Object contains unknown field `([^`]+)`"), "has an unknown field {0}"),
    (re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)"), "is not valid JSON: {0} at byte {1}"),
    (re.compile(r"Input data was truncated"), "is not valid JSON: it ends too early"),
)
_NOT_ALLOWED = re.compile(r"Invalid enum value (.*)")
_QUOTED = re.compile(r"'([^']*)'")
_COMPARISONS = {
    "<=": "at most",
    ">=": "at least",
    "==": "exactly",
    "<": "less than",
    ">": "more than",
}


def in_words(error: Exception, what: str, *, joint: str = ": ") -> str:
    """Why msgspec rejected a value. `what` names the whole value, and `joint` connects it with the
    path within it."""
    if isinstance(error, UnicodeDecodeError):
        return f"{what} is not UTF-8"
    if isinstance(error, RecursionError):
        return f"{what} is nested too deeply"
    text = str(error)
    if match := _PATH.search(text):
        path = match[1].lstrip(".")
        what, text = f"{what}{joint}{path}" if path else what, text[: match.start()]
    if match := _NOT_ALLOWED.fullmatch(text):
        return f"{what} {quoted(ast.literal_eval(match[1]))} is not an allowed value"
    for pattern, words in _PATTERNS:
        if match := pattern.fullmatch(text):
            parts = [printable(_type_names(part)) for part in match.groups()]
            comparison = " ".join(_COMPARISONS.get(part, part) for part in match.groups())
            while len(parts) < 2:
                parts.append("")
            return f"{what} {words.format(*parts, comparison)}"
    return f"{what}: {text[:1].lower()}{printable(text[1:])}".replace("`", "")


def yaml_in_words(error: Exception) -> str:
    """Why a text is not YAML, in one line, without its content, which may be a password."""
    if mark := getattr(error, "problem_mark", None):
        problem = getattr(error, "problem", None) or "malformed"
        return f"{_QUOTED.sub(_without_words, problem)}{yaml_place(mark)}"
    return describe(error)


def yaml_place(mark: Any) -> str:
    return f", line {mark.line + 1}, column {mark.column + 1}"


def _without_words(quoted: re.Match[str]) -> str:
    """A quoted character or `<token>` of YAML as it is; anything else may be from the file."""
    return quoted[0] if len(quoted[1]) <= 1 or quoted[1].startswith("<") else "…"


def _type_names(expected: str) -> str:
    """The names of msgspec's types as words; anything else as it is."""
    names = expected.split(" | ")
    if not all(name in _TYPE_NAMES for name in names):
        return expected
    *rest, last = [_TYPE_NAMES[name] for name in names]
    return f"{', '.join(rest)} or {last}" if rest else last
