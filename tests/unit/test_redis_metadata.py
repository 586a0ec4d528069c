"""Metadata and metrics of an instance are read back as they were written."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest
from mooring.messages import message
from mooring.model import JSON, Instance, Status, check_json
from mooring.registry.redis import layout as fields

names = st.sampled_from(["_", ".", "a_b", "a.b", "a__b", "metadata_", "Json", "名", "é ü", ""])
numbers = st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
plain = st.none() | st.booleans() | numbers | texts
trees = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | texts, inner, max_size=4),
    max_leaves=12,
)
metric_maps = st.dictionaries(names | texts, trees, max_size=5)


def instance_of(metadata: dict[str, str], metrics: dict[str, JSON]) -> Instance | None:
    """The instance, or None if the model does not allow it."""
    with contextlib.suppress(InvalidRequest):
        check_json(message("what_metrics", service="a"), metrics)
        return Instance("a", "10.0.0.1", 1, metadata=metadata, status=Status(metrics=metrics))
    return None


@given(st.dictionaries(names | texts, texts, max_size=5), metric_maps)
def test_metadata_and_metrics_are_read_as_written(
    metadata: dict[str, str], metrics: dict[str, JSON]
):
    instance = instance_of(metadata, metrics)
    if instance is None:
        return
    read = fields.decode("a", instance.id, fields.encode(instance))
    assert read.metadata == metadata
    assert read.status.metrics == metrics
    assert [type(value) for value in read.status.metrics.values()] == [
        type(value) for value in metrics.values()
    ]


def test_types_and_digits_survive():
    metrics: dict[str, JSON] = {
        "big": 123456789012345,
        "bigger": 9007199254740993,
        "none": None,
        "yes": True,
        "one": 1,
        "half": 0.5,
        "nested": {"a.b": {"c_d": [1, None, {"e": "é"}]}},
    }
    instance = Instance("a", "10.0.0.1", 1, status=Status(metrics=metrics))
    written = fields.encode(instance)
    assert fields.decode("a", instance.id, written).status.metrics == metrics
    assert written["metadata_big"] == "123456789012345"
    assert written["metadata_nested_a.b_c_d"] == '[1,null,{"e":"é"}]'
    assert written["metadata_yes"] == "true"
    assert "table: 0x" not in str(written)
