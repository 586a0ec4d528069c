"""Masks secrets before values are shown: fields with secret names, and secrets in texts, such as
the password in a URL or a private key in PEM.

The history encrypts fewer fields (`is_secret`): a value that is encrypted needlessly could not be
restored without the key, while masking one costs nothing. All functions run in linear time, because
the input may come from an attacker.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mooring.model import JSON

MASK = "••••••"

_MAX_DEPTH = 100
"""Nested maps and lists that are searched. The limit bounds the recursion."""

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
_DRIVER_DSN = re.compile(r"([^\s:/@]++:)(\S+)(?=@(?:\w{0,20}\(|/))")  # u:pw@tcp(host:3306)/name
_ASSIGNMENT = re.compile(r"(?<![\w.-])([\w.-]++)\s*+=\s*+")
_QUOTED = re.compile(r"\"([^\"]++)\"|'([^']++)'")
_WORD = re.compile(r"([^\s;&]++)")
_LISTED = re.compile(r"([^;]++)")  # as in `a=b c;d=e`


def is_secret(field: str) -> bool:
    """Whether the name of a field says that its value is a secret, which the history encrypts."""
    return _SECRET.search(field) is not None and _HARMLESS.search(field) is None


def is_hidden(field: str) -> bool:
    """Whether the name of a field says that its value is, or may contain, a secret."""
    known = _SECRET.search(field) or _HIDDEN.search(field)
    return known is not None and _HARMLESS.search(field) is None


def is_split_key(value: object) -> bool:
    """Whether an element of a list or map begins a private key without ending it, so that the other
    elements may be its next lines."""
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


def _items(value: dict[str, Any] | list[Any]) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else (("", inner) for inner in value)


def holds_mask(value: JSON, depth: int = _MAX_DEPTH) -> bool:
    """Whether a value was masked. Writing it would overwrite the secret."""
    if isinstance(value, dict | list):
        return depth > 0 and any(
            MASK in name or holds_mask(inner, depth - 1) for name, inner in _items(value)
        )
    return isinstance(value, str) and MASK in value


def holds_secret(value: JSON, depth: int = _MAX_DEPTH) -> bool:
    """Whether a value contains anything to mask."""
    if isinstance(value, dict | list):
        return depth <= 0 or any(
            is_hidden(name) or _masked_name(name) != name or holds_secret(inner, depth - 1)
            for name, inner in _items(value)
        )
    if not isinstance(value, str):
        return False
    return bool(_split(value)[1]) or holds_secret(_parsed(value), depth)


def cleartext_secrets(value: JSON, path: str = "", depth: int = _MAX_DEPTH) -> Iterator[str]:
    """The dotted paths of fields with secrets in clear text, which are not masked. A list counts as
    one field."""
    if not isinstance(value, dict):
        if path and _is_cleartext(value, depth):
            yield path
        return
    if is_split_key(value):
        yield from (path,) if path else dict.fromkeys(masked_names(value).values())
        return
    for name, inner in value.items():
        shown = _masked_name(name)
        field = f"{path}.{shown}" if path else shown
        if shown != name:
            yield field
        elif is_hidden(name):
            if inner not in (None, "", MASK):
                yield field
        elif depth > 0:
            yield from cleartext_secrets(inner, field, depth - 1)


def cleartext_secrets_of(name: str, value: JSON) -> tuple[str, ...]:
    """The same for the value of the field `name`; an empty path stands for the whole value."""
    if isinstance(value, dict) and not is_hidden(name):
        return tuple(cleartext_secrets(value))
    return ("",) if any(cleartext_secrets({name or "value": value})) else ()


def _is_cleartext(value: JSON, depth: int) -> bool:
    if isinstance(value, list):
        return depth <= 0 or any(
            _is_cleartext(inner, depth - 1) or any(cleartext_secrets(inner, "", depth - 1))
            for inner in value
        )
    if not isinstance(value, str):
        return False
    if any(secret != MASK for secret in _split(value)[1]):
        return True
    parsed = _parsed(value)
    return parsed is not None and (
        any(cleartext_secrets(parsed)) or _is_cleartext(parsed, depth - 1)
    )


def masked(value: JSON, depth: int = _MAX_DEPTH) -> JSON:
    """A value with masks for fields with secret names, for secrets within its texts, and for what
    is nested too deeply to search."""
    if isinstance(value, dict | list) and depth <= 0:
        return MASK
    if isinstance(value, dict):
        return masked_fields(value, depth - 1)
    if isinstance(value, list):
        split = is_split_key(value)
        return [
            MASK if split and _may_be_line(inner) else masked(inner, depth - 1) for inner in value
        ]
    return masked_text(value) if isinstance(value, str) else value


def masked_fields(fields: Mapping[str, JSON], depth: int = _MAX_DEPTH) -> dict[str, JSON]:
    if any(map(_begins_key, fields)):
        return {MASK: MASK}
    split = is_split_key(fields)
    return {
        _masked_name(name): MASK
        if split and _may_be_line(inner)
        else masked_field(name, inner, depth)
        for name, inner in fields.items()
    }


def masked_field(name: str, value: JSON, depth: int = _MAX_DEPTH) -> JSON:
    return MASK if is_hidden(name) and value not in (None, "") else masked(value, depth)


def masked_names(fields: Collection[str]) -> dict[str, str]:
    """The names of a map with what may be shown of them: nothing if one begins a private key, since
    the others may be its next lines."""
    split = any(map(_begins_key, fields))
    return {name: MASK if split else _masked_name(name) for name in fields}


def _masked_name(name: str) -> str:
    return _PRIVATE_KEY.sub(MASK, name) if _may_hold_key(name) else name


def masked_text(text: str) -> str:
    """A text, which may be JSON, without the passwords of its URLs and without the values that it
    assigns to secret names."""
    if holds_secret(parsed := _parsed(text)):
        return msgspec.json.encode(masked(parsed)).decode()
    return _split(text)[0]


def _parsed(text: str) -> JSON:
    """The value of a text that is a JSON object or array; otherwise None."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value: JSON = msgspec.json.decode(text)
        msgspec.json.encode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return value


