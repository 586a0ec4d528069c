"""What of a value people are not shown: fields whose names call it secret, and secrets within a
text, such as the password in a URL or a private key in PEM.

What is sealed in the history is less (`is_secret`): there a value that is hidden without need could
not be brought back by who has no key, and here it costs nothing. Everything is linear in what it
looks at, for anybody may have written it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from mooring.model import JSON, walk

MASK = "••••••"

DEEPEST = 100
"""Maps and lists within one another that are looked into: whoever goes through them all calls
itself at each, and somewhere there is an end to that."""

_SECRET = re.compile(
    r"passw(or)?d|passphrase|pwd|secret|token|credential|(private|api|access|encryption)[_-]?key",
    re.IGNORECASE,
)
_HIDDEN = re.compile(
    r"auth([_-]?(header|key|string|data|value))?$|authorization|bearer|cookie|jwt|dsn"
    r"|conn(ection)?[_-]?str(ing)?s?$|(signing|shared|account|master)[_-]?key",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"key_?id$", re.IGNORECASE)

_PRIVATE_KEY = re.compile(  # in PEM, in the format of SSH2, or in that of PuTTY
    r"(?:(?<!-)-{4,}+ ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,}+"
    r"(.*?)((?<!-)-{4,}+ ?END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,}+|\Z))"
    r"|PuTTY-User-Key-File-\d(.*?)(Private-(?:MAC|Hash): ?[0-9A-F]*|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_SPACE = re.compile(r"\s")
_END_OF_AUTHORITY = re.compile(r"[/?#]")
_PORT = re.compile(r"\d{1,5}[/?#]")
_OF_A_DRIVER = re.compile(r"([^\s:/@]++:)(\S+)(?=@(?:\w{0,20}\(|/))")  # u:pw@tcp(host:3306)/name
_ASSIGNS = re.compile(r"(?<![\w.-])([\w.-]++)\s*+=\s*+")
_QUOTED = re.compile(r"\"([^\"]++)\"|'([^']++)'")
_WORD = re.compile(r"([^\s;&]++)")
_LISTED = re.compile(r"([^;]++)")  # as in `a=b c;d=e`


def is_secret(field: str) -> bool:
    """Whether a field's name says that its value is a secret, which lies sealed in the history."""
    return _SECRET.search(field) is not None and _HARMLESS.search(field) is None


def is_hidden(field: str) -> bool:
    """Whether a field's name says that its value must not be shown: it is a secret, or may well
    have one in it."""
    return is_secret(field) or (
        _HIDDEN.search(field) is not None and _HARMLESS.search(field) is None
    )


def is_split_key(value: object) -> bool:
    """Whether an element of a list or map begins a private key and does not end it: the others may
    be the rest of its lines."""
    if isinstance(value, Mapping):
        return any(map(_begins_key, (*value, *value.values())))
    return isinstance(value, list) and any(map(_begins_key, value))


def _begins_key(value: object) -> bool:
    return (
        isinstance(value, str)
        and _may_hold_key(value)
        and any(not (key[2] or key[4]) for key in _PRIVATE_KEY.finditer(value))
    )


def _may_be_line(value: JSON) -> bool:
    return isinstance(value, str | dict | list) and value != ""


def holds_mask(value: JSON) -> bool:
    """Whether a value was masked for people: written back, it would overwrite the secret."""
    return any(
        MASK in "".join(path[-1:]) or (isinstance(inner, str) and MASK in inner)
        for path, inner in walk(value)
    )


def holds_secret(value: JSON) -> bool:
    """Whether `masked` hides something within a value."""
    return any(
        any(is_hidden(name) or masked_name(name) != name for name in path[-1:])
        or (isinstance(inner, str) and bool(_secrets(inner) or holds_secret(_structure(inner))))
        or (isinstance(inner, dict | list) and len(path) >= DEEPEST)
        for path, inner in walk(value)
    )


def cleartext_secrets(value: JSON, place: str = "", deep: int = DEEPEST) -> Iterator[str]:
    """The fields whose secrets are in clear text and not masked, by their names with dots. A list
    is one field."""
    if not isinstance(value, dict):
        if place and _is_clear(value, deep):
            yield place
        return
    if is_split_key(value):
        yield from (place,) if place else map(masked_name, value)
        return
    for name, inner in value.items():
        shown = masked_name(name)
        field = f"{place}.{shown}" if place else shown
        if shown != name:
            yield field
        elif is_hidden(name):
            if inner not in (None, "", MASK):
                yield field
        elif deep > 0:
            yield from cleartext_secrets(inner, field, deep - 1)


def cleartext_secrets_of(name: str, value: JSON) -> tuple[str, ...]:
    """The same for a value with a name of its own; an empty field stands for all of it."""
    if isinstance(value, dict) and not is_hidden(name):
        return tuple(cleartext_secrets(value))
    return ("",) if any(cleartext_secrets({name or "value": value})) else ()


