"""The old keys: what they are, and where. Pure.

    {ns}//jxt/config/tenants/{id}/services/{code}/database
    {ns}//tenants/{id}/meta | domain/primary | domain/aliases | domain/internal | ftp | storage
    {ns}//tenants/by-code/{code} | by-name/{name}
    {ns}//ftp-users/{username}
    {ns}//hosts/{host}
    {ns}//common/resolver | common/storage-directory
    {ns}//platform/configs/{key}
    {ns}//_health/sentinel

and those of the generation before, which lie among the new ones:

    {ns}/tenants/{id}/database        one object for the whole tenant
    {ns}/tenants/{id}/ftp             one object: one user

What belongs together is called a *unit*: a tenant, by its id, or 0 for what concerns all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from mooring.model import JSON
from mooring.store.contract import Range, prefix
from mooring.tenants.keys import (
    COMMON,
    DOMAIN,
    PLATFORM,
    IndexKind,
    TenantKeys,
    check_id,
    is_id,
    joined,
    kind_of,
    name_of,
    path_escape,
)

SENTINEL = "_health/sentinel"

_SINGLE = ("meta", *DOMAIN, "storage")
_ELSEWHERE: Mapping[IndexKind, str] = {
    "by-code": "tenants/by-code/",
    "by-name": "tenants/by-name/",
    "ftp-user": "ftp-users/",
    "host": "hosts/",
}


class OldPart(msgspec.Struct, frozen=True):
    """A key that configures a tenant, or all. `path` is where it belongs today; `ftp` and
    `database` alone are those whose place their value says."""

    unit: int
    path: str
    former: bool = False
    """It is of the generation before."""


class OldIndex(msgspec.Struct, frozen=True):
    kind: IndexKind
    name: str
    """As it stands in the key."""


class OldKeys:
    """The old keys below one namespace."""

    def __init__(self, keys: TenantKeys) -> None:
        self._new = keys
        self.root = f"{keys.namespace}//"
        self.all = prefix(self.root.encode())
        """All but those of the generation before, which are among `keys.all`."""

    def understand(self, name: bytes) -> OldPart | OldIndex | None:
        """What a key is; None for one that is foreign."""
        try:
            path = name.decode()
        except UnicodeDecodeError:
            return None
        if not path.startswith(self.root):
            return self._of_former(path)
        below = path.removeprefix(self.root)
        for kind, folder in _ELSEWHERE.items():
            if below.startswith(folder):
                return OldIndex(kind, below.removeprefix(folder)) if below != folder else None
        if below in (*COMMON, SENTINEL) or (
            below.startswith(PLATFORM) and below == joined(below) and below != PLATFORM
        ):
            return OldPart(0, below)
        return self._of_tenant(below)

    def _of_former(self, path: str) -> OldPart | None:
        id, _, rest = path.removeprefix(f"{self._new.namespace}/tenants/").partition("/")
        known = is_id(id) and rest in ("database", "ftp")
        return OldPart(int(id), rest, former=True) if known else None

    def _of_tenant(self, below: str) -> OldPart | None:
        if below.startswith("tenants/"):
            id, _, rest = below.removeprefix("tenants/").partition("/")
            return OldPart(int(id), rest) if is_id(id) and rest in (*_SINGLE, "ftp") else None
        id, _, rest = below.removeprefix("jxt/config/tenants/").partition("/")
        service = rest.removeprefix("services/").removesuffix("/database")
        if below.startswith("jxt/config/tenants/") and is_id(id) and service:
            return OldPart(int(id), f"database/{service}") if rest == _of(service) else None
        return None

    def part(self, unit: int, path: str) -> bytes:
        """Where a part of today was kept: that of a user with all others."""
        if not unit:
            return f"{self.root}{path}".encode()
        kind = kind_of(path)
        if kind == "database":
            id, service = check_id(unit), _of(name_of(path))
            return f"{self.root}jxt/config/tenants/{id}/{service}".encode()
        return f"{self.root}tenants/{check_id(unit)}/{'ftp' if kind == 'ftp' else path}".encode()

    def index(self, kind: IndexKind, name: str) -> bytes:
        """`name` as people write it."""
        lowered = name.lower() if kind == "host" else name
        return f"{self.root}{_ELSEWHERE[kind]}{lowered}".encode()

    def spellings(self, kind: IndexKind, name: str, code: str) -> list[bytes]:
        """Wherever else a publisher may have written that index. `code` is that of its tenant."""
        if kind == "by-name":
            return [self.index(kind, each) for each in (path_escape(name), code) if each]
        return [self.index(kind, name.lower())] if kind == "by-code" else []

    def of(self, unit: int) -> list[Range]:
        """Where the parts of a unit are; those of the generation before are among the new."""
        if not unit:
            folders = ("common/", PLATFORM, "_health/")
            return [prefix(f"{self.root}{folder}".encode()) for folder in folders]
        id = check_id(unit)
        return [
            prefix(f"{self.root}tenants/{id}/".encode()),
            prefix(f"{self.root}jxt/config/tenants/{id}/".encode()),
        ]


def _of(service: str) -> str:
    return f"services/{service}/database"


def same_name(kind: IndexKind, written: str, name: str) -> bool:
    """Whether an old index that was written so is that of a name."""
    if kind == "by-name":
        return written in (name, path_escape(name))
    return written == name if kind == "ftp-user" else written.lower() == name.lower()


def digest(value: JSON) -> str:
    """What a value is known by again."""
    raw = msgspec.json.encode(value, order="deterministic")
    return hashlib.blake2b(raw, digest_size=12).hexdigest()
