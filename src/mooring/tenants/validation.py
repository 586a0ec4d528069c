"""Validates the parts of a tenant. Every error names the field and the expected value."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import cast

from mooring.errors import InvalidRequest, Undecipherable
from mooring.masking import holds_mask
from mooring.messages import Message, message
from mooring.model import JSON, path_text, walk
from mooring.names import closest
from mooring.tenants.keys import (
    MAX_ID,
    PLATFORM,
    check_id,
    field_of,
    identity,
    is_host,
    is_path,
    kind_of,
    name_of,
    punycode,
)
from mooring.tenants.secrets import decoded

FieldRule = Callable[[JSON], Message | None]
"""Returns the problem with a value, as a message that follows its name."""

_CODE = re.compile(r"[A-Za-z0-9_]+")
_USER = re.compile(r"[A-Za-z0-9._-]+")
_SERVICE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VARIATION = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_LEGITIMATE = re.compile(
    "(?<=[^\0-\x7f\u200c\u200d])[\u200c\u200d](?=[^\0-\x7f\u200c\u200d])"
    rf"|(?<=[^\s\u200c\u200d{_VARIATION}])[{_VARIATION}]"
)
"""Invisible characters that are allowed in a name: a zero-width joiner or non-joiner within a word,
as in Persian, Hindi and emoji, and a variation selector after a character."""
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\uffa0\ufff0-\ufff8"
    f"\U000e0000-\U000e0fff{_VARIATION}]"
)
"""Invisible characters whose category is not Cf: Unicode's Default_Ignorable_Code_Point, and the
empty Braille pattern."""
_MAX_LENGTH = 512  # characters of a name or user, which becomes a key
_MAX_DEPTH = 50  # nested maps and lists
_MAX_VALUES = 100_000  # YAML anchors in a few lines can stand for billions


def _expected(value: object, expected: str, **params: object) -> Message:
    return message("wrong_value", wanted=message(expected, **params), sent=value)


def _text(value: JSON) -> Message | None:
    if isinstance(value, str):
        return None
    if isinstance(value, int | float):
        return message("value_not_quoted", actual=_kind(value))
    return _expected(_kind(value), "type_text")


def _sealed(value: JSON) -> Message | None:
    if not isinstance(value, str):
        return _text(value)
    try:
        if value:
            decoded(value)
    except Undecipherable:
        return message("value_not_sealed")
    return None


def _flag(value: JSON) -> Message | None:
    return None if isinstance(value, bool) else _expected(_kind(value), "type_boolean")


def _number(low: int, high: int = 2**53, *, whole: bool = True) -> FieldRule:
    kinds: tuple[type, ...] = (int,) if whole else (int, float)

    def rule(value: JSON) -> Message | None:
        if not isinstance(value, kinds) or isinstance(value, bool):
            return _expected(_kind(value), "type_integer" if whole else "type_number")
        assert isinstance(value, int | float)
        return None if low <= value <= high else _expected(value, "a_range", low=low, high=high)

    return rule


def _one_of(*allowed: str) -> FieldRule:
    return lambda value: None if value in allowed else _expected(value, "one_of", allowed=allowed)


def _like(pattern: re.Pattern[str], expected: str) -> FieldRule:
    def rule(value: JSON) -> Message | None:
        if not isinstance(value, str):
            return _text(value)
        if len(value) > _MAX_LENGTH:
            return message("name_too_long", limit=_MAX_LENGTH)
        return None if pattern.fullmatch(value) else _expected(value, expected)

    return rule


def _name(value: JSON) -> Message | None:
    if not isinstance(value, str):
        return _text(value)
    if not value.strip():
        return message("name_empty")
    if len(value) > _MAX_LENGTH:
        return message("name_too_long", limit=_MAX_LENGTH)
    if value != value.strip():
        return message("name_has_space_around")
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in value):
        return message("name_has_control")
    for letter in _LEGITIMATE.sub("", value):
        if unicodedata.category(letter) == "Cf" or _INVISIBLE.match(letter):
            return message("name_has_invisible", code=f"U+{ord(letter):04X}")
    return None


def _directory(value: JSON) -> Message | None:
    problem = _name(value)
    if problem is None and ".." in re.split(r"[/\\]", str(value)):
        return message("name_has_segment", segment="..")
    return problem


def _key(key: str) -> Message | None:
    segments = key.split("/")
    for segment in (".", ".."):
        if segment in segments:
            return message("name_has_segment", segment=segment)
    return next(filter(None, map(_name, (key, *segments))), None)


def host(value: JSON) -> Message | None:
    """The rule for a host name, which must have no port."""
    if not isinstance(value, str):
        return _text(value)
    if is_host(value):
        return None
    encoded = "" if value.isascii() else punycode(value)
    if encoded:
        return message("host_not_ascii", encoded=encoded, host=value)
    return _expected(value, "a_host_name")


def _hosts(value: JSON) -> Message | None:
    if not isinstance(value, list):
        return _expected(_kind(value), "host_names")
    return next(filter(None, map(host, value)), None)


_code = _like(_CODE, "code_letters")
_user = _like(_USER, "user_letters")
_service = _like(_SERVICE, "kebab_case")

FIELDS: Mapping[str, Mapping[str, FieldRule]] = {
    "meta": {
        "id": _number(1, MAX_ID),
        "code": _code,
        "name": _name,
        "status": _one_of("active", "inactive", "suspended"),
        "billingPlan": _text,
    },
    "database": {
        "tenantId": _number(1, MAX_ID),
        "serviceCode": _service,
        "driver": _text,
        "host": _text,
        "port": _number(1, 65535),
        "database": _text,
        "username": _text,
        "password": _text,
        "passwordEncrypted": _sealed,
        "passwordKeyId": _text,
        "sslMode": _text,
        "maxOpenConns": _number(0),
        "maxIdleConns": _number(0),
        "enabled": _flag,
    },
    "ftp": {
        "tenantId": _number(1, MAX_ID),
        "username": _user,
        "passwordHash": _text,
        "description": _text,
        "status": _text,
        "homeDirectory": _text,
        "writePermission": _flag,
    },
    "storage": {
        "tenantId": _number(1, MAX_ID),
        "uploadQuotaGb": _number(0, whole=False),
        "maxFileSizeMb": _number(0, whole=False),
        "maxConcurrentUploads": _number(0),
    },
    "common/resolver": {
        "id": _number(0),
        "httpType": _one_of("host", "header", "query", "path"),
        "httpHeaderName": _like(re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), "a_header_name"),
        "httpQueryParam": _name,
        "httpPathIndex": _number(0, 100),
        "httpHostMode": _one_of("numeric", "domain", "code"),
        "ftpType": _one_of("username"),
    },
    "common/storage-directory": {"directory": _directory},
}
"""The rule of each field, by the kind of part."""

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "meta": ("code", "name"),
    "database": ("driver", "database"),
    "common/storage-directory": ("directory",),
}

DEFAULTS: Mapping[str, Mapping[str, JSON]] = {
    "meta": {"status": "active"},
    "database": {"enabled": True},
}
"""Values of fields that are left out."""

IDENTITY = ("id", "tenantId", "serviceCode", "username")
"""Fields that repeat a part of the key. The user name of a database does not."""

EXTRA = "extra"
"""The field for fields that Mooring does not know. Unknown fields elsewhere are errors."""


def checked(tenant: int, path: str, value: JSON) -> JSON:
    """The part to write, with the fields that its key determines. Raises `InvalidRequest`."""
    check_id(tenant)
    if not is_path(path):
        raise InvalidRequest(message("part_unknown", path=path))
    check_plain(value, path)
    kind = kind_of(path)
    if kind == "domain":
        refuse(path, (_hosts if path == "domain/aliases" else host)(value))
        return value
    if kind == "database":
        refuse(path, _service(name_of(path)))
    if kind == "ftp":
        refuse(path, _user(name_of(path)))
    fields = _checked_fields(path, kind, value)
    derived = identity(tenant, path)
    for field, expected in derived.items():
        if (actual := fields.get(field, expected)) != expected:
            problem = message("field_misplaced", value=actual, expected=expected)
            refuse(f"{path}.{field}", problem)
    return {**derived, **DEFAULTS.get(kind, {}), **fields}


def checked_common(path: str, value: JSON) -> JSON:
    """Like `checked`, for shared settings. A platform setting may have any value."""
    check_plain(value, path)
    if holds_mask({field_of(path): value}):
        refuse(path, message("value_masked"))
    if not path.startswith(PLATFORM):
        return _checked_fields(path, path, value)
    refuse(path, _key(path.removeprefix(PLATFORM)))
    return value


def check_plain(value: object, about: str = "") -> None:
    """Raise `InvalidRequest` for a value that JSON cannot hold, or that is too large. Only a value
    that reads back as it was written can be compared with the stored one."""
    for count, (path, inner) in enumerate(walk(cast(JSON, value)), 1):
        if count > _MAX_VALUES or len(path) > _MAX_DEPTH:
            refuse(about, message("value_too_nested"))
        names = inner if isinstance(inner, dict) else ()
        problem = next(filter(None, map(_name_not_plain, names)), None) or _not_plain(inner)
        if problem is not None:
            refuse(f"{about}{path_text(path)}".removeprefix("."), problem)


def _name_not_plain(name: object) -> Message | None:
    if isinstance(name, str):
        return _not_plain(name)
    short = isinstance(name, int | float) and not _not_plain(name)
    return message("name_not_quoted", name=name if short else "")


def _not_plain(value: object) -> Message | None:
    if isinstance(value, str):
        surrogate = any("\ud800" <= character <= "\udfff" for character in value)
        return message("value_has_surrogate") if surrogate else None
    if isinstance(value, float):
        return None if math.isfinite(value) else message("value_not_finite")
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**64 else message("value_too_large")
    if value is None or isinstance(value, dict | list):
        return None
    return message("value_not_json", problem=message("an_object", type=type(value).__name__))


def _checked_fields(about: str, kind: str, value: JSON) -> dict[str, JSON]:
    fields = fields_of(about, value)
    extra = fields_of(f"{about}.{EXTRA}", fields.pop(EXTRA, {}))
    rules = FIELDS[kind]
    for field in extra:
        if field in rules:
            refuse(f"{about}.{EXTRA}.{field}", message("field_known"))
    check_names(about, fields, [*rules, EXTRA])
    fields = {field: inner for field, inner in fields.items() if inner is not None}
    for field, inner in fields.items():
        refuse(f"{about}.{field}", rules[field](inner))
    for field in REQUIRED.get(kind, ()):
        if fields.get(field) in (None, ""):
            refuse(about, message("field_missing", field=field))
    return fields | extra


def fields_of(about: str, value: JSON) -> dict[str, JSON]:
    """A copy of a map. Raises `InvalidRequest` for another value."""
    if isinstance(value, dict):
        return dict(value)
    raise _invalid(about, _expected(_kind(value), "map_of_fields"))


def repeats_key(kind: str, field: str) -> bool:
    """Whether a field of a part only repeats a part of the key."""
    return field in IDENTITY and (kind, field) != ("database", "username")


def check_names(about: str, fields: Iterable[str], known: Collection[str]) -> None:
    """Raise `InvalidRequest` for an unknown field, with a suggestion."""
    for field in fields:
        if field not in known:
            meant = closest(field, known)
            refuse(about, message("field_unknown", field=field, meant=meant, known=sorted(known)))


def refuse(about: str, problem: Message | None) -> None:
    """Raise `InvalidRequest` if there is a problem."""
    if problem is not None:
        raise _invalid(about, problem)


def _invalid(about: str, problem: Message) -> InvalidRequest:
    place = about or message("the_document")
    return InvalidRequest(message("value_rejected", place=place, problem=problem))


def _kind(value: JSON) -> Message:
    if value is None:
        return message("nothing")
    names = {"bool": "type_boolean", "str": "type_text", "dict": "a_map", "list": "a_list"}
    return message(names.get(type(value).__name__, "type_number"))
