"""A tenant as a document, in YAML or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from mooring.errors import InvalidRequest
from mooring.formatting import reason, yaml_in_words
from mooring.masking import cleartext_secrets, holds_secret, is_secret, is_split_key, masked
from mooring.messages import message, verbatim
from mooring.model import JSON
from mooring.tenants.keys import MANY, check_id, kind_of, name_of, naming
from mooring.tenants.parts import Parts, Resent
from mooring.tenants.publish.merge import merged
from mooring.tenants.secrets import Keyring
from mooring.tenants.validation import (
    EXTRA,
    FIELDS,
    IDENTITY,
    check_names,
    check_plain,
    checked,
    fields_of,
    repeats_key,
)

_MAX_MERGED = 10_000  # fields of a YAML map with merge keys, which can multiply

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
SUFFIXES = (".yaml", ".yml", *JSON_SUFFIXES)
"""Suffixes of files with tenants."""

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(object_pairs_hook=lambda pairs: _unique(pairs))


def load(file: Path) -> Document:
    """The document of the one tenant in a file. Raises `InvalidRequest`."""
    documents = load_all(file)
    if len(documents) > 1:
        raise _in_text(str(file), message("several_documents", count=len(documents)))
    return documents[0]


def load_all(file: Path) -> list[Document]:
    """The documents in a file, at least one: JSON if its suffix says so, otherwise YAML or JSON
    lines."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        problem = message("document_unreadable", reason=verbatim(reason(error)))
        raise _in_text(str(file), problem) from error
    except UnicodeDecodeError as error:
        raise _in_text(str(file), error) from error
    return read_all(text, of=str(file), as_json=file.suffix in JSON_SUFFIXES)


def read_all(text: str, *, of: str, as_json: bool = False) -> list[Document]:
    """The documents in a text, at least one; `of` names the text in errors."""
    try:
        values = _loaded(text, as_json=as_json or _begins_with_json(text))
    except InvalidRequest as error:
        raise _in_text(of, error) from error
    if len(values) > 1:
        values = [value for value in values if value is not None]  # empty between two `---`
    documents = []
    for number, value in enumerate(values or [None], 1):
        try:
            documents.append(parse(value))
        except InvalidRequest as error:
            raise _in_text(of, error, number if len(values) > 1 else "") from error
    return documents


def _in_text(of: str, problem: object, number: int | str = "") -> InvalidRequest:
    return InvalidRequest(message("in_text", text=verbatim(of), number=number, problem=problem))


def read_value(text: str, *, of: str) -> JSON:
    """The one value in a text, YAML or JSON; `of` names the text in errors."""
    try:
        values = _loaded(text, as_json=False)
        if len(values) > 1:
            raise InvalidRequest(message("several_documents", count=len(values)))
        value: Any = values[0] if values else None
        check_plain(value)
    except InvalidRequest as error:
        raise _in_text(of, error) from error
    return cast(JSON, value)


def _begins_with_json(text: str) -> bool:
    """Whether the first value is a JSON object."""
    text = text.lstrip()
    if not text.startswith("{"):
        return False
    try:
        _DECODER.raw_decode(text)
    except (json.JSONDecodeError, RecursionError):
        return False
    except InvalidRequest:
        pass  # a duplicate name: reading it reports the error
    return True


def _json_values(text: str) -> Iterator[object]:
    """The values in a text, at least one, separated only by spaces and line ends."""
    at = _after_space(text, 0)
    while True:
        value, at = _DECODER.raw_decode(text, at)
        yield value
        at = _after_space(text, at)
        if at == len(text):
            return


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _loaded(text: str, *, as_json: bool) -> list[object]:
    try:
        return list(_json_values(text)) if as_json else list(yaml.load_all(text, _Loader))
    except InvalidRequest:
        raise
    except yaml.YAMLError as error:
        problem = verbatim(yaml_in_words(error))
        raise InvalidRequest(message("not_yaml", problem=problem)) from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(message("not_json", problem=error)) from None
    except RecursionError:
        raise InvalidRequest(message("text_too_nested")) from None
    except (ValueError, LookupError, AttributeError, TypeError):
        raise InvalidRequest(message("value_not_of_tag")) from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(message("duplicate_name", name=duplicate, line="", column=""))
    return fields


