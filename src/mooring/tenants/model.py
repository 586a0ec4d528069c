"""What the parts of a tenant hold: typed records, read leniently, for older publishers wrote them.

A record is a JSON object with names in camelCase. Fields that are not known here are kept, in
`extra`; one without a value is as one that is not there. In the common settings an empty text is
none: Go writes it for a field that nobody set. The id, the service and the user in the key win over
those in the value. How records are checked before they are written is `rules.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, NoReturn, Self, TypeVar

import msgspec

from mooring.errors import InvalidRequest
from mooring.formatting import describe, in_words
from mooring.masking import masked
from mooring.model import JSON, walk
from mooring.tenants.hosts import normal
from mooring.tenants.keys import kind_of, name_of
from mooring.tenants.secrets import Keyring, Secret

Status = Literal["active", "inactive", "suspended"]

NOTHING: Mapping[str, JSON] = MappingProxyType({})

DEEPEST = 100
"""Maps and lists within one another that a value may have: what goes through them all calls itself
at each, and somewhere there is an end to that."""

V = TypeVar("V")


class ReadOnly(dict[str, V]):
    """A dictionary that its readers cannot change. It is one, and not a view of one: at a hundred
    thousand tenants each step to another place in memory counts."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("what is known of a tenant cannot be changed in place")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, V]]]:
        return type(self), (dict(self),)  # a copy is filled when it is made


class Extra(ReadOnly[JSON]):
    """Fields that are not known here. What looks like a secret is hidden when it is shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(masked(dict(self)))


NO_EXTRA = Extra()  # one for all: a million of them would take memory, and time at each collection


# `gc=False`: none can be part of a cycle, and there are a million of them.


class TenantRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """What all records have."""

    extra: Extra = msgspec.field(default_factory=lambda: NO_EXTRA)


class Meta(TenantRecord, frozen=True, kw_only=True, gc=False):
    id: int
    code: str = ""
    name: str = ""
    status: str = "active"
    """`active`, `inactive` or `suspended`; whatever else was written means inactive."""
    billing_plan: str = ""

    @property
    def active(self) -> bool:
        return self.status == "active"


class Database(TenantRecord, frozen=True, kw_only=True, gc=False):
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
    tenant_id: int
    username: str
    password_hash: Secret | None = None
    description: str = ""
    status: str = ""
    home_directory: str = ""
    write_permission: bool = False

    @property
    def active(self) -> bool:
        return self.status in ("", "active")


class Storage(TenantRecord, frozen=True, kw_only=True, gc=False):
    tenant_id: int
    upload_quota_gb: int | float = 0
    max_file_size_mb: int | float = 0
    max_concurrent_uploads: int = 0


class Domain(msgspec.Struct, frozen=True, gc=False):
    """Put together from its three keys."""

    primary: str = ""
    aliases: tuple[str, ...] = ()
    internal: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """All of them as they are looked up, each once: in lower case and punycode, without a
        port."""
        found = (self.primary, *self.aliases, self.internal)
        return tuple(dict.fromkeys(normal(host) for host in found if host))


class Resolver(TenantRecord, frozen=True, kw_only=True, gc=False):
    """How requests name their tenant."""

    id: int = 0
    http_type: Literal["host", "header", "query", "path"] = "header"
    http_header_name: str = "X-Tenant-ID"
    http_query_param: str = "tenant"
    http_path_index: int = 0
    http_host_mode: Literal["numeric", "domain", "code"] = "domain"
    ftp_type: str = "username"


class StorageDirectory(TenantRecord, frozen=True, kw_only=True, gc=False):
    directory: str = "tenants"


_SETTINGS = (Resolver, StorageDirectory)

Part = Meta | Database | Ftp | Storage | str | tuple[str, ...]
R = TypeVar("R", bound=TenantRecord)


class UnreadableValue(ValueError):
    """A value that cannot be understood; the message says why, and shows nothing of it."""


def decode(path: str, raw: bytes) -> JSON:
    """What a part holds, as JSON. A domain may be written as JSON or as plain text; null, as Go
    writes it, is none."""
    if path in ("domain/primary", "domain/internal"):
        return _text(raw)
    try:
        value: JSON = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnreadableValue("not JSON") from None
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _is_deep(value):
        raise UnreadableValue(f"more than {DEEPEST} maps and lists within one another")
    if path == "domain/aliases":
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise UnreadableValue("not a list of host names")
    elif not isinstance(value, dict) and not path.startswith("platform/"):
        raise UnreadableValue("not a JSON object")
    return value


def _is_deep(value: JSON) -> bool:
    return any(
        len(path) >= DEEPEST and isinstance(inner, list | dict) for path, inner in walk(value)
    )


def encode(path: str, value: JSON) -> bytes:
    """The same backwards: domains are written as plain text."""
    if path in ("domain/primary", "domain/internal"):
        if not isinstance(value, str):
            raise InvalidRequest(f"{path} must be text")
        return value.encode()
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} cannot be written as JSON: {describe(error)}") from error


def parse_part(tenant: int, path: str, value: JSON, ring: Keyring) -> Part:
    """What a part means. Raises `UnreadableValue`."""
    kind = kind_of(path)
    if kind == "domain":
        return tuple(str(each) for each in value) if isinstance(value, list) else str(value)
    assert isinstance(value, dict)
    if kind == "meta":
        return to_record(Meta, value | {"id": tenant})
    if kind == "database":
        fixed: dict[str, Any] = {"tenantId": tenant, "serviceCode": name_of(path)}
        return to_record(Database, _unsealing(value, ring) | fixed)
    if kind == "ftp":
        fixed = {"tenantId": tenant, "username": name_of(path)}
        if isinstance(hashed := value.get("passwordHash"), str):
            fixed["passwordHash"] = Secret(hashed)
        return to_record(Ftp, value | fixed)
    return to_record(Storage, _newer_storage(value) | {"tenantId": tenant})


def to_record(kind: type[R], value: Mapping[str, Any]) -> R:
    """A record of this kind, with what it does not know in `extra`. Raises `UnreadableValue`."""
    names = fields_of(kind)
    if kind in _SETTINGS:
        value = {name: inner for name, inner in value.items() if inner != ""}
    if value.keys() <= names:
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            pass  # for a field without a value, perhaps
    there = {name: inner for name, inner in value.items() if inner is not None}
    known = {name: inner for name, inner in there.items() if name in names}
    known["extra"] = Extra({name: inner for name, inner in there.items() if name not in names})
    try:
        return msgspec.convert(known, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UnreadableValue(in_words(error, "the value")) from None


@lru_cache
def fields_of(kind: type[TenantRecord]) -> frozenset[str]:
    """The names of a record's fields, as they are written."""
    return frozenset(kind.__struct_encode_fields__) - {"extra"}


