"""Settings by their dotted names: unknown ones, renamed ones, and those of the environment.

A shape is a msgspec struct whose fields are sections (structs), values, lists or maps.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from mooring import durations
from mooring.errors import InvalidRequest
from mooring.formatting import in_words, quoted
from mooring.names import nearest

log = logging.getLogger(__name__)

Seconds = Annotated[float, msgspec.Meta(gt=0, title="duration")]
"""A duration above 0: `10s` in the settings, float seconds in code."""

_OF_A_SERVICE = re.compile(
    r"_SERVICE_HOST=|_SERVICE_PORT(_\w+)?=|_PORT=\w+://|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?="
)
"""How Kubernetes ends the names of the variables in which it tells every pod of a Service."""

Tree = dict[str, Any]
T = TypeVar("T")


def convert(root: str, told: object, shape: type[T]) -> T:
    """What was told as a struct, with every error naming the setting by its dotted path."""
    return _typed(root, _plain(root, told, shape), shape)


def check_names(path: str, told: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise `InvalidRequest` for the first name that is not known."""
    known = list(known)
    for name in told:
        if name not in known:
            raise InvalidRequest(f"{_join(path, name)} is no setting{nearest(str(name), known)}")


def renamed(root: str, told: object, renames: Mapping[str, str]) -> Tree:
    """A copy of what was told in which each old name is replaced by the one of now."""
    sections: Tree = {
        name: dict(section) if isinstance(section, Mapping) else section
        for name, section in _mapping(root, told).items()
    }
    for old, now in renames.items():
        (section, name), (_, name_now) = old.split("."), now.split(".")
        inside = sections.get(section)
        if not isinstance(inside, dict) or name not in inside:
            continue
        if name_now in inside:
            raise InvalidRequest(
                f"{root}.{old} is the old name of {root}.{now}: both are told, keep the second"
            )
        log.warning("%s.%s is now called %s.%s: rename it", root, old, root, now)
        inside[name_now] = inside.pop(name)
    return sections


def from_environment(
    root: str, shape: type[msgspec.Struct], environ: Mapping[str, str], renames: Mapping[str, str]
) -> Tree:
    """What the variables `MOORING_{ROOT}_{SECTION}_{NAME}` tell, by section and name.

    `MOORING_{ROOT}` itself is not one of them, nor is what Kubernetes tells of a Service called
    `mooring-{root}`. Raises `InvalidRequest` for one that is unknown.
    """
    known = {
        _variable(root, section, name): (section, name, kind)
        for section, inner in _fields(shape)
        for name, kind in _fields(inner)
    }
    old = {_variable(root, *old.split(".")): now for old, now in renames.items()}
    told: Tree = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(_variable(root, "")):
            continue
        name_now = variable
        if variable in old:
            name_now = _variable(root, *old[variable].split("."))
            log.warning("%s is now called %s: rename it", variable, name_now)
        if name_now not in known:
            if _OF_A_SERVICE.search(f"{variable}={text}"):
                continue
            raise InvalidRequest(f"the variable {variable} is no setting{nearest(variable, known)}")
        if name_now != variable and name_now in environ:
            raise InvalidRequest(
                f"{variable} is the old name of {name_now}: both are set, keep the second"
            )
        section, name, kind = known[name_now]
        told.setdefault(section, {})[name] = _read(variable, text, kind)
    return told


def overlay(told: Tree, over: Tree) -> None:
    """Put the settings of `over` over those in `told`, section by section."""
    for section, settings in over.items():
        below = told.get(section)
        told[section] = {**below, **settings} if isinstance(below, Mapping) else settings


def _plain(path: str, told: object, kind: Any) -> object:
    """What was told with durations as seconds, and no name in it that the shape does not have."""
    if Seconds in (kind, *typing.get_args(kind)) and typing.get_origin(kind) is not dict:
        return None if told is None and kind != Seconds else _seconds(path, told)
    if typing.get_origin(kind) is dict:
        (_, inner) = typing.get_args(kind)
        items = {str(name): value for name, value in _mapping(path, told).items()}
        plain = {name: _plain(_join(path, name), value, inner) for name, value in items.items()}
        for name, value in plain.items():
            _typed(_join(path, name), value, inner)  # here, where the error can name the key
        return plain
    if not (fields := dict(_fields(kind))):
        return told
    mapping = _mapping(path, told)
    check_names(path, mapping, fields)
    return {name: _plain(_join(path, name), v, fields[name]) for name, v in mapping.items()}


def _typed(path: str, plain: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(plain, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(in_words(error, path, joint=".")) from error


def _fields(kind: Any) -> Iterator[tuple[str, Any]]:
    """The names and types of what a struct or a dataclass holds; nothing for a plain value."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        for field, name in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
            yield name, hints[field]
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        yield from typing.get_type_hints(kind).items()


def _mapping(path: str, told: object) -> Mapping[str, object]:
    """A section; one that is empty in YAML is None."""
    if told is None:
        return {}
    if not isinstance(told, Mapping):
        raise InvalidRequest(f"{path} must hold settings by name, not {quoted(told)}")
    return told


def _seconds(path: str, told: object) -> float:
    if not isinstance(told, str):
        raise InvalidRequest(
            f"{path}: {quoted(told)} is not a duration: write it with its unit, like 10s"
        )
    try:
        seconds = durations.parse(told.strip())
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from error
    if seconds <= 0:
        raise InvalidRequest(f"{path}: {told} is too short: it must be above 0")
    return seconds


def _read(variable: str, text: str, kind: Any) -> object:
    """The text of a variable: lists with commas, maps as JSON, all else as it stands."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        return [item.strip() for item in text.split(",") if item.strip()]
    if origin is not dict:
        return text.strip()
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"the variable {variable} must hold a map as JSON: {error}") from error


def _variable(root: str, *names: str) -> str:
    return "_".join(("MOORING", root, *names)).upper().replace("-", "_")


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
