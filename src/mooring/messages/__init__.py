"""Messages as data: a kind with parameters, and the English text that is made of them.

Events, problems and errors are messages. The console translates them by kind and parameters.
Parameters come from instances, operators and libraries. A value that is not a plain name is quoted
and escaped, so that it cannot pass for a message of the server.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from mooring.formatting import LONGEST, describe, printable
from mooring.messages import errors, fleet

TEXTS: Mapping[str, str] = {**fleet.TEXTS, **errors.TEXTS}
"""The English text of each kind. `{name}` is a parameter, and `{name!q}` one that is always quoted;
`[…]` is omitted if its parameters are empty. The placeholders declare the parameters of the kind.
"""

_PLACEHOLDER = re.compile(r"\{(\w+)(!q)?\}")
_OPTIONAL = re.compile(r"\[([^\[\]]*\{[^\[\]]*)\]")
_NAME = re.compile(r"[\w.:/@+%*…-]{1,200}|\[[0-9A-Fa-f:.%]+\](:\d+)?")
"""A value that is shown without quotes: one word without quotes, brackets or separators."""
_LARGEST = 2**63 - 1


class Message(msgspec.Struct, frozen=True):
    """A text and the data it is made of."""

    kind: str
    params: dict[str, Parameter]
    text: str
    """In English."""

    def __str__(self) -> str:
        return self.text


Parameter: TypeAlias = str | int | float | bool | list[str] | Message | None


def message(kind: str, /, **params: object) -> Message:
    """Create a message of a known kind, with exactly the parameters that its text names.

    A parameter may be a message itself, or an exception. Values that JSON cannot represent, and
    those that are too long to be quoted, are described."""
    template = TEXTS[kind]
    if params.keys() != parameters(template):
        raise ValueError(f"the parameters {', '.join(sorted(params))} do not match: {template}")
    quoted = {name for name, mark in _PLACEHOLDER.findall(template) if mark}
    data = {name: _parameter(value, name in quoted) for name, value in params.items()}
    return Message(kind, data, _render(template, data))


def verbatim(text: str) -> Message:
    """A text of a library, the system or another server, which is shown as it is in all
    languages."""
    return Message("verbatim", {}, printable(text))


def joined(messages: Iterable[Message]) -> str:
    """Several messages in one line."""
    return "; ".join(message.text for message in messages)


def parameters(template: str) -> frozenset[str]:
    """The names of the placeholders of a text."""
    return frozenset(name for name, _ in _PLACEHOLDER.findall(template))


def _parameter(value: object, quoted: bool) -> Parameter:
    """A value as data that JSON can represent."""
    match value:
        case str():
            return value if not quoted or len(value) <= LONGEST else f"{value[:LONGEST]}…"
        case None | bool() | Message():
            return value
        case int():
            return value if abs(value) <= _LARGEST else message("a_large_number")
        case float():
            return value if math.isfinite(value) else verbatim(str(value))
        case bytes() | bytearray():
            return _parameter(value.decode(errors="surrogateescape"), quoted)
        case BaseException():
            own = getattr(value, "message", None)
            return own if isinstance(own, Message) else verbatim(describe(value))
        case list() | tuple():
            return message("a_list") if quoted else [str(item) for item in value]
        case Mapping():
            return message("a_map")
        case set() | frozenset():
            return message("a_set")
        case _:
            return message("an_object", type=type(value).__name__)


def _render(template: str, params: Mapping[str, Parameter]) -> str:
    def optional(section: re.Match[str]) -> str:
        names = parameters(section[1])
        return section[1] if any(params[name] not in ("", []) for name in names) else ""

    return _PLACEHOLDER.sub(
        lambda match: _formatted(params[match[1]], quoted=bool(match[2])),
        _OPTIONAL.sub(optional, template),
    )


def _formatted(value: Parameter, *, quoted: bool = False) -> str:
    match value:
        case Message():
            return value.text
        case None | bool():
            return json.dumps(value)
        case int():
            return str(value)
        case float():
            return f"{value:g}"
        case list():
            return ", ".join(map(_formatted, value))
        case _ if quoted and "'" not in value:
            return f"'{printable(value)}'"
        case _ if not quoted and value.isprintable() and _NAME.fullmatch(value):
            return value
        case _:
            return json.dumps(printable(value), ensure_ascii=False)
