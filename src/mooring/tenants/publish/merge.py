"""Merges a new value into a stored part: keeps secrets that the new value omits and unknown fields,
and encrypts the password."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mooring.errors import Undecipherable
from mooring.masking import holds_mask
from mooring.messages import message
from mooring.model import JSON
from mooring.tenants.keys import PLATFORM, kind_of, naming
from mooring.tenants.secrets import Keyring
from mooring.tenants.validation import EXTRA, FIELDS, checked, checked_common, refuse

T = TypeVar("T")

PASSWORD = ("password", "passwordEncrypted", "passwordKeyId")
"""The fields that hold a password."""


def password_fields(part: Mapping[str, JSON]) -> dict[str, JSON]:
    """The fields that hold the password of a part; empty if it has none."""
    return {name: part[name] for name in PASSWORD if part.get(name)}


def merged(
    tenant: int, path: str, before: object, value: JSON, ring: Keyring, *, reseal: bool = False
) -> JSON:
    """The part to store. Raises `InvalidRequest`. `reseal`: encrypt the password again even if it
    equals the stored one."""
    with naming(tenant):
        after = checked(tenant, path, value)
        if not isinstance(after, dict):
            return after
        for field, inner in after.items():
            if holds_mask({field: inner}):
                refuse(f"{path}.{field}", message("field_masked"))
        stored = before if isinstance(before, dict) else {}
        after = _with_unknown_fields(kind_of(path), after, stored, value)
        if kind_of(path) == "ftp":
            return _with_password_hash(after, stored)
        if kind_of(path) == "database":
            return _with_password(path, after, stored, ring, reseal=reseal)
        return after


def merged_common(path: str, before: object, value: JSON) -> JSON:
    """The shared setting to store. Raises `InvalidRequest`."""
    if value is None:
        refuse(path, message("value_is_null"))
    fields = checked_common(path, value)
    if path.startswith(PLATFORM) or not isinstance(fields, dict):
        return fields
    stored = before if isinstance(before, dict) else {}
    return _with_unknown_fields(path, fields, stored, value)


def _with_unknown_fields(
    kind: str, fields: dict[str, JSON], stored: dict[str, JSON], value: JSON
) -> dict[str, JSON]:
    """Keeps the unknown fields that are stored, unless `extra` of the new value replaces them, or
    removes them with a null."""
    extra = value.get(EXTRA) if isinstance(value, dict) else None
    given = extra if isinstance(extra, dict) else {}
    unknown = {name: inner for name, inner in stored.items() if name not in FIELDS[kind]}
    return {
        name: inner
        for name, inner in (unknown | fields).items()
        if name not in given or given[name] is not None
    }


def _with_password_hash(after: dict[str, JSON], stored: dict[str, JSON]) -> dict[str, JSON]:
    hashed = after.get("passwordHash")
    if hashed is None:
        hashed = stored.get("passwordHash")
    if hashed in (None, ""):
        return {name: inner for name, inner in after.items() if name != "passwordHash"}
    return after | {"passwordHash": hashed}


def _with_password(
    path: str, after: dict[str, JSON], stored: dict[str, JSON], ring: Keyring, *, reseal: bool
) -> dict[str, JSON]:
    password = after.get("password")
    if password is None and after.get("passwordEncrypted"):
        return after
    others = _without_password(after)
    if password == "":
        return others
    if password is None or (not reseal and _equals(str(password), stored, ring)):
        return others | password_fields(stored)
    if stored.get("passwordEncrypted") and not ring.current:
        refuse(f"{path}.password", message("password_downgraded", remedy=ring.remedy))
    return others | _sealed(str(password), ring)


def _without_password(part: dict[str, JSON]) -> dict[str, JSON]:
    return {name: inner for name, inner in part.items() if name not in PASSWORD}


def _equals(password: str, stored: dict[str, JSON], ring: Keyring) -> bool:
    """Whether this is the encrypted password that is stored."""
    sealed = stored.get("passwordEncrypted")
    try:
        return bool(sealed) and _decrypted(stored, ring) == password
    except Undecipherable:
        return False


def _decrypted(stored: dict[str, JSON], ring: Keyring) -> str:
    return ring.unseal(str(stored["passwordEncrypted"]), str(stored.get("passwordKeyId") or ""))


def _sealed(password: str, ring: Keyring) -> dict[str, JSON]:
    """The fields of a password, which is encrypted if there is a key."""
    if not ring.current:
        return {"password": password}
    sealed, key_id = ring.seal(password)
    return {"passwordEncrypted": sealed, "passwordKeyId": key_id}


def unsealed(value: JSON, ring: Keyring) -> JSON:
    """The part with its password in clear text. Raises `Undecipherable`."""
    if not isinstance(value, dict) or not value.get("passwordEncrypted"):
        return value
    return _without_password(value) | {"password": _decrypted(value, ring)}


def resealed(path: str, value: T, ring: Keyring) -> T | dict[str, JSON]:
    """The part with its password under the current key. Raises `Undecipherable`."""
    if kind_of(path) != "database" or not isinstance(value, dict) or not ring.current:
        return value
    password, sealed = value.get("password"), value.get("passwordEncrypted")
    if sealed:
        if value.get("passwordKeyId") == ring.current and ring.sealed(str(sealed)):
            return value
        password = _decrypted(value, ring)
    return _without_password(value) | _sealed(str(password), ring) if password else value