class _Loader(yaml.SafeLoader):
    """YAML in which duplicate keys are errors, and dates are text."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                line, column = key.start_mark.line + 1, key.start_mark.column + 1
                raise InvalidRequest(
                    message("duplicate_name", name=key.value, line=line, column=column)
                )
            seen.add(name)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        merges = any(key.tag == _MERGE for key, _ in node.value)
        super().flatten_mapping(node)
        if merges and len(node.value) > _MAX_MERGED:
            raise InvalidRequest(message("merged_too_large"))


_MERGE, _TIMESTAMP, _INT, _FLOAT = (
    f"tag:yaml.org,2002:{name}" for name in ("merge", "timestamp", "int", "float")
)

# Decimal numbers only: 010 is not eight, 1:30 is not ninety, and 1:30.5 is not a number.
_NUMBERS = {
    _INT: re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    _FLOAT: re.compile(
        r"([-+]?([0-9][0-9_]*)\.[0-9_]*([eE][-+][0-9]+)?"
        r"|\.[0-9][0-9_]*([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, rule)) for tag, rule in rules if tag != _TIMESTAMP]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


SECTIONS = ("meta", "domain", "database", "ftp", "storage")
_DOMAINS = ("primary", "aliases", "internal")


class Document(msgspec.Struct, frozen=True):
    """A tenant in a file: the parts of each section that the file has."""

    tenant: int
    sections: dict[str, dict[str, JSON]]
    """By section and path."""

    def __repr__(self) -> str:
        return f"<document of tenant {self.tenant}: {masked(dict(self.sections))!r}>"

    @property
    def cleartext_secrets(self) -> Resent:
        """The secrets in clear text, by path and field. Those in `extra` are named as they are
        stored, beside the known fields."""
        parts = [part for section in self.sections.values() for part in section.items()]
        secrets = {path: list(cleartext_secrets(value)) for path, value in parts}
        return {
            path: tuple(name.removeprefix(f"{EXTRA}.") for name in names)
            for path, names in secrets.items()
            if names
        }

    def applied(self, stored: Parts, ring: Keyring, *, reseal: bool = False) -> Parts:
        """The target of publishing the document over the stored parts. `reseal`: see `merged`."""
        target = {
            path: value for path, value in stored.items() if kind_of(path) not in self.sections
        }
        for parts in self.sections.values():
            for path, value in parts.items():
                old = stored.get(path)
                target[path] = merged(self.tenant, path, old, value, ring, reseal=reseal)
        return target


def parse(document: object) -> Document:
    """The document in a loaded value. Raises `InvalidRequest`, which names the field and suggests a
    correction for a likely typo."""
    if not isinstance(document, dict):
        raise InvalidRequest(message("document_not_map", names=["id", *SECTIONS]))
    check_plain(document)
    check_names("", document, ["id", *SECTIONS])
    if "id" not in document:
        raise InvalidRequest(message("document_without_id"))
    tenant = check_id(document["id"])
    with naming(tenant):
        sections = {name: _section(name, document[name]) for name in SECTIONS if name in document}
        for parts in sections.values():
            for path, value in parts.items():
                checked(tenant, path, value)
    return Document(tenant, sections)


def _section(name: str, value: JSON) -> dict[str, JSON]:
    section = {} if value is None else fields_of(name, value)
    if name == "meta" and not section:
        raise InvalidRequest(message("meta_required"))
    if name == "domain":
        check_names(name, section, _DOMAINS)
        section = {field: value for field, value in section.items() if value not in (None, "", [])}
    if name in ("domain", *MANY):
        return {f"{name}/{field}": value for field, value in section.items()}
    return {name: section} if section else {}


def to_document(tenant: int, parts: Parts, *, secrets: bool = False) -> dict[str, JSON]:
    """The document of a tenant, for editing and publishing again: without its secrets, which a
    publish keeps, or with its `secrets` as stored."""
    document: dict[str, JSON] = {"id": tenant}
    for path, value in sorted(parts.items(), key=lambda part: SECTIONS.index(kind_of(part[0]))):
        kind, name = kind_of(path), name_of(path)
        shown = _fields(kind, value, secrets) if isinstance(value, Mapping) else value
        if shown == {} and kind not in MANY:
            shown = {"tenantId": tenant}  # an empty section would be removed
        if not isinstance(shown, dict | list | str):
            continue  # an unreadable part
        if name:
            section = document.setdefault(kind, {})
            assert isinstance(section, dict)
            section[name] = shown
        else:
            document[kind] = shown
    return document


def hidden_extra(kind: str, value: Mapping[str, JSON]) -> set[str]:
    """The unknown fields of a part that hold a secret, or lines of a private key."""
    extra = {name: inner for name, inner in value.items() if name not in (*FIELDS[kind], *IDENTITY)}
    split = is_split_key(extra)
    return {name for name, inner in extra.items() if split or holds_secret({name: inner})}


def _fields(kind: str, value: Mapping[str, JSON], secrets: bool) -> dict[str, JSON]:
    known: dict[str, JSON] = {}
    extra: dict[str, JSON] = {}
    hidden = () if secrets else hidden_extra(kind, value)
    for name, inner in value.items():
        if inner is None or repeats_key(kind, name) or (name == "passwordKeyId" and not secrets):
            continue
        if name in FIELDS[kind]:
            if secrets or not is_secret(name):
                known[name] = inner
        elif name not in hidden:
            extra[name] = inner
    return known | ({EXTRA: extra} if extra else {})