def _is_clear(value: JSON, deep: int) -> bool:
    if isinstance(value, list):
        return deep <= 0 or any(
            _is_clear(inner, deep - 1) or any(cleartext_secrets(inner, "", deep - 1))
            for inner in value
        )
    if not isinstance(value, str):
        return False
    structure = _structure(value)
    return any(each != MASK for each in _secrets(value)) or (
        structure is not None
        and (any(cleartext_secrets(structure)) or _is_clear(structure, deep - 1))
    )


def masked(value: JSON, deep: int = DEEPEST) -> JSON:
    """A value for people: whatever its names call secret is hidden, and so are the secrets within
    its texts, and what lies so deep that nobody looks there."""
    if isinstance(value, dict | list) and deep <= 0:
        return MASK
    if isinstance(value, dict):
        return masked_fields(value, deep - 1)
    if isinstance(value, list):
        split = is_split_key(value)
        return [MASK if split and _may_be_line(each) else masked(each, deep - 1) for each in value]
    return masked_text(value) if isinstance(value, str) else value


def masked_fields(fields: Mapping[str, JSON], deep: int = DEEPEST) -> dict[str, JSON]:
    """The fields of a map for people."""
    if any(map(_begins_key, fields)):
        return {MASK: MASK}
    split = is_split_key(fields)
    return {
        masked_name(name): MASK
        if split and _may_be_line(inner)
        else masked_field(name, inner, deep)
        for name, inner in fields.items()
    }


def masked_field(name: str, value: JSON, deep: int = DEEPEST) -> JSON:
    return MASK if is_hidden(name) and value not in (None, "") else masked(value, deep)


def masked_name(name: str) -> str:
    """The name of a field without a private key in it."""
    return _PRIVATE_KEY.sub(MASK, name) if _may_hold_key(name) else name


def masked_text(text: str) -> str:
    """A text without the passwords in its URLs, and without what it assigns to a name that says
    that it is secret. It may be JSON."""
    if holds_secret(told := _structure(text)):
        return msgspec.json.encode(masked(told)).decode()
    return _split(text)[0]


def _structure(text: str) -> JSON:
    """What is in a text that is JSON; otherwise None."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        told: JSON = msgspec.json.decode(text)
        msgspec.json.encode(told)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return told


def _secrets(text: str) -> list[str]:
    return _split(text)[1]


def _split(text: str) -> tuple[str, list[str]]:
    """A text with masks for its secrets, and these."""
    found: list[str] = []
    if _may_hold_key(text):
        found += ((key[1] or key[3] or "").strip() for key in _PRIVATE_KEY.finditer(text))
        text = _PRIVATE_KEY.sub(MASK, text)
    if "://" in text and "@" in text:
        first, *rest = text.split("://")
        text = "://".join([first, *(_without_password(each, found) for each in rest)])
    if "@" in text and (driver := _OF_A_DRIVER.match(text)):
        found.append(driver[2])
        text = f"{driver[1]}{MASK}{text[driver.end() :]}"
    if "=" in text:
        text = _without_assigned(text, found)
    return text, found


def _may_hold_key(text: str) -> bool:
    return "----" in text or "-user-key-file-" in text.lower()


def _without_password(rest: str, found: list[str]) -> str:
    """What follows the `://` of a URL, up to that of the next one."""
    if "@" not in rest:
        return rest
    end = _position(_SPACE, rest)
    url, more = rest[:end], rest[end:]
    end = _position(_END_OF_AUTHORITY, url)
    authority, path = url[:end], url[end:]
    if "@" not in authority:
        host, colon, port = authority.partition(":")
        if "@" not in path or not colon or "[" in host or _PORT.match(port + path):
            return rest
        authority, path = url, ""  # there is a slash in the password
    told, _, host = authority.rpartition("@")
    user, _, password = told.partition(":")
    if not password:
        return rest
    found.append(password)
    return f"{user}:{MASK}@{host}{path}{more}"


def _position(of: re.Pattern[str], text: str) -> int:
    return found.start() if (found := of.search(text)) else len(text)


def _without_assigned(text: str, found: list[str]) -> str:
    unquoted = _LISTED if ";" in text else _WORD
    pieces: list[str] = []
    start = at = 0
    while name := _ASSIGNS.search(text, at):
        at = name.end()
        if not is_hidden(name[1]):
            continue
        value = _QUOTED.match(text, at) or unquoted.match(text, at)
        if value is None:
            continue
        group = value.lastindex or 0
        found.append(value[group])
        pieces += (text[start : value.start(group)], MASK)
        start, at = value.end(group), value.end()
    return "".join([*pieces, text[start:]])
