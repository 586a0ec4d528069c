"""The keys of tenants in a store, and the normal form of host names. This is the only module that
builds and parses keys.

    {namespace}/tenants/{id}/meta
    {namespace}/tenants/{id}/domain/primary | aliases | internal
    {namespace}/tenants/{id}/database/{serviceCode}
    {namespace}/tenants/{id}/ftp/{username}
    {namespace}/tenants/{id}/storage
    {namespace}/tenants/_index/by-code/{code} | by-name/{name} | ftp-user/{username} | host/{host}
    {namespace}/common/resolver | storage-directory
    {namespace}/platform/configs/{key}
    {namespace}/_health/sentinel
    {namespace}/_history/{id | common | platform}/{number} | {number}.{page} | last
    {namespace}/_encryption

A value below a tenant's id is a *part*, named by its path: `meta`, `database/evidence-query`. So is
a setting that all tenants share, named by its path below the namespace: `common/resolver`. Each
`Owner` of parts has one history.
"""

from __future__ import annotations

import os
import re
import unicodedata
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeAlias, TypeGuard

import msgspec

from mooring.errors import InvalidRequest
from mooring.messages import Message, message
from mooring.model import JSON, check_text
from mooring.store.contract import Range, between, prefix

NAMESPACE = "jxt"
NAMESPACE_VARIABLE = "MOORING_TENANTS_NAMESPACE"
"""The environment variable with the default namespace of commands, hubs and servers."""

KEEP = 100
"""Entries that the history of a tenant keeps."""
KEEP_FOR = 90 * 86400.0
"""Seconds for which it keeps them."""

MAX_ID = 2**63 - 1

DOMAIN = ("domain/primary", "domain/aliases", "domain/internal")
SINGLE = ("meta", *DOMAIN, "storage")
"""Parts that a tenant has at most once."""
MANY = ("database", "ftp")
"""Kinds of parts that a tenant has any number of, by name."""

COMMON = ("common/resolver", "common/storage-directory")
PLATFORM = "platform/configs/"
SENTINEL = "_health/sentinel"

Area = Literal["common", "platform"]
"""Settings that all tenants share."""
AREAS: Mapping[Area, str] = {"common": "common/", "platform": PLATFORM}
"""Their paths below the namespace."""
Owner: TypeAlias = int | Area
"""A tenant, by its id, or an area."""

IndexKind = Literal["by-code", "by-name", "ftp-user", "host"]
INDEXES: tuple[IndexKind, ...] = ("ftp-user", "host", "by-code", "by-name")
"""In the order of deletion."""

_ID = re.compile(r"[1-9][0-9]{0,18}")
_DIGITS, _PAGE = 12, 6  # of a history number and a page: keys are ordered as text
_NUMBER = re.compile(rb"([0-9]{%d})(?:\.[0-9]{%d})?" % (_DIGITS, _PAGE))


class PartOf(msgspec.Struct, frozen=True):
    """A key of a tenant."""

    tenant: int
    path: str


class IndexEntry(msgspec.Struct, frozen=True):
    """A key of an index. `name` is as in the key: names are escaped there, unless an older
    publisher wrote them."""

    kind: IndexKind
    name: str


class CommonPart(msgspec.Struct, frozen=True):
    """A key that all tenants share, by its path below the namespace."""

    path: str


def default_namespace() -> str:
    """The namespace in the environment, or `jxt`."""
    return os.environ.get(NAMESPACE_VARIABLE) or NAMESPACE


