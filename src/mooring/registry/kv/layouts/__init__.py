"""Layouts: pure codecs between instances and keys. `layout.py` defines the interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mooring.errors import InvalidRequest
from mooring.messages import message
from mooring.names import closest
from mooring.registry.kv.layouts.hprose import Hprose
from mooring.registry.kv.layouts.layout import Layout
from mooring.registry.kv.layouts.single_key import Endpoints, Plain
from mooring.registry.kv.layouts.tree import Tree

_WITHOUT_ROOT: Mapping[str, Callable[[], Layout]] = {"tree": Tree, "hprose": Hprose}
_WITH_ROOT: Mapping[str, Callable[[str], Layout]] = {"plain": Plain, "endpoints": Endpoints}


def layout_of(text: str) -> Layout:
    """The layout with a name: `tree`, `hprose`, `plain:ROOT/` or `endpoints:ROOT/`."""
    name, _, root = text.partition(":")
    if name in _WITH_ROOT:
        return _WITH_ROOT[name](root)
    if name not in _WITHOUT_ROOT:
        known = sorted([*_WITHOUT_ROOT, *_WITH_ROOT])
        raise InvalidRequest(
            message("layout_unknown", name=text, meant=closest(name, known), known=known)
        )
    if root:
        raise InvalidRequest(message("layout_with_root", name=name, root=root))
    return _WITHOUT_ROOT[name]()
