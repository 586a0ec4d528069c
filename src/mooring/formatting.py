"""Values and errors as one line of text, without Python reprs."""

from __future__ import annotations

import os
import re

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
    """Text of unknown origin, with everything escaped that could affect a terminal."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(letter: str) -> str:
    if letter.isprintable():
        return letter
    if "\udc80" <= letter <= "\udcff":  # a byte that is not UTF-8, as Python decodes it
        return f"<{ord(letter) - 0xDC00:02X}>"
    return f"<U+{ord(letter):04X}>"


def readable(key: bytes) -> str:
    """A key for a message, with escapes for bytes that are not printable text."""
    return printable(key.decode(errors="surrogateescape"))


def quoted(value: object, longest: int = LONGEST) -> str:
    """A value of unknown origin for a message. Not text or a number: by its type."""
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


def count_of(number: int, one: str, many: str = "") -> str:
    """`1 tenant`, `2 tenants`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


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


_QUOTED = re.compile(r"'([^']*)'")


def yaml_in_words(error: Exception) -> str:
    """Why a text is not YAML, in one line, without its content, which may be a password."""
    if mark := getattr(error, "problem_mark", None):
        problem = getattr(error, "problem", None) or "malformed"
        problem = _QUOTED.sub(_without_words, problem)
        return f"{problem}, line {mark.line + 1}, column {mark.column + 1}"
    return describe(error)


def _without_words(quoted: re.Match[str]) -> str:
    """A quoted character or `<token>` of YAML as it is; anything else may be from the file."""
    return quoted[0] if len(quoted[1]) <= 1 or quoted[1].startswith("<") else "…"
