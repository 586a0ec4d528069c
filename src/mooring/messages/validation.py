"""Why msgspec rejected a value, as a message."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from mooring.messages import Message, message, verbatim

_TYPES = {
    "array": "a_list",
    "bool": "type_boolean",
    "bytes": "type_bytes",
    "datetime": "type_time",
    "decimal": "type_decimal",
    "float": "type_number",
    "int": "type_integer",
    "null": "type_null",
    "object": "type_object",
    "str": "type_text",
}
_BOUNDS = {
    "<=": "at_most",
    ">=": "at_least",
    "==": "exactly",
    "<": "less_than",
    ">": "more_than",
}
_PATH = re.compile(r" - at `(?:key in )?\$?([^`]*)`$")


def rejection(error: Exception, what: str | Message = "", *, joint: str = ": ") -> Message:
    """`what` names the whole value, and `joint` connects it with the path within it. Without a
    name, the message is a predicate that starts with the path, if there is one."""
    text, path = str(error), ""
    if match := _PATH.search(text):
        text, path = text[: match.start()], match[1].lstrip(".")
    if not path:
        place: str | Message = what
    elif not what:
        place = verbatim(path)
    elif joint == ".":
        place = verbatim(f"{what}.{path}")
    else:
        place = message("value_at", whole=what, path=verbatim(path))
    if (problem := _problem(error, text)) is not None:
        return message("value_rejected", place=place, problem=problem)
    unknown = verbatim(f"{text[:1].lower()}{text[1:]}".replace("`", ""))
    return message("value_rejected_because", place=place, problem=unknown)


def _problem(error: Exception, text: str) -> Message | None:
    if isinstance(error, UnicodeDecodeError):
        return message("value_not_utf8")
    if isinstance(error, RecursionError):
        return message("value_too_deep")
    for pattern, problem in _PATTERNS:
        if match := pattern.fullmatch(text):
            return problem(*match.groups())
    return None


def _type(names: str) -> Message:
    """One of msgspec's types, or several that are separated by bars."""
    first, *rest = (message(_TYPES[n]) if n in _TYPES else verbatim(n) for n in names.split(" | "))
    if not rest:
        return first
    *middle, last = rest
    for other in middle:
        first = message("types_and_more", first=first, second=other)
    return message("types_or", first=first, last=last)


def _bound(comparison: str, limit: str) -> Message:
    return message(_BOUNDS[comparison], limit=limit)


_PATTERNS: tuple[tuple[re.Pattern[str], Callable[..., Message]], ...] = (
    (
        re.compile(r"Expected `([^`]+)`, got `([^`]+)`"),
        lambda wanted, sent: message(
            "wrong_value",
            wanted=_type(wanted),
            sent=_type("decimal" if sent == "float" else sent),
        ),
    ),
    (
        re.compile(r"Expected `str` of length (<=|>=|==) (\d+)"),
        lambda *bound: message("wrong_length", bound=_bound(*bound)),
    ),
    (
        re.compile(r"Expected `\w+` of length (<=|>=|==) (\d+)"),
        lambda *bound: message("wrong_count", bound=_bound(*bound)),
    ),
    (
        re.compile(r"Expected `(?:int|float)` (<=|>=|<|>) (\S+)"),
        lambda *bound: message("out_of_range", bound=_bound(*bound)),
    ),
    (
        re.compile(r"Expected `str` matching regex '(.*)'"),
        lambda pattern: message("pattern_mismatch", pattern=verbatim(pattern)),
    ),
    (
        re.compile(r"Invalid enum value (.*)"),
        lambda value: message("value_not_allowed", value=ast.literal_eval(value)),
    ),
    (
        re.compile(r"Object missing required field `([^`]+)`"),
        lambda field: message("field_missing", field=field),
    ),
    (
        re.compile(r"Object contains unknown field `([^`]+)`"),
        lambda field: message("field_unknown", field=field, meant="", known=[]),
    ),
    (
        re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)"),
        lambda problem, byte: message("json_invalid", problem=verbatim(problem), byte=byte),
    ),
    (re.compile(r"Input data was truncated"), lambda: message("json_truncated")),
)
