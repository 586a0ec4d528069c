"""Hashes in Redis as instances, and the brake's: whatever lies there, it is read or told."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest
from mooring.registry.evictions import Brake
from mooring.registry.json_values import Malformed
from mooring.registry.redis import layout as fields
from mooring.registry.redis.layout import RedisKeys
from mooring.registry.redis.liveness import brake_of

NUMBERS = ["9" * 5000, "9" * 400, "inf", "nan", "-1", "1e5", "²", "\\xff"]

anything = st.text(max_size=8) | st.binary(max_size=8).map(
    lambda junk: junk.decode(errors="backslashreplace")
)


@pytest.mark.parametrize("port", NUMBERS)
def test_a_port_that_is_none_is_malformed(port: str):
    with pytest.raises(InvalidRequest, match="port"):
        fields.decode("a", "u", {"host": "10.0.0.1", "port": port})


@pytest.mark.parametrize("moment", ["9" * 400, "9" * 20, "inf"])
def test_a_time_that_is_none_is_malformed(moment: str):
    told = {"host": "10.0.0.1", "port": "80", "registrationTime": moment}
    with pytest.raises(InvalidRequest, match="registrationTime"):
        fields.decode("a", "u", told)


@given(st.dictionaries(st.sampled_from(fields.READ), st.sampled_from(NUMBERS) | anything))
def test_garbage_never_breaks_it(told: dict[str, str]):
    with contextlib.suppress(InvalidRequest):
        fields.decode("a", "u", {"host": "10.0.0.1", "port": "80", **told})


def test_json_of_bytes_that_are_no_text_is_kept_as_it_can_be_shown():
    (told,) = fields.from_pairs([b"metadataJson", b'{"a":"\xff"}']).values()
    with pytest.raises(InvalidRequest, match="metadataJson"):
        fields.decode("a", "u", {"host": "10.0.0.1", "port": "80", "metadataJson": told})


@pytest.mark.parametrize("number", NUMBERS)
def test_a_brake_with_a_number_that_is_none_holds_all_the_same(number: str):
    told = {"state": "holding", "silent": number, "total": "3", "since": "5.0"}
    brake = brake_of(told)
    assert brake is not None
    assert brake == Brake(brake.silent, 3, 5, 0)


def test_metadata_of_others_is_read_as_text():
    told = {"host": "h", "port": "1", "metadataJson": '{"a":"b","n":1,"deep":{"x":[null,true]}}'}
    assert fields.decode("echo", "u", told).metadata == {
        "a": "b",
        "n": "1",
        "deep": '{"x":[null,true]}',
    }


def test_a_prefix_that_could_be_taken_for_another_registry_is_refused():
    for prefix in ("services", "a:services"):
        with pytest.raises(InvalidRequest, match="cannot end with"):
            RedisKeys(prefix)


def test_half_a_character_makes_no_record():
    with pytest.raises(Malformed, match="metadataJson"):
        fields.decode("echo", "u", {"host": "h", "port": "1", "metadataJson": '{"a":"\udcff"}'})
