"""Where tenants lie in a store: every key, made and understood in this one place.

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

What lies below a tenant's id is called a *part*, by its path: `meta`, `database/evidence-query`. So
is what all tenants share, by its path below the namespace: `common/resolver`. Each `Owner` of parts
has one history.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from typing import Literal, TypeAlias, TypeGuard

import msgspec

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.model import check_text
from mooring.store.contract import Range, between, prefix

NAMESPACE = "jxt"
NAMESPACE_VARIABLE = "MOORING_TENANTS_NAMESPACE"
"""The environment variable that sets another one for commands, hubs and servers."""

KEEP = 100
"""Entries of a tenant's history that are kept…"""
KEEP_FOR = 90 * 86400.0
"""…and for how many seconds."""

MAX_ID = 2**63 - 1

DOMAIN = ("domain/primary", "domain/aliases", "domain/internal")
SINGLE = ("meta", *DOMAIN, "storage")
"""The parts of which a tenant has one."""
MANY = ("database", "ftp")
"""The kinds of parts of which it has as many as it likes, by name."""

COMMON = ("common/resolver", "common/storage-directory")
PLATFORM = "platform/configs/"
SENTINEL = "_health/sentinel"

Area = Literal["common", "platform"]
"""What all tenants share."""
AREAS: Mapping[Area, str] = {"common": "common/", "platform": PLATFORM}
"""Where it lies, below the namespace."""
Owner: TypeAlias = int | Area
"""Whose parts: those of a tenant, by its id, or those of an area that all tenants share."""

IndexKind = Literal["by-code", "by-name", "ftp-user", "host"]
INDEXES: tuple[IndexKind, ...] = ("ftp-user", "host", "by-code", "by-name")
"""In the order in which they are deleted."""

_ID = re.compile(r"[1-9][0-9]{0,18}")
_DIGITS, _PAGE = 12, 6  # of a number in the history and of its page: keys are ordered as text
_NUMBER = re.compile(rb"([0-9]{%d})(?:\.[0-9]{%d})?" % (_DIGITS, _PAGE))


class PartOf(msgspec.Struct, frozen=True):
    """A key of a tenant."""

    tenant: int
    path: str


class IndexEntry(msgspec.Struct, frozen=True):
    """A key that leads to a tenant. `name` is as it stands in the key: a name is escaped there, or
    raw where an older publisher wrote it."""

    kind: IndexKind
    name: str


class CommonPart(msgspec.Struct, frozen=True):
    """A key that concerns all tenants, by its path below the namespace."""

    path: str


def default_namespace() -> str:
    """What the environment sets, or `jxt`."""
    return os.environ.get(NAMESPACE_VARIABLE) or NAMESPACE


