"""Converts settings to structs: unknown and renamed settings, and environment variables.

A shape is a msgspec struct; its fields are sections (structs), values, lists or maps. Errors name
settings by their dotted path.
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

from mooring.durations import parse_duration
from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.messages.validation import rejection
from mooring.names import nearest

log = logging.getLogger(__name__)

Seconds = Annotated[float, msgspec.Meta(gt=0, title="duration")]
"""A duration above 0: `10s` in the settings, float seconds in code."""

_KUBERNETES_VARIABLE = re.compile(
    r"_SERVICE_HOST=|_SERVICE_PORT(_\w+)?=|_PORT=\w+://|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?="
)
"""Matches the variables with which Kubernetes describes a Service to every pod."""

SettingsTree = dict[str, Any]
T = TypeVar("T")


def convert(root: str, settings: object, shape: type[T]) -> T:
    """The settings as a struct. Raises `InvalidRequest`."""
    return _convert(root, _seconds_converted(root, settings, shape), shape)


def check_names(path: str, settings: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise `InvalidRequest` for the first unknown name."""
    known = list(known)
    for name in settings:
        if name not in known:
            raise InvalidRequest(f"unknown setting {_join(path, name)}{nearest(str(name), known)}")


def renamed(root: str, settings: object, renames: Mapping[str, str]) -> SettingsTree:
    """A copy of the settings in which the current names replace old ones."""
    sections: SettingsTree = {
        name: dict(section) if isinstance(section, Mapping) else section
        for name, section in _mapping(root, settings).items()
    }
    for old, current in renames.items():
        (section_name, old_name), (_, current_name) = old.split("."), current.split(".")
        section = sections.get(section_name)
        if not isinstance(section, dict) or old_name not in section:
            continue
        if current_name in section:
            raise InvalidRequest(
                f"{root}.{old} is the old name of {root}.{current}: both are set, keep the second"
            )
        log.warning("%s.%s is now called %s.%s: rename it", root, old, root, current)
        section[current_name] = section.pop(old_name)
    return sections


def from_environment(
    root: str, shape: type[msgspec.Struct], environ: Mapping[str, str], renames: Mapping[str, str]
) -> SettingsTree:
    """The settings in the variables `MOORING_{ROOT}_{SECTION}_{NAME}`, by section and name.

    Ignores `MOORING_{ROOT}` itself, and the variables of a Kubernetes Service `mooring-{root}`.
    Raises `InvalidRequest` for any other unknown variable.
    """
    known = {
        _variable_name(root, section, name): (section, name, kind)
        for section, inner in _fields(shape)
        for name, kind in _fields(inner)
    }
    renamed_variables = {
        _variable_name(root, *old.split(".")): _variable_name(root, *current.split("."))
        for old, current in renames.items()
    }
    settings: SettingsTree = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(_variable_name(root, "")):
            continue
        current = renamed_variables.get(variable, variable)
        if current not in known:
            if _KUBERNETES_VARIABLE.search(f"{variable}={text}"):
                continue
            raise InvalidRequest(f"unknown variable {variable}{nearest(variable, known)}")
        if current != variable:
            log.warning("%s is now called %s: rename it", variable, current)
            if current in environ:
                raise InvalidRequest(
                    f"{variable} is the old name of {current}: both are set, keep the second"
                )
        section, name, kind = known[current]
        settings.setdefault(section, {})[name] = _read(variable, text, kind)
    return settings


def overlay(settings: SettingsTree, overrides: SettingsTree) -> None:
    """Merge `overrides` into the settings, section by section."""
    for name, section in overrides.items():
        below = settings.get(name)
        settings[name] = {**below, **section} if isinstance(below, Mapping) else section


def _seconds_converted(path: str, value: object, kind: Any) -> object:
    """The value with durations as seconds. Raises `InvalidRequest` for unknown names."""
    if Seconds in (kind, *typing.get_args(kind)) and typing.get_origin(kind) is not dict:
        return None if value is None and kind != Seconds else _seconds(path, value)
    if typing.get_origin(kind) is dict:
        (_, inner) = typing.get_args(kind)
        converted = {
            str(name): _seconds_converted(_join(path, name), item, inner)
            for name, item in _mapping(path, value).items()
        }
        for name, item in converted.items():
            _convert(_join(path, name), item, inner)  # here, so that the error names the key
        return converted
    if not (fields := dict(_fields(kind))):
        return value
    mapping = _mapping(path, value)
    check_names(path, mapping, fields)
    return {
        name: _seconds_converted(_join(path, name), v, fields[name]) for name, v in mapping.items()
    }


def _convert(path: str, value: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(rejection(error, path, joint=".")) from error


def _fields(kind: Any) -> Iterator[tuple[str, Any]]:
    """The names and types of the fields of a struct or a dataclass; nothing for other types."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        for field, name in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
            yield name, hints[field]
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        yield from typing.get_type_hints(kind).items()


def _mapping(path: str, value: object) -> Mapping[str, object]:
    """The settings of a section. YAML parses an empty section as None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{path} must hold settings by name, not {quoted(value)}")
    return value


def _seconds(path: str, value: object) -> float:
    if not isinstance(value, str):
        raise InvalidRequest(
            f"{path}: {quoted(value)} is not a duration: write it with its unit, like 10s"
        )
    try:
        seconds = parse_duration(value.strip())
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from error
    if seconds <= 0:
        raise InvalidRequest(f"{path}: {value} is too short: it must be above 0")
    return seconds


def _read(variable: str, text: str, kind: Any) -> object:
    """The value of a variable: lists are separated by commas, maps are JSON."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        return [item.strip() for item in text.split(",") if item.strip()]
    if origin is not dict:
        return text.strip()
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"the variable {variable} must hold a map as JSON: {error}") from error


def _variable_name(root: str, *names: str) -> str:
    return "_".join(("MOORING", root, *names)).upper().replace("-", "_")


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
