"""What a publish keeps of what is there: secrets that it leaves out, and fields that nobody here
knows. And how a password gets sealed."""

from __future__ import annotations

from mooring.errors import InvalidRequest, Undecipherable
from mooring.masking import holds_mask
from mooring.model import JSON
from mooring.tenants.keys import PLATFORM, kind_of
from mooring.tenants.secrets import CURRENT, Keyring
from mooring.tenants.validation import EXTRA, FIELDS, checked, checked_common

PASSWORD = ("password", "passwordEncrypted", "passwordKeyId")
"""The fields that a password may stand in."""


def merged(
    tenant: int, path: str, before: object, value: JSON, ring: Keyring, *, reseal: bool = False
) -> JSON:
    """A part as it is to be written over what is there. Raises `InvalidRequest`.

    `reseal`: a password is sealed again although it is the one that is there.
    """
    after = checked(tenant, path, value)
    if not isinstance(after, dict):
        return after
    for field, inner in after.items():
        if holds_mask({field: inner}):
            raise InvalidRequest(
                f"tenant {tenant}: {path}.{field} is masked: leave it out to keep what is there"
            )
    there = before if isinstance(before, dict) else {}
    known = FIELDS[kind_of(path)]
    foreign = {name: inner for name, inner in there.items() if name not in known}
    extra = value.get(EXTRA) if isinstance(value, dict) else None
    for name, inner in extra.items() if isinstance(extra, dict) else ():
        if inner is None:
            foreign.pop(name, None)
            after.pop(name, None)
    after = foreign | after
    if "passwordHash" in known:
        _keep(after, there, "passwordHash")
    if "password" in known:
        return _with_password(f"tenant {tenant}: {path}", after, there, ring, reseal=reseal)
    return after


def _keep(after: dict[str, JSON], there: dict[str, JSON], field: str) -> None:
    if field not in after and there.get(field) is not None:
        after[field] = there[field]
    if after.get(field) == "":
        del after[field]


def _with_password(
    about: str, after: dict[str, JSON], there: dict[str, JSON], ring: Keyring, *, reseal: bool
) -> dict[str, JSON]:
    told = after.get("password")
    rest = {name: inner for name, inner in after.items() if name not in PASSWORD}
    if told is None and not after.get("passwordEncrypted"):
        return rest | {name: there[name] for name in PASSWORD if there.get(name)}
    if told is None:
        return after
    if told == "":
        return rest
    assert isinstance(told, str)
    sealed = there.get("passwordEncrypted")
    of = str(there.get("passwordKeyId") or "")
    if sealed and not reseal and _is(told, str(sealed), of, ring):
        return rest | {name: there[name] for name in PASSWORD if there.get(name)}
    if sealed and not ring.current:
        raise InvalidRequest(
            f"{about}.password is encrypted in the store and would be plain text now: set "
            f"{CURRENT[0]}"
        )
    return rest | with_sealed(told, ring)


def with_sealed(password: str, ring: Keyring) -> dict[str, JSON]:
    """A password's fields: sealed where there is a key."""
    if not ring.current:
        return {"password": password}
    sealed, of = ring.seal(password)
    return {"passwordEncrypted": sealed, "passwordKeyId": of}


def _is(told: str, sealed: str, of: str, ring: Keyring) -> bool:
    try:
        return ring.unseal(sealed, of) == told
    except Undecipherable:
        return False


def resealed(path: str, value: object, ring: Keyring) -> JSON | None:
    """A part with its password under the current key; None where it is so already, or has none.
    Raises `Undecipherable`."""
    if kind_of(path) != "database" or not isinstance(value, dict) or not ring.current:
        return None
    sealed, of = value.get("passwordEncrypted"), str(value.get("passwordKeyId") or "")
    plain = value.get("password")
    if sealed and of == ring.current and ring.sealed(str(sealed)):
        return None
    if sealed:
        plain = ring.unseal(str(sealed), of)
    if not plain:
        return None
    rest = {name: inner for name, inner in value.items() if name not in PASSWORD}
    return rest | with_sealed(str(plain), ring)


def merged_common(path: str, before: object, value: JSON) -> JSON:
    """A value as it is to be written over what is there. Fields that Mooring does not know stay as
    they are, unless `extra` says otherwise. Raises `InvalidRequest`."""
    if value is None:
        raise InvalidRequest(f"{path} must have a value: to remove it, unset it")
    fields = checked_common(path, value)
    if path.startswith(PLATFORM) or not isinstance(fields, dict):
        return fields
    held = before if isinstance(before, dict) else {}
    foreign = {name: inner for name, inner in held.items() if name not in FIELDS[path]}
    gone = _removed(value)
    return {name: inner for name, inner in (foreign | fields).items() if name not in gone}


def _removed(value: JSON) -> frozenset[str]:
    """Fields that Mooring does not know and that are to be removed."""
    extra = value.get(EXTRA) if isinstance(value, dict) else None
    named = extra.items() if isinstance(extra, dict) else ()
    return frozenset(name for name, inner in named if inner is None)
