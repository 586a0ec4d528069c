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

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from mooring.errors import InvalidRequest
from mooring.model import JSON
from mooring.names import nearest
from mooring.tenants.keys import MANY, check_id, kind_of, name_of
from mooring.tenants.merging import merged
from mooring.tenants.publishing import Parts
from mooring.tenants.rules import EXTRA, FIELDS, IDENTITY, check_plain, checked
from mooring.tenants.secrets import Keyring, holds_secret, masked

SECTIONS = ("meta", "domain", "database", "ftp", "storage")
_DOMAINS = ("primary", "aliases", "internal")
_MERGED = 10_000  # fields of a map into which others are merged: they multiply


class Document(msgspec.Struct, frozen=True):
    """What a file says of a tenant: the parts of each section that it has."""

    tenant: int
    sections: dict[str, dict[str, JSON]]
    """By section, the values of its parts by path."""

    def __repr__(self) -> str:
        return f"<document of tenant {self.tenant}: {masked(dict(self.sections))!r}>"

    def applied(self, there: Parts, ring: Keyring) -> Parts:
        """What the tenant is to be, over what is there."""
        wanted = {
            path: value for path, value in there.items() if kind_of(path) not in self.sections
        }
        for told in self.sections.values():
            for path, value in told.items():
                wanted[path] = merged(self.tenant, path, there.get(path), value, ring)
        return wanted


def load(file: Path) -> Document:
    """The document in a file: JSON where it is called so, else YAML, of which JSON is a part."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is no text in UTF-8") from error
    return read(text, of=str(file), as_json=file.suffix == ".json")


def read(text: str, *, of: str, as_json: bool = False) -> Document:
    """The document in a text; `of` names it in errors, none of which shows anything of it that may
    be a secret."""
    try:
        return parse(_loaded(text, as_json=as_json))
    except InvalidRequest as error:
        raise InvalidRequest(f"{of}: {error}") from error


def _loaded(text: str, *, as_json: bool) -> object:
    try:
        return json.loads(text, object_pairs_hook=_once) if as_json else yaml.load(text, _Loader)
    except InvalidRequest:
        raise
    except yaml.YAMLError as error:
        raise InvalidRequest(f"not YAML: {_why(error)}") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"not JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("it has too many maps and lists within one another") from None
    except (ValueError, LookupError, AttributeError, TypeError):
        raise InvalidRequest("a value is not what its tag says, or too long") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"{twice!r:.60} stands there twice")
    return found


def _why(error: yaml.YAMLError) -> str:
    """In one line. What the file says is left out, for it may be a password."""
    if isinstance(error, yaml.MarkedYAMLError):
        told = re.sub(r"'([^']*)'", _unless_said, error.problem or "malformed")
        return f"{told}{_place(error.problem_mark)}"
    return str(error).partition("\n")[0]


def _place(mark: yaml.Mark | None) -> str:
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"


def _unless_said(quoted: re.Match[str]) -> str:
    """A sign or a <token> of YAML as it is; a word may be the file's."""
    return quoted[0] if len(quoted[1]) <= 1 or quoted[1].startswith("<") else "…"


class _Loader(yaml.SafeLoader):
    """YAML in which a key that stands twice is a mistake, and a date is text."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise InvalidRequest(
                    f"{key.value!r:.60} stands there twice{_place(key.start_mark)}"
                )
            seen.add(name)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MERGED:
            raise InvalidRequest("maps are merged into one that is too large")


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


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
            raise InvalidRequest(f"unknown section {name!r}{nearest(str(name), ['id', *SECTIONS])}")
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
                    f"tenant {tenant}: domain has an unknown field {field!r}{hint}"
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
            f"tenant {tenant}: {section} has the name {name!r}, which must be text without a slash"
            " (put it in quotes if it looks like a number)"
        )
    return name


def written(tenant: int, parts: Parts) -> dict[str, JSON]:
    """The document of a tenant, to be edited and published again: without its secrets, which a
    publish keeps."""
    document: dict[str, JSON] = {"id": tenant}
    for path, value in sorted(parts.items(), key=lambda part: SECTIONS.index(kind_of(part[0]))):
        kind, name = kind_of(path), name_of(path)
        shown = _fields(kind, value) if isinstance(value, Mapping) else value
        if not isinstance(shown, dict | list | str):
            continue  # it cannot be understood
        if name:
            section = document.setdefault(kind, {})
            assert isinstance(section, dict)
            section[name] = shown
        else:
            document[kind] = shown
    return document


def _fields(kind: str, value: Mapping[str, JSON]) -> dict[str, JSON]:
    known: dict[str, JSON] = {}
    extra: dict[str, JSON] = {}
    for name, inner in value.items():
        repeats = name in IDENTITY and (kind, name) != ("database", "username")
        if repeats or name == "passwordKeyId" or inner is None or holds_secret({name: inner}):
            continue
        (known if name in FIELDS[kind] else extra)[name] = inner
    return known | ({EXTRA: extra} if extra else {})
