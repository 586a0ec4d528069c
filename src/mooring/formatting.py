"""Foreign values and exceptions in messages for people: one line, without Python's notation."""

from __future__ import annotations

import os
import re

LONGEST = 200
"""Characters of a value that a message shows."""

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_KINDS: dict[type, str] = {
    dict: "a map",
    list: "a list",
    tuple: "a list",
    set: "a set",
    frozenset: "a set",
}


def printable(text: str) -> str:
    """Text of unknown origin, made safe for a terminal and for one line."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(letter: str) -> str:
    if letter.isprintable():
        return letter
    if "\udc80" <= letter <= "\udcff":  # a byte that is not UTF-8, as Python decodes it
        return f"<{ord(letter) - 0xDC00:02X}>"
    return f"<U+{ord(letter):04X}>"


def readable(key: bytes) -> str:
    """A key for a message: text, with escapes for what is not."""
    if key == b"\0":
        return "all keys"  # the start of the range of everything
    return printable(key.decode(errors="surrogateescape"))


def quoted(value: object, longest: int = LONGEST) -> str:
    """A value of unknown origin for a message: text in quotes, numbers as they are, anything else
    by its kind."""
    if isinstance(value, bytes | bytearray):
        value = value[: 4 * longest + 4].decode(errors="surrogateescape")
    if isinstance(value, str):
        mark = '"' if "'" in value else "'"
        return f"{mark}{printable(value[:longest])}{mark}{'…' if len(value) > longest else ''}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 3 * longest:
        return "a very large number"  # Python may even refuse to write it
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, type):
        return f"the type {value.__name__}"
    kind = type(value)
    return _KINDS.get(kind, f"an object of type {kind.__name__}")


def reason(error: OSError) -> str:
    """Why a call of the system failed. Libraries add addresses to its text in Python's notation."""
    import socket  # both are slow to load, and only an error needs them
    import ssl

    if error.errno is None or isinstance(error, socket.gaierror | ssl.SSLError):
        return error.strerror or str(error)  # their numbers are not those of the system
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
