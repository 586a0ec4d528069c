"""The old keys. Pure.

    {ns}//jxt/config/tenants/{id}/services/{code}/database
    {ns}//tenants/{id}/meta | domain/primary | domain/aliases | domain/internal | ftp | storage
    {ns}//tenants/by-code/{code} | by-name/{name}
    {ns}//ftp-users/{username}
    {ns}//hosts/{host}
    {ns}//common/resolver | common/storage-directory
    {ns}//platform/configs/{key}
    {ns}//_health/sentinel

and the keys of the previous format, which are among the new ones:

    {ns}/tenants/{id}/database        one object for the whole tenant
    {ns}/tenants/{id}/ftp             one object: one user

A *unit* is a tenant, by its id, or 0 for the common settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from mooring.model import JSON
from mooring.store.contract import Range, prefix
from mooring.tenants.keys import (
    COMMON,
    PLATFORM,
    SENTINEL,
    SINGLE,
    IndexKind,
    TenantKeys,
    check_id,
    is_id,
    joined,
    kind_of,
    name_of,
    path_escape,
)

_INDEX_FOLDERS: Mapping[IndexKind, str] = {
    "by-code": "tenants/by-code/",
    "by-name": "tenants/by-name/",
    "ftp-user": "ftp-users/",
    "host": "hosts/",
}


class OldPart(msgspec.Struct, frozen=True):
    """A key that configures a unit. `path` is that of the new key; for `ftp` and `database`, the
    value determines the rest of the path."""

    unit: int
    path: str
    previous: bool = False
    """It belongs to the previous format."""


class OldIndex(msgspec.Struct, frozen=True):
    kind: IndexKind
    name: str
    """As spelled in the key."""


class OldIndexEntry(msgspec.Struct, frozen=True):
    index: OldIndex
    key: bytes
    modified: int
    holder: int
    """The tenant that it refers to; 0 if unknown."""


class OldKeys:
    """The old keys below one namespace."""

    def __init__(self, keys: TenantKeys) -> None:
        self._new = keys
        self.root = f"{keys.namespace}//"
        self.all = prefix(self.root.encode())
        """All old keys except those of the previous format, which are in `keys.all`."""

    def parse(self, name: bytes) -> OldPart | OldIndex | None:
        """None for a foreign key."""
        try:
            path = name.decode()
        except UnicodeDecodeError:
            return None
        if not path.startswith(self.root):
            return self._previous_part(path)
        below = path.removeprefix(self.root)
        for kind, folder in _INDEX_FOLDERS.items():
            if below.startswith(folder):
                return OldIndex(kind, below.removeprefix(folder)) if below != folder else None
        if below in (*COMMON, SENTINEL) or (
            below.startswith(PLATFORM) and below == joined(below) and below != PLATFORM
        ):
            return OldPart(0, below)
        return self._tenant_part(below)

    def _previous_part(self, path: str) -> OldPart | None:
        id, _, rest = path.removeprefix(f"{self._new.namespace}/tenants/").partition("/")
        known = is_id(id) and rest in ("database", "ftp")
        return OldPart(int(id), rest, previous=True) if known else None

    def _tenant_part(self, below: str) -> OldPart | None:
        if below.startswith("tenants/"):
            id, _, rest = below.removeprefix("tenants/").partition("/")
            return OldPart(int(id), rest) if is_id(id) and rest in (*SINGLE, "ftp") else None
        id, _, rest = below.removeprefix("jxt/config/tenants/").partition("/")
        service = rest.removeprefix("services/").removesuffix("/database")
        if below.startswith("jxt/config/tenants/") and is_id(id) and service:
            return OldPart(int(id), f"database/{service}") if rest == _database(service) else None
        return None

    def part(self, unit: int, path: str) -> bytes:
        """The old key of a part. All FTP users of a tenant share one."""
        if not unit:
            return f"{self.root}{path}".encode()
        kind = kind_of(path)
        if kind == "database":
            id, service = check_id(unit), _database(name_of(path))
            return f"{self.root}jxt/config/tenants/{id}/{service}".encode()
        return f"{self.root}tenants/{check_id(unit)}/{'ftp' if kind == 'ftp' else path}".encode()

    def index(self, kind: IndexKind, name: str) -> bytes:
        """The old key of an index; `name` is not escaped."""
        lowered = name.lower() if kind == "host" else name
        return f"{self.root}{_INDEX_FOLDERS[kind]}{lowered}".encode()

    def index_variants(self, kind: IndexKind, name: str, code: str) -> list[bytes]:
        """Other keys of this index, by publishers, for a tenant with this `code`."""
        if kind == "by-name":
            return [self.index(kind, variant) for variant in (path_escape(name), code) if variant]
        return [self.index(kind, name.lower())] if kind == "by-code" else []

    def ranges(self, unit: int) -> list[Range]:
        """The ranges of a unit's old parts, except those of the previous format."""
        if not unit:
            folders = ("common/", PLATFORM, "_health/")
            return [prefix(f"{self.root}{folder}".encode()) for folder in folders]
        id = check_id(unit)
        return [
            prefix(f"{self.root}tenants/{id}/".encode()),
            prefix(f"{self.root}jxt/config/tenants/{id}/".encode()),
        ]


def _database(service: str) -> str:
    return f"services/{service}/database"


def is_spelling_of(name: str, spelling: str, kind: IndexKind) -> bool:
    """Whether an old index with this spelling belongs to a name."""
    if kind == "by-name":
        return spelling in (name, path_escape(name))
    return spelling == name if kind == "ftp-user" else spelling.lower() == name.lower()


def digest(value: JSON) -> str:
    """A digest that does not depend on the order of fields."""
    raw = msgspec.json.encode(value, order="deterministic")
    return hashlib.blake2b(raw, digest_size=12).hexdigest()
