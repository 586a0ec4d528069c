"""Validates the parts of a tenant. Every error names the field and the expected value."""

from __future__ import annotations

import base64
import binascii
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import cast

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.masking import holds_mask
from mooring.model import JSON, path_text, walk
from mooring.names import nearest
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
from mooring.tenants.secrets import MIN_SEALED

Rule = Callable[[JSON], str]
"""Returns the problem with a value, as text that follows its name; empty if it is valid."""

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


def _text(value: JSON) -> str:
    if isinstance(value, str):
        return ""
    quoted = " (put it in quotes)" if isinstance(value, int | float) else ""
    return f"must be text, not {_kind(value)}{quoted}"


def _sealed(value: JSON) -> str:
    if not isinstance(value, str):
        return _text(value)
    try:
        whole = len(base64.b64decode(value, validate=True)) >= MIN_SEALED
    except (binascii.Error, ValueError):
        whole = False
    return "" if whole or not value else "must be the base64 of an encrypted password"


def _flag(value: JSON) -> str:
    return "" if isinstance(value, bool) else f"must be true or false, not {_kind(value)}"


def _number(low: int, high: int = 2**53, *, whole: bool = True) -> Rule:
    kinds: tuple[type, ...] = (int,) if whole else (int, float)
    what = "a whole number" if whole else "a number"

    def rule(value: JSON) -> str:
        if not isinstance(value, kinds) or isinstance(value, bool):
            return f"must be {what}, not {_kind(value)}"
        assert isinstance(value, int | float)
        return "" if low <= value <= high else f"must be between {low} and {high}, not {value}"

    return rule


def _one_of(*allowed: str) -> Rule:
    def rule(value: JSON) -> str:
        if value in allowed:
            return ""
        return f"must be one of {', '.join(allowed)}, not {quoted(value, 60)}"

    return rule


def _like(pattern: re.Pattern[str], expected: str) -> Rule:
    def rule(value: JSON) -> str:
        if not isinstance(value, str):
            return _text(value)
        if len(value) > _MAX_LENGTH:
            return f"is longer than {_MAX_LENGTH} characters"
        return "" if pattern.fullmatch(value) else f"must be {expected}, not {quoted(value, 60)}"

    return rule


def _name(value: JSON) -> str:
    if not isinstance(value, str):
        return _text(value)
    if not value.strip():
        return "is empty"
    if len(value) > _MAX_LENGTH:
        return f"is longer than {_MAX_LENGTH} characters"
    if value != value.strip():
        return "begins or ends with a space"
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in value):
        return "contains a control character"
    for letter in _LEGITIMATE.sub("", value):
        if unicodedata.category(letter) == "Cf" or _INVISIBLE.match(letter):
            code = f"U+{ord(letter):04X}"
            return f"contains the invisible character {code}, which can make it look like another"
    return ""


def _directory(value: JSON) -> str:
    problem = _name(value)
    if not problem and ".." in re.split(r"[/\\]", str(value)):
        return "must not contain .. as a segment"
    return problem


def _key(key: str) -> str:
    segments = key.split("/")
    if not {".", ".."}.isdisjoint(segments):
        return "must not contain . or .. as a segment"
    return next(filter(None, map(_name, (key, *segments))), "")


def host(value: JSON) -> str:
    """The rule for a host name, which must have no port."""
    if not isinstance(value, str):
        return _text(value)
    if is_host(value):
        return ""
    encoded = "" if value.isascii() else punycode(value)
    if encoded:
        return f"must be written in ASCII: write {encoded} (punycode) instead of {value:.60}"
    return f"must be a host name like shop.example.com, not {quoted(value, 60)}"


def _hosts(value: JSON) -> str:
    if not isinstance(value, list):
        return f"must be a list of host names, not {_kind(value)}"
    return next(filter(None, map(host, value)), "")


_code = _like(_CODE, "letters, digits and underscores")
_user = _like(_USER, "letters, digits, dots, hyphens and underscores")
_service = _like(_SERVICE, "in kebab-case, like evidence-query")

FIELDS: Mapping[str, Mapping[str, Rule]] = {
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
        "httpHeaderName": _like(re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), "a header's name"),
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
"""Fields that repeat a part of the key."""

EXTRA = "extra"
"""The field for fields that Mooring does not know. Unknown fields elsewhere are errors."""