class TenantKeys:
    """The keys below one namespace: by default that in the environment, or `jxt`."""

    def __init__(self, namespace: str | None = None) -> None:
        if namespace is None:
            namespace = default_namespace()
        self.namespace = joined(namespace)
        if not self.namespace:
            raise InvalidRequest(message("namespace_empty"))
        check_text("namespace", self.namespace)
        self._tenants = f"{self.namespace}/tenants/"
        self.all = between(f"{self._tenants}1".encode(), f"{self._tenants}:".encode())
        """The parts of all tenants. Ids begin with a digit; the indexes do not."""
        self.indexes = prefix(f"{self._tenants}_index/".encode())
        self.common = prefix(f"{self.namespace}/common/".encode())
        self.platform = prefix(f"{self.namespace}/platform/configs/".encode())
        self.health = prefix(f"{self.namespace}/_health/".encode())
        self.sentinel = f"{self.namespace}/{SENTINEL}".encode()
        self.encryption = f"{self.namespace}/_encryption".encode()
        self.histories = prefix(f"{self.namespace}/_history/".encode())

    def part(self, owner: Owner, path: str) -> bytes:
        if is_area(owner):
            return self.common_part(path)
        return f"{self._tenants}{check_id(owner)}/{joined(path)}".encode()

    def parts(self, owner: Owner) -> Range:
        """All parts of an owner. The prefix ends with a slash: tenant 1 is not tenant 10."""
        if is_area(owner):
            return prefix(f"{self.namespace}/{AREAS[owner]}".encode())
        return prefix(f"{self._tenants}{check_id(owner)}/".encode())

    def path_of(self, owner: Owner, key: bytes) -> str | None:
        """The path of an owner's part; None for other keys."""
        place = self.understand(key)
        if isinstance(place, PartOf):
            return place.path if place.tenant == owner else None
        if isinstance(place, CommonPart) and is_area(owner):
            return place.path if has_part(owner, place.path) else None
        return None

    def index(self, kind: IndexKind, name: str) -> bytes:
        """`name` is a code, a name, a host or an FTP user, not escaped."""
        check_text("index", name)
        return f"{self._tenants}_index/{kind}/{_indexed(kind, name)}".encode()

    def as_written(self, kind: IndexKind, name: str) -> bytes:
        """The key that another publisher may have used: with the name unescaped, and codes and
        hosts in their original case."""
        check_text("index", name)
        if kind != "by-name":
            name = name.replace("/", "%2F")
        return f"{self._tenants}_index/{kind}/{name}".encode()

    def capitals(self, kind: IndexKind) -> Range:
        """Index keys that begin with a capital. Mooring writes none for codes and hosts."""
        folder = f"{self._tenants}_index/{kind}/"
        return between(f"{folder}A".encode(), f"{folder}[".encode())

    def common_part(self, path: str) -> bytes:
        """`common/resolver`, `common/storage-directory` or `platform/configs/{key}`."""
        path = joined(path)
        if path not in COMMON and not (path.startswith(PLATFORM) and len(path) > len(PLATFORM)):
            raise InvalidRequest(message("setting_unknown", path=path, known=COMMON))
        check_text("path", path)
        return f"{self.namespace}/{path}".encode()

    def history(self, owner: Owner, number: int, page: int = 1) -> bytes:
        """The key of an entry. A publish that took several commits has a page for each."""
        more = f".{page:0{_PAGE}d}" if page > 1 else ""
        return f"{self._history(owner)}{number:0{_DIGITS}d}{more}".encode()

    def _history(self, owner: Owner) -> str:
        return f"{self.namespace}/_history/{check_owner(owner)}/"

    def history_head(self, owner: Owner) -> bytes:
        """The key of the newest number, followed by ` open` while more pages are to come. Every
        page updates it: if it is unchanged, there was no other publish."""
        return f"{self._history(owner)}last".encode()

    def history_of(self, owner: Owner) -> Range:
        return prefix(self._history(owner).encode())

    def history_number(self, key: bytes) -> int:
        """The number of a history entry, for any of its pages; 0 for other keys."""
        folder, _, last = key.rpartition(b"/")
        above = folder.rpartition(b"/")[0]
        number = _NUMBER.fullmatch(last)
        known = above == f"{self.namespace}/_history".encode()
        return int(number[1]) if known and number else 0

    def tenant(self, key: bytes) -> int:
        """The tenant of a part or of a history entry; 0 for other keys."""
        for folder in (self._tenants, f"{self.namespace}/_history/"):
            if key.startswith(folder.encode()):
                id = key[len(folder.encode()) :].partition(b"/")[0].decode(errors="replace")
                return int(id) if is_id(id) else 0
        return 0

    def index_kind(self, key: bytes) -> IndexKind | None:
        """The kind of an index entry; None for other keys."""
        place = self.understand(key)
        return place.kind if isinstance(place, IndexEntry) else None

    def understand(self, key: bytes) -> PartOf | IndexEntry | CommonPart | None:
        """Parses a key; None for foreign keys, those of an older format and history entries."""
        try:
            path = key.decode()
        except UnicodeDecodeError:
            return None
        if not path.startswith(self._tenants):
            below = path.removeprefix(f"{self.namespace}/")
            known = below in (*COMMON, SENTINEL) or _below(below, PLATFORM)
            return CommonPart(below) if known and below != path else None
        id, _, rest = path.removeprefix(self._tenants).partition("/")
        if id == "_index":
            folder, _, name = rest.partition("/")
            kind = next((kind for kind in INDEXES if kind == folder), None)
            return IndexEntry(kind, name) if kind and name else None
        return PartOf(int(id), rest) if is_id(id) and is_path(rest) else None


def joined(*parts: str) -> str:
    """Parts of a key with single slashes between them, regardless of slashes in the parts."""
    return "/".join(piece for part in parts for piece in part.split("/") if piece)


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None and int(text) <= MAX_ID


def check_id(tenant: object) -> int:
    if not isinstance(tenant, int) or isinstance(tenant, bool) or not 0 < tenant <= MAX_ID:
        raise InvalidRequest(message("tenant_id_invalid", id=tenant))
    return tenant


