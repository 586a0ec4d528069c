"""Merges a new value into a stored part: keeps secrets that the new value omits and unknown fields,
and encrypts the password."""

from __future__ import annotations

from mooring.errors import InvalidRequest, Undecipherable
from mooring.masking import holds_mask
from mooring.model import JSON
from mooring.tenants.keys import PLATFORM, kind_of
from mooring.tenants.secrets import CURRENT, Keyring
from mooring.tenants.validation import EXTRA, FIELDS, checked, checked_common

PASSWORD = ("password", "passwordEncrypted", "passwordKeyId")
"""The fields that hold a password."""


def merged(
    tenant: int, path: str, before: object, value: JSON, ring: Keyring, *, reseal: bool = False
) -> JSON:
    """The part to store. Raises `InvalidRequest`. `reseal`: encrypt the password again even if it
    equals the stored one."""
    after = checked(tenant, path, value)
    if not isinstance(after, dict):
        return after
    for field, inner in after.items():
        if holds_mask({field: inner}):
            raise InvalidRequest(
                f"tenant {tenant}: {path}.{field} is masked: leave it out to keep what is stored"
            )
    stored = before if isinstance(before, dict) else {}
    known = FIELDS[kind_of(path)]
    unknown = {name: inner for name, inner in stored.items() if name not in known}
    removed = _removed(value)
    after = {name: inner for name, inner in (unknown | after).items() if name not in removed}
    if "passwordHash" in known:
        if after.get("passwordHash") is None and stored.get("passwordHash") is not None:
            after["passwordHash"] = stored["passwordHash"]
        if after.get("passwordHash") == "":
            del after["passwordHash"]
    if "password" in known:
        return _with_password(f"tenant {tenant}: {path}", after, stored, ring, reseal=reseal)
    return after


def _with_password(
    about: str, after: dict[str, JSON], stored: dict[str, JSON], ring: Keyring, *, reseal: bool
) -> dict[str, JSON]:
    password = after.get("password")
    if password is None and after.get("passwordEncrypted"):
        return after
    others = {name: inner for name, inner in after.items() if name not in PASSWORD}
    kept = {name: stored[name] for name in PASSWORD if stored.get(name)}
    if password is None:
        return others | kept
    if password == "":
        return others
    assert isinstance(password, str)
    sealed = stored.get("passwordEncrypted")
    key_id = str(stored.get("passwordKeyId") or "")
    if sealed and not reseal and _equals(password, str(sealed), key_id, ring):
        return others | kept
    if sealed and not ring.current:
        raise InvalidRequest(
            f"{about}.password is encrypted in the store and would be plain text now: set "
            f"{CURRENT[0]}"
        )
    return others | _sealed(password, ring)


def _equals(password: str, sealed: str, key_id: str, ring: Keyring) -> bool:
    try:
        return ring.unseal(sealed, key_id) == password
    except Undecipherable:
        return False


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
    sealed, key_id = str(value["passwordEncrypted"]), str(value.get("passwordKeyId") or "")
    others = {name: inner for name, inner in value.items() if name not in PASSWORD}
    return {**others, "password": ring.unseal(sealed, key_id)}


def resealed(path: str, value: object, ring: Keyring) -> JSON | None:
    """The part with its password under the current key; None if it has no password or nothing
    changes. Raises `Undecipherable`."""
    if kind_of(path) != "database" or not isinstance(value, dict) or not ring.current:
        return None
    sealed, key_id = value.get("passwordEncrypted"), str(value.get("passwordKeyId") or "")
    password = value.get("password")
    if sealed and key_id == ring.current and ring.sealed(str(sealed)):
        return None
    if sealed:
        password = ring.unseal(str(sealed), key_id)
    if not password:
        return None
    others = {name: inner for name, inner in value.items() if name not in PASSWORD}
    return others | _sealed(str(password), ring)


def merged_common(path: str, before: object, value: JSON) -> JSON:
    """The shared setting to store. Unknown fields are kept, unless `extra` replaces or removes
    them. Raises `InvalidRequest`."""
    if value is None:
        raise InvalidRequest(f"{path} must have a value: to remove it, unset it")
    fields = checked_common(path, value)
    if path.startswith(PLATFORM) or not isinstance(fields, dict):
        return fields
    stored = before if isinstance(before, dict) else {}
    unknown = {name: inner for name, inner in stored.items() if name not in FIELDS[path]}
    removed = _removed(value)
    return {name: inner for name, inner in (unknown | fields).items() if name not in removed}


def _removed(value: JSON) -> frozenset[str]:
    """The unknown fields that a null in `extra` removes."""
    extra = value.get(EXTRA) if isinstance(value, dict) else None
    fields = extra.items() if isinstance(extra, dict) else ()
    return frozenset(name for name, inner in fields if inner is None)
