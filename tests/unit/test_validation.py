"""Validation errors are plain words, without the names of Python types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
import yaml

from mooring.formatting import yaml_in_words
from mooring.messages import message
from mooring.messages.validation import rejection


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    name: Annotated[str, msgspec.Meta(max_length=3)] = ""
    weight: float | None = None
    state: Literal["up", "down"] = "up"
    labels: dict[str, int] = {}
    enabled: bool = True


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b'{"port": "a"}', "the body: port must be a whole number, not text"),
        (b'{"port": 70000}', "the body: port must be at most 65535"),
        (b"{}", "the body has no port"),
        (b'{"port": 1, "prot": 1}', "the body has an unknown field 'prot'"),
        (b'{"port": 1, "name": "long"}', "the body: name must have at most 3 characters"),
        (b'{"port": 1, "weight": "x"}', "the body: weight must be a number or null, not text"),
        (b'{"port": 1, "state": "x"}', "the body: state 'x' is not an allowed value"),
        (
            b'{"port": 1, "state": "\\u001b\\u00ff"}',
            "the body: state '<U+001B>ÿ' is not an allowed value",
        ),
        (b'{"port": 1, "\\u001b": 1}', "the body has an unknown field '<U+001B>'"),
        (
            b'{"port": 1, "enabled": 1}',
            "the body: enabled must be true or false, not a whole number",
        ),
        (
            b'{"port": 1, "labels": {"a": "b"}}',
            "the body: labels[...] must be a whole number, not text",
        ),
        (b"[]", "the body must be an object, not a list"),
        (b'{"port": 1.5}', "the body: port must be a whole number, not a decimal number"),
        (b'{"name": 1.5}', "the body: name must be text, not a decimal number"),
        (
            b'{"port": 1',
            "the body is not valid JSON: it ends too early or contains an unpaired surrogate",
        ),
        (
            b'{"name": "\\ud800"}',
            "the body is not valid JSON: it ends too early or contains an unpaired surrogate",
        ),
        (b'{"name": "\xff"}', "the body is not UTF-8"),
    ],
)
def test_an_invalid_value_is_explained_in_words(value: bytes, words: str):
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as caught:
        msgspec.json.decode(value, type=Shape)
    assert rejection(caught.value, message("the_body")).text == words


@pytest.mark.parametrize("value", [True, 1, 1.5, "x", None, [1], {"a": 1}])
@pytest.mark.parametrize("kind", [bool, int, float, str, list[int], dict[str, int], Shape])
def test_no_backtick_of_msgspec_is_left(value: Any, kind: Any):
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        words = rejection(error, "it").text
        assert "`" not in words
        assert "Expected" not in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "expected the node content, but found '<stream end>', line 1, column 5"),
        ("a: 'hunter2", "found unexpected end of stream, line 1, column 12"),
        ("a: !hunter2 1", "could not determine a constructor for the tag …, line 1, column 4"),
        ("a: \x00", "unacceptable character #x0000: special characters are not allowed"),
        ("a: \tb", "found character … that cannot start any token, line 1, column 4"),
    ],
)
def test_why_a_text_is_not_yaml(text: str, words: str):
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.safe_load(text)
    assert yaml_in_words(caught.value) == words