def checked(tenant: int, path: str, value: JSON) -> JSON:
    """The part to write, with the fields that its key determines. Raises `InvalidRequest`."""
    check_id(tenant)
    about = f"tenant {tenant}: {path}"
    if not is_path(path):
        raise InvalidRequest(
            f"{about} is not a part of a tenant: use meta, domain/primary, domain/aliases, "
            "domain/internal, database/SERVICE, ftp/USER or storage"
        )
    check_plain(about, value)
    kind = kind_of(path)
    if kind == "domain":
        _refuse(about, (_hosts if path == "domain/aliases" else host)(value))
        return value
    if kind == "database":
        _refuse(about, _service(name_of(path)))
    if kind == "ftp":
        _refuse(about, _user(name_of(path)))
    fields = _checked_fields(about, kind, value)
    derived = identity(tenant, path)
    for field, expected in derived.items():
        if fields.get(field, expected) != expected:
            raise InvalidRequest(
                f"{about}.{field} is {quoted(fields[field], 60)}, but its place says "
                f"{quoted(expected)}"
            )
    return {**derived, **DEFAULTS.get(kind, {}), **fields}


def checked_common(path: str, value: JSON) -> JSON:
    """Like `checked`, for shared settings. A platform setting may have any value."""
    check_plain(path, value)
    if holds_mask({field_of(path): value}):
        raise InvalidRequest(f"{path} contains a masked secret: write the secret itself")
    if not path.startswith(PLATFORM):
        return _checked_fields(path, path, value)
    _refuse(quoted(path), _key(path.removeprefix(PLATFORM)))
    return value


def check_plain(about: str, value: object) -> None:
    """Raise `InvalidRequest` for a value that JSON cannot hold, or that is too large. Only a value
    that reads back as it was written can be compared with the stored one."""
    for count, (path, inner) in enumerate(walk(cast(JSON, value)), 1):
        if count > _MAX_VALUES or len(path) > _MAX_DEPTH:
            raise InvalidRequest(f"{about} has too many nested values")
        for name in inner if isinstance(inner, dict) else ():
            if not isinstance(name, str):
                short = isinstance(name, int | float) and not _not_plain(name)
                what = quoted(name) if short else "a name"
                place = f"{about}{path_text(path)}"
                raise InvalidRequest(f"{place}: {what} must be text (put it in quotes)")
        names = inner if isinstance(inner, dict) else ()
        problem = next(filter(None, map(_not_plain, names)), "") or _not_plain(inner)
        if problem:
            raise InvalidRequest(f"{about}{path_text(path)} {problem}")


def _not_plain(value: object) -> str:
    if isinstance(value, str):
        surrogate = any("\ud800" <= character <= "\udfff" for character in value)
        return "contains an unpaired surrogate" if surrogate else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else "must be a finite number"
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**64 else "is a number that is too large"
    plain = value is None or isinstance(value, dict | list)
    return "" if plain else f"cannot be written as JSON: {type(value).__name__}"


def _checked_fields(about: str, kind: str, value: JSON) -> dict[str, JSON]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{about} must be a map of fields, not {_kind(value)}")
    rules = FIELDS[kind]
    extra = value.get(EXTRA, {})
    if not isinstance(extra, dict):
        raise InvalidRequest(f"{about}.{EXTRA} must be a map of fields, not {_kind(extra)}")
    for field in extra:
        if field in rules:
            raise InvalidRequest(f"{about}.{EXTRA}.{field} is a known field: write it outside")
    fields = {field: inner for field, inner in value.items() if field != EXTRA}
    for field, inner in fields.items():
        if field not in rules:
            hint = nearest(str(field), [*rules, EXTRA])
            raise InvalidRequest(f"{about} has an unknown field {quoted(field)}{hint}")
        if inner is not None:
            _refuse(f"{about}.{field}", rules[field](inner))
    fields = {field: inner for field, inner in fields.items() if inner is not None}
    for field in REQUIRED.get(kind, ()):
        if fields.get(field) in (None, ""):
            raise InvalidRequest(f"{about}.{field} is missing")
    return fields | extra


def _refuse(about: str, problem: str) -> None:
    if problem:
        raise InvalidRequest(f"{about} {problem}")


def _kind(value: JSON) -> str:
    if value is None:
        return "nothing"
    names = {"bool": "true or false", "str": "text", "dict": "a map", "list": "a list"}
    return names.get(type(value).__name__, "a number")