class TenantKeys:
    """The keys below one namespace: by default what the environment sets, or `jxt`."""

    def __init__(self, namespace: str | None = None) -> None:
        if namespace is None:
            namespace = default_namespace()
        self.namespace = joined(namespace)
        if not self.namespace:
            raise InvalidRequest("the namespace of the tenants is empty: give it a name")
        check_text("the namespace of the tenants", self.namespace)
        self._tenants = f"{self.namespace}/tenants/"
        self.all = between(f"{self._tenants}1".encode(), f"{self._tenants}:".encode())
        """The parts of all tenants: their ids begin with a digit, the indexes do not."""
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
        """All of one owner. It ends with a slash: tenant 1 is not tenant 10."""
        if is_area(owner):
            return prefix(f"{self.namespace}/{AREAS[owner]}".encode())
        return prefix(f"{self._tenants}{check_id(owner)}/".encode())

    def path_of(self, owner: Owner, key: bytes) -> str | None:
        """The path of an owner's part; None for a key that is none."""
        place = self.understand(key)
        if isinstance(place, PartOf):
            return place.path if place.tenant == owner else None
        if isinstance(place, CommonPart) and is_area(owner):
            return place.path if has_part(owner, place.path) else None
        return None

    def index(self, kind: IndexKind, name: str) -> bytes:
        """`name` as people write it: a code, a name, a host, an FTP user."""
        check_text("the name of a tenant's index", name)
        return f"{self._tenants}_index/{kind}/{_indexed(kind, name)}".encode()

    def as_written(self, kind: IndexKind, name: str) -> bytes:
        """Where another publisher may have written it: names unescaped, codes and hosts in the case
        that they have."""
        check_text("the name of a tenant's index", name)
        if kind != "by-name":
            name = name.replace("/", "%2F")
        return f"{self._tenants}_index/{kind}/{name}".encode()

    def capitals(self, kind: IndexKind) -> Range:
        """Keys of an index that begin with a capital. We write none for codes and hosts."""
        folder = f"{self._tenants}_index/{kind}/"
        return between(f"{folder}A".encode(), f"{folder}[".encode())

    def common_part(self, path: str) -> bytes:
        """`common/resolver`, `common/storage-directory` or `platform/configs/{key}`."""
        path = joined(path)
        if path not in COMMON and not (path.startswith(PLATFORM) and len(path) > len(PLATFORM)):
            raise InvalidRequest(f"{quoted(path)} is neither {', '.join(COMMON)} nor {PLATFORM}KEY")
        try:
            return f"{self.namespace}/{path}".encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{quoted(path)} is not text") from error

    def history(self, owner: Owner, number: int, page: int = 1) -> bytes:
        """An entry. A publish that took several transactions has a page for each of them."""
        more = f".{page:0{_PAGE}d}" if page > 1 else ""
        return f"{self._history(owner)}{number:0{_DIGITS}d}{more}".encode()

    def _history(self, owner: Owner) -> str:
        whose = owner if is_area(owner) else check_id(owner)
        return f"{self.namespace}/_history/{whose}/"

    def history_head(self, owner: Owner) -> bytes:
        """The newest number, followed by ` open` while further pages are to come. It is written
        with every page: a publisher that finds it unchanged knows that nobody else published."""
        return f"{self._history(owner)}last".encode()

    def history_of(self, owner: Owner) -> Range:
        return prefix(self._history(owner).encode())

    def history_number(self, key: bytes) -> int:
        """The number of an entry of a history, whichever page of it; 0 for a key that is none."""
        folder, _, last = key.rpartition(b"/")
        above = folder.rpartition(b"/")[0]
        number = _NUMBER.fullmatch(last)
        known = above == f"{self.namespace}/_history".encode()
        return int(number[1]) if known and number else 0

    def tenant(self, key: bytes) -> int:
        """Whose part or history a key is; 0 for none."""
        for folder in (self._tenants, f"{self.namespace}/_history/"):
            if key.startswith(folder.encode()):
                id = key[len(folder.encode()) :].partition(b"/")[0].decode(errors="replace")
                return int(id) if is_id(id) else 0
        return 0

    def understand(self, key: bytes) -> PartOf | IndexEntry | CommonPart | None:
        """What a key is; None for one that is foreign, of an older format, or of a history."""
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
            kind, _, name = rest.partition("/")
            for each in INDEXES:
                if kind == each and name:
                    return IndexEntry(each, name)
            return None
        return PartOf(int(id), rest) if is_id(id) and is_path(rest) else None


def joined(*parts: str) -> str:
    """Parts of a key with one slash between them, whatever slashes they carry."""
    return "/".join(piece for part in parts for piece in part.split("/") if piece)


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None and int(text) <= MAX_ID


def check_id(tenant: object) -> int:
    if not isinstance(tenant, int) or isinstance(tenant, bool) or not 0 < tenant <= MAX_ID:
        raise InvalidRequest(f"the id {quoted(tenant)} of a tenant must be a positive integer")
    return tenant


def is_path(path: str) -> bool:
    """Whether a tenant has such a part. What is called `meta` below `ftp/` is an FTP user."""
    kind, _, name = path.partition("/")
    return path in SINGLE or (kind in MANY and name != "" and "/" not in name)


def has_part(owner: Owner, path: str) -> bool:
    """Whether this may be the path of an owner's part."""
    if not is_area(owner):
        return is_path(path)
    return path in COMMON if owner == "common" else _below(path, PLATFORM)


def area_of(path: str) -> Area:
    """The area of a path that all tenants share."""
    return "platform" if path.startswith(PLATFORM) else "common"


def is_area(owner: object) -> TypeGuard[Area]:
    return isinstance(owner, str) and owner in AREAS


def check_owner(owner: Owner) -> Owner:
    return owner if is_area(owner) else check_id(owner)


def named(owner: Owner) -> str:
    """An owner in messages."""
    return f"{owner} settings" if isinstance(owner, str) else f"tenant {owner}"


def kind_of(path: str) -> str:
    """`meta`, `domain`, `database`, `ftp` or `storage`."""
    return path.partition("/")[0]


def name_of(path: str) -> str:
    """The service or the user of `database/…` and `ftp/…`."""
    return path.partition("/")[2]


def field_of(path: str) -> str:
    """The name that says whether a whole part is secret, like that of a field: the last segment of
    `platform/configs/KEY`. Empty for every other part."""
    return path.rpartition("/")[2] if path.startswith(PLATFORM) else ""


def path_escape(text: str) -> str:
    """As `url.PathEscape` of Go does."""
    return urllib.parse.quote(text, safe="$&+:=@")


def _indexed(kind: IndexKind, name: str) -> str:
    if kind == "by-name":
        return path_escape(name)
    # No rule allows a slash in the others, but older publishers knew no rules.
    return (name if kind == "ftp-user" else name.lower()).replace("/", "%2F")


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder) and "//" not in path and len(path) > len(folder)
