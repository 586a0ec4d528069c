"""A tenant's document in a file or a text, YAML or JSON. Whatever is wrong with it, nothing of it
is shown that may be a secret."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from mooring.errors import InvalidRequest
from mooring.tenants.document import Document, parse

_MERGED = 10_000  # fields of a map into which others are merged: they multiply


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
    """YAML in which a key that stands twice is a mistake, and what looks like a date is text."""

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
