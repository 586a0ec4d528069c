"""Instances assembled from keys: no value of one stops the others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mooring.model import Config
from mooring.registry.kv.feeds import InstanceIndex
from mooring.registry.kv.layouts.layout import Assembly, File
from mooring.registry.kv.layouts.tree import Tree
from mooring.store import Entry

FOLDER = b"/registry/default/echo/"


def entry(name: bytes, value: bytes = b"{}") -> Entry:
    return Entry(FOLDER + name, value, 1, 1, 1)


class Stumbling(Tree):
    """A layout that raises on some values, which no layout should."""

    def assemble(self, service: str, id: str, files: Mapping[File, Entry]) -> Assembly:
        if id == "10.0.0.1:2":
            raise ZeroDivisionError("a mistake")
        return super().assemble(service, id, files)

    def decode_config(self, value: bytes) -> Config:
        if value == b"bad":
            raise ZeroDivisionError("a mistake")
        return super().decode_config(value)


@pytest.fixture
def assembly() -> InstanceIndex:
    assembly = InstanceIndex(Stumbling(), "echo")
    assembly.replace(entry(b"10.0.0.1:%d/data" % port) for port in (1, 2, 3))
    return assembly


def test_an_instance_that_a_layout_fails_on_is_a_problem_and_others_are_read(
    assembly: InstanceIndex,
):
    assert sorted(assembly.instances) == [("echo", "10.0.0.1:1"), ("echo", "10.0.0.1:3")]
    (problem,) = assembly.problems.values()
    assert problem.key == FOLDER + b"10.0.0.1:2/data"
    assert "is not valid: a mistake" in problem.reason


def test_an_instance_survives_a_broken_config(assembly: InstanceIndex):
    name = FOLDER + b"10.0.0.1:3/config"
    assembly.build(assembly.put(name, Entry(name, b"bad", 1, 1, 1)))
    assert ("echo", "10.0.0.1:3") in assembly.instances
    assert name in assembly.problems


def test_a_config_that_a_layout_fails_on_is_a_problem_and_has_no_effect(assembly: InstanceIndex):
    assembly.build(assembly.put(FOLDER + b"config", entry(b"config", b'{"weight":3}')))
    assembly.build(assembly.put(FOLDER + b"config", entry(b"config", b"bad")))
    assert [instance.weight for instance in assembly.instances.values()] == [1, 1]
    assert FOLDER + b"config" in assembly.problems
