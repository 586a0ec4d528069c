"""Messages as data: a kind with parameters, and the English text that is made of them.

Events, problems and errors are messages. The console translates them by kind and parameters.
Parameters come from instances, operators and libraries. A value that is not a plain name is quoted
and escaped, so that it cannot pass for a message of the server.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from mooring.formatting import LONGEST, describe, printable, readable

SECTIONS: Mapping[str, Mapping[str, str]] = msgspec.json.decode(
    Path(__file__).with_name("en.json").read_bytes(), type=dict[str, dict[str, str]]
)
TEXTS: Mapping[str, str] = {
    kind: text for section in SECTIONS.values() for kind, text in section.items()
}
"""The English text of each kind, from `en.json`. `{name}` is a parameter, and `{name!q}` one that
is always quoted; `[…]` is omitted if its parameters are empty. The placeholders declare the
parameters of the kind."""

_PLACEHOLDER = re.compile(r"\{(\w+)(!q)?\}")
_OPTIONAL = re.compile(r"\[([^\[\]]*\{[^\[\]]*)\]")
_NAME = re.compile(r"[\w.:/@+%*…-]{1,200}|\[[0-9A-Fa-f:.%]+\](:\d+)?")
"""A value that is shown without quotes: one word without quotes, brackets or separators."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Cannot be written as JSON."""
_LARGEST = 2**63 - 1


class Message(msgspec.Struct, frozen=True):
    """A text and the data it is made of."""

    kind: str
    """Identifies the text, whatever its parameters are; `verbatim`: the text has no kind."""
    params: dict[str, Parameter]
    """The parameters of the text, by name."""
    text: str
    """The text in English, with the parameters."""

    def __str__(self) -> str:
        return self.text


Parameter: TypeAlias = str | int | float | bool | list[str] | Message | None


def message(kind: str, /, **params: object) -> Message:
    """Create a message of a known kind, with exactly the parameters that its text names.

    A parameter may be a message itself, or an exception, which may have one as its argument.
    Values that JSON cannot represent, and those that are too long to be quoted, are described."""
    quoted, sections = _parsed(kind)
    if params.keys() != quoted.keys():
        raise ValueError(f"the parameters {', '.join(sorted(params))} do not match: {TEXTS[kind]}")
    data = {name: _parameter(value, quoted[name]) for name, value in params.items()}
    return Message(kind, data, "".join([_render(section, data) for section in sections]))


def verbatim(text: str) -> Message:
    """A text of a library, the system or another server, which is shown as it is in all
    languages."""
    return Message("verbatim", {}, printable(text))


def as_message(value: str | Message | BaseException) -> Message:
    """A text or an exception as a message. An exception may have one as its argument."""
    if isinstance(value, BaseException):
        own = getattr(value, "message", *value.args[:1]) if value.args else None
        return own if isinstance(own, Message) else verbatim(describe(value))
    return verbatim(value) if isinstance(value, str) else value


def joined(messages: Iterable[Message]) -> str:
    """Several messages in one line."""
    return "; ".join(message.text for message in messages)


def combined(messages: Iterable[Message]) -> Message:
    """Several messages as one."""
    return functools.reduce(
        lambda first, second: message("both", first=first, second=second), messages
    )


def named(key: bytes) -> str | Message:
    """A key of a store as a parameter."""
    return message("all_keys") if key == b"\0" else readable(key)


def parameters(template: str) -> frozenset[str]:
    """The names of the placeholders of a text."""
    return frozenset(name for name, _ in _PLACEHOLDER.findall(template))


def _parameter(value: object, quoted: bool) -> Parameter:
    """A value as data that JSON can represent."""
    match value:
        case str():
            text = value if not quoted or len(value) <= LONGEST else f"{value[:LONGEST]}…"
            return text if text.isprintable() else _SURROGATE.sub(_escaped, text)
        case None | bool() | Message():
            return value
        case int():
            return value if abs(value) <= _LARGEST else message("a_large_number")
        case float():
            return value if math.isfinite(value) else verbatim(str(value))
        case bytes() | bytearray():
            return _parameter(value.decode(errors="surrogateescape"), quoted)
        case BaseException():
            return as_message(value)
        case list() | tuple():
            return message("a_list") if quoted else [str(item) for item in value]
        case Mapping():
            return message("a_map")
        case set() | frozenset():
            return message("a_set")
        case _:
            return message("an_object", type=type(value).__name__)


def _escaped(match: re.Match[str]) -> str:
    return printable(match[0])


class _Section(NamedTuple):
    optional: bool
    template: str
    values: list[tuple[str, bool]]
    """The name of each parameter, and whether it is always quoted."""


@functools.cache
def _parsed(kind: str) -> tuple[Mapping[str, bool], Sequence[_Section]]:
    """The parameters of a kind and whether they are quoted, and its text in sections. Errors are
    created in loops that should be fast."""
    quoted: dict[str, bool] = {}
    sections = []
    for index, text in enumerate(_OPTIONAL.split(TEXTS[kind])):
        values = [(name, bool(mark)) for name, mark in _PLACEHOLDER.findall(text)]
        sections.append(_Section(index % 2 == 1, _PLACEHOLDER.sub("{}", text), values))
        for name, always in values:
            quoted[name] = always or quoted.get(name, False)
    return quoted, sections


def _render(section: _Section, params: Mapping[str, Parameter]) -> str:
    optional, template, values = section
    if optional and all(params[name] in (None, "", []) for name, _ in values):
        return ""
    return template.format(*[_formatted(params[name], quoted=always) for name, always in values])


def _formatted(value: Parameter, *, quoted: bool = False) -> str:
    match value:
        case str() if quoted and "'" not in value:
            return f"'{printable(value)}'"
        case str() if not quoted and value.isprintable() and _NAME.fullmatch(value):
            return value
        case str():
            return json.dumps(printable(value), ensure_ascii=False)
        case Message():
            return value.text
        case None | bool():
            return json.dumps(value)
        case float():
            return f"{value:g}"
        case list():
            return ", ".join(map(_formatted, value))
        case _:
            return str(value)