def is_path(path: str) -> bool:
    """Whether this is the path of a tenant's part. `ftp/meta` is an FTP user."""
    kind, _, name = path.partition("/")
    return path in SINGLE or (kind in MANY and name != "" and "/" not in name)


def has_part(owner: Owner, path: str) -> bool:
    """Whether this is the path of an owner's part."""
    if not is_area(owner):
        return is_path(path)
    return path in COMMON if owner == "common" else _below(path, PLATFORM)


def area_of(path: str) -> Area:
    """The area of a shared setting."""
    return "platform" if path.startswith(PLATFORM) else "common"


def is_area(owner: object) -> TypeGuard[Area]:
    return isinstance(owner, str) and owner in AREAS


def check_owner(owner: Owner) -> Owner:
    return owner if is_area(owner) else check_id(owner)


def named(owner: Owner) -> Message:
    """The name of an owner in messages."""
    return message(f"{owner}_settings") if is_area(owner) else message("tenant", id=str(owner))


@contextmanager
def naming(owner: Owner) -> Iterator[None]:
    """Makes `InvalidRequest` errors name the owner."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(message("of_owner", owner=named(owner), problem=error)) from error


def kind_of(path: str) -> str:
    """`meta`, `domain`, `database`, `ftp` or `storage`."""
    return path.partition("/")[0]


def name_of(path: str) -> str:
    """The service or the user of `database/…` and `ftp/…`."""
    return path.partition("/")[2]


def identity(tenant: int, path: str) -> dict[str, JSON]:
    """The fields of a part that its key determines."""
    kind, _, name = path.partition("/")
    if kind == "meta":
        return {"id": tenant}
    if kind in MANY:
        return {"tenantId": tenant, "serviceCode" if kind == "database" else "username": name}
    return {"tenantId": tenant}


def field_of(path: str) -> str:
    """The last segment of `platform/configs/KEY`, which like the name of a field says whether the
    value is secret. Empty for every other part."""
    return path.rpartition("/")[2] if path.startswith(PLATFORM) else ""


def path_escape(text: str) -> str:
    """Escapes like Go's `url.PathEscape`."""
    return urllib.parse.quote(text, safe="$&+:=@")


def _indexed(kind: IndexKind, name: str) -> str:
    if kind == "by-name":
        return path_escape(name)
    # Validation allows no slash in the others, but older publishers did not validate.
    return (name if kind == "ftp-user" else name.lower()).replace("/", "%2F")


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder) and "//" not in path and len(path) > len(folder)


_MAX_HOST_LENGTH = 253  # characters
_HOST_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_LABEL_CATEGORIES = ("L", "M", "N")  # letters, marks and numbers outside ASCII
_AUTHORITY = re.compile(
    r"(?P<name>(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63})?\.?(?::[0-9]{0,5})?"
    r"|\[(?P<ipv6>[0-9a-f:.]+)\](?::[0-9]{0,5})?"
)
_MAX_AUTHORITY_LENGTH = _MAX_HOST_LENGTH + len(".:65535")


def host_of(value: str) -> str | None:
    """The host in the text of a request, a user or an older publisher: in lower case and punycode,
    without port, brackets and trailing dot. Empty if there is none, None if it is invalid."""
    value = value.strip()
    if len(value) > _MAX_AUTHORITY_LENGTH:
        return None
    if not value.isascii():
        name, colon, port = value.partition(":")
        if not (encoded := punycode(name.removesuffix("."))):
            return None
        value = f"{encoded}{colon}{port}"
    match = _AUTHORITY.fullmatch(value.lower())
    return (match["name"] or match["ipv6"] or "") if match else None


def normal_host(host: str) -> str:
    """The form in which a host of a tenant is looked up. An invalid host, which only other programs
    write, is only converted to lower case."""
    if host.isascii() and ":" not in host and not host.endswith("."):
        return host.lower()
    return host_of(host) or host.lower()


def is_host(value: str) -> bool:
    """Whether a publisher may write this host: ASCII, without port and trailing dot."""
    return len(value) <= _MAX_HOST_LENGTH and all(
        _HOST_LABEL.fullmatch(label) for label in value.split(".")
    )


def punycode(host: str) -> str:
    """The form in which requests have a host name outside ASCII; empty if it is invalid."""
    labels = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", host).lower()).split(".")
    host = ".".join(_encoded(label) for label in labels)
    return host if is_host(host) else ""


def _encoded(label: str) -> str:
    if label.isascii():
        return label
    if not all(
        letter.isascii() or unicodedata.category(letter)[0] in _LABEL_CATEGORIES for letter in label
    ):
        return ""
    return f"xn--{label.encode('punycode').decode()}"
