"""Hashes in Redis as instances and as the eviction brake: any content is read or reported."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest
from mooring.registry.evictions import Brake
from mooring.registry.json_values import Malformed
from mooring.registry.redis import layout as fields
from mooring.registry.redis.consumer_liveness import brake_of
from mooring.registry.redis.layout import RedisKeys

NUMBERS = ["9" * 5000, "9" * 400, "inf", "nan", "-1", "1e5", "²", "\\xff"]

anything = st.text(max_size=8) | st.binary(max_size=8).map(
    lambda junk: junk.decode(errors="backslashreplace")
)


@pytest.mark.parametrize("port", NUMBERS)
def test_an_invalid_port_is_malformed(port: str):
    with pytest.raises(InvalidRequest, match="port"):
        fields.decode("a", "u", {"host": "10.0.0.1", "port": port})


@pytest.mark.parametrize("moment", ["9" * 400, "9" * 20, "inf"])
def test_an_invalid_time_is_malformed(moment: str):
    hash = {"host": "10.0.0.1", "port": "80", "registrationTime": moment}
    with pytest.raises(InvalidRequest, match="registrationTime"):
        fields.decode("a", "u", hash)


@given(st.dictionaries(st.sampled_from(fields.READ), st.sampled_from(NUMBERS) | anything))
def test_garbage_raises_only_invalid_request(hash: dict[str, str]):
    with contextlib.suppress(InvalidRequest):
        fields.decode("a", "u", {"host": "10.0.0.1", "port": "80", **hash})


def test_json_that_is_not_utf_8_is_kept_for_display():
    (text,) = fields.from_pairs([b"metadataJson", b'{"a":"\xff"}']).values()
    with pytest.raises(InvalidRequest, match="metadataJson"):
        fields.decode("a", "u", {"host": "10.0.0.1", "port": "80", "metadataJson": text})


@pytest.mark.parametrize("number", NUMBERS)
def test_a_brake_with_an_invalid_number_still_holds(number: str):
    hash = {"state": "holding", "silent": number, "total": "3", "since": "5.0"}
    brake = brake_of(hash)
    assert brake is not None
    assert brake == Brake(brake.silent, 3, 5, 0)


def test_structured_metadata_of_other_clients_is_read_as_text():
    hash = {"host": "h", "port": "1", "metadataJson": '{"a":"b","n":1,"deep":{"x":[null,true]}}'}
    assert fields.decode("echo", "u", hash).metadata == {
        "a": "b",
        "n": "1",
        "deep": '{"x":[null,true]}',
    }


def test_a_prefix_that_could_be_mistaken_for_another_registry_is_refused():
    for prefix in ("services", "a:services"):
        with pytest.raises(InvalidRequest, match="cannot end with"):
            RedisKeys(prefix)


def test_half_a_character_is_not_registered():
    with pytest.raises(Malformed, match="metadataJson"):
        fields.decode("echo", "u", {"host": "h", "port": "1", "metadataJson": '{"a":"\udcff"}'})
