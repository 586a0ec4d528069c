"""Errors of msgspec and of YAML about what somebody wrote, in plain words."""

from __future__ import annotations

import ast
import re
from typing import Any

from mooring.formatting import describe, printable, quoted

_KINDS = {
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
_PLACE = re.compile(r" - at `(?:key in )?\$?([^`]*)`$")
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
_COMPARED = {"<=": "at most", ">=": "at least", "==": "exactly", "<": "less than", ">": "more than"}


def in_words(error: Exception, what: str, *, joint: str = ": ") -> str:
    """A sentence about a value that msgspec rejected. `what` names the whole value, and `joint`
    joins it to the place within it."""
    if isinstance(error, UnicodeDecodeError):
        return f"{what} is not UTF-8"
    if isinstance(error, RecursionError):
        return f"{what} is nested too deeply"
    text = str(error)
    if found := _PLACE.search(text):
        inner = found[1].lstrip(".")
        what, text = f"{what}{joint}{inner}" if inner else what, text[: found.start()]
    if found := _NOT_ALLOWED.fullmatch(text):
        return f"{what} {quoted(ast.literal_eval(found[1]))} is not an allowed value"
    for pattern, words in _PATTERNS:
        if found := pattern.fullmatch(text):
            parts = [printable(_kinds(part)) for part in found.groups()]
            compared = " ".join(_COMPARED.get(part, part) for part in found.groups())
            while len(parts) < 2:
                parts.append("")
            return f"{what} {words.format(*parts, compared)}"
    return f"{what}: {text[:1].lower()}{printable(text[1:])}".replace("`", "")


def yaml_in_words(error: Exception) -> str:
    """Why a text is not YAML, in one line. What it holds is left out, for it may be a password."""
    if mark := getattr(error, "problem_mark", None):
        told = getattr(error, "problem", None) or "malformed"
        return f"{_QUOTED.sub(_unless_said, told)}{yaml_place(mark)}"
    return describe(error)


def yaml_place(mark: Any) -> str:
    return f", line {mark.line + 1}, column {mark.column + 1}"


def _unless_said(quoted: re.Match[str]) -> str:
    """A sign or a <token> of YAML as it is; a word may be the file's."""
    return quoted[0] if len(quoted[1]) <= 1 or quoted[1].startswith("<") else "…"


def _kinds(expected: str) -> str:
    """Names of msgspec's types as words; anything else as it is."""
    names = expected.split(" | ")
    if not all(name in _KINDS for name in names):
        return expected
    *rest, last = [_KINDS[name] for name in names]
    return f"{', '.join(rest)} or {last}" if rest else last
