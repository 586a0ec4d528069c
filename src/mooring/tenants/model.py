"""Tenants and the records that they consist of, decoded leniently: older publishers wrote them.

A record is a JSON object with names in camelCase. Unknown fields are kept in `extra`. A null counts
as missing; in the common settings an empty string does too: Go writes it for an unset field. The
tenant id, service and user in the key take precedence over those in the value. `validation` checks
records before they are written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, NoReturn, Self, TypeVar

import msgspec

from mooring.errors import InvalidRequest
from mooring.masking import masked
from mooring.messages import message
from mooring.messages.validation import rejection
from mooring.model import JSON, walk
from mooring.tenants.keys import identity, kind_of, name_of, normal_host
from mooring.tenants.secrets import Keyring, Secret

TenantStatus = Literal["active", "inactive", "suspended"]

MAX_DEPTH = 100
"""Nested maps and lists that a value may have, since some functions that process it recurse."""

V = TypeVar("V")


class ReadOnly(dict[str, V]):
    """A dictionary that its readers cannot change. It is not a view of a dictionary: with a hundred
    thousand tenants, each further object in memory counts."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the data of a tenant cannot be changed in place")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, V]]]:
        return type(self), (dict(self),)  # copies must not call __setitem__


class Extra(ReadOnly[JSON]):
    """Unknown fields. The representation masks what looks like a secret."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(masked(dict(self)))


NO_EXTRA = Extra()  # shared: a million of them would cost memory and garbage collection time


class TenantRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """The base of all records. `gc=False`: there are a million of them, none part of a cycle."""

    extra: Extra = msgspec.field(default_factory=lambda: NO_EXTRA)


class Meta(TenantRecord, frozen=True, kw_only=True, gc=False):
    """The names, the status and the plan of a tenant."""

    id: int
    code: str = ""
    name: str = ""
    status: str = "active"
    """`active`, `inactive` or `suspended`; any other value means inactive."""
    billing_plan: str = ""

    @property
    def active(self) -> bool:
        """Whether the tenant is active."""
        return self.status == "active"


class Database(TenantRecord, frozen=True, kw_only=True, gc=False):
    """The database of one service of a tenant."""

    tenant_id: int
    service_code: str
    driver: str = ""
    host: str = ""
    port: int = 0
    database: str = ""
    username: str = ""
    password: Secret | None = None
    ssl_mode: str = ""
    max_open_conns: int = 0
    max_idle_conns: int = 0
    enabled: bool = True


class Ftp(TenantRecord, frozen=True, kw_only=True, gc=False):
    """An FTP user of a tenant."""

    tenant_id: int
    username: str
    password_hash: Secret | None = None
    description: str = ""
    status: str = ""
    home_directory: str = ""
    write_permission: bool = False

    @property
    def active(self) -> bool:
        """Whether the user is active."""
        return self.status in ("", "active")


class Storage(TenantRecord, frozen=True, kw_only=True, gc=False):
    """The quotas of a tenant; 0: not set."""

    tenant_id: int
    upload_quota_gb: int | float = 0
    max_file_size_mb: int | float = 0
    max_concurrent_uploads: int = 0


class Domain(msgspec.Struct, frozen=True, gc=False):
    """The hosts of a tenant, from three keys."""

    primary: str = ""
    aliases: tuple[str, ...] = ()
    internal: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts in the form in which they are looked up, without duplicates: in lower case and
        punycode, without a port."""
        hosts = (self.primary, *self.aliases, self.internal)
        return tuple(dict.fromkeys(normal_host(host) for host in hosts if host))


class Resolver(TenantRecord, frozen=True, kw_only=True, gc=False):
    """How a request names its tenant."""

    id: int = 0
    http_type: Literal["host", "header", "query", "path"] = "header"
    http_header_name: str = "X-Tenant-ID"
    http_query_param: str = "tenant"
    http_path_index: int = 0
    http_host_mode: Literal["numeric", "domain", "code"] = "domain"
    ftp_type: str = "username"


class StorageDirectory(TenantRecord, frozen=True, kw_only=True, gc=False):
    directory: str = "tenants"


SETTINGS: Mapping[str, type[Resolver | StorageDirectory]] = {
    "common/resolver": Resolver,
    "common/storage-directory": StorageDirectory,
}
"""The record of each common setting."""

_RECORDS: Mapping[str, type[Meta | Database | Ftp | Storage]] = {
    "meta": Meta,
    "database": Database,
    "ftp": Ftp,
    "storage": Storage,
}

Part = Meta | Database | Ftp | Storage | str | tuple[str, ...]
R = TypeVar("R", bound=TenantRecord)


class UnreadableValue(ValueError):
    """A stored value that cannot be decoded. The message shows nothing of the value."""


def decode(path: str, raw: bytes) -> JSON:
    """The value of a part, as JSON. A domain may be stored as JSON or as plain text; null, which Go
    writes, counts as empty."""
    if path in ("domain/primary", "domain/internal"):
        return _text(raw)
    try:
        value: JSON = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnreadableValue("not JSON") from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise UnreadableValue(f"more than {MAX_DEPTH} nested maps and lists")
    if path == "domain/aliases":
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(host, str) for host in value):
            raise UnreadableValue("not a list of host names")
    elif not isinstance(value, dict) and not path.startswith("platform/"):
        raise UnreadableValue("not a JSON object")
    return value


