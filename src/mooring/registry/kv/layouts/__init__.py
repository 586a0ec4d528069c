"""Layouts: pure codecs between instances and keys. `contract.py` says what one is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.names import nearest
from mooring.registry.contract import Problem
from mooring.registry.kv.layouts.hprose import Hprose
from mooring.registry.kv.layouts.layout import CARRIES, Assembly, File, Layout, Location
from mooring.registry.kv.layouts.rooted import Endpoints, Plain
from mooring.registry.kv.layouts.tree import Tree

__all__ = [
    "CARRIES",
    "Assembly",
    "Endpoints",
    "File",
    "Hprose",
    "Layout",
    "Location",
    "Plain",
    "Problem",
    "Tree",
    "layout_of",
]

_UNROOTED: Mapping[str, Callable[[], Layout]] = {"tree": Tree, "hprose": Hprose}
_ROOTED: Mapping[str, Callable[[str], Layout]] = {"plain": Plain, "endpoints": Endpoints}


def layout_of(text: str) -> Layout:
    """The layout that a word names: `tree`, `hprose`, `plain:ROOT/`, `endpoints:ROOT/`."""
    name, _, root = text.partition(":")
    if name in _ROOTED:
        return _ROOTED[name](root)
    if name not in _UNROOTED:
        raise InvalidRequest(f"no layout {quoted(text)}{nearest(name, [*_UNROOTED, *_ROOTED])}")
    if root:
        raise InvalidRequest(
            f"the layout {quoted(name)} has a root of its own: leave {quoted(root)} out"
        )
    return _UNROOTED[name]()
