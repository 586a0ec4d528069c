"""JSON values of a registry: decoding with checks, and encoding for people to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.messages import Message, message, verbatim
from mooring.messages.validation import rejection
from mooring.model import JSON, NO_CONFIG, Config, Time

T = TypeVar("T")


class Malformed(InvalidRequest):
    """A value that cannot be read; the message names the reason."""


@contextmanager
def located(place: str | Message) -> Iterator[None]:
    """Prefix a `Malformed` error with the place of its value."""
    try:
        yield
    except Malformed as error:
        raise Malformed(message("record_malformed", place=place, problem=error)) from error


Fields = dict[str, Any]
_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode(value: bytes) -> Fields:
    """The JSON object in a value. Raises `Malformed`."""
    try:
        fields = _decoder.decode(value)
    except (ValueError, RecursionError) as error:  # invalid UTF-8 is not a `DecodeError`
        raise Malformed(rejection(error)) from error
    if not isinstance(fields, dict):
        raise Malformed(message("not_a_json_object", value=fields))
    return fields


def encode(fields: Mapping[str, JSON]) -> bytes:
    return _encoder.encode(fields)


def draining(status: bytes) -> bytes:
    """A status with the state `draining`; unchanged if it is not `up`, or cannot be read."""
    try:
        fields = decode(status)
    except Malformed:
        return status
    return encode({**fields, "state": "draining"}) if fields.get("state", "up") == "up" else status


def get(fields: Fields, name: str, kind: Any, default: T) -> T:
    """A field, converted to `kind`; the default if it is missing or null. Raises `Malformed`."""
    value = fields.get(name)
    if value is None:
        return default
    try:
        converted: T = msgspec.convert(value, kind)
        return converted
    except msgspec.ValidationError as error:
        field, problem = name, rejection(error, verbatim(quoted(value)))
        if isinstance(value, dict | list):  # it may be large, or contain secrets
            field, problem = "", rejection(error, name)
        raise Malformed(message("has_invalid_value", field=field, problem=problem)) from error


def number(value: float) -> int | float:
    """A number in its short form: 1, not 1.0."""
    return int(value) if float(value).is_integer() else value


def show_time(time: Time | None) -> str | None:
    return None if time is None else time.isoformat().replace("+00:00", "Z")


def config_fields(config: Config) -> dict[str, JSON]:
    """The operator overrides that are set. `decode_config` reads them."""
    fields: dict[str, JSON] = {
        "weight": None if config.weight is None else number(config.weight),
        "enabled": config.enabled,
        "zone": config.zone,
        "metadata": dict(config.metadata) or None,
    }
    present = {name: value for name, value in fields.items() if value is not None}
    return {**present, **config.values}


_CONFIG_FIELDS = ("weight", "enabled", "zone", "metadata")


def decode_config(value: bytes) -> Config:
    """The operator overrides of an instance or a service. Raises `Malformed`."""
    fields = decode(value)
    weight = get(fields, "weight", float, NO_CONFIG.weight)
    if weight is not None and not 0 <= weight < float("inf"):
        raise Malformed(message("has_negative_weight", weight=weight))
    return Config(
        weight=weight,
        enabled=get(fields, "enabled", bool, NO_CONFIG.enabled),
        zone=get(fields, "zone", str, NO_CONFIG.zone),
        metadata=get(fields, "metadata", dict[str, str], {}),
        values={name: value for name, value in fields.items() if name not in _CONFIG_FIELDS},
    )