def _unsealing(value: dict[str, JSON], ring: Keyring) -> dict[str, Any]:
    rest: dict[str, Any] = dict(value)
    plain, sealed = rest.pop("password", None), rest.pop("passwordEncrypted", None)
    key_id = rest.pop("passwordKeyId", None)
    if sealed:
        rest["password"] = Secret.sealed(str(sealed), str(key_id or ""), ring)
    elif plain is not None:
        rest["password"] = Secret(str(plain))
    return rest


def _newer_storage(value: dict[str, JSON]) -> dict[str, JSON]:
    """The older generation counted in bytes."""
    if "quotaBytes" not in value and "maxFileSizeBytes" not in value:
        return value
    rest = dict(value)
    for old, new, unit in (
        ("quotaBytes", "uploadQuotaGb", 2**30),
        ("maxFileSizeBytes", "maxFileSizeMb", 2**20),
    ):
        count = rest.get(old)
        if isinstance(count, int | float) and not isinstance(count, bool):
            del rest[old]
            if rest.get(new) is None:
                try:
                    size = count / unit
                except OverflowError:
                    raise UnreadableValue(f"{old} is a number that is too large") from None
                rest[new] = int(size) if size.is_integer() else size
    return rest


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


Kind = Literal["meta", "domain", "database", "ftp", "storage"]
KINDS: tuple[Kind, ...] = ("meta", "domain", "database", "ftp", "storage")


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """What is configured for one tenant. Parts may come in any order: without its meta it has an
    id and nothing to call it by."""

    id: int
    meta: Meta | None = None
    domain: Domain = Domain()
    databases: Mapping[str, Database] = ReadOnly()
    """By service."""
    ftp: Mapping[str, Ftp] = ReadOnly()
    """By user name."""
    storage: Storage | None = None
    active_ftp: Mapping[str, Ftp] = ReadOnly()
    """Those of `ftp` whose status is empty or `active`: found out by itself."""

    def __post_init__(self) -> None:
        ftp = self.ftp
        if not all(each.active for each in ftp.values()):
            ftp = ReadOnly({user: each for user, each in ftp.items() if each.active})
        msgspec.structs.force_setattr(self, "active_ftp", ftp)

    @property
    def empty(self) -> bool:
        return self == Tenant(self.id)

    @property
    def active(self) -> bool:
        """Whether its meta says so."""
        return self.meta is not None and self.meta.active

    def changed(self, parts: Iterable[tuple[str, Part | None]]) -> Tenant:
        """The same with other parts; None: it has that part no longer."""
        fields: dict[str, object] = {}
        databases: dict[str, Database] | None = None
        ftp: dict[str, Ftp] | None = None
        domain: dict[str, object] = {}
        for path, part in parts:
            kind, name = kind_of(path), name_of(path)
            if kind == "database":
                databases = dict(self.databases) if databases is None else databases
                _add_part(databases, sys.intern(name), part)  # all tenants have the same few
            elif kind == "ftp":
                ftp = dict(self.ftp) if ftp is None else ftp
                _add_part(ftp, name, part)
            elif kind == "domain":
                domain[name] = part or (() if name == "aliases" else "")
            else:
                fields[kind] = part
        if databases is not None:
            fields["databases"] = ReadOnly(databases)
        if ftp is not None:
            fields["ftp"] = ReadOnly(ftp)
        if domain:
            fields["domain"] = msgspec.structs.replace(self.domain, **domain)
        return msgspec.structs.replace(self, **fields)


def _add_part(held: dict[str, Any], name: str, part: Part | None) -> None:
    if part is None:
        held.pop(name, None)
    else:
        held[name] = part
