"""The documents of tenants in a file or a text, YAML or JSON. A file holds one tenant, or many: as
documents of YAML (with `---` between them), or as JSON lines. No error shows a part of a file that
may be a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import yaml

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.model import JSON
from mooring.tenants.document import Document, parse
from mooring.tenants.validation import check_plain
from mooring.validation_errors import yaml_in_words, yaml_place

_MERGED = 10_000  # fields of a map into which others are merged: they multiply


JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
SUFFIXES = (".yaml", ".yml", *JSON_SUFFIXES)
"""The names of files that hold tenants end like this."""

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(object_pairs_hook=lambda pairs: _once(pairs))


def load(file: Path) -> Document:
    """The document of the one tenant in a file. Raises `InvalidRequest`."""
    return _only(load_all(file), of=str(file))


def load_all(file: Path) -> list[Document]:
    """The documents in a file, at least one: JSON if its name says so, otherwise YAML or JSON
    lines."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is no text in UTF-8") from error
    return read_all(text, of=str(file), as_json=file.suffix in JSON_SUFFIXES)


def read(text: str, *, of: str, as_json: bool = False) -> Document:
    """The one document in a text; `of` names the text in errors."""
    return _only(read_all(text, of=of, as_json=as_json), of=of)


def read_all(text: str, *, of: str, as_json: bool = False) -> list[Document]:
    """The documents in a text, at least one; `of` names the text in errors."""
    try:
        values = _loaded(text, as_json=as_json or _begins_with_json(text))
    except InvalidRequest as error:
        raise InvalidRequest(f"{of}: {error}") from error
    if len(values) > 1:
        values = [value for value in values if value is not None]  # nothing between two `---`
    found = []
    for place, value in enumerate(values or [None], 1):
        try:
            found.append(parse(value))
        except InvalidRequest as error:
            which = f", document {place}" if len(values) > 1 else ""
            raise InvalidRequest(f"{of}{which}: {error}") from error
    return found


def read_value(text: str, *, of: str) -> JSON:
    """The one value in a text, YAML or JSON; `of` names the text in errors."""
    try:
        values = _loaded(text, as_json=False)
        if len(values) > 1:
            raise InvalidRequest("it holds several documents: one is expected")
        value: Any = values[0] if values else None
        check_plain("the value", value)
    except InvalidRequest as error:
        raise InvalidRequest(f"{of}: {error}") from error
    return cast(JSON, value)


def _only(documents: list[Document], *, of: str) -> Document:
    if len(documents) > 1:
        raise InvalidRequest(f"{of} holds {len(documents)} tenants: one is expected")
    return documents[0]


def _begins_with_json(text: str) -> bool:
    """Whether the first value is an object of JSON and not only of YAML."""
    text = text.lstrip()
    if not text.startswith("{"):
        return False
    try:
        _DECODER.raw_decode(text)
    except (json.JSONDecodeError, RecursionError):
        return False
    except InvalidRequest:
        pass  # it has a name twice: reading it says so
    return True


def _json_values(text: str) -> Iterator[object]:
    """The values in a text, at least one, with nothing but spaces and line ends between them."""
    at = _after_space(text, 0)
    while True:
        value, at = _DECODER.raw_decode(text, at)
        yield value
        at = _after_space(text, at)
        if at == len(text):
            return


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _loaded(text: str, *, as_json: bool) -> list[object]:
    try:
        return list(_json_values(text)) if as_json else list(yaml.load_all(text, _Loader))
    except InvalidRequest:
        raise
    except yaml.YAMLError as error:
        raise InvalidRequest(f"not YAML: {yaml_in_words(error)}") from None
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
        raise InvalidRequest(f"{quoted(twice, 60)} stands there twice")
    return found


class _Loader(yaml.SafeLoader):
    """YAML in which a key that stands twice is a mistake, and what looks like a date is text."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise InvalidRequest(
                    f"{quoted(key.value, 60)} stands there twice{yaml_place(key.start_mark)}"
                )
            seen.add(name)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        merges = any(key.tag == _MERGE for key, _ in node.value)
        super().flatten_mapping(node)
        if merges and len(node.value) > _MERGED:
            raise InvalidRequest("maps are merged into one that is too large")


_MERGE, _TIMESTAMP, _INT, _FLOAT = (
    f"tag:yaml.org,2002:{each}" for each in ("merge", "timestamp", "int", "float")
)

# Numbers as people count: 010 is not eight, 1:30 not ninety, nor 1:30.5 a number.
_COUNTED = {
    _INT: re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    _FLOAT: re.compile(
        r"([-+]?([0-9][0-9_]*)\.[0-9_]*([eE][-+][0-9]+)?"
        r"|\.[0-9][0-9_]*([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, _COUNTED.get(tag, rule)) for tag, rule in rules if tag != _TIMESTAMP]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