def json_object(raw: bytes) -> dict[str, JSON]:
    """The fields of a stored JSON object; empty for anything else."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_deep(value: JSON) -> bool:
    return any(
        len(path) >= MAX_DEPTH and isinstance(inner, list | dict) for path, inner in walk(value)
    )


def encode(path: str, value: JSON) -> bytes:
    """The stored form of a part; domains are stored as plain text."""
    if path in ("domain/primary", "domain/internal"):
        if not isinstance(value, str):
            problem = message("wrong_value", wanted=message("type_text"), sent=value)
            raise InvalidRequest(message("value_rejected", place=path, problem=problem))
        return value.encode()
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        problem = message("value_not_json", problem=error)
        raise InvalidRequest(message("value_rejected", place=path, problem=problem)) from error


def parse_part(tenant: int, path: str, value: JSON, ring: Keyring) -> Part:
    """The record, host or hosts in a part. Raises `UnreadableValue`."""
    kind = kind_of(path)
    if kind == "domain":
        return tuple(map(str, value)) if isinstance(value, list) else str(value)
    assert isinstance(value, dict)
    fields: dict[str, Any] = value | identity(tenant, path)
    if kind == "database":
        _wrap_password(fields, ring)
    elif kind == "ftp" and isinstance(hashed := fields.get("passwordHash"), str):
        fields["passwordHash"] = Secret(hashed)
    elif kind == "storage":
        _convert_storage(fields)
    return to_record(_RECORDS[kind], fields)


def to_record(kind: type[R], value: Mapping[str, Any]) -> R:
    """A record of this kind, with unknown fields in `extra`. Raises `UnreadableValue`."""
    names = fields_of(kind)
    if kind in SETTINGS.values():
        value = {name: inner for name, inner in value.items() if inner != ""}
    if value.keys() <= names:
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            pass  # perhaps because of a null
    present = {name: inner for name, inner in value.items() if inner is not None}
    known = {name: inner for name, inner in present.items() if name in names}
    known["extra"] = Extra({name: inner for name, inner in present.items() if name not in names})
    try:
        return msgspec.convert(known, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UnreadableValue(str(rejection(error, message("the_value")))) from None


@lru_cache
def fields_of(kind: type[TenantRecord]) -> frozenset[str]:
    """The names of a record's fields, in camelCase."""
    return frozenset(kind.__struct_encode_fields__) - {"extra"}


def _wrap_password(fields: dict[str, Any], ring: Keyring) -> None:
    plain, sealed = fields.pop("password", None), fields.pop("passwordEncrypted", None)
    key_id = fields.pop("passwordKeyId", None)
    if sealed:
        fields["password"] = Secret.sealed(str(sealed), str(key_id or ""), ring)
    elif plain is not None:
        fields["password"] = Secret(str(plain))


STORAGE_FIELDS = (
    ("quotaBytes", "uploadQuotaGb", 2**30),
    ("maxFileSizeBytes", "maxFileSizeMb", 2**20),
)
"""The fields of an older generation, their successors, and the bytes of the new unit."""


def _convert_storage(fields: dict[str, Any]) -> None:
    """Converts the fields of an older generation, which counted bytes."""
    for old, new, unit in STORAGE_FIELDS:
        count = fields.get(old)
        if isinstance(count, int | float) and not isinstance(count, bool):
            del fields[old]
            if fields.get(new) is None:
                try:
                    size = count / unit
                except OverflowError:
                    raise UnreadableValue(f"{old} is a number that is too large") from None
                fields[new] = int(size) if size.is_integer() else size


def _text(raw: bytes) -> str:
    try:
        text = raw.decode().strip()
        if text == "null":
            return ""
        if text.startswith('"'):
            text = msgspec.json.decode(text, type=str).strip()
    except (UnicodeDecodeError, msgspec.DecodeError):
        raise UnreadableValue("neither text nor a JSON string") from None
    return text


PartKind = Literal["meta", "domain", "database", "ftp", "storage"]
KINDS: tuple[PartKind, ...] = ("meta", "domain", "database", "ftp", "storage")


_MAPS = {"database": "databases", "ftp": "ftp"}
"""The fields of a tenant that have a record for each name."""


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """The configuration of one tenant; never changed in place. Its parts may arrive in any order:
    without `meta` it has an id, but neither code nor name."""

    id: int
    meta: Meta | None = None
    domain: Domain = Domain()
    databases: Mapping[str, Database] = ReadOnly()
    """By service."""
    ftp: Mapping[str, Ftp] = ReadOnly()
    """By user name."""
    storage: Storage | None = None
    active_ftp: Mapping[str, Ftp] = ReadOnly()
    """The users in `ftp` whose status is empty or `active`; computed from `ftp`."""

    def __post_init__(self) -> None:
        active = self.ftp
        if not all(user.active for user in active.values()):
            active = ReadOnly({name: user for name, user in active.items() if user.active})
        msgspec.structs.force_setattr(self, "active_ftp", active)

    @property
    def empty(self) -> bool:
        """Whether no part of the tenant exists."""
        return self == Tenant(self.id)

    @property
    def active(self) -> bool:
        """Whether the tenant has a `meta` part and is active."""
        return self.meta is not None and self.meta.active

    def changed(self, parts: Iterable[tuple[str, Part | None]]) -> Tenant:
        """The tenant with these parts replaced; None removes a part."""
        fields: dict[str, object] = {}
        maps: dict[str, dict[str, Any]] = {}
        domain: dict[str, object] = {}
        for path, part in parts:
            kind, name = kind_of(path), name_of(path)
            if kind == "domain":
                domain[name] = part or (() if name == "aliases" else "")
            elif section := _MAPS.get(kind):
                if section not in maps:
                    maps[section] = dict(getattr(self, section))
                if part is None:
                    maps[section].pop(name, None)
                else:
                    maps[section][sys.intern(name) if kind == "database" else name] = part
            else:
                fields[kind] = part
        fields |= {section: ReadOnly(parts) for section, parts in maps.items()}
        if domain:
            fields["domain"] = msgspec.structs.replace(self.domain, **domain)
        return msgspec.structs.replace(self, **fields)
