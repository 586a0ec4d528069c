"""Whether the passwords below a namespace are encrypted, so that none is added in clear text.

A publisher that writes an encrypted password leaves a marker beside the tenants, with the id of its
key. A publish of a password in clear text is refused if the marker is there, or if a sample of the
tenants has an encrypted password, which another program wrote.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from mooring.errors import InvalidRequest
from mooring.store.contract import Check, Put, Store, Write, key, unchanged
from mooring.tenants.keys import Keys, Owner, kind_of, named
from mooring.tenants.publishing import NOTHING_RESENT, Parts, Resent
from mooring.tenants.secrets import CURRENT, Keyring

_SEALED = re.compile(rb'"passwordEncrypted"\s*:\s*"[^"]')
_SAMPLE = 1000  # entries that are looked at for encrypted passwords if there is no marker


class Marker(msgspec.Struct, frozen=True, rename="camel"):
    key_id: str = ""


class Passwords(NamedTuple):
    """What a publish does to passwords, and what goes with it."""

    clear: tuple[str, ...] = ()
    """The parts whose new password is in clear text."""
    writes: tuple[Write, ...] = ()
    checks: tuple[Check, ...] = ()


async def judged(
    store: Store,
    keys: Keys,
    ring: Keyring,
    tenant: Owner,
    before: Parts,
    after: Parts,
    *,
    refuse: bool = True,
    resent: Resent = NOTHING_RESENT,
) -> Passwords:
    """Raises `InvalidRequest` if a password would be added in clear text while others are
    encrypted, or under the key of another application. `refuse=False`: clear text is allowed.
    `resent`: these count as added, so that the answer is the same for a right and a wrong guess."""
    clear = tuple(path for path in after if _added(path, before, after, "password", resent))
    sealed = [path for path in after if _added(path, before, after, "passwordEncrypted")]
    if not clear and not sealed:
        return Passwords()
    entry = (await store.read(key(keys.encryption))).first
    known = _marker(entry.value) if entry is not None else None
    at = 0 if entry is None else entry.modified
    if clear and refuse and (known is not None or await _sampled(store, keys)):
        raise InvalidRequest(
            f"{named(tenant)}: {clear[0]}.password would be stored in clear text, but other "
            f"passwords are encrypted: set {CURRENT[0]}{ring.remark}"
        )
    writes: list[Write] = []
    if sealed:
        ours = {str(_fields(after, path).get("passwordKeyId") or "") for path in sealed}
        if known is not None and ring.current in ours:
            _check_key(tenant, known.key_id, ring)
        if known is None or (ring.current in ours and known.key_id != ring.current):
            of = ring.current if ring.current in ours else next(iter(ours))
            writes.append(Put(keys.encryption, msgspec.json.encode(Marker(of))))
    return Passwords(clear, tuple(writes), (unchanged(keys.encryption, at),) if clear else ())


def _check_key(tenant: Owner, used: str, ring: Keyring) -> None:
    if ring.borrowed and used and used not in ring:
        raise InvalidRequest(
            f"{named(tenant)}: passwords are encrypted with the key {used}, and {CURRENT[1]} holds "
            f"the key {ring.current}, which may belong to another application: set {CURRENT[0]}"
        )


def _fields(parts: Parts, path: str) -> dict[str, object]:
    value = parts.get(path)
    return dict(value) if isinstance(value, dict) else {}


def _added(
    path: str, before: Parts, after: Parts, field: str, resent: Resent = NOTHING_RESENT
) -> bool:
    if kind_of(path) != "database":
        return False
    value = _fields(after, path).get(field)
    changed = field in resent.get(path, ()) or _fields(before, path).get(field) != value
    return bool(value) and changed


def _marker(raw: bytes) -> Marker:
    try:
        return msgspec.json.decode(raw, type=Marker)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Marker()


async def _sampled(store: Store, keys: Keys) -> bool:
    found = await store.read(keys.all, limit=_SAMPLE)
    return any(_SEALED.search(entry.value) for entry in found.entries)
