"""Errors of msgspec about a value of the wrong shape, in plain words."""

from __future__ import annotations

import re

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
    (re.compile(r"Invalid enum value (.*)"), "{0} is not an allowed value"),
    (re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)"), "is not valid JSON: {0} at byte {1}"),
    (re.compile(r"Input data was truncated"), "is not valid JSON: it ends too early"),
)
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
    for pattern, words in _PATTERNS:
        if found := pattern.fullmatch(text):
            parts = [_kinds(part) for part in found.groups()]
            compared = " ".join(_COMPARED.get(part, part) for part in found.groups())
            while len(parts) < 2:
                parts.append("")
            return f"{what} {words.format(*parts, compared)}"
    return f"{what}: {text[:1].lower()}{text[1:]}".replace("`", "")


def _kinds(expected: str) -> str:
    """Names of msgspec's types as words; anything else as it is."""
    names = expected.split(" | ")
    if not all(name in _KINDS for name in names):
        return expected
    *rest, last = [_KINDS[name] for name in names]
    return f"{', '.join(rest)} or {last}" if rest else last