def _split(text: str) -> tuple[str, list[str]]:
    """A text with its secrets masked, and the secrets."""
    secrets: list[str] = []
    if _may_hold_key(text):
        secrets += ((key[1] or key[3] or "").strip() for key in _PRIVATE_KEY.finditer(text))
        text = _PRIVATE_KEY.sub(MASK, text)
    if "://" in text and "@" in text:
        first, *rest = text.split("://")
        text = "://".join([first, *(_without_password(url, secrets) for url in rest)])
    if "@" in text and (dsn := _DRIVER_DSN.match(text)):
        secrets.append(dsn[2])
        text = f"{dsn[1]}{MASK}{text[dsn.end() :]}"
    if "=" in text:
        text = _without_assigned(text, secrets)
    return text, secrets


def _may_hold_key(text: str) -> bool:
    return "----" in text or "-user-key-file-" in text.lower()


def _without_password(rest: str, secrets: list[str]) -> str:
    """The text between the `://` of a URL and that of the next one, with the password masked."""
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
        authority, path = url, ""  # the password contains a slash
    userinfo, _, host = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    if not password:
        return rest
    secrets.append(password)
    return f"{user}:{MASK}@{host}{path}{more}"


def _position(pattern: re.Pattern[str], text: str) -> int:
    return match.start() if (match := pattern.search(text)) else len(text)


def _without_assigned(text: str, secrets: list[str]) -> str:
    unquoted = _LISTED if ";" in text else _WORD
    pieces: list[str] = []
    start = position = 0
    while name := _ASSIGNMENT.search(text, position):
        position = name.end()
        if not is_hidden(name[1]):
            continue
        value = _QUOTED.match(text, position) or unquoted.match(text, position)
        if value is None:
            continue
        group = value.lastindex or 0
        secrets.append(value[group])
        pieces += (text[start : value.start(group)], MASK)
        start, position = value.end(group), value.end()
    return "".join([*pieces, text[start:]])
