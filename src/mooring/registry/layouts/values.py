"""JSON values in a store: read with checks, written so that people can read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from mooring.model import JSON
from mooring.registry.layouts.contract import Malformed

T = TypeVar("T")

Fields = dict[str, Any]
_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode(value: bytes) -> Fields:
    """The JSON object in a value. Raises `Malformed`."""
    try:
        found = _decoder.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(f"is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise Malformed(f"is no JSON object but {type(found).__name__}")
    return found


def encode(fields: Mapping[str, JSON]) -> bytes:
    return _encoder.encode(fields)


def get(fields: Fields, name: str, kind: Any, default: T) -> T:
    """A field of a kind, which is that of the default where there is one; the default where the
    field is missing or null. Raises `Malformed`."""
    value = fields.get(name)
    if value is None:
        return default
    try:
        converted: T = msgspec.convert(value, kind)
        return converted
    except msgspec.ValidationError as error:
        raise Malformed(f"has a wrong {name!r}: {error}") from error


def number(value: float) -> int | float:
    """A number as a person would write it: 1, not 1.0."""
    return int(value) if float(value).is_integer() else value
