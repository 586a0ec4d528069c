"""A tenant in one file, YAML or JSON:

    id: 1
    meta: {code: default, name: 默认租户, billingPlan: enterprise}
    domain: {primary: example.com, aliases: [www.example.com], internal: shop.internal}
    database:
      evidence-query: {driver: mysql, host: mysql-query, port: 3306, database: tenant_query}
    ftp:
      default_ftp: {passwordHash: $2a$10$..., homeDirectory: /tenants/1}
    storage: {uploadQuotaGb: 1000}

A section that is left out stays as it is in the store, and an empty one is removed. A section that
is there is all there is of it: a service that it does not name is removed. Only secrets may be left
out of an object without being lost. A field that Mooring does not know goes under `extra`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.masking import clear_secrets, holds_secret, is_secret, is_split_key, masked
from mooring.model import JSON
from mooring.names import nearest
from mooring.tenants.keys import MANY, check_id, kind_of, name_of
from mooring.tenants.publish.merge import merged
from mooring.tenants.publish.plan import Parts, Resent
from mooring.tenants.secrets import Keyring
from mooring.tenants.validation import EXTRA, FIELDS, IDENTITY, check_plain, checked

SECTIONS = ("meta", "domain", "database", "ftp", "storage")
_DOMAINS = ("primary", "aliases", "internal")


class Document(msgspec.Struct, frozen=True):
    """What a file says of a tenant: the parts of each section that it has."""

    tenant: int
    sections: dict[str, dict[str, JSON]]
    """By section, the values of its parts by path."""

    def __repr__(self) -> str:
        return f"<document of tenant {self.tenant}: {masked(dict(self.sections))!r}>"

    @property
    def clear_secrets(self) -> Resent:
        """The secrets that it has in clear text, by path and field."""
        return {
            path: fields
            for parts in self.sections.values()
            for path, value in parts.items()
            if (fields := tuple(_clear(value)))
        }

    def applied(self, there: Parts, ring: Keyring, *, reseal: bool = False) -> Parts:
        """What the tenant is to be, over what is there. `reseal`: see `merged`."""
        wanted = {
            path: value for path, value in there.items() if kind_of(path) not in self.sections
        }
        for told in self.sections.values():
            for path, value in told.items():
                wanted[path] = merged(
                    self.tenant, path, there.get(path), value, ring, reseal=reseal
                )
        return wanted


def _clear(value: JSON) -> Iterator[str]:
    for field in clear_secrets(value):
        yield field.removeprefix(f"{EXTRA}.")  # which is written beside the known fields


def parse(document: object) -> Document:
    """The document in what was loaded. Raises `InvalidRequest` that names the field, and where it
    may be a typo, what was probably meant."""
    if not isinstance(document, dict):
        raise InvalidRequest(
            "a tenant's file is a map with id, meta, domain, database, ftp, storage"
        )
    check_plain("the file", document)
    for name in document:
        if name not in ("id", *SECTIONS):
            raise InvalidRequest(
                f"unknown section {quoted(name)}{nearest(str(name), ['id', *SECTIONS])}"
            )
    if "id" not in document:
        raise InvalidRequest("id is missing: the number of the tenant")
    tenant = check_id(document["id"])
    sections = {
        name: _section(tenant, name, document[name]) for name in SECTIONS if name in document
    }
    for parts in sections.values():
        for path, value in parts.items():
            checked(tenant, path, value)
    return Document(tenant, sections)


def _section(tenant: int, name: str, told: object) -> dict[str, JSON]:
    told = {} if told is None else told
    if not isinstance(told, dict):
        raise InvalidRequest(f"tenant {tenant}: {name} must be a map")
    if name == "meta" and not told:
        raise InvalidRequest(
            f"tenant {tenant}: meta cannot be removed; `mooring tenant delete {tenant}` removes all"
        )
    if name == "domain":
        for field in told:
            if field not in _DOMAINS:
                hint = nearest(str(field), _DOMAINS)
                raise InvalidRequest(
                    f"tenant {tenant}: domain has an unknown field {quoted(field)}{hint}"
                )
        return {
            f"domain/{field}": value
            for field, value in told.items()
            if value is not None and value not in ("", [])
        }
    if name in MANY:
        return {f"{name}/{_key(tenant, name, each)}": value for each, value in told.items()}
    return {name: told} if told else {}


def _key(tenant: int, section: str, name: object) -> str:
    if not isinstance(name, str) or not name or "/" in name:
        raise InvalidRequest(
            f"tenant {tenant}: {section} has the name {quoted(name)}, which must be text without "
            "a slash (put it in quotes if it looks like a number)"
        )
    return name


def written(tenant: int, parts: Parts, *, secrets: bool = False) -> dict[str, JSON]:
    """The document of a tenant, to be edited and published again: without its secrets, which a
    publish keeps, or with its `secrets` as they are stored."""
    document: dict[str, JSON] = {"id": tenant}
    for path, value in sorted(parts.items(), key=lambda part: SECTIONS.index(kind_of(part[0]))):
        kind, name = kind_of(path), name_of(path)
        shown = _fields(kind, value, secrets) if isinstance(value, Mapping) else value
        if shown == {} and kind not in MANY:
            shown = {"tenantId": tenant}  # an empty section would be removed
        if not isinstance(shown, dict | list | str):
            continue  # it cannot be understood
        if name:
            section = document.setdefault(kind, {})
            assert isinstance(section, dict)
            section[name] = shown
        else:
            document[kind] = shown
    return document


def hidden_extra(kind: str, value: Mapping[str, JSON]) -> set[str]:
    """The fields of a part that are not known and hold a secret, or lines of a private key."""
    extra = {name: inner for name, inner in value.items() if name not in (*FIELDS[kind], *IDENTITY)}
    split = is_split_key(extra)
    return {name for name, inner in extra.items() if split or holds_secret({name: inner})}


def _fields(kind: str, value: Mapping[str, JSON], secrets: bool) -> dict[str, JSON]:
    known: dict[str, JSON] = {}
    extra: dict[str, JSON] = {}
    hidden = () if secrets else hidden_extra(kind, value)
    for name, inner in value.items():
        repeats = name in IDENTITY and (kind, name) != ("database", "username")
        if repeats or inner is None or (name == "passwordKeyId" and not secrets):
            continue
        if name in FIELDS[kind]:
            if secrets or not is_secret(name):
                known[name] = inner
        elif name not in hidden:
            extra[name] = inner
    return known | ({EXTRA: extra} if extra else {})
