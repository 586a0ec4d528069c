"""The way back: what old keys must hold so that they say what the new ones do. Pure.

Each key keeps the form it has: users in a bare list or in an object, a domain as text or as JSON,
storage in bytes, a password in the clear. Whoever reads the old keys expects that.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mooring.errors import Undecipherable
from mooring.migrate.jxt.format import OldKeys, OldPart
from mooring.migrate.jxt.translation import Translation, read, users_of
from mooring.model import JSON
from mooring.tenants.keys import kind_of, name_of
from mooring.tenants.secrets import Keyring
from mooring.tenants.values import Unreadable, encode


def rewritten(
    keys: OldKeys, told: Translation, changes: Mapping[str, JSON], ring: Keyring
) -> dict[bytes, bytes | None]:
    """What to write into old keys, so that these parts become what they are to be; None: nothing,
    which deletes a part or a key. Parts that the translation `hides` must not be among them, nor
    those that are `locked`."""
    found: dict[bytes, bytes | None] = {}
    users: dict[str, JSON] = {}
    for path, value in changes.items():
        here = told.parts[path].key if path in told.parts else keys.part(told.unit, path)
        if value is None:
            found |= {each: None for each in _former(keys, told, path) if each != here}
        if here == keys.part(told.unit, path) and kind_of(path) == "ftp":
            users[name_of(path)] = value
        elif value is None:
            found[here] = None
        else:
            found[here] = _in_form(path, value, told.raw.get(here), ring)
    if users:
        name = keys.part(told.unit, "ftp/")
        found[name] = _with_users(told.raw.get(name), users)
    return found


def locked(keys: OldKeys, told: Translation, path: str, value: JSON, ring: Keyring) -> str:
    """Why a part cannot be written into its old key: that has a password in the clear, and the one
    of today cannot be decrypted. Empty: it can."""
    here = told.parts[path].key if path in told.parts else keys.part(told.unit, path)
    try:
        _in_form(path, value, told.raw.get(here), ring)
    except Undecipherable as error:
        of = value.get("passwordKeyId") if isinstance(value, dict) else None
        return f"the old key has a password in the clear, the new one not (key {of}): {error}"
    return ""


def _former(keys: OldKeys, told: Translation, path: str) -> list[bytes]:
    """Keys of the generation before that would give a part again, were it deleted."""
    found = []
    for finding in told.findings.values():
        place = keys.understand(finding.key)
        if finding.superseded and isinstance(place, OldPart) and place.path == kind_of(path):
            found.append(finding.key)
    return found


def _in_form(path: str, value: JSON, before: bytes | None, ring: Keyring) -> bytes:
    if path in ("domain/primary", "domain/internal"):
        quoted = before is not None and before.strip().startswith(b'"')
        return msgspec.json.encode(value) if quoted else encode(path, value)
    if isinstance(value, dict) and before is not None:
        held = _object(before)
        if path == "storage":
            value = _in_bytes(value, held)
        elif kind_of(path) == "database" and "password" in held:
            value = _in_the_clear(value, ring)
    return msgspec.json.encode(value)


def _object(raw: bytes) -> dict[str, JSON]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _in_bytes(value: dict[str, JSON], held: Mapping[str, JSON]) -> dict[str, JSON]:
    fields = dict(value)
    for old, new, unit in (
        ("quotaBytes", "uploadQuotaGb", 2**30),
        ("maxFileSizeBytes", "maxFileSizeMb", 2**20),
    ):
        size = fields.get(new)
        if old in held and isinstance(size, int | float):
            del fields[new]
            fields[old] = round(size * unit)
    return fields


def _in_the_clear(value: dict[str, JSON], ring: Keyring) -> dict[str, JSON]:
    sealed = value.get("passwordEncrypted")
    if not isinstance(sealed, str):
        return value
    text = ring.unseal(sealed, str(value.get("passwordKeyId") or ""))
    rest = {
        name: inner
        for name, inner in value.items()
        if name not in ("passwordEncrypted", "passwordKeyId")
    }
    return {**rest, "password": text}


def _with_users(before: bytes | None, changes: Mapping[str, JSON]) -> bytes | None:
    """A list with some users changed, added or taken out, in the form that it has. Whatever in it
    is no user stays."""
    try:
        value = read(OldPart(0, "ftp"), before) if before is not None else {"ftpConfigs": []}
    except Unreadable:  # who calls does not change what cannot be read
        value = {"ftpConfigs": []}
    listed = users_of(value)
    left = dict(changes)
    users: list[JSON] = []
    for user in listed if isinstance(listed, list) else []:
        name = user.get("username") if isinstance(user, dict) else None
        if not isinstance(name, str) or name not in changes:
            users.append(user)
        elif name in left and (wanted := left.pop(name)) is not None:
            users.append(wanted)
    users += [wanted for wanted in left.values() if wanted is not None]
    if not users:
        return None
    if isinstance(value, list):
        return msgspec.json.encode(users)
    if isinstance(value, dict) and "ftpConfigs" not in value and len(users) == 1:
        return msgspec.json.encode(users[0])
    around = value if isinstance(value, dict) and "ftpConfigs" in value else {}
    return msgspec.json.encode({**around, "ftpConfigs": users})
